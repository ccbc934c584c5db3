"""What a redrive of many dead letters costs, and what others feel of it (DEAD-9).

    python -m bench.redrive [--store NAME | --url URL] [--count 1000000] [--through http|grpc]

One process redrives; another leases and acks messages of a queue of its own, now and then, in
quiet, while the redrive runs, and in quiet again. Prints messages a second, the most memory that
the redriving process held, and how long a lease or an ack took. With --through the process is a
server, and both go by it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import holdfast
from bench.partitions import STORES, store
from bench.processes import Child, peak_mib
from bench.timing import payload, timed
from bench.wire.serving import serving
from holdfast import Holdfast, Queue

COUNT, CHUNK = 1_000_000, 5000
QUIET_S = 15.0
OTHERS = 100_000
MEMORY_MIB, STOPPED_MS, SLOWER = 200, 100, 2


def fill(hf: Holdfast, n: int) -> None:
    """Dead letters, put where they lie: dying one by one would take longer than all the rest."""
    hf.queue("orders")
    dead = hf.queue("orders.dlq")
    for start in range(0, n, CHUNK):
        dead.enqueue_many(payload(i) for i in range(start, min(n, start + CHUNK)))


def latencies(queue: Queue, going: Callable[[], bool]) -> list[float]:
    """Milliseconds of each lease and of each ack, at moments of its own, while it goes on."""
    found: list[float] = []
    while going():
        time.sleep(random.uniform(0.001, 0.02))
        with stopwatch(found):
            leases = queue.lease()
        time.sleep(random.uniform(0.001, 0.02))
        with stopwatch(found):
            queue.ack(leases[0])
    return found


def for_a_while() -> Callable[[], bool]:
    until = time.perf_counter() + QUIET_S
    return lambda: time.perf_counter() < until


@contextmanager
def stopwatch(found: list[float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    found.append(1000 * (time.perf_counter() - started))


def percentile(found: list[float], part: float) -> float:
    return sorted(found)[int(len(found) * part)]


def told(found: list[float]) -> str:
    p50, p99 = (percentile(found, part) for part in (0.5, 0.99))
    return f"{p50:.1f} / {p99:.1f} / {max(found):.1f} ms of {len(found):,}"


def redrive(url: str) -> None:
    """In a process of its own, which is measured if it is on the store itself; says what it did."""
    with holdfast.connect(url) as hf, timed() as watch:
        moved = hf.redrive("orders.dlq").redriven
    peak = peak_mib("self")  # ru_maxrss would begin with what the parent holds
    print(json.dumps({"redriven": moved, "seconds": watch.seconds, "peak_mib": peak}))


@contextmanager
def place(url: str, through: str | None) -> Iterator[tuple[str, Child | None]]:
    """Where those who are measured connect to: the store, or a server on it."""
    if through is None:
        yield url, None
        return
    with serving(url) as (server, http, grpc):
        yield http if through == "http" else grpc, server


def measure(name: str, url: str, n: int, through: str | None) -> None:
    with holdfast.connect(url) as hf:
        fill(hf, n)
        hf.queue("other").enqueue_many(range(OTHERS))
    with place(url, through) as (at, server), holdfast.connect(at) as hf:
        other = hf.queue("other")
        quiet = latencies(other, for_a_while())
        command = [sys.executable, "-m", "bench.redrive", "--url", at, "--only-redrive"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        busy = latencies(other, lambda: process.poll() is None)
        said = json.loads(process.communicate()[0])
        quiet += latencies(other, for_a_while())
        if server is not None:
            said["peak_mib"] = server.peak_mib()
    assert said["redriven"] == n
    memory, stopped = said["peak_mib"] < MEMORY_MIB, max(busy) < STOPPED_MS
    slower = percentile(busy, 0.99) / percentile(quiet, 0.99)
    by = f" through {through}" if through else ""
    print(f"{name}{by}: {n:,} dead letters, {n / said['seconds']:,.0f} messages/s")
    print(f"  memory  {said['peak_mib']:.0f} MiB, < {MEMORY_MIB}: {'met' if memory else 'MISSED'}")
    print(f"  quiet   a lease or an ack, p50 / p99 / most: {told(quiet)}")
    print(f"  busy    {told(busy)}, < {STOPPED_MS}: {'met' if stopped else 'MISSED'}")
    print(
        f"  p99     {slower:.1f} of quiet, <= {SLOWER}: {'met' if slower <= SLOWER else 'MISSED'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.redrive", description=__doc__)
    parser.add_argument("--store", choices=STORES, default=None)
    parser.add_argument("--url", help="a store that is there, and empty")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--through", choices=["http", "grpc"], help="by a server on the store")
    parser.add_argument("--only-redrive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_redrive:
        return redrive(options.url)
    for name in [options.store or "given"] if options.url or options.store else STORES:
        with nullcontext(options.url) if options.url else store(name) as url:
            measure(name, url, options.count, options.through)
    return None


if __name__ == "__main__":
    main()
