"""What the demo looks like: colours and a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast import QueueStats

PLAIN_WIDTH = 100
BAR = 60
COLOURS = {
    "done": "green",
    "leased": "cyan",
    "ready": "blue",
    "delayed": "yellow",
    "dead": "red",
}


class Screen:
    def __init__(self, *, plain: bool = False) -> None:
        console = Console(highlight=False)
        if plain or not console.is_terminal:
            console = Console(
                highlight=False, force_terminal=False, no_color=True, width=PLAIN_WIDTH
            )
        self._console = console
        self._acts = 0

    def title(self, text: str, below: str) -> None:
        self._console.print(Text(text, style="bold"))
        self._console.print(Text(below, style="dim"), soft_wrap=True)

    def act(self, title: str) -> None:
        self._acts += 1
        self._console.print()
        self._console.print(Text(f"{self._acts}  {title}", style="bold magenta"))

    def say(self, text: str, style: str = "") -> None:
        self._indented(Text(text, style=style))

    def good(self, text: str) -> None:
        self.say(text, "green")

    def bad(self, text: str) -> None:
        self.say(text, "red")

    def facts(self, facts: Mapping[str, str]) -> None:
        grid = Table.grid(padding=(0, 2))
        for name, what in facts.items():
            grid.add_row(Text(name, style="bold"), what)
        self._indented(grid, 5)

    def lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._indented(Text(line, style="dim", no_wrap=True, overflow="ellipsis"), 5)

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Sequence[int] = (),
        footer: Sequence[str] = (),
    ) -> None:
        table = Table(box=box.SIMPLE_HEAD, show_footer=bool(footer), pad_edge=False)
        for n, name in enumerate(header):
            table.add_column(
                name,
                justify="right" if n in right else "left",
                footer=footer[n] if footer else "",
            )
        for row in rows:
            table.add_row(*row)
        self._indented(table)

    def check(self, what: str, *, ok: bool, wrong: str) -> None:
        mark = Text("ok    " if ok else "WRONG ", style="green" if ok else "bold red")
        self._indented(mark + Text(what if ok else f"{what}: {wrong}", style="" if ok else "red"))

    @contextmanager
    def live(self, view: Callable[[], Any]) -> Generator[None, None, None]:
        """Show `view()` again and again while the body runs; on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=view, console=self._console, refresh_per_second=12, transient=True
        ):
            yield

    def depth(self, stats: QueueStats, lines: Sequence[str]) -> Any:
        counts = {name: getattr(stats, name) for name in COLOURS}
        total = sum(counts.values()) or 1
        bar, words = Text(), Text()
        for name, n in counts.items():
            bar.append("█" * round(n * BAR / total), style=COLOURS[name])
            words.append(f"{name} {n}   ", style=COLOURS[name])
        log = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines]
        return Padding(Group(bar, words, *log), (0, 0, 0, 3))

    def _indented(self, what: Any, by: int = 3) -> None:
        self._console.print(Padding(what, (0, 0, 0, by), expand=False))
