"""What the dashboard costs a browser: its first paint, and a second of a thousand countdowns.

    python -m bench.dashboard [--rows 1000] [--seconds 20]

A server on a new SQLite file, Chromium without a screen. The cost of a second is what the page's
main thread was busy for in it, all told: scripts, styles, layout and paint.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import holdfast
from bench.wire.serving import serving
from servers import browser

PAINT_MS, FRAME_MS = 1000, 16
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/jobs.db"
        with holdfast.connect(url) as hf:
            queue = hf.queue("orders", ack_timeout=3600)
            queue.enqueue_many({"order": n} for n in range(options.rows))
            queue.lease(options.rows, owner="packer-1")
        with serving(url) as (_, http, _), browser.running() as chromium:
            measure(chromium.new_page(viewport={"width": 1280, "height": 800}), http, options)


def measure(page: Any, http: str, options: argparse.Namespace) -> None:
    page.goto(f"{http}/#/queues/orders/processing")
    page.get_by_test_id("countdown").first.wait_for()
    paint = page.evaluate(PAINTED)
    print(f"first paint {paint:.0f} ms, < {PAINT_MS}: {told(paint < PAINT_MS)}")
    busy = seconds(page, options.seconds)
    p50, p90 = (sorted(busy)[int(len(busy) * part)] for part in (0.5, 0.9))
    print(
        f"{options.rows:,} processing: busy for {p50:.1f} ms of a second, < {FRAME_MS}: "
        f"{told(p50 < FRAME_MS)}; 9 in 10 of {len(busy)} {p90:.1f}, the worst {max(busy):.1f}"
    )


def seconds(page: Any, count: int) -> list[float]:
    """Milliseconds that the page's main thread was busy, in each of so many seconds."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")

    def so_far() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return 1000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    time.sleep(2)  # what the start of a page leaves to do
    found: list[float] = []
    before = so_far()
    for _ in range(count):
        time.sleep(1)
        now = so_far()
        found.append(now - before)
        before = now
    return found


def told(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


if __name__ == "__main__":
    main()
