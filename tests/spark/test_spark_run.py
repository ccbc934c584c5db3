"""Handlers on Spark end as they end in a worker: same log, same dead letters, same retries."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import holdfast
from holdfast import Backoff, Fail, Holdfast, Message, Outgoing, Queue, Retry
from holdfast.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 120.0


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    backoff = Backoff(base=0.05, max=0.05)
    with holdfast.connect(store_url, max_attempts=3, backoff=backoff) as made:
        yield made


@pytest.fixture
def run(hf: Holdfast, spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Until nothing waits, delayed ones included; or with options of the test's own."""
    from holdfast import spark as hs

    started: list[Any] = []

    def go(queue: str, *, checkpoint: str = "c", **options: Any) -> Any:
        query = hs.run(
            hf, queue, checkpoint=str(tmp_path / checkpoint), spark=spark, wait=False, **options
        )
        started.append(query)
        if not options.get("until_empty"):
            wait_until(lambda: query.exception() or is_done(hf.queue(queue)), PATIENCE_S)
            query.stop()
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
        return query

    yield go
    for query in started:
        query.stop()


def is_done(queue: Queue) -> bool:
    stats = queue.stats()
    return not (stats.ready or stats.delayed or stats.leased)


def work(hf: Holdfast, queue: str, **options: Any) -> None:
    """By a plain worker, until nothing waits."""

    def done() -> bool:
        hf.work(queues=[queue], until_empty=True, **options)
        return is_done(hf.queue(queue))

    wait_until(done, PATIENCE_S)


def ends(queue: Queue) -> dict[str, Any]:
    """How every message ended, by its name: what is compared, without times and who did it."""
    found: dict[str, Any] = {}

    def told(message: Message) -> dict[str, Any]:
        errors = [(e.message, e.code, e.attempt, e.handler) for e in message.errors]
        home = message.source and message.source == queue.name
        return {
            "attempts": message.attempts,
            "errors": errors,
            "handled": message.history.handled,
            "reason": message.reason,
            "home": home,
            "body": message.body,
        }

    for finished in queue.log():
        name = finished.message.key or ""
        assert name not in found
        found[name] = ["log", finished.status, finished.result, told(finished.message)]
    for entry in queue.dlq.browse():
        name = entry.message.key or ""
        assert name not in found
        found[name] = ["dead", told(entry.message)]
    return found


class Order(msgspec.Struct):
    n: int


def fails_at_first(order: dict[str, int], attempt: int) -> dict[str, int]:
    if attempt < 3:
        raise ValueError(f"not at attempt {attempt}")
    return {"n": order["n"], "attempt": attempt}


def poison(order: dict[str, int]) -> None:
    raise KeyError("always ž")


def fatal(order: Any) -> None:
    raise Fail("never", code="E9")


def later(order: Any, attempt: int) -> str | None:
    if attempt == 1:
        raise Retry("not now", delay=0.3)
    if attempt == 2:
        raise Retry(OSError("still not"))
    return "now"


def good_half(order: Any, attempt: int) -> dict[str, int]:
    return {"first called at": attempt}


def bad_half(order: Any, message: Message, attempt: int) -> str:
    if attempt == 1:
        raise RuntimeError("half")
    return f"{message.key} at {attempt}"


def typed(order: Order) -> int:
    return order.n + 1


def odd(order: Any) -> Any:
    return {1, 2} if order["n"] else object()


def quiet(order: Any) -> None: ...


KINDS = {
    "fails_at_first": [fails_at_first],
    "poison": [poison],
    "fatal": [fatal],
    "later": [later],
    "halves": [good_half, bad_half],
    "typed": [typed],
    "odd": [odd],
    "quiet": [quiet],
}


def orders(hf: Holdfast, queue: str) -> dict[str, str]:
    """Two of each kind, and what nobody handles. Their ids, by name."""
    items = [Outgoing({"n": n}, key=f"{kind} {n}", type=kind) for kind in KINDS for n in range(2)]
    items += [
        Outgoing({"n": "one"}, key="a misfit", type="typed"),
        Outgoing(b"\xff", key="bytes", type="quiet"),
        Outgoing("words", content_type="text/plain", key="text", type="quiet"),
        Outgoing({"n": 1}, key="last try", type="fails_at_first", max_attempts=1),
        Outgoing({"n": 1}, key="nobody's", type="unknown"),
    ]
    sent = hf.queue(queue).enqueue_many(items)
    return {message.key or "": message.id for message in sent}


@pytest.mark.promise("SPARK-2", "SPARK-5", "SPARK-9")
def test_handlers_end_as_in_a_worker(
    hf: Holdfast, run: Callable[..., Any], tmp_path: Path, spark: SparkSession
) -> None:
    for queue in ("by-worker", "on-spark"):
        for kind, functions in KINDS.items():
            for function in functions:
                hf.handler(queue, type=kind)(function)
    orders(hf, "by-worker")
    ids = orders(hf, "on-spark")
    work(hf, "by-worker")
    run("on-spark", sink=str(tmp_path / "sink"), concurrency=2, max_messages=15)

    expected, found = ends(hf.queue("by-worker")), ends(hf.queue("on-spark"))
    assert found == expected
    # Beside being alike, they are right.
    assert {name: end[0] for name, end in found.items()} == {
        name: "dead" if name.split()[0] in ("poison", "fatal", "a", "last", "nobody's") else "log"
        for name in ids
    }
    assert found["later 0"][3]["attempts"] == 3
    assert found["halves 1"][2] == {
        "good_half": {"first called at": 1},
        "bad_half": "halves 1 at 2",
    }
    assert [code for _, code, *_ in found["poison 0"][1]["errors"]] == ["KeyError"] * 3

    query_ids = {
        e.consumer for entry in hf.queue("on-spark.dlq").browse() for e in entry.message.errors
    }
    assert len(query_ids) == 1 and next(iter(query_ids)).startswith("spark:")  # type: ignore

    logged = {f.message.id: f for f in hf.queue("on-spark").log()}
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert Counter(row.id for row in rows) == Counter(logged.keys())
    for row in rows:
        message, result = logged[row.id].message, logged[row.id].result
        assert (row.key, row.type, row.attempts) == (message.key, message.type, message.attempts)
        assert round(row.enqueued_at.timestamp() * 1000) == message.enqueued_at
        assert row.payload == (None if message.key == "bytes" else message.body.decode())
        assert (None if row.result is None else msgspec.json.decode(row.result)) == result


async def swift(order: dict[str, int], attempt: int) -> dict[str, int]:
    await asyncio.sleep(0)
    if order["n"] == 0 and attempt == 1:
        raise ValueError("not yet")
    return {"n": order["n"]}


async def hangs(order: dict[str, int]) -> None:
    await asyncio.sleep(60)


async def awaited_typed(order: Order) -> int:
    await asyncio.sleep(0)
    return order.n


@pytest.mark.promise("SPARK-5")
def test_async_handlers_and_a_queue_that_completes_what_is_exhausted(
    hf: Holdfast, run: Callable[..., Any]
) -> None:
    for name in ("by-worker", "on-spark"):
        queue = hf.queue(name, exhausted="complete", max_attempts=2, on_misfit="retry")
        hf.handler(name, type="swift")(swift)
        hf.handler(name, type="hangs", time_limit=0.05)(hangs)
        hf.handler(name, type="mixed")(awaited_typed)
        hf.handler(name, type="mixed")(typed)
        kinds = ("swift", "hangs", "mixed")
        queue.enqueue_many(
            Outgoing({"n": n}, key=f"{kind} {n}", type=kind) for kind in kinds for n in range(2)
        )
        queue.enqueue({}, key="a misfit", type="mixed")
    calls: list[tuple[int, list[str], list[str]]] = []

    def sink(frame: DataFrame, number: int) -> None:
        calls.append((number, frame.columns, [row.key for row in frame.collect()]))

    work(hf, "by-worker")
    run("on-spark", sink=sink)
    found = ends(hf.queue("on-spark"))
    assert found == ends(hf.queue("by-worker"))
    assert {name: (end[1], end[2]) for name, end in found.items()} == {
        "swift 0": ("COMPLETED", {"n": 0}),
        "swift 1": ("COMPLETED", {"n": 1}),
        "hangs 0": ("COMPLETED_WITH_ERRORS", None),
        "hangs 1": ("COMPLETED_WITH_ERRORS", None),
        "mixed 0": ("COMPLETED", {"awaited_typed": 0, "typed": 1}),
        "mixed 1": ("COMPLETED", {"awaited_typed": 1, "typed": 2}),
        "a misfit": ("COMPLETED_WITH_ERRORS", None),
    }
    columns = ["id", "key", "type", "payload", "attempts", "enqueued_at", "result"]
    assert [(number, names) for number, names, _ in calls] == [
        (number, columns) for number in range(len(calls))
    ]
    arrived = Counter(key for *_, keys in calls for key in keys)
    assert arrived == Counter(["swift 0", "swift 1", "mixed 0", "mixed 1"])


def dangerous(what: str) -> dict[str, Any]:
    if what == "hang":
        while True:
            time.sleep(60)
    if what == "die":
        os._exit(3)
    return {"did": what}


@pytest.mark.promise("SPARK-5")
def test_a_handler_that_hangs_or_dies_takes_only_itself(
    hf: Holdfast, run: Callable[..., Any]
) -> None:
    for name in ("by-worker", "on-spark"):
        queue = hf.queue(name, max_attempts=1)
        hf.handler(name)(dangerous)
        queue.enqueue_many(Outgoing(what, key=what) for what in ("hang", "a", "die", "b"))
    work(hf, "by-worker", executor="process", time_limit=1.0, concurrency=1)
    run("on-spark", executor="process", time_limit=1.0, slices=1)
    found = ends(hf.queue("on-spark"))
    assert found == ends(hf.queue("by-worker"))
    assert {name: end[0] for name, end in found.items()} == {
        "hang": "dead",
        "die": "dead",
        "a": "log",
        "b": "log",
    }


def one_in_a_hundred(n: int) -> int:
    if n % 100 == 0:
        raise ValueError(f"never {n}")
    return n


@pytest.mark.extended
@pytest.mark.promise("SPARK-2")
def test_one_per_cent_of_poison_never_stops_the_stream(
    hf: Holdfast, run: Callable[..., Any], tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    queue = hf.queue("orders")
    hf.handler("orders")(one_in_a_hundred)
    ids = {message.id: n for n, message in enumerate(queue.enqueue_many(range(1000)))}
    run("orders", sink=str(tmp_path / "sink"), max_messages=400)
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead, stats.done) == (0, 0, 0, 10, 990)
    rows = pq.read_table(str(tmp_path / "sink")).to_pylist()
    good = [(id, str(n), n) for id, n in ids.items() if n % 100]
    assert sorted((row["id"], row["payload"], int(row["result"])) for row in rows) == sorted(good)
    for entry in queue.dlq.browse():
        said = [(error.message, error.attempt) for error in entry.message.errors]
        n = ids[entry.message.id]
        assert said == [(f"never {n}", attempt) for attempt in (1, 2, 3)]
    assert {f.message.id: f.result for f in queue.log()} == {id: n for id, _, n in good}


@pytest.mark.promise("SPARK-2", "SPARK-5")
def test_until_empty_leaves_what_is_delayed_and_goes_on_with_it(
    hf: Holdfast, run: Callable[..., Any]
) -> None:
    queue = hf.queue("orders", backoff=Backoff(base=3600, max=3600, jitter="none"))
    hf.handler("orders")(one_in_a_hundred)
    queue.enqueue_many([0, 1, 2])
    run("orders", until_empty=True)  # no sink
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.done) == (0, 1, 0, 2)
    (entry,) = queue.browse("delayed")
    assert [error.message for error in entry.message.errors] == ["never 0"]
    assert entry.message.available_at - entry.message.errors[0].at == 3_600_000
    assert entry.message.attempts == 1


@pytest.mark.promise("SPARK-5")
def test_it_stops_after_the_batch_that_runs(
    hf: Holdfast, spark: SparkSession, tmp_path: Path
) -> None:
    from holdfast import spark as hs

    queue = hf.queue("orders")
    hf.handler("orders")(quiet)
    queue.enqueue_many(range(20))
    stop, arrived = threading.Event(), list[int]()

    def sink(frame: DataFrame, number: int) -> None:
        arrived.append(frame.count())
        stop.set()

    hs.run(
        hf,
        "orders",
        checkpoint=str(tmp_path / "c"),
        sink=sink,
        spark=spark,
        max_messages=5,
        stop=stop,
    )
    stats = queue.stats()
    assert (stats.leased, stats.done) == (0, sum(arrived))
    assert stats.ready == 20 - sum(arrived)
