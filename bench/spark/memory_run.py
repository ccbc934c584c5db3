"""One batch of a stream to Parquet, and what its processes needed: a line of JSON, in MB.

python -m bench.spark.memory_run URL MESSAGES FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.spark.stage import MASTER, SLICES
from holdfast.spark import session

LOOK_S, COLLECT_S = 0.1, 1.0
READER = b"python_streaming_source_runner"
WORKER = b"pyspark.daemon"


def main() -> None:
    url, n, folder = sys.argv[1:]
    spark = session("bench-memory", MASTER)
    watch = Watch(spark)
    reader = spark.readStream.format("holdfast").options(url=url, queue="bench")
    reader = reader.options(slices=str(SLICES), maxMessagesPerTrigger=n)
    writer = reader.load().writeStream.format("parquet").option("path", f"{folder}/sink")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps(watch.end()), flush=True)
    spark.stop()


class Watch(threading.Thread):
    """Looks at every process below this one. A peak (VmHWM) only grows, so a late look is enough;
    the heap is looked at after collections of our own."""

    def __init__(self, spark: Any) -> None:
        super().__init__(daemon=True)
        self._jvm = spark._jvm
        self._stop_asked = threading.Event()
        self._peaks: dict[str, float] = {"reader": 0.0, "worker": 0.0, "heap": 0.0, "jvm": 0.0}
        self.start()

    def end(self) -> dict[str, float]:
        self._stop_asked.set()
        self.join()
        self._collect()
        return self._peaks

    def run(self) -> None:
        collected = time.monotonic()
        while not self._stop_asked.wait(LOOK_S):
            self._look()
            if time.monotonic() - collected > COLLECT_S:
                self._collect()
                collected = time.monotonic()

    def _look(self) -> None:
        for pid in _descendants(os.getpid()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue  # it has ended
            if READER in command:
                self._note("reader", _peak_mb(status))
            elif WORKER in command:
                self._note("worker", _peak_mb(status))
            elif b"java" in command.split(b"\0")[0]:
                self._note("jvm", _peak_mb(status))

    def _collect(self) -> None:
        self._jvm.java.lang.System.gc()
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        self._note("heap", (runtime.totalMemory() - runtime.freeMemory()) / 2**20)

    def _note(self, kind: str, mb: float) -> None:
        self._peaks[kind] = max(self._peaks[kind], mb)


def _peak_mb(status: str) -> float:
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _descendants(root: int) -> list[int]:
    below: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        below[parent].append(int(path.parent.name))
    found, todo = [], [root]
    while todo:
        children = below[todo.pop()]
        found += children
        todo += children
    return found


if __name__ == "__main__":
    main()
