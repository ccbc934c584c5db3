"""A worker in a process of its own: how soon it starts on a message, and what waiting costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from random import Random
from statistics import quantiles
from typing import Any

import msgspec

from bench.measures.throughput import Fresh, Tell
from bench.processes import Child
from bench.results import Result, Row, Target, Who
from bench.timing import payload

PER_SECOND = 100
IDLE_S = 10.0

Send = Callable[[dict[str, Any]], Any]


class Setup(msgspec.Struct, frozen=True):
    who: Who
    open: Callable[[Any], AbstractContextManager[tuple[Send, Child]]]
    """In a home: the way to send, and the worker that writes a line for what it gets."""


def latency(setups: list[Setup], fresh: Fresh, repeats: int, messages: int, tell: Tell) -> Result:
    halves: dict[str, list[float]] = {setup.who.name: [] for setup in setups}
    tails: dict[str, list[float]] = {setup.who.name: [] for setup in setups}
    for repeat in range(repeats):
        for setup in setups:
            tell(f"repeat {repeat + 1} of {repeats}: {setup.who.name}")
            with fresh() as home, setup.open(home) as (send, child):
                _warm_up(send, child)
                taken = _trickle(send, child, messages)
            cuts = quantiles(taken, n=100)
            halves[setup.who.name].append(cuts[49] * 1000)
            tails[setup.who.name].append(cuts[98] * 1000)
    rows = [
        Row(
            f"{setup.who.name}, {word}",
            setup.who.kind,
            values[setup.who.name],
            f"{messages} messages a run",
            setup.who.acks,
            group=word,
        )
        for word, values in (("p50", halves), ("p99", tails))
        for setup in setups
    ]
    title = f"From enqueue to the start of the handler, at {PER_SECOND} messages a second"
    return Result("latency", title, "ms", rows, more_is_better=False)


def idle(setups: list[Setup], fresh: Fresh, tell: Tell) -> Result:
    """All at once: nobody has anything to do."""
    tell(f"for {IDLE_S:.0f} s")
    with ExitStack() as stack:
        children: list[Child] = []
        for setup in setups:
            home = stack.enter_context(fresh())
            send, child = stack.enter_context(setup.open(home))
            _warm_up(send, child)
            children.append(child)
        time.sleep(1.0)  # let the last message settle
        before, start = [child.cpu_seconds() for child in children], time.monotonic()
        time.sleep(IDLE_S)
        after, seconds = [child.cpu_seconds() for child in children], time.monotonic() - start
    percents = [(b - a) / seconds * 100 for a, b in zip(before, after, strict=True)]
    rows = [
        Row(setup.who.name, setup.who.kind, [percent], f"over {seconds:.0f} s")
        for setup, percent in zip(setups, percents, strict=True)
    ]
    target = Target("An idle worker, share of a core", percents[0], 2.0, False, "%")
    title = "An idle worker process"
    return Result("idle", title, "% of a core", rows, [target], more_is_better=False)


def _warm_up(send: Send, child: Child) -> None:
    send({"sent": time.monotonic()})
    child.lines(1)


def _trickle(send: Send, child: Child, messages: int) -> list[float]:
    due = time.monotonic()
    dice = Random(messages)  # an even beat would fall into step with whoever polls
    for n in range(messages):
        due += dice.uniform(0, 2 / PER_SECOND)
        time.sleep(max(0.0, due - time.monotonic()))
        send({**payload(n), "sent": time.monotonic()})
    return [float(line) for line in child.lines(messages)]
