"""Dead letters back to their queue: oldest first, each in one atomic step.

A redrive walks the line of dead letters page by page, up to the end of the line as it was when it
began. What it has done so far is a value, so that a job can keep it and go on from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.errors import (
    InvalidArgument,
    QueueNotFound,
    RedriveFailed,
    SourceQueueGone,
    StoreError,
    did_you_mean,
    shown,
)
from holdfast.model import clock
from holdfast.model.message import check_queue_name, home_of, is_dlq
from holdfast.model.moves import Settled, Transition
from holdfast.model.queues import QueueSpec
from holdfast.queue.context import Context
from holdfast.queue.redrive.choosing import (
    STEP_S,
    DeadFilter,
    Edit,
    Editor,
    Options,
    checked,
    due,
    edited,
    matches,
    step,
)
from holdfast.queue.topic import is_hidden
from holdfast.rules import lifecycle
from holdfast.stores.contract import Entry, Event, View, held_in

BATCH = 50
"""Moved in one step of the store, and held in memory: nobody else waits longer than for that."""

REST_S = (0.003, 0.025)
"""It rests for as long as a batch took, within these. SQLite has one write lock and no line in
front of it: who waits asks every millisecond, and would hardly ever find it free if the next batch
followed at once. On a machine that is busy both of them are slower."""

Stopped = Callable[[], bool]


class Redriven(msgspec.Struct, frozen=True):
    """What a redrive did; a dry run says what it would have done."""

    dlq: str
    redriven: int
    looked: int = 0
    missing: int = 0
    """Ids that were asked for and are not among the dead letters."""
    skipped: int = 0
    """Held by somebody, moved by somebody else, or their id is in the queue they should go to."""
    cancelled: bool = False
    dry_run: bool = False
    to: str = ""
    """The queue they went to."""


class Progress(msgspec.Struct, frozen=True):
    looked: int
    redriven: int
    skipped: int
    total: int
    """Dead letters when it began, those included that somebody holds."""


class Tally(msgspec.Struct, frozen=True):
    """How far a redrive is."""

    end: str | None = None
    """The end of the line when it began."""
    after: str | None = None
    """The page that comes next."""
    looked: int = 0
    redriven: int = 0
    skipped: int = 0
    ended: bool = False
    batch: tuple[tuple[str, int], ...] = ()
    """Ids that are about to be moved, with how often each was redriven before: by these the next
    runner finds out after a crash how many of them were moved."""


class Plan(msgspec.Struct, frozen=True):
    """What to move where: all that was asked for, and found to be possible."""

    dlq: str
    to: str
    elsewhere: bool
    """`to` is not the queue that they came from."""
    payload_max: int
    began_at: int
    options: Options
    edit: Editor | None


class EditFailed(InvalidArgument):
    """A new payload cannot be: message `id` stays as it was; `redriven` were moved before it."""

    def __init__(self, id: str, problem: str, redriven: int) -> None:
        super().__init__("edit", f"{id}: {problem} ({redriven} redriven before that)")
        self.id = id
        self.cause = problem
        self.redriven = redriven

    def __reduce__(self) -> tuple[Any, ...]:
        return EditFailed, (self.id, self.cause, self.redriven)


def redrive(
    at: Context,
    dlq: Any,
    count: int = 0,
    *,
    ids: Sequence[Any] | None = None,
    where: DeadFilter | None = None,
    rate: float | None = None,
    to: str | None = None,
    edit: Edit | Editor | None = None,
    dry_run: bool = False,
    progress: Callable[[Progress], object] | None = None,
    cancel: threading.Event | Stopped | None = None,
) -> Redriven:
    """Move the `count` oldest dead letters back to their source queue; 0 moves all.

    Messages that die while this runs are left alone, so it ends even if everything fails again.
    """
    named(dlq)
    options, editor = checked(
        count, ids=ids, where=where, rate=rate, to=to, edit=edit, dry_run=dry_run
    )
    stopped = _stopped(cancel)
    tally = Tally()
    try:
        plan = planned(at, dlq, options, editor)
        total, missing = counted(at, plan)
        for tally in walk(at, plan, Tally(), stopped):
            if progress is not None:
                progress(Progress(tally.looked, tally.redriven, tally.skipped, total))
        if tally.redriven and not dry_run:
            state = "done" if tally.ended else "cancelled"
            at.store.publish([news(at, dlq, plan.to, tally.redriven, None, state)])
    except StoreError as error:
        raise RedriveFailed(str(error), tally.redriven) from error
    return Redriven(
        dlq,
        tally.redriven,
        tally.looked,
        missing,
        tally.skipped,
        not tally.ended,
        dry_run,
        plan.to,
    )


def named(dlq: Any) -> None:
    """The first of the five checks; `planned` makes the others, in their order."""
    if not isinstance(dlq, str) or not dlq:
        raise InvalidArgument("dlq", f"name a dead-letter queue, not {shown(dlq)}")
    check_queue_name(dlq, "dlq")


def planned(at: Context, dlq: str, options: Options, edit: Editor | None) -> Plan:
    source = _source(at, dlq)
    target = source if options.to in (None, source.name) else _target(at, options.to)
    limit = at.complete(target).payload_max or 0
    elsewhere = target is not source
    return Plan(dlq, target.name, elsewhere, limit, at.clock.now(), options, edit)


def counted(at: Context, plan: Plan) -> tuple[int, int]:
    """How many dead letters there are, and how many of the ids are not among them."""
    stats = at.store.stats([plan.dlq], at.clock.now())[0]
    ids = plan.options.ids
    missing = 0 if ids is None else len(ids) - len(_present(at, plan.dlq, ids))
    return stats.ready + stats.delayed + stats.leased, missing


def walk(
    at: Context, plan: Plan, tally: Tally, stopped: Stopped, *, ahead: bool = False
) -> Iterator[Tally]:
    """Go on from `tally`, batch by batch, and say after each how far it is.

    With `ahead`, say before each batch how far it is and what will be moved. The last one says
    whether it came to its end, or was stopped.
    """
    ids = plan.options.ids
    wanted = None if ids is None else _present(at, plan.dlq, ids)
    next_at = at.clock.monotonic()
    while not tally.ended and not stopped():
        page = at.store.browse(
            View(plan.dlq, upto=tally.end), tally.after, _limit(plan, tally), at.clock.now()
        )
        tally = replace(tally, end=tally.end or page.end)
        elsewhere = _target(at, plan.to) if plan.elsewhere else None
        chosen = [entry for entry in page.entries if _takes(plan, wanted, entry)]
        while chosen and _left(plan, tally):
            if not _wait(at, next_at, stopped):
                return
            n = min(step(plan.options.rate, BATCH), _left(plan, tally))
            batch, chosen = chosen[:n], chosen[n:]
            if ahead:
                yield replace(tally, batch=tuple((e.message.id, e.message.redriven) for e in batch))
                if stopped():
                    return
            began = at.clock.monotonic()
            moved = _move(at, plan, batch, elsewhere, tally)
            if not plan.options.dry_run:
                ended = at.clock.monotonic()
                rest = min(max(ended - began, REST_S[0]), REST_S[1])
                next_at = max(due(next_at, ended, moved, plan.options.rate), ended + rest)
            tally = replace(
                tally,
                redriven=tally.redriven + moved,
                skipped=tally.skipped + len(batch) - moved,
            )
            if chosen and _left(plan, tally) and (plan.options.rate or not ahead):
                yield tally
        if wanted is not None:
            wanted -= {entry.message.id for entry in page.entries}
        tally = _turned(plan, tally, page.after, len(page.entries), wanted)
        yield tally


def recounted(at: Context, dlq: str, tally: Tally) -> Tally:
    """With what was moved of the batch that somebody was at when it died."""
    held = {
        message.id: message for message in held_in(at.store, dlq, [id for id, _ in tally.batch])
    }
    still_there = sum(
        id in held and held[id].queue == dlq and held[id].redriven == before
        for id, before in tally.batch
    )
    moved = len(tally.batch) - still_there
    return replace(tally, redriven=tally.redriven + moved, batch=())


def news(at: Context, dlq: str, to: str, count: int, id: str | None, state: str) -> Event:
    """`id` is that of a job; None for a redrive that its caller waits for."""
    told = {"queue": to, "dlq": dlq, "count": count, "id": id, "state": state}
    return Event("redrive", at.clock.now(), told)


def _source(at: Context, dlq: str) -> QueueSpec:
    """Checked in the order in which every interface reports it."""
    if at.spec(dlq) is None:
        raise QueueNotFound(f"no queue {dlq!r}")
    if not is_dlq(dlq):
        raise InvalidArgument("dlq", f"{dlq!r} is not a dead-letter queue; did you mean {dlq}.dlq?")
    source = at.spec(home_of(dlq))
    if source is None:
        raise SourceQueueGone(f"{dlq}: its queue {home_of(dlq)!r} is gone; create it first")
    return source


def _target(at: Context, to: Any) -> QueueSpec:
    check_queue_name(to, "to")
    if is_dlq(to):
        raise InvalidArgument("to", f"{to!r} is a dead-letter queue; name one that is worked")
    spec = None if is_hidden(to) else at.spec(to)
    if spec is None:
        known = [q.name for q in at.store.queues() if not is_dlq(q.name) and not is_hidden(q.name)]
        raise QueueNotFound(f"no queue {to!r}; {did_you_mean(to, known)}")
    return spec


def _stopped(cancel: Any) -> Stopped:
    if cancel is None:
        return lambda: False
    stopped = getattr(cancel, "is_set", cancel)
    if not callable(stopped):
        raise InvalidArgument("cancel", f"must be an event or a function, not {shown(cancel)}")
    return cast("Stopped", stopped)


def _present(at: Context, dlq: str, ids: Sequence[str]) -> set[str]:
    """Those that are dead letters now. In pieces: what the store gives has payloads."""
    found: set[str] = set()
    for start in range(0, len(ids), BATCH):
        held = held_in(at.store, dlq, ids[start : start + BATCH])
        found |= {message.id for message in held if message.queue == dlq}
    return found


def _limit(plan: Plan, tally: Tally) -> int:
    picky = plan.options.ids is not None or plan.options.where is not None
    return BATCH if picky else min(BATCH, _left(plan, tally))


def _left(plan: Plan, tally: Tally) -> int:
    count = plan.options.count
    return max(0, count - tally.redriven) if count else BATCH


def _takes(plan: Plan, wanted: set[str] | None, entry: Entry) -> bool:
    if wanted is not None and entry.message.id not in wanted:
        return False
    where = plan.options.where
    return where is None or matches(where, entry.message, plan.began_at)


def _wait(at: Context, until: float, stopped: Stopped) -> bool:
    """In small steps, so that it can be stopped; False if it was."""
    while not stopped():
        left = until - at.clock.monotonic()
        if left <= 0:
            return True
        clock.sleep(min(left, STEP_S))
    return False


def _move(
    at: Context, plan: Plan, batch: list[Entry], elsewhere: QueueSpec | None, tally: Tally
) -> int:
    now = at.clock.now()
    moves = [_transition(plan, entry, elsewhere, now, tally.redriven) for entry in batch]
    if plan.options.dry_run:
        return len(moves)
    return at.store.settle(moves, now).count(Settled.APPLIED)


def _transition(
    plan: Plan, entry: Entry, elsewhere: QueueSpec | None, now: int, redriven: int
) -> Transition:
    message = entry.message
    try:
        payload = plan.edit and edited(plan.edit, message, plan.payload_max)
    except Exception as error:  # whatever the caller's function does is told with its message
        problem = str(error) if isinstance(error, InvalidArgument) else repr(error)
        raise EditFailed(message.id, problem, redriven) from error
    return lifecycle.redriven(
        message, entry.place, plan.to, now, elsewhere=elsewhere, payload=payload
    )


def _turned(
    plan: Plan, tally: Tally, after: str | None, looked: int, wanted: set[str] | None
) -> Tally:
    """At the end of a page, which may be the end of all."""
    at_end = after is None
    return replace(
        tally,
        after=after,
        looked=tally.looked + looked,
        ended=at_end or not _left(plan, tally) or (wanted is not None and not wanted),
        skipped=tally.skipped + (len(wanted) if at_end and wanted else 0),
    )
