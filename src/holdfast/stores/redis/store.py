"""Redis: every move of a message is one script, on keys of one slot, in bounded batches.

What is enqueued lies in a stream for each partition and priority, read by a consumer group; what
comes back, or was delayed, lies in sorted sets and is leased at its own place. See docs/adr/0009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby, islice, repeat
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.errors import (
    HoldfastError,
    InvalidArgument,
    QueueNotFound,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
)
from holdfast.model import clock
from holdfast.model.message import DLQ_SUFFIX, Finished, Lease, Message, home_of
from holdfast.model.moves import Enqueued, Settled, State, Transition, Verb
from holdfast.model.policy import Policy
from holdfast.model.queues import Depth, QueueSpec
from holdfast.stores import in_steps, page_of, read_cursor
from holdfast.stores.base import StoreBase, last_of_each
from holdfast.stores.contract import (
    NO_DEADLINE,
    BatchEnd,
    Claim,
    Cut,
    Entry,
    Event,
    LeaseAsk,
    Page,
    QueueStats,
    Record,
    View,
)
from holdfast.stores.redis import browse, cutting, records, server
from holdfast.stores.redis.connections import Arg, Connections, Script, load
from holdfast.stores.redis.keys import Home, Keys, flag_of, tag_of
from holdfast.stores.redis.mending import Mender
from holdfast.stores.redis.moves import (
    ANSWERS,
    CHUNK,
    CHUNK_BYTES,
    MOVES,
    REST,
    SEQ,
    UNCHANGED,
    Edit,
    Row,
    alike,
    chunks,
    edit,
    edits,
    lanes_of,
    written,
)
from holdfast.stores.redis.moving import LEFT_MS, Mover, road
from holdfast.stores.redis.rows import (
    ID,
    enqueued_at,
    quoted,
    read_lease,
    read_where,
    take_lease,
    write_finished,
    write_message,
)
from holdfast.stores.redis.url import Where, where
from holdfast.stores.redis.wake import LOOK_S, Subscription, Wake
from holdfast.stores.rows import first_of_each

VERSION = 1
SPEC_S = 0.25
"""How long a queue's settings are remembered: another process's change arrives that late. Whether
it is paused, and whether it exists, is read anew by every lease and every enqueue."""
CONSUMER_IDLE_MS = 3_600_000
CONSUMERS_EVERY_S = 300.0
CONSUMERS_STEP = 100
"""Homes whose consumers one tick looks at."""
ENQUEUE = load("enqueue")
LEASE = load("lease")
SETTLE = load("settle")
FINISH = load("finish")
READ = load("read")
COUNT = load("count")
QUEUES = load("queues")
DROP = load("drop")
RESTORE = load("restore")
TRIM = load("trim")
CUTS = load("cuts")
CONSUMERS = load("consumers")
CLAIM = load("claim")
PUBLISH = load("publish")
DEPTHS = load("depths")
WAITING = load("waiting")
READY = load("ready")
LATE = load("late")
TRIES = 20
LOOK_SHARE = 50
"""Looking at many queues takes an idle waiter at most one part in this many of the time: whatever
comes wakes it."""
LOOK_CHUNK = 100
"""Queues that one script looks at: it holds up the server for a millisecond."""


class _Looked(NamedTuple):
    """That some queues had nothing, and when the first delayed message of them is due."""

    queues: tuple[str, ...]
    due: int | None
    until: float

    def holds(self, queues: Sequence[str], now: int) -> bool:
        """As long as nothing has woken the waiter since."""
        if self.due is not None and self.due <= now:
            return False
        return clock.monotonic() < self.until and self.queues == tuple(queues)


def open_url(url: str) -> RedisStore:
    return RedisStore(where(url))


class RedisStore(StoreBase):
    def __init__(self, where: Where) -> None:
        self._where = where
        self._db = Connections(where)
        self._keys = Keys(where.prefix)
        self._parts: dict[str, int] = {}
        self._lanes: dict[str, str] = {}
        self._was_full = False
        self._looked: _Looked | None = None
        self._news = ""
        self._looked_at: dict[str, float] = {}
        self._db.mend = Mender(self._db, self._keys).mend
        self._wake = Wake(self._db)
        self._mover = Mover(self._db, self._keys, self._on)
        self._known: dict[str, tuple[QueueSpec, float]] = {}
        self._step = CHUNK

    def migrate(self) -> None:
        server.check_server(self._db.info(self._keys.meta), self._where)
        stored = self._db.run("HGET", self._keys.meta, "version")
        if stored is None:
            self._db.run("HSETNX", self._keys.meta, "version", VERSION)
            stored = self._db.run("HGET", self._keys.meta, "version")
        if not stored or not stored.isdigit():
            raise StoreCorrupt(f"{self._where.shown}: {self._keys.meta} is not Holdfast's")
        if int(stored) > VERSION:
            raise SchemaTooNew(
                f"{self._where.shown} has layout {int(stored)}, this Holdfast knows {VERSION}: "
                "pip install --upgrade holdfast"
            )
        server.check_rights(self._db, self._keys.meta)

    def close(self) -> None:
        self._db.close()

    def time(self) -> int:
        seconds, micros = self._db.run("TIME", key=self._keys.meta)
        return int(seconds) * 1000 + int(micros) // 1000

    # Queues

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        """The queues of one home in one step. Of several homes: all are compared, then written."""
        self._known.clear()
        homes: dict[str, list[QueueSpec]] = {}
        for spec in specs:
            homes.setdefault(home_of(spec.name), []).append(spec)
        if len(homes) > 1:
            for spec in specs:
                stored = self._spec_of(spec.name)
                if (stored.revision if stored else 0) != spec.revision:
                    return False
        done = [self._put(name, of) for name, of in homes.items()]
        self._known.clear()
        return all(done)

    def _put(self, name: str, specs: list[QueueSpec]) -> bool:
        fresh = not all(spec.revision for spec in specs)
        if fresh:  # a full server can still change a queue
            self._db.run("SADD", self._keys.homes, name)
        home = self._keys.home(name, 1)
        args: list[Arg] = []
        for spec in specs:
            plain = {
                "partitions": spec.partitions,
                "policy": spec.policy.to_dict(),
                "created_at": spec.created_at,
                "ordered": spec.ordered,
                "starts": spec.starts,
            }
            stored = msgspec.json.encode(plain)
            args += [flag_of(spec.name), spec.revision, stored, int(spec.paused), spec.partitions]
        answer = self._db.script(QUEUES, home.queues, args)
        if answer == -1:  # somebody began to delete what was here before, and did not end it
            for spec in specs:
                self._drop_all(spec.name)
            answer = self._db.script(QUEUES, home.queues, args)
        if fresh:  # whoever deleted a queue of this name may have come in between
            self._db.run("SADD", self._keys.homes, name)
        self._parts.pop(name, None)
        return answer == 1

    def _spec_of(self, name: str) -> QueueSpec | None:
        known = self._known.get(name)
        if known is not None and known[1] > clock.monotonic():
            return known[0]
        return self._note(name, self._db.run(*self._spec_words(name)))

    def _spec_words(self, name: str) -> tuple[str, ...]:
        flag = flag_of(name)
        return "HMGET", self._keys.of(name).key("c"), f"spec{flag}", f"paused{flag}", f"rev{flag}"

    def _note(self, name: str, stored: list[bytes | None]) -> QueueSpec | None:
        spec = _spec(name, stored)
        if spec is None:
            self._known.pop(name, None)
        else:
            self._known[name] = (spec, clock.monotonic() + SPEC_S)
        return spec

    def queues(
        self, names: Sequence[str] | None = None, *, overdue: int | None = None
    ) -> list[QueueSpec]:
        if names is not None:
            return [spec for name in names if (spec := self._spec_of(name))]
        names = sorted(name + suffix for name in self._homes() for suffix in ("", DLQ_SUFFIX))
        if overdue is None:
            self._known.clear()
        else:
            names = self._late(names, overdue)
        if not names:
            return []
        stored = self._db.run_each([self._spec_words(name) for name in names])
        found = (self._note(name, fields) for name, fields in zip(names, stored, strict=True))
        return [spec for spec in found if spec is not None]

    def _late(self, names: Sequence[str], now: int) -> list[str]:
        """Those with overdue leases: one round trip to each node."""
        chunks = self._look_chunks(names, range(len(names)))
        calls: list[tuple[list[str], list[Arg]]] = [
            ([self._keys.of(names[n]).key("d" + flag_of(names[n])) for n in chunk], [now])
            for chunk in chunks
        ]
        late: list[int] = []
        for chunk, told in zip(chunks, self._db.scripts(LATE, calls), strict=True):
            if isinstance(told, HoldfastError):
                raise told
            late += (chunk[at - 1] for at in told)
        return [names[n] for n in sorted(late)]

    def _homes(self) -> list[str]:
        return sorted(name.decode() for name in self._db.run("SMEMBERS", self._keys.homes))

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        """Each is gone at once; what it held is then dropped in steps."""
        self._known.clear()
        if only_empty:
            for name in names:
                if self._spec_of(name) and not self._is_empty(name):
                    return False
        what = "begin-empty" if only_empty else "begin"
        homes = dict.fromkeys(map(home_of, names))
        for home in homes:  # both queues of it in one step
            flags = "".join(sorted(flag_of(name) for name in names if home_of(name) == home))
            if self._drop(home, what, 0, flags) == -1:
                return False
        self._known.clear()
        for name in names:
            self._drop_all(name)
        for home in homes:
            if self._is_gone(home):
                self._db.run("SREM", self._keys.moving, home)
                self._db.run("SREM", self._keys.homes, home)
                self._parts.pop(home, None)
                if not self._is_gone(home):  # made again meanwhile
                    self._db.run("SADD", self._keys.homes, home)
                    self._db.run("SADD", self._keys.moving, home)
        return True

    def _is_gone(self, home: str) -> bool:
        return self._spec_of(home) is None and self._spec_of(home + DLQ_SUFFIX) is None

    def _is_empty(self, name: str) -> bool:
        _, ready, delayed, leased, *_ = self._count(name, 0, heads=False)
        return not ready and not delayed and not leased

    def _drop_all(self, name: str) -> None:
        # What arrived here is on record only as long as there is anything here.
        self._mover.finish(queue=name)
        while self._drop(name, "go on", CHUNK) >= CHUNK:
            pass

    def _drop(self, name: str, what: str, limit: int, flags: str = "") -> int:
        return self._on(
            name,
            DROP,
            lambda home: home.everything,
            lambda home: [what, flags or flag_of(name), limit, home.parts],
        )[1]

    # Messages

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any = None,
        receipt: str | None = None,
        finished_since: Mapping[int, int] | None = None,
    ) -> list[Enqueued]:
        """Each chunk whole or not at all; what broke off may be repeated. A chunk holds what goes
        to queues of one slot, and all that have one id: a topic's message with all its groups."""
        _no_transaction(within)
        homes = {home_of(message.queue) for message in messages}
        since = finished_since or {}
        if len(homes) == 1:
            return self._enqueue(homes.pop(), messages, now, receipt or "", since)
        tags: dict[str, list[int]] = {}
        for n, message in enumerate(messages):
            tags.setdefault(tag_of(message.queue), []).append(n)
        answers: dict[int, Enqueued] = {}
        for _, mine in sorted(tags.items()):
            answers |= self._enqueue_all(messages, mine, now, receipt or "", since)
        return [answers[n] for n in range(len(messages))]

    def _enqueue(
        self,
        name: str,
        messages: Sequence[Message],
        now: int,
        receipt: str,
        since: Mapping[int, int],
    ) -> list[Enqueued]:
        """Into one home."""
        answers: list[Enqueued] = []
        rows = [write_message(message, now, since.get(n)) for n, message in enumerate(messages)]
        for number, chunk in enumerate(chunks(rows)):
            queues = {m.queue for m in messages[len(answers) : len(answers) + len(chunk)]}
            flags = "".join(sorted(map(flag_of, queues)))
            answers += self._store([(name, flags, chunk)], now, _part_of(receipt, number))
        return answers

    def _enqueue_all(
        self,
        messages: Sequence[Message],
        mine: Sequence[int],
        now: int,
        receipt: str,
        since: Mapping[int, int],
    ) -> dict[int, Enqueued]:
        """Into homes of one slot. Each chunk asks whether all of them are there."""
        homes: dict[str, str] = {}
        first: dict[str, int] = {}
        for n in mine:
            name, flag = home_of(messages[n].queue), flag_of(messages[n].queue)
            homes[name] = "".join(sorted({*homes.get(name, ""), flag}))
            first.setdefault(messages[n].id, n)
        order = sorted(mine, key=lambda n: first[messages[n].id])
        rows = [write_message(messages[n], now, since.get(n)) for n in order]
        answers: dict[int, Enqueued] = {}
        for number, chunk in enumerate(chunks(rows)):
            of: dict[str, list[tuple[int, Row]]] = {name: [] for name in sorted(homes)}
            for n, row in zip(order[len(answers) :], chunk, strict=False):
                of[home_of(messages[n].queue)].append((n, row))
            parts = [(name, homes[name], [row for _, row in some]) for name, some in of.items()]
            told = self._store(parts, now, _part_of(receipt, number))
            at = chain.from_iterable(of.values())
            answers |= {n: answer for (n, _), answer in zip(at, told, strict=True)}
        return answers

    def _store(
        self, homes: Sequence[tuple[str, str, Sequence[Row]]], now: int, receipt: str
    ) -> list[Enqueued]:
        """One step: of each home its name, which of its queues, and the messages."""
        keys: list[str] = []
        args: list[Arg] = [now, receipt]
        for name, flags, rows in homes:
            args += (len(keys) + 1, flags, len(rows), *chain.from_iterable(rows))
            heads = frozenset(head for _, head, _ in rows)
            look = any(len(id) > ID for id, _, _ in rows)
            keys += self._enqueue_keys(name, flags, heads, bool(receipt), look)
        answer = self._db.script(ENQUEUE, keys, args)
        if answer[0] == b"gone":
            name = homes[int(answer[2])][0]
            raise QueueNotFound(f"no queue {name + (DLQ_SUFFIX if answer[1] == b'1' else '')!r}")
        if answer[0] == b"kept":
            return [Enqueued.HELD for _, _, rows in homes for _ in rows]
        return [Enqueued.STORED if stored else Enqueued.HELD for stored in answer[1]]

    def _enqueue_keys(
        self, name: str, flags: str, heads: frozenset[str], receipt: bool, look: bool
    ) -> Sequence[str]:
        """`look`: whether it looks for ids in the log."""
        if len(heads) == 1 and not receipt and not look and flags == "0":
            (head,) = heads
            if head[0] == "F":  # by far the most frequent
                return self._keys.plain(name, head[1:].partition(" ")[0])
        home = self._keys.home(name, 1)
        keys = [home.key("c"), home.key("m"), *(home.key("w" + flag) for flag in flags)]
        keys += home.of_lanes(sorted({h[1:].partition(" ")[0] for h in heads if h[0] == "F"}))
        others = sorted({tuple(h.split(" ", 3)[1:3]) for h in heads if h[0] == "W"})
        if others:
            keys += [home.key("x"), home.key("e")]
            keys += [home.key(kind + flag) for flag in flags for kind in "zv"]
            keys += [home.key(f"r{flag}.{part}") for flag, part in others]
        if look:
            keys += home.logged
        return [*keys, *home.receipts] if receipt else keys

    def _take_leases(self, ask: LeaseAsk, now: int) -> list[Lease]:
        if ask.others:
            return self._lease_many(ask, now)
        leases: list[Lease] = []
        while True:
            wanted = min(CHUNK, ask.limit - len(leases))
            try:
                home, answer = self._lease(ask, now, wanted, ask.timeout_ms)
            except HoldfastError:
                if leases:  # return these; the next call raises the error
                    return leases
                raise
            leases += self._taken(home, answer, ask, now)
            status, tokens, *_ = answer
            if (status != b"more" and len(tokens) < wanted) or len(leases) >= ask.limit:
                return leases

    def _lease_many(self, ask: LeaseAsk, now: int) -> list[Lease]:
        """A look at the queues, first at as many as may be enough, in one round trip; and one for
        the scripts that lease from those that have something."""
        leases: list[Lease] = []
        news, self._news = self._news, ""
        if news:  # it has just woken a waiter: not after a look at all the others
            mine = [one for one in ask.each() if one.queue == news]
            if mine and (leases := self._lease_some(mine, ask.limit, now)):
                return leases
        for some in in_steps(ask, full=self._was_full):
            try:
                leases += self._lease_some(some, ask.limit - len(leases), now)
            except HoldfastError:
                if leases:  # return these; the next call raises the error
                    return leases
                raise
            if len(leases) >= ask.limit:
                break
        self._was_full = len(leases) >= ask.limit
        return leases

    def _lease_some(self, asks: list[LeaseAsk], limit: int, now: int) -> list[Lease]:
        for _ in range(TRIES):
            left, chosen = limit, list[LeaseAsk]()
            ready = self._ready([one.queue for one in asks], now)
            for one, answer in zip(asks, ready, strict=True):
                most = min(one.limit, answer[0], left, CHUNK) if answer else 0
                if most > 0:
                    chosen.append(msgspec.structs.replace(one, limit=most))
                    left -= most
            leases = self._lease_each(chosen, now) if chosen else []
            if leases or not chosen:  # else others took all of it in between
                return leases
        return []

    def _lease_each(self, asks: list[LeaseAsk], now: int) -> list[Lease]:
        calls = [self._lease_call(one, now, one.limit, one.timeout_ms) for one in asks]
        homes = [self._home(one.queue) for one in asks]
        leases: list[Lease] = []
        refused: HoldfastError | None = None
        for one, home, answer in zip(asks, homes, self._db.scripts(LEASE, calls), strict=True):
            if isinstance(answer, HoldfastError):
                refused = answer
            elif answer[0] in (b"gone", b"parts"):  # since the look; the next one knows
                self._lanes.pop(home.name, None)
            else:
                leases += self._taken(home, answer, one, now)
        if refused is not None and not leases:
            raise refused
        return leases

    def _taken(self, home: Home, answer: list[Any], ask: LeaseAsk, now: int) -> list[Lease]:
        _, tokens, blobs, extras = answer
        again = {int(extras[n]): (extras[n + 1], extras[n + 2]) for n in range(0, len(extras), 3)}
        # An entry of a lane that somebody else wrote names no message: it has no body.
        names = [token.decode(errors="replace") for token in tokens]
        found = browse.bodies(self._db, home, [name[SEQ:REST] for name in names], blobs)
        leases: list[Lease] = []
        for n, (token, blob) in enumerate(zip(names, found, strict=True)):
            if blob is not None:
                extra = again.get(n) if again else None
                leases.append(take_lease(blob, token[SEQ:REST], token, ask, now, extra))
        self._size(found)
        return leases

    def _ready(self, queues: Sequence[str], now: int) -> list[tuple[int, int | None] | None]:
        """Of each queue how much is ready and, if nothing is, when the next delayed one comes; None
        for a queue that is not there. Asks again for those whose lanes it did not know."""
        found: dict[int, tuple[int, int | None] | None] = {}
        left = list(range(len(queues)))
        while left:
            chunks = self._look_chunks(queues, left)
            calls = [self._look_call([queues[n] for n in chunk], now) for chunk in chunks]
            changed: list[int] = []
            for chunk, told in zip(chunks, self._db.scripts(READY, calls), strict=True):
                if isinstance(told, HoldfastError):
                    raise told
                for n, answer in zip(chunk, told, strict=True):
                    if answer[0] == b"changed":
                        self._changed(home_of(queues[n]), answer)
                        changed.append(n)
                        continue
                    found[n] = None
                    if answer[0] == b"ok":
                        found[n] = answer[1], int(float(answer[2])) if answer[2] else None
            left = changed
        return [found[n] for n in range(len(queues))]

    def _look_chunks(self, queues: Sequence[str], numbers: Sequence[int]) -> list[list[int]]:
        """What one script may look at: in a cluster the queues of one slot."""
        slots: dict[str, list[int]] = {}
        cluster = self._where.kind == "cluster"
        for n in numbers:
            slots.setdefault(tag_of(queues[n]) if cluster else "", []).append(n)
        return [
            slot[start : start + LOOK_CHUNK]
            for slot in slots.values()
            for start in range(0, len(slot), LOOK_CHUNK)
        ]

    def _look_call(self, queues: Sequence[str], now: int) -> tuple[list[str], list[Arg]]:
        keys: list[str] = []
        args: list[Arg] = [now]
        for name in queues:
            home = home_of(name)
            parts, lanes = self._parts.get(home, 1), self._lanes.get(home, "")
            args += (len(keys) + 1, flag_of(name), parts, lanes)
            keys += self._keys.look(name, parts, lanes)
        return keys, args

    def _changed(self, home: str, answer: list[Any]) -> None:
        self._lanes[home] = answer[2].decode()
        if self._parts.get(home, 1) != int(answer[1]):
            self._parts[home] = int(answer[1])
            for name in (home, home + DLQ_SUFFIX):
                self._known.pop(name, None)

    def _reserve(self, ask: LeaseAsk, now: int) -> int:
        held = 0
        while held < ask.limit:
            wanted = min(CHUNK, ask.limit - held)
            _, (status, n, *_) = self._lease(ask, now, wanted, None)
            held += n or 0  # of none: an empty list
            if status != b"more" and (n or 0) < wanted:
                break
        return held

    def _lease(
        self, ask: LeaseAsk, now: int, limit: int, timeout: int | None
    ) -> tuple[Home, list[Any]]:
        home = self._home(ask.queue)
        answer = self._on(
            ask.queue,
            LEASE,
            lambda home: home.lease_of(flag_of(ask.queue), ask.partitions),
            lambda home: self._lease_args(home, ask, now, limit, timeout),
        )
        return home, answer

    def _lease_call(
        self, ask: LeaseAsk, now: int, limit: int, timeout: int | None
    ) -> tuple[list[str], list[Arg]]:
        home = self._home(ask.queue)
        keys = home.lease_of(flag_of(ask.queue), ask.partitions)
        return keys, self._lease_args(home, ask, now, limit, timeout)

    def _lease_args(
        self, home: Home, ask: LeaseAsk, now: int, limit: int, timeout: int | None
    ) -> list[Arg]:
        flag, named = flag_of(ask.queue), ask.partitions
        parts = "" if named is None else f" {' '.join(map(str, named))} "
        if named is not None and ask.epochs is not None:
            pairs = zip(named, ask.epochs, strict=True)
            parts = f" {' '.join(f'{part}:{epoch}' for part, epoch in pairs)} "
        batch = quoted(ask.batch) if ask.batch else ""
        return [
            flag, limit, now, ask.token, "" if timeout is None else timeout, batch, ask.owner,
            home.parts, parts, NO_DEADLINE, self._step,
        ]  # fmt: skip

    def _end_batch(self, end: BatchEnd, now: int) -> int:
        flag, done = flag_of(end.queue), 0
        status, batch = end.status or "", quoted(end.batch)
        while done < end.limit:
            wanted = min(CHUNK, end.limit - done)
            args = [flag, now, Verb.ACK.value, status, self._step, batch, wanted]
            n, _ = self._on(
                end.queue,
                FINISH,
                lambda home: [*home.finish[flag], *home.lanes],
                lambda home: [*args, home.parts],  # noqa: B023 (called at once)
            )
            done += n
            if not n:
                break
        return done

    def _apply(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]:
        _no_transaction(within)
        homes: dict[str, list[int]] = {}
        for n, move in enumerate(moves):
            homes.setdefault(home_of(move.queue), []).append(n)
        if len(homes) > 1:
            return self._settle_homes(moves, list(homes.values()), now)
        if not moves:
            return []
        if alike(moves):
            return self._finish(moves, now)
        told: list[Settled] = []
        for way, some in groupby(moves, road):  # in their order: two may be of one message
            told += (self._mover.move if way else self._settle)(list(some), now)
        return told

    def _settle_homes(
        self, moves: Sequence[Transition], homes: list[list[int]], now: int
    ) -> list[Settled]:
        """One home after the other; but where there are only plain acks, all in one round trip."""
        answers: dict[int, Settled] = {}
        acks: list[list[int]] = []
        for mine in homes:
            some = [moves[n] for n in mine]
            if alike(some):
                acks += [mine[n : n + CHUNK] for n in range(0, len(mine), CHUNK)]
            else:
                answers |= zip(mine, self._apply(some, now, None), strict=True)
        calls = [self._finish_call([moves[n] for n in mine], now) for mine in acks]
        for mine, told in zip(acks, self._db.scripts(FINISH, calls), strict=True):
            if isinstance(told, HoldfastError):
                raise told
            answers |= zip(mine, (ANSWERS[answer] for answer in told[1]), strict=True)
        return [answers[n] for n in range(len(moves))]

    def _finish(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """Many acks: the plainest and most frequent of all settlements."""
        answers: list[Settled] = []
        while len(answers) < len(moves):
            chunk = moves[len(answers) : len(answers) + CHUNK]
            _, told = self._db.script(FINISH, *self._finish_call(chunk, now))
            answers += [ANSWERS[answer] for answer in told]
        return answers

    def _finish_call(self, moves: Sequence[Transition], now: int) -> tuple[list[str], list[Arg]]:
        first = moves[0]
        flag, home = flag_of(first.queue), self._home(first.queue)
        width = 1 if all(move.result is None for move in moves) else 2
        verb, status = first.verb.value, first.status or ""
        args: list[Arg] = [flag, now, verb, status, self._step, "", width]
        if width == 1:
            args += [cast(str, move.token) for move in moves]
        else:
            for move in moves:
                result = b"" if move.result is None else b"=" + move.result
                args += (cast(str, move.token), result)
        return [*home.finish[flag], *home.of_lanes(lanes_of(moves, home))], args

    def _settle(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        answers: list[Settled] = []
        while len(answers) < len(moves):
            some = moves[len(answers) : len(answers) + MOVES]
            if any(map(edits, some)):
                some = some[: self._step]
                answers += self._settle_some(some, now, self._edits(some))
            else:
                answers += self._settle_some(some, now, repeat(UNCHANGED))
        return answers

    def _edits(self, moves: Sequence[Transition]) -> list[Edit]:
        """Only Python can read a body: it is read and written anew, and the script compares."""
        blobs = self._db.run("HMGET", self._home(moves[0].queue).key("m"), *(m.id for m in moves))
        self._size(blobs)
        return [edit(move, blob) for move, blob in zip(moves, blobs, strict=True)]

    def _settle_some(
        self, moves: Sequence[Transition], now: int, changes: Iterable[Edit]
    ) -> list[Settled]:
        told = self._on(
            moves[0].queue,
            SETTLE,
            lambda home: [*home.settle, *home.of_lanes(lanes_of(moves, home))],
            lambda home: [now, home.parts, *chain.from_iterable(map(written, moves, changes))],
        )
        return [ANSWERS[answer] for answer in told]

    def _read_overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        return self._leases(queue, "overdue", now, limit)

    def _read_batch(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        found: list[Lease] = []
        while len(found) < limit:
            wanted = min(browse.PAGE, limit - len(found))
            page = self._leases(queue, "batch", quoted(batch), after or "", wanted)
            found += page
            if len(page) < wanted:
                break
            after = page[-1].id
        return found

    def _leases(self, queue: str, what: str, *args: Arg) -> list[Lease]:
        home, (_, (ids, first, _, states, past, calls, blobs)) = self._read(queue, what, *args)
        bodies = browse.bodies(self._db, home, ids, blobs)
        found = zip(ids, first, states, past, calls, bodies, strict=True)
        return [
            read_lease(blob, id.decode(), queue, read_where(state), history, call, int(float(at)))
            for id, at, state, history, call, blob in found
            if blob is not None and state is not None and at is not None
        ]

    def _read(self, queue: str, what: str, *args: Arg) -> tuple[Home, tuple[str, list[Any]]]:
        """read.lua: all that is due takes its place in line first."""
        flag = flag_of(queue)
        while True:
            answer = self._on(
                queue,
                READ,
                lambda home: home.find if what == "find" else home.lease[flag],
                lambda home: [what, flag, home.parts, self._step, *args],
            )
            if answer[0] == b"ok":
                return self._home(queue), (answer[1].decode(), answer[2:])

    def _read_page(self, view: View, after: str | None, limit: int, now: int) -> Page:
        cursor = read_cursor(after)
        home = self._home(view.queue)
        if view.state is State.LOG:
            self._must_exist(view.queue)
            rows = list(islice(browse.log_entries(self._db, home, view, cursor), limit + 1))
            return page_of(rows, view, limit, self._end(home))

        def read(what: str, flag: str, parts: int, *args: Arg) -> tuple[str, list[Any]]:
            return self._read(view.queue, what, *args)[1]

        found = browse.entries(self._db, home, view, read, cursor, now, limit + 1)
        pairs = list(islice(found, limit + 1))
        end = int(pairs[0][0]) if pairs else self._end(home)
        return page_of([row for _, row in pairs], view, limit, end)

    def _end(self, home: Home) -> int:
        return int(self._db.run("HGET", home.key("c"), "seq") or 0)

    def split(self, view: View, parts: int, now: int) -> list[str]:
        self._must_exist(view.queue)
        home, flag = self._home(view.queue), flag_of(view.queue)
        match view.state:
            case State.LOG:
                cuts = cutting.cut_log(self._db, home, view, parts)
            case State.READY:
                n = self._count(view.queue, now, heads=True)[1]
                home, queue = self._home(view.queue), view.queue
                cuts = cutting.cut_line(
                    self._db, home, flag, parts, n, lambda after: self._places(queue, after, now)
                )
            case _:
                keys = [home.key(kind) for kind in ("c", "d" + flag, "z" + flag)]
                told = self._db.script(CUTS, keys, [flag, view.state.value, parts, now])
                cuts = [(int(float(a)), int(b)) for a, b in zip(told[::2], told[1::2], strict=True)]
        return [f"{first}.{second}" for first, second in cuts]

    def _places(self, queue: str, after: tuple[int, int], now: int) -> list[tuple[int, int]]:
        """The cursors of the next in line."""
        _, (_, (_, first, second, *_)) = self._read(queue, "ready", *after, 1000, now, 0)
        return [(int(a), int(b)) for a, b in zip(first, second, strict=True)]

    def _find_held(self, queue: str, ids: Sequence[str]) -> list[Entry]:
        found: list[Entry] = []
        for start in range(0, len(ids), browse.PAGE):
            home, (_, (names, deadlines, _, states, past, calls, blobs)) = self._read(
                queue, "find", *ids[start : start + browse.PAGE]
            )
            bodies = browse.bodies(self._db, home, names, blobs)
            rows = zip(bodies, names, states, past, calls, deadlines, strict=True)
            found += [browse.found(home, blob, *row) for blob, *row in rows if blob is not None]
        return found

    def _find_logged(self, queue: str, ids: Sequence[str]) -> Mapping[str, Entry]:
        home, rows = self._home(queue), list[Entry]()
        for name, index in zip((home.name, home.name + DLQ_SUFFIX), home.logged, strict=True):
            for start in range(0, len(ids), browse.PAGE):
                some = ids[start : start + browse.PAGE]
                for id, entries in zip(some, self._db.run("HMGET", index, *some), strict=True):
                    if entries:
                        view = View(name, State.LOG, id=id)
                        walk = browse.log_entries(self._db, home, view, (-1, -1))
                        rows += [entry for _, entry in walk]
        return last_of_each(rows)

    def _count_queues(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        return [self._stats(name, now) for name in queues]

    def _stats(self, name: str, now: int) -> QueueStats:
        paused, ready, delayed, leased, dead, done, _, heads = self._count(name, now, heads=True)
        oldest = min(map(enqueued_at, heads), default=None)
        return QueueStats(
            queue=name,
            ready=ready,
            delayed=delayed,
            leased=leased,
            dead=dead,
            done=int(done),
            oldest_age=None if oldest is None else max(0, now - oldest) / 1000,
            paused=bool(paused),
        )

    def _count(self, name: str, now: int, *, heads: bool) -> list[Any]:
        return self._on(
            name,
            COUNT,
            lambda home: home.count,
            lambda home: [flag_of(name), home.parts, now, int(heads)],
        )[1:]

    def _count_partitions(self, queue: str, now: int) -> list[Depth]:
        flag = flag_of(queue)
        rows = self._asked(queue, DEPTHS, lambda home: home.lease[flag], [now])[0]
        return [
            Depth(part, ready, delayed, leased, int(oldest) if oldest else None)
            for part, (ready, delayed, leased, oldest) in enumerate(rows)
        ]

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        """Each chunk whole or not at all; what broke off may be repeated."""
        flag, new = flag_of(queue), 0
        for chunk in chunks([write_finished(row) for row in first_of_each(rows)]):
            args = [flag, *chain.from_iterable((id, *rest, body) for id, rest, body in chunk)]
            answer = self._on(
                queue,
                RESTORE,
                lambda home: [home.key(kind) for kind in ("c", "log" + flag, "li" + flag)],
                lambda _: args,  # noqa: B023 (called at once)
            )
            if answer[0] == b"late":
                raise StoreError(
                    f"{queue}: its log goes up to {answer[1].decode()}, and takes nothing older"
                )
            new += answer[1]
        return new

    def _drop_logged(self, cuts: Sequence[Cut]) -> list[int]:
        """The first step drops at most one row of each: who has none to drop, costs no more."""
        answers = self._db.scripts(TRIM, [self._trim_call(cut, min(1, cut.limit)) for cut in cuts])
        refused = next((told for told in answers if isinstance(told, HoldfastError)), None)
        if refused is not None:
            raise refused
        return [
            n if n == 0 else n + self._trim_rest(cut, cut.limit - n)
            for cut, n in zip(cuts, answers, strict=True)
        ]

    def _trim_rest(self, cut: Cut, limit: int) -> int:
        dropped = 0
        while dropped < limit:
            wanted = min(CHUNK, limit - dropped)
            n = self._db.script(TRIM, *self._trim_call(cut, wanted))
            dropped += n
            if n < wanted:
                break
        return dropped

    def _trim_call(self, cut: Cut, limit: int) -> tuple[list[str], list[Arg]]:
        home, flag = self._keys.of(cut.queue), flag_of(cut.queue)
        keys = [home.key(kind) for kind in ("c", "log" + flag, "li" + flag)]
        return keys, [flag, limit, cut.before or 0, -1 if cut.keep is None else cut.keep]

    def tidy(self, now: int, *, log_before: int | None) -> None:
        """Forget consumers that are long gone; carry out moves that were left behind."""
        self._forget_consumers()
        self._mover.finish(before=now - LEFT_MS)

    def _forget_consumers(self) -> None:
        long_ago = clock.monotonic() - CONSUMERS_EVERY_S
        at = {name: self._looked_at.get(name, float("-inf")) for name in self._homes()}
        names = sorted((name for name in at if at[name] < long_ago), key=lambda name: at[name])
        names = names[:CONSUMERS_STEP]
        if not names:
            return
        self._looked_at = at | dict.fromkeys(names, clock.monotonic())
        asked = [("HGET", self._keys.of(name).key("c"), "parts") for name in names]
        parts = self._db.run_each(asked)
        homes = [self._keys.home(name, int(n or 1)) for name, n in zip(names, parts, strict=True)]
        calls: list[tuple[list[str], list[Arg]]] = [
            ([home.key("c"), *home.streams], [CONSUMER_IDLE_MS]) for home in homes
        ]
        for told in self._db.scripts(CONSUMERS, calls):
            if isinstance(told, HoldfastError):
                raise told

    def _drop_waiting(self, queue: str, limit: int) -> int:
        dropped = 0
        while dropped < limit:
            wanted = min(CHUNK, limit - dropped)
            n = self._drop(queue, "purge", wanted)
            dropped += n
            if n < wanted:
                break
        return dropped

    # Claims, records, events

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        keys, field = self._claim_of(name)
        epoch = self._db.script(CLAIM, keys, [field, owner, ttl_ms, now])
        return Claim(name, owner, epoch, now + ttl_ms) if epoch and ttl_ms else None

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        fields: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            keys, field = self._claim_of(name)
            fields.setdefault(keys[0], []).append((name, field))
        found: dict[str, Claim | None] = {}
        for key, some in fields.items():
            stored = self._db.run("HMGET", key, *(field for _, field in some))
            found |= {
                name: _claim(name, text) for (name, _), text in zip(some, stored, strict=True)
            }
        return [found[name] for name in names]

    def _claim_of(self, name: str) -> tuple[list[str], str]:
        """Where a claim lies. That of a partition with its home: a lease looks at it."""
        queue, mark, part = name.rpartition("#")
        if not mark:
            return [self._keys.claims], name
        return self._keys.of(queue).claims, f"{flag_of(queue)}#{part}"

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        return records.put(self._db, self._keys.records(kind), name, value, revision, now)

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        found: list[Record] = []
        for keys in self._of_kind(kind):
            found += records.read(self._db, keys, prefix, after, limit)
        return sorted(found, key=lambda record: record.name.encode())[:limit]

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        dropped = 0
        if kind == records.RECEIPT:
            try:
                self._mover.finish(before=before)
            except StoreError:  # the receipts tell how far those came
                return 0
        places = list(self._of_kind(kind))
        sizes = self._db.run_each([("ZCARD", names) for names, _ in places])
        for keys in (keys for keys, size in zip(places, sizes, strict=True) if size):
            if dropped < limit:
                dropped += records.drop(self._db, keys, prefix, before, limit - dropped)
        return dropped

    def _of_kind(self, kind: str) -> Iterator[records.Pair]:
        yield self._keys.records(kind)
        if kind == records.RECEIPT:
            for name in self._homes():
                yield self._keys.home(name, 1).receipts

    def publish(self, events: Sequence[Event]) -> None:
        if events:
            told = [msgspec.json.encode((e.type, e.timestamp, e.payload)) for e in events]
            self._db.script(PUBLISH, self._keys.events, told)

    def subscribe(self, after: int | None = None) -> Subscription:
        counter, stream = self._keys.events
        if after is None:
            last = self._db.run("GET", counter) or b"0"
            if not last.isdigit():
                raise StoreCorrupt(f"{self._where.shown}: {counter} is not Holdfast's")
            after = int(last)
        return Subscription(self._db, stream, after)

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        if partitions is not None:
            return any(self._wait_for(name, partitions, now, timeout) for name in queues[:1])
        looked = self._looked
        if looked is None or not looked.holds(queues, now):
            looked = self._looked = self._look(queues, now)
        if looked is None:
            return True
        ahead = [timeout, LOOK_S]
        if looked.due is not None:
            ahead.append((looked.due - now) / 1000)
        keys = [self._keys.of(name).key("w" + flag_of(name)) for name in queues]
        seconds = min(ahead)
        due = seconds < min(timeout, LOOK_S)
        one_slot = len({tag_of(name) for name in queues}) == 1
        woken = self._wake.wait(keys, seconds, due=due, one_slot=one_slot) or due
        if woken or len(queues) == 1:
            self._looked = None
        if woken and self._wake.key in keys:
            self._news = queues[keys.index(self._wake.key)]
        return woken

    def _look(self, queues: Sequence[str], now: int) -> _Looked | None:
        """None: something is ready."""
        begun = clock.monotonic()
        found: list[tuple[int, int | None]] = []
        for name, one in zip(queues, self._ready(queues, now), strict=True):
            if one is None:
                self._known.pop(name, None)
                raise QueueNotFound(f"no queue {name!r}")
            found.append(one)
        if any(ready > 0 for ready, _ in found):
            return None
        due = min((at for _, at in found if at is not None), default=None)
        took = clock.monotonic() - begun
        return _Looked(tuple(queues), due, begun + max(LOOK_S, took * LOOK_SHARE))

    def _wait_for(self, queue: str, parts: Sequence[int], now: int, timeout: float) -> bool:
        """Looks whenever a lane of these partitions grows, or anything comes back to the queue."""
        flag, asked = flag_of(queue), " ".join(map(str, parts))
        begun = clock.monotonic()
        while (passed := clock.monotonic() - begun) < timeout:
            at, left = now + round(passed * 1000), timeout - passed
            ready, due, seen = self._asked(
                queue, WAITING, lambda home: home.lease_of(flag, parts), [at, asked]
            )
            if ready:
                return True
            until_due = max(0, int(float(due)) - at) / 1000 if due else LOOK_S
            seconds, home = min(left, LOOK_S, until_due), self._home(queue)
            lanes = home.lanes_of(parts) if flag == "0" else []
            streams = [home.news[int(flag)], *lanes]
            self._wake.read(streams, seen.decode(), seconds, due=seconds == until_due)
        return False

    def look(self) -> dict[str, Any]:
        """What an operator wants to know of the server; see `holdfast doctor`."""
        return server.look(self._db, self._keys.meta)

    def _size(self, bodies: list[bytes | None]) -> None:
        """Scripts read so many bodies at a time as they were last seen to be large."""
        if bodies:
            size = sum(len(body) for body in bodies if body) // len(bodies)
            self._step = max(1, min(CHUNK, CHUNK_BYTES // (size + 1)))

    # Scripts

    def _home(self, queue: str) -> Home:
        name = home_of(queue)
        return self._keys.home(name, self._parts.get(name, 1))

    def _on(
        self,
        queue: str,
        script: Script,
        keys: Callable[[Home], Sequence[str]],
        args: Callable[[Home], Iterable[Arg]],
    ) -> Any:
        """Run a script on a queue's home; again if it turns out to have more partitions."""
        while True:
            home = self._home(queue)
            answer = self._db.script(script, keys(home), list(args(home)))
            if answer[0] == b"gone":
                self._known.pop(queue, None)
                self._parts.pop(home.name, None)
                raise QueueNotFound(f"no queue {queue!r}")
            if answer[0] != b"parts":
                return answer
            self._parts[home.name] = int(answer[1])
            for name in (home.name, home.name + DLQ_SUFFIX):  # it has changed
                self._known.pop(name, None)

    def _asked(
        self,
        queue: str,
        script: Script,
        keys: Callable[[Home], Sequence[str]],
        args: Sequence[Arg],
    ) -> list[Any]:
        """What a script tells of a queue, once all that is due has taken its place in line."""
        flag = flag_of(queue)
        while True:
            answer = self._on(queue, script, keys, lambda home: [flag, home.parts, *args])
            if answer[0] == b"ok":
                return answer[1:]

    def _must_exist(self, name: str) -> None:
        if self._spec_of(name) is None:
            raise QueueNotFound(f"no queue {name!r}")


def _no_transaction(within: Any) -> None:
    if within is not None:
        raise InvalidArgument("within", "Redis has no transactions to join")


def _spec(name: str, stored: list[bytes | None]) -> QueueSpec | None:
    spec, paused, revision = stored
    if spec is None or revision is None:
        return None
    try:
        partitions, policy, created_at, ordered, starts = _settings(spec)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(f"{name}: its settings were not written by Holdfast") from error
    plain = (name, partitions, policy, paused == b"1", created_at, int(revision))
    return QueueSpec(*plain, ordered, starts)


@lru_cache(maxsize=1000)
def _settings(spec: bytes) -> tuple[int, Policy, int, bool, tuple[int, ...]]:
    plain = msgspec.json.decode(spec)
    shape = plain.get("ordered", False), tuple(plain.get("starts", (0,)))
    return plain["partitions"], Policy.from_dict(plain["policy"]), plain["created_at"], *shape


def _part_of(receipt: str, number: int) -> str:
    return f"{receipt}\0{number}" if receipt and number else receipt


def _claim(name: str, stored: bytes | None) -> Claim | None:
    if stored is None:
        return None
    try:
        epoch, expires, owner = stored.decode().split(" ", 2)
        return Claim(name, owner, int(epoch), int(expires))
    except ValueError as error:
        raise StoreCorrupt(f"{name}: this claim was not written by Holdfast") from error
