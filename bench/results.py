"""What a run measured: plain values, so that a table, a page and a JSON file say the same."""

from __future__ import annotations

from statistics import median
from typing import Literal

import msgspec

Kind = Literal["ours", "limit", "peer"]


class Who(msgspec.Struct, frozen=True):
    """One party, and under which terms its figures hold."""

    name: str
    kind: Kind
    version: str
    settings: str
    durability: str
    delivery: str
    acks: bool
    """Whether a message outlives a consumer that dies, and two consumers never share one."""


class Row(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    samples: list[float]
    note: str = ""
    acks: bool = True
    group: str = ""
    """Rows are compared within their group: medians with medians, tails with tails."""

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def low(self) -> float:
        return min(self.samples)

    @property
    def high(self) -> float:
        return max(self.samples)


class Target(msgspec.Struct, frozen=True):
    text: str
    figure: float
    bound: float
    at_least: bool
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound


class Result(msgspec.Struct, frozen=True):
    name: str
    title: str
    unit: str
    rows: list[Row]
    targets: list[Target] = []
    more_is_better: bool = True
    compare_to: str = ""
    """Where rows are compared with one of them and not with a limit and peers: its name."""

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def first(self, kind: Kind) -> Row | None:
        return next((row for row in self.rows if row.kind == kind), None)

    def peers(self, group: str = "", *, acks: bool = False) -> list[Row]:
        """Best first; with `acks`, only those that keep a message until it is acked."""
        found = [row for row in self.rows if row.kind == "peer" and row.group == group]
        found.sort(key=lambda row: row.median, reverse=self.more_is_better)
        return [row for row in found if row.acks or not acks]

    def ratio(self, row: Row, to: Row | None) -> float | None:
        """How many times as good: over 1 is better than `to`, whichever way the unit counts.

        Repeat by repeat, then the median: what ran within the same seconds had the same machine.
        """
        if to is None or not all(to.samples) or not all(row.samples):
            return None
        times = median(a / b for a, b in zip(row.samples, to.samples, strict=True))
        return times if self.more_is_better or self.compare_to else 1 / times


class Run(msgspec.Struct, frozen=True):
    store: str
    options: dict[str, str]
    machine: dict[str, str]
    parties: list[Who]
    results: list[Result]
