"""Memory by the size of a batch: each size in processes of its own, so that none inherits."""

from __future__ import annotations

import json
import sys

import msgspec

from bench.contenders.ours import fill
from bench.processes import Child
from bench.results import Result, Row, Target
from bench.spark.stage import Setting, opened, url_in
from bench.timing import fresh

SIZES, QUICK_SIZES = (10_000, 100_000, 1_000_000), (1_000, 10_000)
RUN_S = 1_200.0
FLAT = 1.5
KINDS = {
    "reader": "The source's process on the driver, peak resident",
    "worker": "The largest Python worker, peak resident",
    "heap": "The JVM's heap after garbage collection, its highest",
}


def measure(at: Setting) -> list[Result]:
    found = {n: _run(at, n) for n in (QUICK_SIZES if at.quick else SIZES)}
    return [_result(kind, {n: sizes[kind] for n, sizes in found.items()}) for kind in KINDS]


def _run(at: Setting, n: int) -> dict[str, float]:
    with at.postgres() as home, fresh(at.folder) as folder, opened(home) as (_, queue):
        said = f"batch of {n:,}"
        fill(queue, n, tell=lambda done: at.tell(f"{said}: filling, {done:,}"))
        at.tell(said)
        command = [sys.executable, "-m", "bench.spark.memory_run", url_in(home)]
        with Child([*command, str(n), str(folder)]) as child:
            (line,) = child.lines(1, within=RUN_S)
        assert queue.stats().done == n
    return json.loads(line)


def _result(kind: str, sizes: dict[int, float]) -> Result:
    rows = [Row(f"a batch of {n:,}", "ours", [mb]) for n, mb in sizes.items()]
    title = f"Memory: {KINDS[kind]}"
    result = Result(
        f"memory-{kind}", title, "MB", rows, more_is_better=False, compare_to=rows[0].name
    )
    figure = result.ratio(rows[-1], rows[0]) or 0.0
    target = Target(f"{title}: {rows[-1].name} over {rows[0].name}", figure, FLAT, False)
    return msgspec.structs.replace(result, targets=[target])
