"""A queue from one store to another: with its delayed, its dead and its logged messages.

The source stands still meanwhile (it is paused), and so does the target. Each state of each queue
is read by one task, in the order of its line, and written as it is read: messages keep their order,
and a log only grows at its end. An id that the target holds already stays as it is, so that what
was killed is run again. When all of it is there, both sides are counted and summed up; only then
may the target be worked.

A move then takes away from the source, message by message, what the target has, and deletes the
source only if nothing is left in it: what somebody sent meanwhile is not lost, but carried by the
next run.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace
from pyspark.sql import SparkSession

from holdfast.app import Holdfast, connect
from holdfast.errors import FailedPrecondition, InvalidArgument, QueueNotFound
from holdfast.model.message import Finished, Message, dlq_of
from holdfast.model.moves import Settled, State
from holdfast.model.queues import QueueSpec
from holdfast.queue import archives
from holdfast.queue.context import Context
from holdfast.rules.lifecycle import moved_away
from holdfast.spark import sessions
from holdfast.spark.connections import context, patiently
from holdfast.spark.lake.archive import Progress, identity, named, reached
from holdfast.spark.options import STORE_TIMEOUT_S
from holdfast.stores.contract import Entry, View, held_in, spec_of

KIND = "copy"
PAGE = 500
NOTES_MAX = 10_000
STATES = (State.READY, State.DELAYED, State.LOG)
_64 = 1 << 64


class NotEqual(FailedPrecondition):
    """What arrived is not what was sent: the target stays paused, the source as it is."""


class Sum(msgspec.Struct, frozen=True):
    """What a queue holds in one state: how much, and a sum over all of it, in any order."""

    queue: str
    state: str
    count: int = 0
    checksum: int = 0
    error: str = ""


class Copied(msgspec.Struct, frozen=True):
    source: str
    target: str
    queues: list[str]
    sums: list[Sum]
    """Of each queue and state, the same on both sides."""
    moved: bool
    """The source is gone; else it is there, and paused."""

    def count(self, state: State, *, dead: bool = False) -> int:
        wanted = [s for s in self.sums if s.state == state and s.queue.endswith(".dlq") == dead]
        return sum(one.count for one in wanted)


class _Note(msgspec.Struct, frozen=True):
    """In the target, while a copy is not finished: whose it is, and how it was worked before."""

    source: str
    paused: bool
    at: int
    moving: bool = False
    """All was found equal: from now on the source gets emptier."""


class _Task(msgspec.Struct, frozen=True):
    source: str
    target: str
    queue: str
    state: State
    now: int
    """The same for all: what is due then is ready on both sides."""


def copy(
    source: Holdfast | str,
    target: Holdfast | str,
    queues: Sequence[str] | None = None,
    *,
    move: bool = False,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy queues with all they hold; all of them, or those that are named.

    The source is left as it is, but paused; `move` deletes it when what arrived is equal. Run it
    again if it was killed. Leases must have ended: stop the workers first.
    """
    if not isinstance(move, bool):
        raise InvalidArgument("move", f"must be true or false, not {move!r}")
    here, there = _opened("source", source), _opened("target", target)
    try:
        urls = reached(here), reached(there)
        if identity(urls[0]) == identity(urls[1]):
            raise InvalidArgument("target", "is the source itself")
        spark = spark or sessions.session()
        job = _Copy(spark, here.context, there.context, urls)
        return job.go(queues, move, progress or (lambda _: None))
    finally:
        for hf, given in ((here, source), (there, target)):
            if hf is not given:
                hf.close()


def _opened(field: str, given: Any) -> Holdfast:
    if isinstance(given, Holdfast):
        return given
    if not isinstance(given, str) or not given:
        raise InvalidArgument(field, f"must be a connection or a URL, not {given!r}")
    return connect(given)


class _Copy:
    def __init__(
        self, spark: SparkSession, source: Context, target: Context, urls: tuple[str, str]
    ) -> None:
        self._spark = spark
        self._source = source
        self._target = target
        self._urls = urls
        self._name = f"copy of {identity(urls[0])}"

    def go(self, queues: Sequence[str] | None, move: bool, tell: Progress) -> Copied:
        ended = self._end_moves(queues)
        asked = queues if queues is None else [name for name in queues if name not in ended]
        homes = [] if asked == [] else named(self._source, asked)
        sums = self._copy(homes, move, tell) if homes else []
        here, there = map(identity, self._urls)
        return Copied(here, there, [*ended, *homes], sums, move or bool(ended and not homes))

    def _copy(self, homes: list[str], move: bool, tell: Progress) -> list[Sum]:
        names = [name for home in homes for name in (home, dlq_of(home))]
        tell("pausing")
        notes = {home: self._prepare(home) for home in homes}
        for at in (self._source, self._target):  # retention waits for the verdict
            for name in names:
                archives.note(at, name, self._name, 0)
        now = self._source.clock.now()
        tasks = [_Task(*self._urls, name, state, now) for name in names for state in STATES]
        tell(f"copying {len(names)} queues")
        _whole(self._run(tasks, _carry))
        tell("comparing")
        sent = self._summed(tasks, 0)
        if not all(note.moving for note in notes.values()):
            self._compare(sent, self._summed(tasks, 1))
        if move:
            tell("emptying the source")
            self._empty(notes, tasks)
        for at in (self._source, self._target):
            archives.give_up(at, self._name, names)
        for home, note in notes.items():
            self._release(home, note)
        return sent

    def _empty(self, notes: dict[str, _Note], tasks: list[_Task]) -> None:
        for home, note in notes.items():
            self._write(home, replace(note, moving=True))
        _whole(self._run([task for task in tasks if task.state is not State.LOG], _take_away))
        for home in notes:
            if not self._source.store.delete_queues([home, dlq_of(home)], only_empty=True):
                raise FailedPrecondition(
                    f"{home}: messages came in meanwhile, and are still there: stop who sends"
                    " them, and move it again"
                )

    def _end_moves(self, queues: Sequence[str] | None) -> list[str]:
        """Of a move that was killed when its source was gone already: only the target waits."""
        ended: list[str] = []
        for record in self._target.store.records(KIND, limit=NOTES_MAX):
            note, home = _note(record.value), record.name
            mine = note.source == self._name and (queues is None or home in queues)
            if mine and note.moving and spec_of(self._source.store, home) is None:
                archives.give_up(self._target, self._name, [home, dlq_of(home)])
                self._release(home, note)
                ended.append(home)
        return ended

    def _prepare(self, home: str) -> _Note:
        """Both sides stand still, and the target is this copy's."""
        noted = self._target.store.records(KIND, prefix=home, limit=100)
        mine = next((_note(r.value) for r in noted if r.name == home), None)
        there = spec_of(self._target.store, home)
        if there is not None and (mine is None or mine.source != self._name):
            raise FailedPrecondition(
                f"{home!r} is in the target already, and no copy of this source: delete it first"
            )
        paused = self._pause(home, mine)
        if mine is None:
            mine = _Note(self._name, paused, self._target.clock.now())
            self._write(home, mine)
        if there is None:
            self._make(home)
        return mine

    def _write(self, home: str, note: _Note) -> None:
        value, now = msgspec.json.encode(note), self._target.clock.now()
        self._target.store.put_record(KIND, home, value, None, now)

    def _pause(self, home: str, mine: _Note | None) -> bool:
        """Nothing may be leased. Who had paused it before is asked nothing again."""
        spec = _must(self._source, home)
        if not spec.paused:
            self._put(self._source, [replace(spec, paused=True)])
        stats = self._source.store.stats([home, dlq_of(home)], self._source.clock.now())
        leased = sum(one.leased for one in stats)
        if leased:
            if not spec.paused:
                self._put(self._source, [replace(_must(self._source, home), paused=False)])
            raise FailedPrecondition(
                f"{home}: {leased} messages are leased: stop who works them, then copy"
            )
        return spec.paused if mine is None else mine.paused

    def _make(self, home: str) -> None:
        """With the same partitions and the same rules, and paused."""
        specs = [_must(self._source, name) for name in (home, dlq_of(home))]
        fresh = [replace(spec, revision=0, paused=True) for spec in specs]
        self._put(self._target, fresh)

    def _put(self, at: Context, specs: list[QueueSpec]) -> None:
        if not at.store.put_queues(specs):
            raise FailedPrecondition(f"{specs[0].name} was changed meanwhile: try again")

    def _release(self, home: str, note: _Note) -> None:
        """The target is as the source was."""
        specs = [_must(self._target, name) for name in (home, dlq_of(home))]
        dead = spec_of(self._source.store, dlq_of(home))
        flags = (note.paused, dead.paused if dead else False)
        self._put(
            self._target, [replace(s, paused=flag) for s, flag in zip(specs, flags, strict=True)]
        )
        self._target.store.put_record(KIND, home, None, None, self._target.clock.now())

    def _run(self, tasks: list[_Task], act: Callable[[_Task], Sum]) -> list[Sum]:
        rows = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(act).collect()
        return list(rows)

    def _summed(self, tasks: list[_Task], side: int) -> list[Sum]:
        """By pieces, in parallel; added up here."""
        at = (self._source, self._target)[side]
        pieces: list[tuple[_Task, int, str | None, str | None]] = []
        for task in tasks:
            view = View(task.queue, task.state)
            cuts = at.store.split(view, 4, task.now)
            for after, to in zip([None, *cuts], [*cuts, None], strict=True):
                pieces.append((task, side, after, to))
        context_of = self._spark.sparkContext
        found = context_of.parallelize(pieces, len(pieces)).map(_sum_of).collect()
        total = {(t.queue, t.state): Sum(t.queue, t.state) for t in tasks}
        for one in _whole(found):
            key = (one.queue, State(one.state))
            so_far = total[key]
            total[key] = replace(
                so_far,
                count=so_far.count + one.count,
                checksum=(so_far.checksum + one.checksum) % _64,
            )
        return list(total.values())

    def _compare(self, sent: list[Sum], arrived: list[Sum]) -> None:
        wrong = [
            f"{a.queue} {a.state}: {a.count} sent, {b.count} arrived"
            + ("" if a.count != b.count else ", with other contents")
            for a, b in zip(sent, arrived, strict=True)
            if a != b
        ]
        if wrong:
            raise NotEqual("; ".join(wrong))


_note = msgspec.json.Decoder(_Note).decode


def _must(at: Context, name: str) -> QueueSpec:
    spec = at.spec(name)
    if spec is None:
        raise QueueNotFound(f"no queue {name!r}: it vanished meanwhile")
    return spec


def _whole(sums: list[Sum]) -> list[Sum]:
    for one in sums:
        if one.error:
            raise QueueNotFound(one.error)
    return sums


# On executors


def _carry(task: _Task) -> Sum:
    """One state of one queue, page by page, in its order."""
    source = context(task.source, timeout=STORE_TIMEOUT_S)
    target = context(task.target, timeout=STORE_TIMEOUT_S)
    count = 0
    try:
        for entries in _pages(source, View(task.queue, task.state), None, task.now):
            patiently(
                lambda entries=entries: _put(target, task, entries), "copying", STORE_TIMEOUT_S
            )
            count += len(entries)
    except QueueNotFound as error:
        return Sum(task.queue, task.state, error=str(error))
    return Sum(task.queue, task.state, count)


def _put(target: Context, task: _Task, entries: list[Entry]) -> None:
    if task.state is State.LOG:
        rows = [entry.finished for entry in entries if entry.finished is not None]
        target.store.restore(task.queue, rows, task.now)
    else:
        target.store.enqueue([entry.message for entry in entries], task.now)


def _take_away(task: _Task) -> Sum:
    """What the target has, word for word, leaves the source; what came since stays."""
    source = context(task.source, timeout=STORE_TIMEOUT_S)
    target = context(task.target, timeout=STORE_TIMEOUT_S)
    count = 0
    try:
        for entries in _pages(source, View(task.queue, task.state), None, task.now):
            ids = [entry.message.id for entry in entries]
            there = {m.id: _digest(m) for m in held_in(target.store, task.queue, ids)}
            equal = [e for e in entries if there.get(e.message.id) == _digest(e.message)]
            moves = [moved_away(task.queue, e.message.id, e.place) for e in equal]
            count += source.store.settle(moves, task.now).count(Settled.APPLIED)
    except QueueNotFound as error:
        return Sum(task.queue, task.state, error=str(error))
    return Sum(task.queue, task.state, count)


def _pages(at: Context, view: View, after: str | None, now: int) -> Iterator[list[Entry]]:
    while True:
        page = patiently(
            lambda after=after: at.store.browse(view, after, PAGE, now), "reading", STORE_TIMEOUT_S
        )
        if page.entries:
            yield page.entries
        after = page.after
        if after is None:
            return


def _sum_of(piece: tuple[_Task, int, str | None, str | None]) -> Sum:
    task, side, after, to = piece
    at = context((task.source, task.target)[side], timeout=STORE_TIMEOUT_S)
    count = checksum = 0
    try:
        for entries in _pages(at, View(task.queue, task.state, to=to), after, task.now):
            count += len(entries)
            checksum += sum(_digest(entry.message, entry.finished) for entry in entries)
    except QueueNotFound as error:
        return Sum(task.queue, task.state, error=str(error))
    return Sum(task.queue, task.state, count, checksum % _64)


_encode = msgspec.json.Encoder(order="deterministic").encode


def _digest(message: Message, end: Finished | None = None) -> int:
    """Of all that a store keeps of a message, but for its place in line, which is the store's."""
    backoff = None if message.backoff is None else message.backoff.to_dict()
    said = (
        replace(message, body=b"", backoff=None, duplicate=False),
        backoff,
        None if end is None else replace(end, message=None),  # pyright: ignore
    )
    return int.from_bytes(blake2b(_encode(said) + b"\0" + message.body, digest_size=8).digest())
