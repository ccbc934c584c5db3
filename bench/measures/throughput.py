"""Messages a second: every party in turn, each on a fresh database, again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from bench.results import Result, Row, Target, Who
from bench.timing import rotated

Tell = Callable[[str], None]
Fresh = Callable[[], AbstractContextManager[Any]]
"""A home for one sample, gone afterwards: a folder for SQLite, else a database's URL."""


class Entrant(msgspec.Struct, frozen=True):
    """One party in one measure: what it runs, and with how many messages."""

    who: Who
    run: Callable[[Any, int], float]
    """In a home, with n messages: how many seconds the measured part took."""
    n: int
    note: str = ""


def compare(
    name: str,
    title: str,
    entrants: list[Entrant],
    judge: Callable[[Result], list[Target]],
    *,
    fresh: Fresh,
    repeats: int,
    tell: Tell,
) -> Result:
    rates: dict[str, list[float]] = {entrant.who.name: [] for entrant in entrants}
    for repeat in range(-1, repeats):  # the first round only warms up
        for entrant in rotated(entrants, repeat):
            tell(f"{round_of(repeat, repeats)}: {entrant.who.name}")
            n = entrant.n if repeat >= 0 else max(100, entrant.n // 10)
            with fresh() as home:
                seconds = entrant.run(home, n)
            if repeat >= 0:
                rates[entrant.who.name].append(n / seconds)
    rows = [
        Row(e.who.name, e.who.kind, rates[e.who.name], e.note or f"{e.n:,} messages", e.who.acks)
        for e in entrants
    ]
    result = Result(name, title, "messages/s", rows)
    return msgspec.structs.replace(result, targets=judge(result))


def round_of(repeat: int, repeats: int) -> str:
    return f"repeat {repeat + 1} of {repeats}" if repeat >= 0 else "warming up"
