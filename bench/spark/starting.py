"""From the start of a process to the answer of its first query."""

from __future__ import annotations

import sys
import time

from bench.measures.throughput import round_of
from bench.processes import Child
from bench.results import Result, Row
from bench.spark.stage import OURS, PLAIN, Setting
from bench.timing import rotated

START_S = 300.0
ASKED = "spark.range(1).count() in a new process, imports and the JVM included"


def measure(at: Setting) -> list[Result]:
    taken: dict[str, list[float]] = {OURS.name: [], PLAIN.name: []}
    for repeat in range(-1, at.repeats):  # the first round only fills the file cache
        for name in rotated([OURS.name, PLAIN.name], repeat):
            at.tell(f"{round_of(repeat, at.repeats)}: {name}")
            seconds = _start("holdfast" if name == OURS.name else "plain")
            if repeat >= 0:
                taken[name].append(seconds)
    rows = [Row(who.name, who.kind, taken[who.name], ASKED) for who in (OURS, PLAIN)]
    return [
        Result(
            "start",
            "From nothing to the first answer",
            "s",
            rows,
            more_is_better=False,
            compare_to=PLAIN.name,
        )
    ]


def _start(which: str) -> float:
    from holdfast.spark.java import find_java

    environment = {"JAVA_HOME": str(find_java().home)}
    start = time.perf_counter()
    with Child([sys.executable, "-m", "bench.spark.start_run", which], environment) as child:
        child.lines(1, within=START_S)
        return time.perf_counter() - start
