"""What is counted, and what a scrape answers: on every store, and when the store is away."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast import Backoff, Holdfast, LeaseLost
from holdfast.metrics import OTHER, Metrics
from holdfast.model.moves import Settled
from holdfast.stores import damage
from holdfast.stores.contract import Store
from holdfast.testing import ManualClock, drain, wait_until
from holdfast.work.ledger import Batches, Offset

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
from proxy import Proxy


def samples(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """By name, then by the values of the labels in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            label = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name.removeprefix("holdfast_"), {})[label] = sample.value
    return found


def of(metrics: Metrics, queue: str) -> dict[str, float]:
    """What is said of one queue, buckets and partitions apart."""
    return {name: of[queue,] for name, of in samples(metrics).items() if (queue,) in of}


@pytest.fixture(autouse=True)
def undamaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process counts damaged rows, those of earlier tests included; a queue of theirs would
    have a value in every metric."""
    monkeypatch.setattr(damage, "_counts", Counter[str]())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect("memory://", clock=clock, max_attempts=2, backoff=Backoff(base=0)) as hf:
        yield hf


@pytest.mark.promise("SERVER-6")
def test_everything_that_happens_is_counted(
    store_factory: Callable[[], Store], clock: ManualClock
) -> None:
    hf = holdfast.connect(store_factory(), clock=clock, max_attempts=2, ack_timeout=30)
    queue = hf.queue("orders")
    metrics = Metrics().watch(hf)  # handles from before are watched too
    queue.enqueue("delayed", delay=3600)
    kept = queue.enqueue("again", id="01a1e17f-52ce-76e7-96e0-f92bce354c90")
    assert queue.enqueue("again", id=kept.id).duplicate
    queue.enqueue_many(["acked", "failed", "nacked", "released", "silent"])
    clock.advance(2)
    by = {lease.message.payload: lease for lease in queue.lease(limit=6)}
    assert queue.settle([by["again"], by["acked"]]) == [Settled.APPLIED] * 2
    queue.fail(by["failed"], "never")
    queue.nack(by["nacked"], "not now", delay=60)
    queue.release(by["released"])
    queue.extend(by["silent"], 40)
    with pytest.raises(LeaseLost):
        queue.ack(by["released"])
    now = of(metrics, "orders")
    assert now["leased"] == now["dead"] == now["depth"] == 1
    assert (now["delayed"], now["paused"], now["oldest_age_seconds"]) == (2, 0, 2)

    clock.advance(41)
    hf.sweep()
    hf.redrive("orders.dlq")
    queue.pause()
    now = of(metrics, "orders")
    counted = {name for name in now if name.startswith("messages_") and name.endswith("_total")}
    assert {name.split("_")[1]: now[name] for name in counted} == {
        "produced": 7,
        "leased": 6,
        "acked": 2,
        "retried": 1,
        "requeued": 1,
        "dead": 1,
        "completed": 0,
        "released": 1,
        "lost": 1,
        "redriven": 1,
    }
    assert (now["wait_seconds_count"], now["wait_seconds_sum"]) == (6, 12)
    assert (now["attempts_count"], now["attempts_sum"]) == (6, 6)
    assert (now["leased"], now["dead"], now["depth"]) == (0, 0, 3)
    assert (now["delayed"], now["paused"], now["oldest_age_seconds"]) == (2, 1, 43)
    assert samples(metrics)["store_up"] == {(): 1}
    assert set(samples(metrics)["depth"]) == {("orders",)}  # dead letters are counted with it


def test_what_spark_reserves_and_acks_is_counted(
    store_factory: Callable[[], Store], clock: ManualClock
) -> None:
    hf = holdfast.connect(store_factory(), clock=clock)
    queue = hf.queue("orders")
    metrics = Metrics().watch(hf)
    queue.enqueue_many(range(10))
    batches = Batches(hf.context, "orders", part_rows=3)
    first = batches.reserve(Offset(), 7)
    assert first is not None
    batches.seal(first)
    now = of(metrics, "orders")
    assert (now["messages_leased_total"], now["messages_acked_total"]) == (7, 0)
    second = batches.reserve(first, 7)  # acks the first batch, as Spark has committed it
    assert second is not None
    now = of(metrics, "orders")
    assert (now["messages_leased_total"], now["messages_acked_total"]) == (10, 7)
    batches.seal(second)
    assert batches.reserve(second, 7) is None
    now = of(metrics, "orders")
    assert (now["messages_leased_total"], now["messages_acked_total"]) == (10, 10)
    assert "wait_seconds_count" not in now, "of a batch only its size is known"


def test_attempts_queues_and_topics_are_told(hf: Holdfast) -> None:
    metrics = Metrics().watch(hf)
    queue = hf.queue("orders", max_attempts=5)
    queue.enqueue(1)
    for attempt in (1, 2, 3):
        [lease] = queue.lease()
        queue.nack(lease, delay=0)
        now = of(metrics, "orders")
        assert now["attempts_count"] == attempt
        assert now["attempts_sum"] == sum(range(attempt + 1))
    assert samples(metrics)["queues"] == {(): 1}
    assert samples(metrics)["topics"] == {(): 0}
    hf.topic("shop").bind("billing")
    hf.topic("news")
    assert samples(metrics)["queues"] == {(): 2}
    assert samples(metrics)["topics"] == {(): 2}


HANDLERS = """
def refuse(payload):
    if payload == "bad":
        raise ValueError(payload)

async def awaited(payload):
    refuse(payload)
"""


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that a process of its own can import."""
    name = f"metrics_handlers_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__(name)


def refuse(payload: Any) -> None:
    if payload == "bad":
        raise ValueError(payload)


@pytest.mark.parametrize(
    ("name", "executor"), [("refuse", "thread"), ("awaited", "thread"), ("refuse", "process")]
)
def test_each_delivery_that_ran_is_timed(
    hf: Holdfast, handlers: Any, name: str, executor: Any
) -> None:
    hf.handler("orders")(getattr(handlers, name))
    hf.queue("orders").enqueue_many(["bad", "good"])
    metrics = Metrics().watch(hf)
    assert hf.worker(until_empty=True, sweep=False, executor=executor, concurrency=1).run()
    now = of(metrics, "orders")
    assert now["handle_seconds_count"] == 3
    assert 0 < now["handle_seconds_sum"] < 60
    assert (now["messages_acked_total"], now["messages_retried_total"]) == (1, 1)
    assert now["messages_dead_total"] == 1


def test_out_of_attempts_may_be_completed_with_errors(hf: Holdfast) -> None:
    hf.handler("orders")(refuse)
    hf.queue("orders", exhausted="complete").enqueue("bad")
    metrics = Metrics().watch(hf)
    drain(hf)
    now = of(metrics, "orders")
    assert now["messages_completed_with_errors_total"] == 1
    assert (now["messages_dead_total"], now["messages_acked_total"]) == (0, 0)


def test_a_server_times_from_the_lease_to_the_outcome(hf: Holdfast, clock: ManualClock) -> None:
    metrics = Metrics(handle_from_leases=True).watch(hf)
    queue = hf.queue("orders", ack_timeout=10)
    queue.enqueue_many(["done", "released", "silent"])
    done, released, _ = queue.lease(limit=3)
    clock.advance(3)
    queue.extend(done)
    queue.release(released)
    clock.advance(4)
    queue.ack(done)
    clock.advance(5)
    hf.sweep()
    now = of(metrics, "orders")
    assert (now["handle_seconds_count"], now["handle_seconds_sum"]) == (1, 7)


@pytest.mark.promise("SERVER-6")
def test_partitions_and_whether_somebody_owns_them(
    store_factory: Callable[[], Store], clock: ManualClock
) -> None:
    hf = holdfast.connect(store_factory(), clock=clock)
    metrics = Metrics().watch(hf)
    hf.queue("spread", partitions=2)
    queue = hf.queue("ordered", partitions=3, ordered=True)
    queue.enqueue_many(range(300))  # chance spreads them: each partition has more than is leased
    numbers = [("0", "ordered"), ("1", "ordered"), ("2", "ordered")]
    assert samples(metrics)["partition_owned"] == dict.fromkeys(numbers, 0)
    with hf.consumer("ordered", background=False) as consumer:
        consumer.tick()
        assert len(consumer.partitions) == 3
        leases = consumer.lease(limit=3)
        clock.advance(1)
        now = samples(metrics)
        assert now["partition_owned"] == dict.fromkeys(numbers, 1)
        assert sum(now["partition_lag"].values()) == 300
        assert sum(now["partition_depth"].values()) == now["depth"]["ordered",]
        assert {now["partition_oldest_age_seconds"][each] for each in numbers} == {1}
        assert now["partition_depth"]["0", "spread"] == 0
        assert now["messages_leased_total"]["ordered",] >= len(leases)
        for lease in leases:
            consumer.ack(lease)
    assert of(metrics, "ordered")["messages_acked_total"] == len(leases)


def test_topics_count_by_group_and_what_they_retain_does_not(hf: Holdfast) -> None:
    metrics = Metrics().watch(hf)
    topic = hf.topic("orders")
    topic.bind("billing")
    topic.publish_many([1, 2])
    assert samples(metrics)["messages_produced_total"] == {("orders@billing",): 2}
    assert samples(metrics)["depth"] == {("orders@billing",): 2}


def test_labels_are_bounded(hf: Holdfast) -> None:
    metrics = Metrics(queues_max=3, partitions_max=2).watch(hf)
    hf.queue("a", partitions=5).enqueue_many(range(50))
    for name in "bcdef":
        hf.queue(name, partitions=2).enqueue(1)
    now = samples(metrics)
    assert now["depth"] == {("a",): 50, ("b",): 1, ("c",): 1, (OTHER,): 3}
    assert now["messages_produced_total"] == now["depth"]
    parts = now["partition_lag"]
    assert {queue for _, queue in parts} == {"a", "b", "c", OTHER}
    assert {number for number, queue in parts if queue == "a"} == {"0", "1", OTHER}
    assert {number for number, queue in parts if queue == OTHER} == {OTHER}
    assert sum(n for (_, queue), n in parts.items() if queue == "a") == 50


def test_it_watches_once(clock: ManualClock) -> None:
    metrics = Metrics()
    with holdfast.connect("memory://", clock=clock, observer=metrics) as hf:
        hf.queue("orders").enqueue(1)
        assert samples(metrics)["store_up"] == {(): 0}  # it knows no store yet, and counts
        metrics.watch(hf).watch(hf)
        hf.queue("orders").enqueue(2)
        assert of(metrics, "orders")["messages_produced_total"] == 2


def test_open_metrics_for_who_asks_for_it(hf: Holdfast) -> None:
    metrics = Metrics().watch(hf)
    page, content_type = metrics.render("application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
    assert metrics.render("*/*")[1].startswith("text/plain")


@pytest.mark.promise("SERVER-6")
def test_a_store_that_is_away_takes_only_the_gauges(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.metrics.LOOK_S", 0.5)
    url = urlsplit(redis_url)
    assert url.port is not None
    with closing(Proxy(url.port)) as proxy:
        where = url.netloc.replace(f":{url.port}", f":{proxy.port}")
        with holdfast.connect(urlunsplit(url._replace(netloc=where))) as hf:
            metrics = Metrics().watch(hf)
            hf.queue("orders").enqueue(1)
            assert of(metrics, "orders")["depth"] == 1
            proxy.stall()
            away = samples(metrics)
            assert away["store_up"] == {(): 0}
            assert away["messages_produced_total"] == {("orders",): 1}
            assert "depth" not in away
            looking = [thread.name for thread in threading.enumerate()]
            assert "holdfast-metrics" in looking  # the scrape did not wait for the store
            proxy.resume()
            wait_until(lambda: samples(metrics)["store_up"] == {(): 1}, 30)
            assert of(metrics, "orders")["depth"] == 1


class Broken:
    """An observer that does all wrong."""

    def enqueued(self, *_: object) -> None:
        raise RuntimeError("no")

    leased = settled = handled = enqueued


def test_an_observer_that_fails_hurts_nobody(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    hf.context.observe(Broken())
    metrics = Metrics().watch(hf)
    hf.handler("orders")(refuse)
    hf.queue("orders").enqueue_many([1, 2])
    with caplog.at_level(logging.ERROR):
        hf.queue("orders").enqueue(3)
        drain(hf)
    assert of(metrics, "orders")["messages_acked_total"] == 3
    assert [record.name for record in caplog.records] == ["holdfast.observe"]


APP = """
import os, holdfast
hf = holdfast.connect(os.environ["HOLDFAST_URL"])
orders = hf.queue("orders")

@hf.handler("orders")
def handle(n):
    if n:
        orders.enqueue(n - 1)
"""


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", "work", "app:hf", *args]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/jobs.db")
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    return tmp_path


def test_a_worker_serves_its_metrics(folder: Path) -> None:
    with holdfast.connect(os.environ["HOLDFAST_URL"]) as hf:
        hf.queue("orders").enqueue(3)
    said = folder / "said"
    with said.open("wb") as out:
        worker = subprocess.Popen(command("--metrics", "127.0.0.1:0"), cwd=folder, stderr=out)
    try:
        wait_until(lambda: re.search(r"metrics on (\S+)", said.read_text()), 30)
        found = re.search(r"metrics on (\S+)", said.read_text())
        assert found

        def page() -> str:
            with urllib.request.urlopen(found[1], timeout=10) as answer:
                return answer.read().decode()

        wait_until(lambda: 'holdfast_messages_acked_total{queue="orders"} 4.0' in page(), 30)
        # What handlers enqueue by a handle from before the worker began is counted too.
        assert 'holdfast_messages_produced_total{queue="orders"} 3.0' in page()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--metrics", "9100"], "--metrics: write HOST:PORT, not '9100'"),
        (["--metrics", "127.0.0.1:99999"], "127.0.0.1:99999"),
        (["--metrics", "127.0.0.1:0", "--processes", "2"], "--metrics is for one process"),
    ],
)
def test_where_metrics_cannot_be_served(folder: Path, args: Sequence[str], says: str) -> None:
    done = subprocess.run(command(*args), cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
