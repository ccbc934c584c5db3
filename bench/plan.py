"""What the plans of all stores share: what a measure is given, and how targets are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from bench import profiling
from bench.contenders.ours import Ours
from bench.contenders.party import Party
from bench.measures import fleet, loaded, recovery, redriving
from bench.measures.throughput import Entrant, Fresh, Tell, compare
from bench.results import Result, Target

LEAST = 200
"""Messages of a sample, however short a run is to be."""
FLAT = 1.3
DRAIN_LIMIT, BULK_LIMIT = 0.35, 0.5

Judge = Callable[[Result], list[Target]]


class Setting(msgspec.Struct, frozen=True):
    fresh: Fresh
    repeats: int
    tell: Tell
    hold: float
    """For how many seconds a transaction that is held open sees load."""
    quick: bool
    scale: int = 1
    """Every count is divided by it: four stores in one short run."""


Measure = Callable[[Setting], list[Result]]


def compared(
    at: Setting, name: str, title: str, entrants: list[Entrant], judge: Judge
) -> list[Result]:
    fewer = [
        msgspec.structs.replace(entrant, n=max(LEAST, entrant.n // at.scale))
        for entrant in entrants
    ]
    return [compare(name, title, fewer, judge, fresh=at.fresh, repeats=at.repeats, tell=at.tell)]


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


def soonest_target(result: Result) -> Iterator[Target]:
    """Who starts sooner is better: 1 is as soon as the best peer."""
    for best in result.peers("p50")[:1]:
        figure = result.ratio(result.row("holdfast, p50"), best)
        yield Target(
            f"{result.title}: times as soon as the best peer ({best.name})",
            figure or 0.0,
            1.0,
            True,
        )


def with_fleets(ours: Ours, parties: list[Party], n: int) -> dict[str, Measure]:
    """The measures with worker processes, the same on every store. `n`: what ours drains."""
    everybody = [ours.party(n), *parties]

    def present(at: Setting) -> list[Party]:
        """streaq is written in functions, which Redis has had since 7."""
        old = getattr(at.fresh, "version", (7,)) < (7,)
        fit = [party for party in everybody if not (old and party.who.name == "streaq")]
        return [msgspec.structs.replace(p, n=max(LEAST, p.n // at.scale)) for p in fit]

    def two(at: Setting) -> list[Result]:
        several = [party for party in present(at) if party.several]
        return [
            fleet.drain(several, no_target, workers=2, fresh=at.fresh, repeats=at.repeats,
                        tell=at.tell)
        ]  # fmt: skip

    def failing(at: Setting) -> list[Result]:
        return [
            fleet.failing(present(at), no_target, fresh=at.fresh, repeats=at.repeats, tell=at.tell)
        ]

    def half(at: Setting) -> list[Result]:
        seconds = loaded.QUICK_SECONDS if at.quick else loaded.SECONDS
        result = loaded.latency(
            present(at), fresh=at.fresh, repeats=at.repeats, seconds=seconds, tell=at.tell
        )
        return [msgspec.structs.replace(result, targets=list(soonest_target(result)))]

    def killed(at: Setting) -> list[Result]:
        return recovery.measure(present(at), fresh=at.fresh, quick=at.quick, tell=at.tell)

    def redriven(at: Setting) -> list[Result]:
        return redriving.measure(ours, fresh=at.fresh, quick=at.quick, scale=at.scale, tell=at.tell)

    def profiled(at: Setting) -> list[Result]:
        return [profiling.measure(ours, fresh=at.fresh, repeats=at.repeats, tell=at.tell)]

    return {
        "drain-2": two,
        "failing": failing,
        "latency-half": half,
        "recovery": killed,
        "redrive": redriven,
        "profile": profiled,
    }


def no_target(result: Result) -> list[Target]:
    return []
