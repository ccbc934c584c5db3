"""What order and fan-out cost, on each store, in one run beside the same work without them.

    script/bench --partitions [--store NAME] [--quick] [--write]

--write puts the table into docs/benchmarks-partitions.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import holdfast
from bench import machine
from bench.timing import payload, timed
from holdfast import Holdfast, Outgoing
from servers import mongo, postgres, redis

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks-partitions.md"
PARTITIONS, KEYS, GROUPS = 8, 200, 5
MANY, CONSUMERS = 64, 8
DRAIN, SINGLES = 10_000, 300
REPEATS = 5

MONGO_DEFAULTS = {"wiredTigerCacheSizeGB": None, "oplogSize": None}
"""A server of the tests has less: many of them run on one machine."""

Row = tuple[str, str, str, str, str]
"""Store, measure, figures with their spread, ratio, and what we aim at."""


@contextmanager
def store(name: str) -> Iterator[str]:
    """The URL of a fresh store, on a real server that waits for its disk as it does by default."""
    with tempfile.TemporaryDirectory() as folder:
        match name:
            case "sqlite":
                yield f"sqlite:///{folder}/bench.db"
            case "postgres":
                with postgres.running() as server:
                    yield server.url
            case "redis":
                with redis.running(settings=redis.EVERYSEC) as server:
                    yield server.url
            case _:
                with mongo.running(options=MONGO_DEFAULTS) as server:
                    yield server.url


STORES = ("sqlite", "postgres", "redis", "mongo")


def drain(hf: Holdfast, name: str, *, ordered: bool, n: int) -> float:
    """Messages a second, by one worker with a handler that does nothing."""
    queue = hf.queue(name, partitions=PARTITIONS, ordered=ordered)
    queue.enqueue_many(Outgoing(payload(i), key=f"k{i % KEYS}") for i in range(n))
    worker = hf.worker(queues=[name], until_empty=True, sweep=False)
    with timed() as watch:
        worker.run()
    assert queue.stats().done == n
    return n / watch.seconds


def publish(hf: Holdfast, topic: Any, queue: Any, n: int) -> tuple[float, float]:
    """Milliseconds of one publish to all groups, and of one enqueue."""
    with timed() as published:
        for i in range(n):
            topic.publish(payload(i), key=f"k{i}")
    with timed() as enqueued:
        for i in range(n):
            queue.enqueue(payload(i), key=f"k{i}")
    return 1000 * published.seconds / n, 1000 * enqueued.seconds / n


def rebalance(url: str) -> float:
    """Rebalance intervals until each of CONSUMERS has its share, from the join of the last."""
    with holdfast.connect(url) as hf:
        queue = hf.queue("many", partitions=MANY, ordered=True)
    connections = [holdfast.connect(url) for _ in range(CONSUMERS)]
    interval = connections[0]._settings.partition_rebalance_ms / 1000
    consumers = [connections[0].consumer("many")]
    while len(consumers[0].partitions) < MANY:
        time.sleep(0.01)
    started = time.perf_counter()
    consumers += [hf.consumer("many") for hf in connections[1:]]
    while sorted(len(c.partitions) for c in consumers) != [MANY // CONSUMERS] * CONSUMERS:
        time.sleep(0.01)
    settled = time.perf_counter() - started
    closing = [threading.Thread(target=consumer.close) for consumer in consumers]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    for hf in connections:
        hf.close()
    del queue
    return settled / interval


def spread(values: list[float], text: Callable[[float], str]) -> str:
    return f"{text(median(values))} ({text(min(values))} to {text(max(values))})"


def measure(name: str, *, quick: bool) -> Iterator[Row]:
    repeats, n, singles = (2, DRAIN // 5, SINGLES // 5) if quick else (REPEATS, DRAIN, SINGLES)
    with store(name) as url, holdfast.connect(url) as hf:

        @hf.handler("warm-up")
        def nothing(value: dict[str, Any]) -> None:
            pass

        plain: list[float] = []
        ordered: list[float] = []
        drain(hf, "warm-up", ordered=False, n=n // 5)
        for i in range(repeats):
            for kind, found in (("plain", plain), ("ordered", ordered)):
                hf.handler(f"{kind}-{i}")(nothing)
                found.append(drain(hf, f"{kind}-{i}", ordered=kind == "ordered", n=n))
        ratio = median(b / a for a, b in zip(plain, ordered, strict=True))
        figures = f"{spread(ordered, '{:,.0f}'.format)}; plain {spread(plain, '{:,.0f}'.format)}"
        yield name, "drain, messages/s", figures, f"{ratio:.2f}", met(ratio >= 0.5, ">= 0.5")

        topic = hf.topic("shop")
        for group in range(GROUPS):
            topic.bind(f"g{group}")
        single, publishes, enqueues = hf.queue("single"), list[float](), list[float]()
        publish(hf, topic, single, singles // 5)
        for _ in range(repeats):
            first, second = publish(hf, topic, single, singles)
            publishes.append(first)
            enqueues.append(second)
        ratio = median(a / b for a, b in zip(publishes, enqueues, strict=True))
        figures = f"{spread(publishes, '{:.2f}'.format)}; one {spread(enqueues, '{:.2f}'.format)}"
        text = f"publish to {GROUPS} groups, ms"
        yield name, text, figures, f"{ratio:.1f}", met(ratio <= 4, "<= 4")

    with store(name) as url:
        intervals = [rebalance(url) for _ in range(1 if quick else 3)]
        text = f"{MANY} partitions, {CONSUMERS} consumers, intervals"
        figures = spread(intervals, "{:.2f}".format)
        yield name, text, figures, f"{median(intervals):.2f}", met(max(intervals) <= 2, "<= 2")


def met(is_met: bool, target: str) -> str:
    return f"{target}: {'met' if is_met else 'MISSED'}"


def page(rows: list[Row], facts: dict[str, str], load: str) -> str:
    lines = [
        "# What order and fan-out cost",
        "",
        "Written by `script/bench --partitions --write`. One worker of 16 threads, a handler that "
        f"does nothing, payloads of 100 bytes, {PARTITIONS} partitions, {KEYS} keys, the log on; "
        "ordered and plain in turns on one store, in one process. Each figure is the median with "
        "the least and the most; the ratio is the median of the ratios of the turns. Every store "
        "waits for its disk as it does by default (SQLite `synchronous=NORMAL`, PostgreSQL `fsync` "
        "and `synchronous_commit`, Redis `appendfsync everysec`, MongoDB majority with its "
        "journal). A publish goes to the groups and to what the topic retains.",
        "",
        "| store | measure | figures | ratio | target |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"Measured on: {'; '.join(f'{name} {value}' for name, value in facts.items())}. {load}",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    quick, write = "--quick" in arguments, "--write" in arguments
    names = [arguments[arguments.index("--store") + 1]] if "--store" in arguments else STORES
    facts, steal = machine.facts(Path.cwd()), machine.Steal()
    rows: list[Row] = []
    for name in names:
        for row in measure(name, quick=quick):
            print("  ".join(row), flush=True)
            rows.append(row)
    load = f"Others took {steal.percent():.1f} % of the processors meanwhile."
    if write:
        PAGE.write_text(page(rows, facts, load))
        print(f"wrote {os.path.relpath(PAGE)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
