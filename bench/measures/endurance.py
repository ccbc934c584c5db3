"""What lease and ack keep of their throughput when a queue has had a hard time.

Every condition has a database of its own, so that a transaction that is held open in one keeps
nobody else from vacuuming. The sweeper runs beside all of them, as it does in every worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import msgspec

import holdfast
from bench.contenders.ours import Ours, fill
from bench.measures.depth import DAY_S, DELAYED, SHALLOW, in_turn, one_batch
from bench.measures.throughput import Fresh, Tell
from bench.results import Result, Row, Target
from bench.timing import BATCH
from holdfast.model import settings
from holdfast.work.sweeper import Sweeper

MILLION, QUICK_MILLION = 1_000_000, 100_000
KEEP = 2 / 3
FILL = 10_000
TOLD_EVERY = 10
WORK_OFF = 1_000
REFILL = 1_000

Prepare = Callable[[holdfast.Queue], None]


class Condition(msgspec.Struct, frozen=True):
    label: str
    prepare: Prepare
    held: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """What is held open in the home from before the preparation to the end of the measure."""
    note: str = ""


class Holders(msgspec.Struct, frozen=True):
    """Contexts that hold a transaction open in a home: one that reads, one that has written."""

    snapshot: Callable[[Any], AbstractContextManager[Any]]
    writer: Callable[[Any], AbstractContextManager[Any]]


def measure(
    ours: Ours,
    holders: Holders,
    *,
    fresh: Fresh,
    repeats: int,
    hold: float,
    quick: bool,
    tell: Tell,
) -> Result:
    many = QUICK_MILLION if quick else MILLION
    with ExitStack() as stack:
        queues: dict[str, holdfast.Queue] = {}
        conditions = _conditions(many, hold, holders, tell)
        for condition in conditions:
            home = stack.enter_context(fresh())
            hf, queue = stack.enter_context(ours.opened(home))
            stack.enter_context(_swept(hf))
            stack.enter_context(condition.held(home))
            condition.prepare(queue)
            queues[condition.label] = queue
        samples = in_turn(queues, repeats, tell)
    rows = [
        Row(c.label, "ours", [1e6 / each for each in samples[c.label]], c.note) for c in conditions
    ]
    return _judged(rows)


def _conditions(many: int, hold: float, holders: Holders, tell: Tell) -> list[Condition]:
    """The first one is what the others are compared with."""

    def ready(n: int) -> Prepare:
        return lambda queue: _fill(queue, n, tell)

    def delayed(queue: holdfast.Queue) -> None:
        _fill(queue, SHALLOW, tell)
        _fill(queue, DELAYED, tell, delay=DAY_S)

    def worked_off(queue: holdfast.Queue) -> None:
        _fill(queue, many, tell)
        _work_off(queue, many, tell)
        _fill(queue, SHALLOW, tell)

    def loaded(queue: holdfast.Queue) -> None:
        _fill(queue, SHALLOW, tell)
        _load(queue, hold, tell)

    held = f"held open under {hold:.0f} s of load"
    return [
        Condition(f"{SHALLOW:,} ready", ready(SHALLOW), note=f"batches of {BATCH}"),
        Condition(f"{many:,} ready", ready(many)),
        Condition(f"{DELAYED:,} delayed beside", delayed),
        Condition(f"after {many:,} were worked off", worked_off),
        Condition("beside an open snapshot", loaded, holders.snapshot, f"REPEATABLE READ, {held}"),
        Condition("beside an open writer", loaded, holders.writer, f"INSERT elsewhere, {held}"),
    ]


def _judged(rows: list[Row]) -> Result:
    base, *others = rows
    title = "Endurance of lease and ack"
    result = Result("endurance", title, "messages/s", rows, compare_to=base.name)
    targets = [
        Target(
            f"Endurance, {row.name}: share of {base.name}",
            result.ratio(row, base) or 0.0,
            round(KEEP, 3),
            True,
        )
        for row in others
    ]
    return msgspec.structs.replace(result, targets=targets)


def _fill(queue: holdfast.Queue, n: int, tell: Tell, *, delay: float | None = None) -> None:
    kind = "ready" if delay is None else "delayed"

    def told(filled: int) -> None:
        if filled % (TOLD_EVERY * FILL) == 0 or filled == n:
            tell(f"filling: {filled:,} of {n:,} {kind}")

    fill(queue, n, size=FILL, delay=delay, tell=told)


def _work_off(queue: holdfast.Queue, n: int, tell: Tell) -> None:
    done = 0
    while leases := queue.lease(WORK_OFF):
        queue.settle(leases)
        done += len(leases)
        if done % (TOLD_EVERY * FILL) == 0:
            tell(f"working off: {done:,} of {n:,}")
    assert done == n, f"{done} of {n}"


def _load(queue: holdfast.Queue, seconds: float, tell: Tell) -> None:
    """In and out at full speed, the backlog as deep as before: what dies cannot be cleaned up."""
    tell(f"under load for {seconds:.0f} s")
    done, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        fill(queue, REFILL)
        for _ in range(REFILL // BATCH):
            one_batch(queue)
        done += REFILL
    tell(f"{done:,} messages went through")


@contextmanager
def _swept(hf: holdfast.Holdfast) -> Iterator[None]:
    stop = threading.Event()
    sweeper = Sweeper(hf.context, settings.load())
    thread = threading.Thread(target=sweeper.run, args=(stop,), name="sweeper")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
