"""How a lease fares while messages come and go for minutes, on a real MongoDB.

    python -m bench.sustained [--seconds N] [WINDOW ...]

What has left a line stays in its index for as long as the server keeps its history
(minSnapshotHistoryWindowInSeconds, 300 by default), and every lease steps over it. Each WINDOW is
measured on a server of its own, in turns, twice.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

from pymongo import MongoClient

import holdfast
from bench import machine
from bench.partitions import MONGO_DEFAULTS
from bench.timing import BATCH, payloads, timed
from holdfast.model import clock
from servers import mongo

WINDOWS = ["300", "5"]
SECONDS, ROUNDS = 100.0, 2
STEPPED = "Total number of entries skipped by cursor next calls"


def measure(window: str, seconds: float) -> str:
    parameters = {"minSnapshotHistoryWindowInSeconds": window}
    with (
        mongo.running(options=MONGO_DEFAULTS, parameters=parameters) as server,
        holdfast.connect(server.url) as hf,
        MongoClient[dict[str, Any]](server.url) as client,
    ):
        queue, taken, done = hf.queue("orders"), list[float](), 0
        before, begun = stepped_over(client), clock.monotonic()
        while (spent := clock.monotonic() - begun) < seconds:
            queue.enqueue_many(payloads(BATCH))
            with timed() as watch:
                leases = queue.lease(BATCH)
            queue.settle(leases)
            taken.append(1000 * watch.seconds)
            done += len(leases)
        steps = (stepped_over(client) - before) / len(taken)
    return (
        f"{window:>4} s of history: {done / spent:6,.0f} messages/s, "
        f"a lease of {BATCH} {median(taken):.1f} ms, over {steps:,.0f} that are gone"
    )


def stepped_over(client: MongoClient[dict[str, Any]]) -> int:
    return client.admin.command("serverStatus")["wiredTiger"]["cursor"][STEPPED]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sustained", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("windows", nargs="*", default=WINDOWS)
    options = parser.parse_args()
    facts, steal = machine.facts(Path.cwd()), machine.Steal()
    for n in range(1, ROUNDS + 1):
        for window in options.windows:
            print(f"round {n}, {options.seconds:.0f} s", file=sys.stderr, flush=True)
            print(measure(window, options.seconds), flush=True)
    print("; ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"Others took {steal.percent():.1f} % of the processors meanwhile.")


if __name__ == "__main__":
    main()
