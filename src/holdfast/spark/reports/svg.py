"""Plots as plain SVG: lines, stacked areas, bars and heat, with axes that a person can read.

Colours are classes of the page's style sheet, so that a plot follows it into the dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

import msgspec

WIDTH = 920
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 10, 26
COLOURS = 8
TICKS_X = 7

Points = list[tuple[int, float | None]]
Label = Callable[[float], str]

_STEPS_MS = tuple(
    size * 1000
    for size in (
        *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
        *(86_400, 2 * 86_400, 7 * 86_400, 14 * 86_400, 28 * 86_400, 91 * 86_400, 365 * 86_400),
    )
)


class Series(msgspec.Struct, frozen=True):
    name: str
    points: Points
    colour: int = 0


class Frame(msgspec.Struct, frozen=True):
    """From values to places within a plot."""

    x0: float
    x1: float
    y0: float
    y1: float
    width: int
    height: int
    log: bool = False

    def x(self, at: float) -> float:
        share = (at - self.x0) / ((self.x1 - self.x0) or 1)
        return LEFT + share * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        if self.log:
            low, high = math.log10(self.y0), math.log10(self.y1)
            share = (math.log10(max(value, self.y0)) - low) / ((high - low) or 1)
        else:
            share = (value - self.y0) / ((self.y1 - self.y0) or 1)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)


def lines(
    series: Sequence[Series],
    title: str,
    label: Label,
    *,
    span: tuple[int, int],
    height: int = 220,
    width: int = WIDTH,
    log: bool = False,
) -> str:
    values = [y for one in series for _, y in one.points if y is not None]
    frame = _frame(values, span, width, height, log=log)
    body = [_axes(frame, label)]
    for one in series:
        for piece in _pieces(one.points):
            path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in piece)
            if len(piece) == 1:
                x, y = path.split(",")
                body.append(
                    f'<circle class="dot c{one.colour % COLOURS}" cx="{x}" cy="{y}" r="2.5"/>'
                )
            else:
                body.append(f'<polyline class="line c{one.colour % COLOURS}" points="{path}"/>')
    return _svg(title, width, height, body)


def areas(
    series: Sequence[Series],
    title: str,
    label: Label,
    *,
    span: tuple[int, int],
    step: int,
    height: int = 240,
    width: int = WIDTH,
) -> str:
    """Stacked, the first at the bottom; each point holds until the next step."""
    times = sorted({x for one in series for x, _ in one.points})
    below = dict.fromkeys(times, 0.0)
    stacks: list[tuple[Series, list[tuple[int, float, float]]]] = []
    for one in series:
        own = dict(one.points)
        rows: list[tuple[int, float, float]] = []
        for at in times:
            top = below[at] + (own.get(at) or 0.0)
            rows.append((at, below[at], top))
            below[at] = top
        stacks.append((one, rows))
    frame = _frame([0.0, *below.values()], span, width, height)
    body = [_axes(frame, label)]
    for one, rows in stacks:
        for run in _runs(rows, step):
            up = [p for at, _, y in run for p in ((at, y), (at + step, y))]
            down = [p for at, y, _ in reversed(run) for p in ((at + step, y), (at, y))]
            path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in (*up, *down))
            body.append(f'<polygon class="area c{one.colour % COLOURS}" points="{path}"/>')
    return _svg(title, width, height, body)


def bars(rows: Sequence[tuple[str, Sequence[float], str]], title: str, *, width: int = 440) -> str:
    """Lying bars: name, its parts beside each other, what is said at the end."""
    bar, gap, left, right = 18, 8, 150, 200 if width > 600 else 96
    height = len(rows) * (bar + gap) + 4
    most = max((sum(parts) for _, parts, _ in rows), default=0.0) or 1.0
    body: list[str] = []
    for number, (name, parts, said) in enumerate(rows):
        y, x = number * (bar + gap) + 2, float(left)
        body.append(_text(left - 8, y + 13, _short(name, 22), "end", full=name))
        for colour, part in enumerate(parts):
            size = part / most * (width - left - right)
            if part:
                body.append(
                    f'<rect class="bar c{colour}" x="{x:.1f}" y="{y}" width="{max(size, 1):.1f}" '
                    f'height="{bar}"/>'
                )
            x += size
        body.append(_text(x + 6, y + 13, said, "start", "num"))
    return _svg(title, width, height, body)


def heat(
    rows: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    title: str,
    *,
    span: tuple[int, int],
    step: int,
    width: int = WIDTH,
) -> str:
    """A line for each name; the more at a time, the darker."""
    cell, left = 20, 330
    height = len(rows) * (cell + 4) + BOTTOM
    most = max((n for _, points in rows for _, n in points), default=1)
    share = (width - left - RIGHT) / max(1, span[1] - span[0])
    body: list[str] = []
    for number, (name, points) in enumerate(rows):
        y = number * (cell + 4)
        body.append(_text(left - 10, y + 14, _short(name, 50), "end", full=name))
        body.append(
            f'<rect class="bed" x="{left}" y="{y}" width="{width - left - RIGHT}" height="{cell}"/>'
        )
        for at, n in points:
            x = left + (at - span[0]) * share
            body.append(
                f'<rect class="hot" x="{x:.1f}" y="{y}" width="{max(step * share, 1.5):.1f}" '
                f'height="{cell}" fill-opacity="{0.15 + 0.85 * math.sqrt(n / most):.2f}">'
                f"<title>{escape(clock(at))}: {n:,}</title></rect>"
            )
    for at in _times(*span):
        x = left + (at - span[0]) * share
        anchor = "end" if x > width - 40 else "middle"
        body.append(_text(x, height - 8, _time(at, span), anchor, "tick"))
    return _svg(title, width, height, body)


def clock(at: int) -> str:
    """A time in full, as people read it."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _frame(
    values: Sequence[float], span: tuple[int, int], width: int, height: int, *, log: bool = False
) -> Frame:
    high = max(values, default=1.0)
    if not log:
        return Frame(*span, 0.0, _nice(high or 1.0), width, height)
    low = max(1.0, min((value for value in values if value > 0), default=1.0))
    bottom = 10 ** math.floor(math.log10(low))
    top = 10 ** math.ceil(math.log10(max(high, bottom * 10)))
    return Frame(*span, bottom, top, width, height, log=True)


def _nice(high: float) -> float:
    """The next round number."""
    power = 10 ** math.floor(math.log10(high))
    return next(step * power for step in (1, 2, 2.5, 4, 5, 8, 10) if step * power >= high)


def _ticks(frame: Frame) -> list[float]:
    if not frame.log:
        return [frame.y1 * n / 4 for n in range(5)]
    first, last = round(math.log10(frame.y0)), round(math.log10(frame.y1))
    every = max(1, (last - first) // 4)
    return [10.0**power for power in range(first, last + 1, every)]


def _axes(frame: Frame, label: Label) -> str:
    parts: list[str] = []
    for value in _ticks(frame):
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{frame.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(LEFT - 8, y + 4, label(value), "end", "tick"))
    span = (int(frame.x0), int(frame.x1))
    for at in _times(*span, most=TICKS_X if frame.width > 600 else 4):
        x = frame.x(at)
        anchor = "end" if x > frame.width - 40 else "middle"
        parts.append(_text(x, frame.height - 8, _time(at, span), anchor, "tick"))
    return "".join(parts)


def _times(first: int, last: int, most: int = TICKS_X) -> list[int]:
    step = next((s for s in _STEPS_MS if (last - first) / s <= most), _STEPS_MS[-1])
    begin = -(-first // step) * step
    return list(range(begin, last + 1, step))[: most + 1]


def _time(at: int, span: tuple[int, int]) -> str:
    moment = datetime.fromtimestamp(at / 1000, UTC)
    length = span[1] - span[0]
    if length > 5 * 86_400_000:
        return moment.strftime("%-d %b")
    if length > 86_400_000:
        return moment.strftime("%-d %b %H:%M")
    return moment.strftime("%H:%M:%S" if length < 600_000 else "%H:%M")


def _pieces(points: Points) -> list[list[tuple[int, float]]]:
    """Without the gaps."""
    pieces: list[list[tuple[int, float]]] = [[]]
    for x, y in points:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _runs(rows: list[tuple[int, float, float]], step: int) -> list[list[tuple[int, float, float]]]:
    """Steps that follow each other."""
    runs: list[list[tuple[int, float, float]]] = []
    for row in rows:
        if runs and row[0] == runs[-1][-1][0] + step:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _text(
    x: float, y: float, text: str, anchor: str, kind: str = "name", full: str | None = None
) -> str:
    title = f"<title>{escape(full)}</title>" if full is not None and full != text else ""
    look = f'class="{kind}" text-anchor="{anchor}"'
    return f'<text {look} x="{x:.1f}" y="{y:.1f}">{escape(text)}{title}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _svg(title: str, width: int, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(body)}</svg>"
    )
