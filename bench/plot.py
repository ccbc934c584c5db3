"""The rates of one run as a picture: bars on a logarithmic scale, plain SVG."""

from __future__ import annotations

import math
from html import escape

from bench.report import number
from bench.results import Result, Row

WIDTH, LEFT, RIGHT = 760, 190, 90
BAR, GAP, HEAD = 16, 6, 34
COLOURS = {"ours": "#0b7285", "limit": "#868e96", "peer": "#ced4da"}


def bars(results: list[Result]) -> str:
    """All throughput results below each other, on one scale."""
    rows = [row for result in results for row in result.rows]
    low = 10 ** math.floor(math.log10(min(row.median for row in rows)))
    high = max(row.median for row in rows)
    parts: list[str] = []
    y = 0
    for result in results:
        parts.append(text_at(0, y + HEAD - 12, f"{result.title} ({result.unit})", weight="bold"))
        y += HEAD
        for row in result.rows:
            parts.append(_bar(row, y, low, high))
            y += BAR + GAP
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" '
        f'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _bar(row: Row, y: int, low: float, high: float) -> str:
    share = math.log10(row.median / low) / math.log10(high / low)
    length = max(1.0, share * (WIDTH - LEFT - RIGHT))
    weight = "bold" if row.kind == "ours" else "normal"
    rect = f'<rect x="{LEFT}" y="{y}" width="{length:.0f}" height="{BAR}"'
    return "\n".join(
        [
            text_at(LEFT - 8, y + BAR - 4, row.name, anchor="end", weight=weight),
            f'{rect} fill="{COLOURS[row.kind]}"/>',
            text_at(LEFT + length + 6, y + BAR - 4, number(row.median), weight=weight),
        ]
    )


def text_at(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    look = f'text-anchor="{anchor}" font-weight="{weight}" fill="#212529"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {look}>{escape(text)}</text>'
