"""A thousand tasks that fail at one instant, on a real MongoDB, and when each comes back.

python -m bench.spread writes docs/img/retry-spread.svg.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, cast

import holdfast
from bench.plot import text_at
from holdfast.model.moves import State
from holdfast.testing import ManualClock
from servers import mongo

PLOT = Path(__file__).parents[1] / "docs" / "img" / "retry-spread.svg"
TASKS = 1000
BASE_S = 60.0
STEP_S = 2.0
SEED = 20
JITTERS = ("none", "full", "decorrelated")
SAYS = {
    "none": "all in one burst",
    "full": "anywhere from at once to the whole delay",
    "decorrelated": "from the base up to three times it",
}

WIDTH, LEFT, RIGHT, HEIGHT, HEAD, FOOT = 760, 60, 20, 110, 30, 22
SECONDS = 3 * BASE_S


def spread(url: str, jitter: str) -> list[float]:
    """Seconds until each of a thousand comes back that were leased, and failed, together."""
    with holdfast.connect(url, clock=ManualClock(), rng=Random(SEED)) as hf:
        backoff = holdfast.Backoff(base=BASE_S, jitter=cast(Any, jitter))
        queue = hf.queue(f"tasks-{jitter}", backoff=backoff)
        queue.enqueue_many(range(TASKS))
        leases = queue.lease(TASKS)
        queue.settle([(lease, holdfast.Retry("upstream is down")) for lease in leases])
        failed_at = hf.context.clock.now()
        waiting = list(queue.browse(State.DELAYED)) + list(queue.browse(State.READY))
    return sorted((entry.message.available_at - failed_at) / 1000 for entry in waiting)


def plot(found: dict[str, list[float]]) -> str:
    """One histogram below the other, on one scale."""
    parts: list[str] = []
    for n, (jitter, delays) in enumerate(found.items()):
        parts.append(_histogram(jitter, delays, n * (HEAD + HEIGHT + FOOT)))
    height = len(found) * (HEAD + HEIGHT + FOOT) + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _histogram(jitter: str, delays: list[float], y: int) -> str:
    bins = Counter(int(delay // STEP_S) for delay in delays)
    most, floor = max(bins.values()), y + HEAD + HEIGHT
    scale = (WIDTH - LEFT - RIGHT) / (SECONDS + STEP_S)
    title = f"jitter {jitter}: {SAYS[jitter]}; at most {most} of {len(delays)} in {STEP_S:.0f} s"
    parts = [text_at(LEFT, y + HEAD - 10, title, weight="bold")]
    for at, n in sorted(bins.items()):
        tall = max(1.0, n / most * HEIGHT)
        x, wide = LEFT + at * STEP_S * scale, STEP_S * scale - 1
        parts.append(
            f'<rect x="{x:.1f}" y="{floor - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
            'fill="#0b7285"/>'
        )
    parts.append(text_at(LEFT - 8, floor - HEIGHT + 10, str(most), anchor="end"))
    parts.append(
        f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}" stroke="#868e96"/>'
    )
    parts += [
        text_at(LEFT + second * scale, floor + 15, f"{second} s", anchor="middle")
        for second in range(0, int(SECONDS) + 1, 30)
    ]
    return "\n".join(parts)


def main() -> None:
    with mongo.running() as server:
        url = mongo.with_database(server.url, "spread")
        found = {jitter: spread(url, jitter) for jitter in JITTERS}
    PLOT.write_text(plot(found))
    for jitter, delays in found.items():
        most = max(Counter(int(delay // STEP_S) for delay in delays).values())
        print(
            f"{jitter:>13}: {delays[0]:6.1f} to {delays[-1]:6.1f} s, at most {most} in {STEP_S} s"
        )


if __name__ == "__main__":
    sys.exit(main())
