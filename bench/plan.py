"""What the plans of all stores share: what a measure is given, and how targets are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from bench.measures.throughput import Entrant, Fresh, Tell, compare
from bench.results import Result, Target

Judge = Callable[[Result], list[Target]]


class Setting(msgspec.Struct, frozen=True):
    fresh: Fresh
    repeats: int
    tell: Tell
    hold: float
    """For how many seconds a transaction that is held open sees load."""
    quick: bool


Measure = Callable[[Setting], list[Result]]


def compared(
    at: Setting, name: str, title: str, entrants: list[Entrant], judge: Judge
) -> list[Result]:
    return [compare(name, title, entrants, judge, fresh=at.fresh, repeats=at.repeats, tell=at.tell)]


def of_limit(share: float) -> Judge:
    def judge(result: Result) -> list[Target]:
        return list(limit_target(result, share))

    return judge


def limit_target(result: Result, share: float) -> Iterator[Target]:
    figure = result.ratio(result.row("holdfast"), result.first("limit"))
    yield Target(f"{result.title}: share of the hand-written limit", figure or 0.0, share, True)


def peer_target(result: Result, peer: str, times: float) -> Target:
    figure = result.ratio(result.row("holdfast"), result.row(peer))
    return Target(f"{result.title}: times {peer}", figure or 0.0, times, True)


def best_peer_target(result: Result, times: float) -> Iterator[Target]:
    for best in result.peers()[:1]:
        figure = result.ratio(result.row("holdfast"), best)
        text = f"{result.title}: times the best peer ({best.name})"
        yield Target(text, figure or 0.0, times, True)


def no_target(result: Result) -> list[Target]:
    return []
