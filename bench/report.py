"""A run as tables for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.results import Result, Row, Run, Target

RANGE = "min to max"


def show(run: Run, console: Console) -> None:
    for result in run.results:
        console.print(_result(result))
    console.print(_parties(run))
    console.print(_facts(run))
    console.print(_targets([target for result in run.results for target in result.targets]))


def _result(result: Result) -> Table:
    table = Table(title=f"{result.title} ({result.unit})", title_justify="left", title_style="bold")
    table.add_column("")
    for heading in ("median", RANGE, *comparisons(result)):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in result.rows:
        style = "bold" if row.kind == "ours" else None
        table.add_row(row.name, *cells(result, row), row.note, style=style)
    return table


def comparisons(result: Result) -> list[str]:
    """The headings of the ratio columns."""
    if result.compare_to:
        return [f"over {result.compare_to}"]
    has_peers = any(row.kind == "peer" for row in result.rows)
    return ["of the limit"] * bool(result.first("limit")) + ["of the best peer"] * has_peers


def cells(result: Result, row: Row) -> list[str]:
    """Median, range and ratios, as they stand in a table."""
    if result.compare_to:
        others = [result.row(result.compare_to)]
    else:
        limit = result.first("limit")
        others = [limit] * bool(limit) + result.peers(row.group)[:1]
    ratios = [result.ratio(row, other) for other in others]
    spread = f"{number(row.low)} to {number(row.high)}" if len(row.samples) > 1 else "one run"
    return [number(row.median), spread, *("" if r is None else f"{r:.2f}" for r in ratios)]


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def verdict(target: Target) -> tuple[str, str, str]:
    """The figure, the bound, and whether it was met."""
    sign = "at least" if target.at_least else "at most"
    unit = " %" if target.unit == "%" else target.unit
    figure, bound = f"{target.figure:.3g}{unit}", f"{sign} {target.bound:g}{unit}"
    return figure, bound, "met" if target.met else "MISSED"


def _targets(targets: list[Target]) -> Table:
    table = Table(title="Targets", title_justify="left", title_style="bold")
    for heading in ("", "measured", "target", ""):
        table.add_column(heading)
    for target in targets:
        table.add_row(target.text, *verdict(target), style="green" if target.met else "red")
    return table


def _parties(run: Run) -> Table:
    table = Table(title="Who, and on which terms", title_justify="left", title_style="bold")
    for heading in ("", "version", "settings", "durability", "delivery"):
        table.add_column(heading)
    for who in run.parties:
        table.add_row(who.name, who.version, who.settings, who.durability, who.delivery)
    return table


def _facts(run: Run) -> Table:
    table = Table(title="Machine and run", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("")
    for name, value in {**run.machine, **run.options}.items():
        table.add_row(name, value)
    return table
