"""What a person sees of a run: what will run and about how long it takes, a progress bar, and at
the end a table of the parts, the slowest tests and the command that repeats each failure."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.plugins.parts import ROOT

RECORD = ROOT / ".build" / "seconds.json"
"""How long each test took when it last ran in this checkout."""
TYPICAL = ROOT / "tests" / "plugins" / "seconds.json"
"""The mean of each part, measured once on two cores: what a first run goes by."""
SLOWEST = 10
LINE_EVERY_S = 20.0
"""Without a terminal, a line instead of the bar."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-seconds", action="store_true", help="write the mean seconds of the parts anew"
    )


@pytest.hookimpl(trylast=True)  # after the terminal reporter
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or "HOLDFAST_TEST_UNRECORDED" in os.environ:
        return
    if config.getoption("verbose") <= 0 and not config.getoption("collectonly"):
        config.pluginmanager.register(_Report(config))


def part_of(nodeid: str) -> str:
    return nodeid.split("/")[1] if nodeid.startswith("tests/") else nodeid


class _Report:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        file = self._terminal._tw._file
        width = None if file.isatty() else 100
        self._console = Console(file=file, highlight=False, width=width)
        self._expected = _Expected()
        self._processes = int(config.getoption("numprocesses", None) or 1)
        self._progress: Progress | None = None
        self._began = time.monotonic()
        self._line_at = 0.0
        self._left: dict[str, float] = {}
        self._all = 0.0
        self._seconds: dict[str, float] = defaultdict(float)
        self._ends: dict[str, str] = {}
        self._is_over = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # none where xdist's processes collect
            self._begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if not self._left:
            self._begin(ids)

    def _begin(self, ids: list[str]) -> None:
        self._left = {id: self._expected.of(id) for id in ids}
        self._all = sum(self._left.values())
        parts = defaultdict(int)
        for id in ids:
            parts[part_of(id)] += 1
        shown = ", ".join(f"{part} {n:,}" for part, n in sorted(parts.items()))
        self._console.print(f"\n[bold]{len(ids):,} tests[/bold]: {shown}")
        about = self._time_for(self._all)
        self._console.print(f"{about} in {self._processes} processes, {self._expected.basis}.\n")
        if self._console.is_terminal:
            self._progress = Progress(
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:>3.0f} %  {task.fields[counts]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._progress.add_task("tests", total=self._all, counts="", left="")
            self._progress.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> Any:
        """Count as pytest does, without its dots; its summary at the end needs its words."""
        if self._is_over:
            return None
        if report.when in ("setup", "teardown") and report.passed:
            return "", "", ""
        return (
            {"passed": "passed", "skipped": "skipped"}.get(
                report.outcome, "failed" if report.when == "call" else "error"
            ),
            "",
            "",
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        id = report.nodeid
        self._seconds[id] += report.duration
        if report.failed:
            self._ends[id] = "failed"
            where = "" if report.when == "call" else f" (in its {report.when})"
            self._console.print(f"[red]FAILED[/red] {escape(id)}{where}", soft_wrap=True)
        elif report.skipped:
            self._ends.setdefault(id, "skipped")
        elif report.when == "call":
            self._ends.setdefault(id, "passed")
        if report.when == "teardown":
            self._left.pop(id, None)
            self._show()

    def _show(self) -> None:
        left = sum(self._left.values())
        failed = sum(end == "failed" for end in self._ends.values())
        counts = f"{len(self._ends):,} of {len(self._ends) + len(self._left):,}"
        counts += f", {failed} failed" if failed else ""
        if self._progress is not None:
            remaining = self._time_for(left) if left else ""
            self._progress.update(
                self._task, completed=self._all - left, counts=counts, left=remaining
            )
        elif time.monotonic() > self._line_at:
            self._line_at = time.monotonic() + LINE_EVERY_S
            share = 1 - left / self._all if self._all else 1
            took = _minutes(time.monotonic() - self._began)
            self._console.print(f"{share:4.0%}  {counts} tests after {took}", soft_wrap=True)

    def _time_for(self, seconds: float) -> str:
        return f"about {_minutes(seconds / self._processes)}"

    def pytest_sessionfinish(self) -> None:
        self._is_over = True
        if self._progress is not None:
            self._progress.stop()
        self._expected.keep(
            {id: s for id, s in self._seconds.items() if self._ends.get(id) == "passed"},
            typical=self._config.getoption("--write-seconds"),
        )

    def pytest_terminal_summary(self) -> None:
        if len(self._ends) > 1:
            self._console.print(self._parts())
            self._console.print(self._slowest())
        failed = [id for id, end in self._ends.items() if end == "failed"]
        if failed:
            self._console.print("\n[bold]Run one failure alone:[/bold]")
        for id in failed:
            self._console.print(f"  script/test -n 0 {escape(shlex.quote(id))}", soft_wrap=True)

    def _parts(self) -> Table:
        table = Table(title="\nParts", title_justify="left", box=None, pad_edge=False)
        table.add_column("part")
        for name in ("passed", "failed", "skipped", "seconds"):
            table.add_column(name, justify="right")
        for part in sorted({part_of(id) for id in self._ends}):
            table.add_row(part, *self._row([id for id in self._ends if part_of(id) == part]))
        table.add_row("all", *self._row(self._ends), style="bold")
        return table

    def _row(self, ids: Iterable[str]) -> list[str]:
        ids = list(ids)
        ends = [self._ends[id] for id in ids]
        counts = [ends.count(end) for end in ("passed", "failed", "skipped")]
        seconds = sum(self._seconds[id] for id in ids)
        return [*(f"{n:,}" if n else "" for n in counts), f"{seconds:,.0f}"]

    def _slowest(self) -> Table:
        table = Table(title="\nSlowest tests", title_justify="left", box=None, pad_edge=False)
        table.add_column("seconds", justify="right")
        table.add_column("test", overflow="fold")
        slowest = sorted(self._seconds, key=self._seconds.__getitem__, reverse=True)[:SLOWEST]
        for id in slowest:
            table.add_row(f"{self._seconds[id]:.1f}", escape(id.removeprefix("tests/")))
        return table


class _Expected:
    """How long tests take: by the last run in this checkout, else by the mean of their part."""

    def __init__(self) -> None:
        self._typical: dict[str, float] = _read(TYPICAL)
        self._record: dict[str, float] = _read(RECORD)

    @property
    def basis(self) -> str:
        if self._record:
            return "going by the last run in this checkout"
        return "going by a machine with two cores"

    def of(self, id: str) -> float:
        return self._record.get(id, self._typical.get(part_of(id), 0.1))

    def keep(self, seconds: dict[str, float], *, typical: bool) -> None:
        if not seconds:
            return
        RECORD.parent.mkdir(exist_ok=True)
        self._record |= {id: round(s, 3) for id, s in seconds.items()}
        RECORD.write_text(json.dumps(self._record))
        if typical:
            parts: dict[str, list[float]] = defaultdict(list)
            for id, s in seconds.items():
                parts[part_of(id)].append(s)
            means = {part: round(sum(all) / len(all), 3) for part, all in sorted(parts.items())}
            TYPICAL.write_text(json.dumps(self._typical | means, indent=1) + "\n")


def _read(path: Any) -> dict[str, float]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"
