"""A redrive of many dead letters in a process of its own: how fast, and in how much memory."""

from __future__ import annotations

import json
import subprocess
import sys

from bench.contenders.ours import Ours
from bench.measures.throughput import Fresh, Tell
from bench.processes import ROOT
from bench.redrive import MEMORY_MIB, fill
from bench.results import Result, Row, Target

MANY, QUICK_MANY = 1_000_000, 20_000
WITHIN_S = 1800.0


def measure(ours: Ours, *, fresh: Fresh, quick: bool, scale: int, tell: Tell) -> list[Result]:
    many = max(1_000, (QUICK_MANY if quick else MANY) // scale)
    with fresh() as home:
        tell(f"filling: {many:,} dead letters")
        with ours.opened(home) as (hf, _):
            fill(hf, many)
        tell("redriving")
        command = [sys.executable, "-m", "bench.redrive", "--only-redrive", "--url", ours.url(home)]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=WITHIN_S)
    said = json.loads(done.stdout)
    assert said["redriven"] == many, said
    rows = [
        Row("holdfast", "ours", [many / said["seconds"]], f"{many:,}, in {said['seconds']:.1f} s")
    ]
    target = Target(
        "Redrive, most memory of its process", said["peak_mib"], MEMORY_MIB, False, " MiB"
    )
    return [Result("redrive", f"Redrive of {many:,} dead letters", "messages/s", rows, [target])]
