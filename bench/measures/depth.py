"""What a message costs when many others wait, and what asking for the numbers costs."""

from __future__ import annotations

import time
from contextlib import ExitStack

import msgspec

import holdfast
from bench.contenders.ours import Ours, fill
from bench.measures.throughput import Fresh, Tell
from bench.results import Result, Row, Target
from bench.timing import BATCH, rotated

ROUNDS, ROUND = 3, 20  # a sample is so many rounds of so many batches, each followed by a refill
SHALLOW, DEEP, DELAYED = 10_000, 1_000_000, 100_000
FEW = 1_000
STATS_CALLS = 50
DAY_S = 86_400.0


class Backlog(msgspec.Struct, frozen=True):
    ready: int
    delayed: int = 0

    @property
    def label(self) -> str:
        return f"{self.ready:,} ready" + f", {self.delayed:,} delayed" * bool(self.delayed)

    def fill(self, queue: holdfast.Queue) -> None:
        fill(queue, self.ready)
        fill(queue, self.delayed, delay=DAY_S)


BACKLOGS = (Backlog(SHALLOW), Backlog(DEEP), Backlog(SHALLOW, DELAYED))
COST = 1.3
MIDDLE, QUICK_DEEP = 100_000, 100_000


def backlogs(quick: bool) -> tuple[Backlog, ...]:
    """Ten thousand, a hundred thousand, a million; the second one is counted."""
    if quick:
        return (Backlog(SHALLOW), Backlog(QUICK_DEEP))
    return (Backlog(SHALLOW), Backlog(DEEP), Backlog(MIDDLE), Backlog(SHALLOW, DELAYED))


def measure(
    ours: Ours,
    fresh: Fresh,
    repeats: int,
    tell: Tell,
    *,
    backlogs: tuple[Backlog, ...] = BACKLOGS,
    cost: float = COST,
) -> list[Result]:
    """Lease and ack at depth, then stats, on the same files: filling a million takes a while.

    The first backlog is what the others are compared with, the second one is counted.
    """
    few = Backlog(FEW)
    with ExitStack() as stack:
        queues: dict[str, holdfast.Queue] = {}
        for backlog in (*backlogs, few):
            tell(f"filling: {backlog.label}")
            _, queue = stack.enter_context(ours.opened(stack.enter_context(fresh())))
            backlog.fill(queue)
            queues[backlog.label] = queue
        leased = {backlog.label: queues[backlog.label] for backlog in backlogs}
        counted = {backlog.label: queues[backlog.label] for backlog in (few, backlogs[1])}
        return [_lease_ack(leased, repeats, tell, cost), _stats(counted, repeats, tell)]


def _lease_ack(queues: dict[str, holdfast.Queue], repeats: int, tell: Tell, cost: float) -> Result:
    samples = in_turn(queues, repeats, tell)
    rows = [Row(label, "ours", values, f"batches of {BATCH}") for label, values in samples.items()]
    result = Result(
        "depth",
        "Lease and ack with a backlog",
        "µs/message",
        rows,
        more_is_better=False,
        compare_to=rows[0].name,
    )
    targets = [
        Target(
            f"{row.name}: cost over {rows[0].name}", result.ratio(row, rows[0]) or 0.0, cost, False
        )
        for row in rows[1:]
    ]
    return msgspec.structs.replace(result, targets=targets)


def in_turn(queues: dict[str, holdfast.Queue], repeats: int, tell: Tell) -> dict[str, list[float]]:
    """Microseconds a message, queue by queue: batch by batch, so what slows one slows all."""
    samples: dict[str, list[float]] = {label: [] for label in queues}
    for repeat in range(-1, repeats):
        tell(f"lease and ack, repeat {repeat + 1} of {repeats}")
        seconds = dict.fromkeys(queues, 0.0)
        for _ in range(ROUNDS):
            for n in range(ROUND):
                for label in rotated(list(queues), n):
                    seconds[label] += one_batch(queues[label])
            for queue in queues.values():
                fill(queue, ROUND * BATCH)
        if repeat >= 0:
            for label in queues:
                samples[label].append(seconds[label] / (ROUNDS * ROUND * BATCH) * 1e6)
    return samples


def one_batch(queue: holdfast.Queue) -> float:
    start = time.perf_counter()
    leases = queue.lease(BATCH)
    queue.settle(leases)
    seconds = time.perf_counter() - start
    assert len(leases) == BATCH
    return seconds


def _stats(queues: dict[str, holdfast.Queue], repeats: int, tell: Tell) -> Result:
    samples: dict[str, list[float]] = {label: [] for label in queues}
    for repeat in range(-1, repeats):
        tell(f"stats, repeat {repeat + 1} of {repeats}")
        seconds = dict.fromkeys(queues, 0.0)
        for _ in range(STATS_CALLS):
            for label, queue in queues.items():
                start = time.perf_counter()
                queue.stats()
                seconds[label] += time.perf_counter() - start
        if repeat >= 0:
            for label in queues:
                samples[label].append(seconds[label] / STATS_CALLS * 1e6)
    rows = [Row(label, "ours", values, "a call") for label, values in samples.items()]
    return Result(
        "stats",
        "stats()",
        "µs/call",
        rows,
        more_is_better=False,
        compare_to=rows[0].name,
    )
