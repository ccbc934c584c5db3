"""What a waiting message takes of the server's memory, and what is left when many have gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import holdfast
from bench.contenders.ours import QUEUE, Ours, fill
from bench.measures.throughput import Fresh, Tell
from bench.results import Result, Row, Target, Who
from bench.timing import PAYLOAD_BYTES

WAITING, MILLION, QUICK_MILLION = 100_000, 1_000_000, 100_000
BYTES_MAX = 400.0
BACK = 1.1
"""How many times its start counts as back at it: connections and the server's own come and go."""
WARM, WORK_OFF = 1_000, 1_000
STEADY_S, STEADY_MAX_S = 0.5, 10.0

Used = Callable[[Any], int]
"""Bytes that the server of a home has in use."""
Filled = Callable[[int], None]
Party = tuple[Who, Callable[[Any], AbstractContextManager[Filled]]]


def waiting(
    parties: list[Party],
    used: Used,
    fresh: Fresh,
    repeats: int,
    tell: Tell,
    *,
    of: str = "Memory",
    most: float | None = None,
) -> Result:
    samples: dict[str, list[float]] = {who.name: [] for who, _ in parties}
    for repeat in range(repeats):
        for who, opened in parties:
            tell(f"repeat {repeat + 1} of {repeats}: {who.name}")
            with fresh() as home, opened(home) as filled:
                filled(WARM)
                before = _steady(home, used)
                filled(WAITING)
                samples[who.name].append((_steady(home, used) - before) / WAITING)
    rows = [
        Row(who.name, who.kind, samples[who.name], f"{WAITING:,} messages of {PAYLOAD_BYTES} bytes")
        for who, _ in parties
    ]
    targets = [
        Target(f"{of} of a waiting message", row.median, most, False, " bytes")
        for row in rows
        if row.kind == "ours" and most is not None
    ]
    title = f"{of} of a waiting message"
    return Result("memory", title, "bytes/message", rows, targets, more_is_better=False)


@contextmanager
def ours_filling(ours: Ours, home: Any) -> Iterator[Filled]:
    with ours.opened(home) as (_, queue):
        yield lambda n: fill(queue, n)


def worked_off(ours: Ours, used: Used, fresh: Fresh, tell: Tell, *, quick: bool) -> Result:
    """The log is off: what it keeps is meant to stay."""
    many = QUICK_MILLION if quick else MILLION
    with fresh() as home, ours.opened(home) as (hf, _):
        queue = hf.queue(QUEUE, log=False)
        _through(queue, WARM)
        before = _steady(home, used)
        tell(f"filling: {many:,}")
        fill(queue, many)
        full = _steady(home, used)
        tell(f"working off: {many:,}")
        _work_off(queue, many)
        after = _steady(home, used)
    labels = {"at its start": before, f"{many:,} ready": full, "all worked off": after}
    rows = [Row(label, "ours", [n / 1e6], "log=False") for label, n in labels.items()]
    target = Target(
        f"Memory after {many:,} were worked off, over its start", after / before, BACK, False
    )
    title = f"Memory before and after {many:,} messages"
    return Result(
        "memory-after", title, "MB", rows, [target], more_is_better=False,
        compare_to=rows[0].name,
    )  # fmt: skip


def _through(queue: holdfast.Queue, n: int) -> None:
    fill(queue, n)
    _work_off(queue, n)


def _work_off(queue: holdfast.Queue, n: int) -> None:
    done = 0
    while leases := queue.lease(WORK_OFF):
        queue.settle(leases)
        done += len(leases)
    assert done == n, f"{done} of {n}"


def _steady(home: Any, used: Used) -> int:
    """Buffers are written out and tables shrunk in the background: when it no longer falls."""
    until, last = time.monotonic() + STEADY_MAX_S, used(home)
    while time.monotonic() < until:
        time.sleep(STEADY_S)
        now = used(home)
        if now > 0.999 * last:
            return now
        last = now
    return last
