"""How things look: tables and times for people, JSON lines for programs.

On a terminal rich draws; elsewhere the same rows come as plain text, with nothing cut off but
payloads. rich is imported only when it draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.model.message import Message
from holdfast.model.payload import JSON

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

PAYLOAD_SHOWN = 120
"""Characters of a payload in a table; --json and `dlq show` give all of it."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
GAP = 2
ELASTIC_MIN = 12

Cell = str | tuple[str, str]
"""Text, or text with a rich style."""


class Column(msgspec.Struct, frozen=True):
    title: str
    right: bool = False
    elastic: bool = False
    """Cut to what a terminal has left; no other column ever is."""
    optional: bool = False
    """Left out, the last first, where a terminal is too narrow for all."""


def number(title: str, *, optional: bool = False) -> Column:
    return Column(title, right=True, optional=optional)


def documents(docs: Iterable[dict[str, Any]]) -> None:
    """JSON lines: one document a line."""
    for doc in docs:
        click.echo(msgspec.json.encode(doc))


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, empty: str) -> None:
    """Rows under their titles; a column that is empty throughout is left out."""
    rows = [*rows]
    if not rows:
        click.echo(empty)
        return
    columns, rows = _without_empty(columns, rows)
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        console.print(terminal_table(columns, rows, console.width), soft_wrap=True)
    else:
        click.echo(plain_table(columns, rows))


def pairs(rows: Iterable[tuple[str, str]], *, indent: int = 0) -> None:
    """Names and values, one a line, the values below each other."""
    rows = [*rows]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        first, *more = value.split("\n")
        click.echo(" " * indent + f"{name:<{width}}  {first}".rstrip())
        for line in more:
            click.echo(" " * (indent + width + 2) + line)


def heading(text: str) -> None:
    click.echo(click.style(text, bold=True) if sys.stdout.isatty() else text)


def plain_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> str:
    texts = [[column.title for column in columns], *([text_of(cell) for cell in r] for r in rows)]
    widths = [max(map(len, cells)) for cells in zip(*texts, strict=True)]
    lines: list[str] = []
    for cells in texts:
        fitted = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        lines.append("  ".join(fitted).rstrip())
    return "\n".join(lines)


def terminal_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int
) -> Table | Text:
    """As wide as the terminal at most; plain, to be wrapped by it, where that is not enough."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    fitting = _fit(columns, rows, width)
    if fitting is None:
        return Text(plain_table(columns, rows))
    columns, rows, widths = fitting
    drawn = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, size in zip(columns, widths, strict=True):
        side = "right" if column.right else "left"
        drawn.add_column(column.title, justify=side, width=size, no_wrap=True, header_style="bold")
    for row in rows:
        drawn.add_row(*(Text(text_of(cell), style=_style(cell)) for cell in row))
    return drawn


def text_of(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def clean(text: str) -> str:
    """On one line and without control characters: what others wrote may hold anything."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def count(n: int, what: str) -> str:
    """1 message, 1,200 messages."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def length(seconds: float) -> str:
    """250 ms, 12 s, 1 min 30 s, 2 h 5 min, 7 d: the two largest units that say something."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    left, parts = round(seconds), list[str]()
    for size, unit in _UNITS:
        n, left = divmod(left, size)
        if n:
            parts.append(f"{n} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def ago(at: int | None, now: int) -> str:
    """12 s ago, in 5 min, now: one unit is enough."""
    if at is None:
        return ""
    seconds = (now - at) // 1000 if now >= at else (at - now + 999) // 1000
    if seconds == 0:
        return "now"
    size, unit = next((s, u) for s, u in _UNITS if seconds >= 2 * s or s == 1)
    text = f"{seconds // size} {unit}"
    return f"{text} ago" if now >= at else f"in {text}"


def size(n: int) -> str:
    """340 bytes, 1.2 kB, 56.0 MB."""
    if n < 1000:
        return count(n, "byte")
    power = min(4, (len(str(n)) - 1) // 3)
    return f"{n / 1000**power:.1f} {' kMGT'[power]}B"


def short_payload(message: Message) -> str:
    """A payload on one line, cut where it gets long."""
    text = _payload_text(message, indent=-1)
    if text is None:
        return f"<{size(len(message.body))} of {clean(message.content_type)}>"
    text = clean(text[: PAYLOAD_SHOWN + 1])
    return text if len(text) <= PAYLOAD_SHOWN else text[: PAYLOAD_SHOWN - 1] + "…"


def whole_payload(message: Message) -> str:
    """All of a payload, over several lines."""
    text = _payload_text(message, indent=2)
    if text is None:
        return f"<{size(len(message.body))} of {clean(message.content_type)}; --json has them>"
    return "\n".join(clean(line) for line in text.split("\n"))


def _payload_text(message: Message, *, indent: int) -> str | None:
    """None for bytes that are no text."""
    try:
        if message.content_type == JSON:
            return msgspec.json.format(message.body, indent=indent).decode()
        return message.body.decode() if message.content_type.startswith("text/") else None
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return None


def _without_empty(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> tuple[list[Column], list[list[Cell]]]:
    kept = [n for n in range(len(columns)) if any(text_of(row[n]) for row in rows)]
    return [columns[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int
) -> tuple[list[Column], list[list[Cell]], list[int]] | None:
    """The columns that a terminal has room for, with their widths; None if it is too narrow."""
    kept = list(range(len(columns)))
    while True:
        widths = [_width(columns[n], [row[n] for row in rows]) for n in kept]
        over = sum(widths) + GAP * (len(kept) - 1) - width
        for at, n in enumerate(kept):
            if columns[n].elastic and over > 0:
                cut = min(over, max(0, widths[at] - ELASTIC_MIN))
                widths[at], over = widths[at] - cut, over - cut
        if over <= 0:
            return [columns[n] for n in kept], [[row[n] for n in kept] for row in rows], widths
        optional = [n for n in kept if columns[n].optional]
        if not optional:
            return None
        kept.remove(optional[-1])


def _width(column: Column, cells: Sequence[Cell]) -> int:
    return max(len(column.title), *(len(text_of(cell)) for cell in cells))


def _style(cell: Cell) -> str:
    return "" if isinstance(cell, str) else cell[1]


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
