"""The runs of all stores on one page: where we lose first, then every target, then the picture.

python -m bench.joined FILE... writes it again, and the pages of its stores, from what --json kept.
A later file of a store replaces what it measures of an earlier one, and the page says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench import page, plot
from bench.page import PAGES, is_race, losses, table
from bench.processes import ROOT
from bench.report import verdict
from bench.results import Result, Run

LATER = "measured in a later run"
PICTURE = "img/bench.svg"
PICTURED = ("enqueue-bulk", "enqueue-bulk-1000", "drain", "drain-2", "failing")
HEAD = """\
# Benchmarks

Written by `script/bench --all --write`; do not edit. Holdfast on every store, beside the
hand-written limit of the store and beside its peers, in turn and on the same machine. The ratios
count; the page of a store has every figure, and says how durable and by which settings.

    script/bench --quick          # all stores, what the targets are about, under ten minutes
    script/bench --all            # everything, more than an hour
    script/bench --store redis    # one of them
"""
NONE = "No run of all stores has been written down yet: the pages below have theirs.\n"


def write(runs: list[Run], docs: Path) -> Path:
    parts = [HEAD, *(_figures(runs, docs) if runs else [NONE]), _pages()]
    path = docs / "benchmarks.md"
    path.write_text("\n".join(parts))
    return path


def _figures(runs: list[Run], docs: Path) -> list[str]:
    (docs / PICTURE).write_text(plot.bars(_pictured(runs)))
    targets = table(["store", "", "measured", "target", ""], _rows(runs))
    return [
        _lost(runs),
        f"## Every target, on every store\n\n{targets}",
        f"![Messages a second, logarithmic]({PICTURE})\n",
    ]


def show(runs: list[Run], console: Console) -> None:
    told = Table(title="Targets on every store", title_justify="left", title_style="bold")
    for heading in ("store", "", "measured", "target", ""):
        told.add_column(heading)
    for row in _rows(runs):
        told.add_row(*row, style="green" if row[-1] == "met" else "red")
    console.print(told)


def _rows(runs: list[Run]) -> list[list[str]]:
    return [
        [run.store, target.text, *verdict(target)]
        for run in runs
        for result in run.results
        for target in result.targets
    ]


def _lost(runs: list[Run]) -> str:
    lines = [
        f"- {run.store}: {line[2:]}" if line.startswith("- ") else line
        for run in runs
        for line in losses(run)
    ]
    return "## Where we lose\n\n" + ("\n".join(lines) or "Nowhere in this run.") + "\n"


def _pictured(runs: list[Run]) -> list[Result]:
    return [
        msgspec.structs.replace(result, title=f"{run.store}: {result.title}")
        for run in runs
        for result in run.results
        if result.name in PICTURED and is_race(result)
    ]


def _pages() -> str:
    links = [f"- [{page.title}]({page.file})" for page in PAGES.values()]
    links += [
        "- [Order and fan-out](benchmarks-partitions.md)",
        "- [Through a server](benchmarks-server.md)",
        "- [What others feel of a redrive](benchmarks-redrive.md)",
    ]
    return "## Store by store\n\n" + "\n".join(links) + "\n"


def updated(run: Run, later: Run) -> Run:
    """A run with some of its measures taken again."""
    new = {result.name: result for result in later.results}
    known = [new.pop(result.name, result) for result in run.results]
    again = [run.options.get(LATER, ""), *(result.name for result in later.results)]
    options = {**run.options, LATER: ", ".join(filter(None, again))}
    return msgspec.structs.replace(run, results=[*known, *new.values()], options=options)


def main(files: list[str]) -> None:
    runs: dict[str, Run] = {}
    for file in files:
        run = msgspec.json.decode(Path(file).read_bytes(), type=Run)
        before = runs.get(run.store)
        runs[run.store] = updated(before, run) if before else run
    for run in runs.values():
        print(page.write(run, ROOT / "docs"))
    print(write(list(runs.values()), ROOT / "docs"))


if __name__ == "__main__":
    main(sys.argv[1:])
