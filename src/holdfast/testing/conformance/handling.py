"""Workers: handlers in, settled messages out."""

# pyright: basic

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Fail, Holdfast, InvalidArgument, Lease, Message, Queue, Retry
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Store
from holdfast.testing import ManualClock, drain, finished, wait_until
from holdfast.testing.conformance.fixtures import whereabouts


@dataclasses.dataclass
class Order:
    id: int
    total: float = 0.0


class Running:
    """A worker in a thread, stopped and joined at the end whatever happens."""

    def __init__(self, hf: Holdfast, **options: Any) -> None:
        self.worker = hf.worker(**{"grace": 5, **options})
        self.clean: bool | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.clean = self.worker.run()

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self._thread.join()


@pytest.mark.promise("HANDLER-1")
def test_plain_and_async_handlers_are_acked(hf: Holdfast, queue: Queue) -> None:
    seen: list[Any] = []

    @hf.handler("orders", type="plain")
    def plain(payload: Any) -> str:
        seen.append(payload)
        return f"did {payload}"

    @hf.handler(queue, type="async")
    async def awaited(payload: Any) -> None:
        await asyncio.sleep(0)
        seen.append(payload)

    queue.enqueue(1, type="plain")
    queue.enqueue(2, type="async")
    drain(hf)
    assert sorted(seen) == [1, 2]
    results = {done.message.payload: done.result for done in finished(hf, "orders")}
    assert results == {1: "did 1", 2: None}


@pytest.mark.promise("HANDLER-1")
@pytest.mark.parametrize("mode", ["plain", "async", "mixed"])
def test_only_the_handlers_that_failed_run_again(
    hf: Holdfast, clock: ManualClock, mode: str
) -> None:
    queue = hf.queue("orders", max_attempts=5, backoff=Backoff(base=1, jitter="none"))
    runs: dict[str, int] = {"bill": 0, "ship": 0, "tell": 0}

    def work(name: str, fails: int) -> str:
        runs[name] += 1
        if runs[name] <= fails:
            raise RuntimeError(f"{name} is down")
        return name.upper()

    fails = {"bill": 0, "ship": 1, "tell": 2}
    for name in runs:
        if mode == "async" or (mode == "mixed" and name == "ship"):

            async def handle_async(payload: Any, name: str = name) -> str:
                return work(name, fails[name])

            hf.handler("orders", name=name)(handle_async)
        else:

            def handle(payload: Any, name: str = name) -> str:
                return work(name, fails[name])

            hf.handler("orders", name=name)(handle)

    queue.enqueue({})
    for seconds in (1, 2, 0):
        drain(hf)
        clock.advance(seconds)
    assert runs == {"bill": 1, "ship": 2, "tell": 3}
    (done,) = finished(hf, "orders")
    assert done.status == "COMPLETED"
    assert done.message.attempts == 3
    assert done.result == {"bill": "BILL", "ship": "SHIP", "tell": "TELL"}
    assert [(e.attempt, e.handler, e.message) for e in done.message.errors] == [
        (1, "ship", "ship is down"),
        (1, "tell", "tell is down"),
        (2, "tell", "tell is down"),
    ]


@pytest.mark.promise("HANDLER-2")
def test_a_handler_gets_what_it_asks_for(hf: Holdfast, queue: Queue) -> None:
    got: list[Any] = []

    @hf.handler("orders", name="typed")
    def typed(order: Order, message: Message, attempt: int) -> None:
        got.append(("typed", order, message.id, attempt))

    @hf.handler("orders", name="message only")
    def only(message: Message) -> None:
        got.append(("only", message.payload))

    @hf.handler("orders", name="by name")
    def by_name(payload, lease, attempt):  # pyright: ignore
        got.append(("by name", payload, lease.message.id, attempt))  # pyright: ignore

    @hf.handler("orders", name="nothing")
    def nothing() -> None:
        got.append("nothing")

    sent = queue.enqueue({"id": 5, "total": 1.5})
    drain(hf, concurrency=1)
    assert got == [
        ("typed", Order(5, 1.5), sent.id, 1),
        ("only", {"id": 5, "total": 1.5}),
        ("by name", {"id": 5, "total": 1.5}, sent.id, 1),
        "nothing",
    ]


@pytest.mark.promise("HANDLER-2")
def test_retry_and_fail_do_what_they_say(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    @hf.handler("orders")
    def handle(what: str) -> None:
        if what == "retry":
            raise Retry("busy", delay=7, code="BUSY")
        if what == "fail":
            raise Fail("gone", code="GONE")
        raise ValueError("other")

    sent = {what: queue.enqueue(what) for what in ("retry", "fail", "other")}
    drain(hf)
    retried = queue.get(sent["retry"].id)
    assert retried.available_at == clock.now() + 7000
    assert [(e.message, e.code) for e in retried.errors] == [("busy", "BUSY")]
    dead = queue.dlq.get(sent["fail"].id)
    assert (dead.queue, dead.reason) == ("orders.dlq", "failed")
    assert [(e.message, e.code) for e in dead.errors] == [("gone", "GONE")]
    other = queue.get(sent["other"].id)
    assert clock.now() <= other.available_at <= clock.now() + 5000
    assert [(e.message, e.code) for e in other.errors] == [("other", "ValueError")]


@pytest.mark.promise("HANDLER-3")
def test_a_message_without_a_handler_ends_as_a_dead_letter(
    hf: Holdfast, clock: ManualClock
) -> None:
    queue = hf.queue("orders", backoff=Backoff(base=1, jitter="none"))
    hf.handler("orders", type="known")(lambda payload: None)
    sent = queue.enqueue(1, type="unknown")
    for _ in range(5):
        drain(hf)
        clock.advance(10)
    dead = queue.dlq.get(sent.id)
    assert (dead.reason, dead.attempts) == ("no handler", 3)
    assert [error.code for error in dead.errors] == ["NO_HANDLER"] * 3


@pytest.mark.promise("HANDLER-4")
@pytest.mark.parametrize("mode", ["plain", "async"])
def test_a_long_handler_keeps_its_lease(
    hf: Holdfast, queue: Queue, clock: ManualClock, mode: str
) -> None:
    runs: list[str] = []
    go_on = threading.Event()

    def plain(message: Message) -> None:
        runs.append(message.id)
        assert go_on.wait(30)

    async def awaited(message: Message) -> None:
        runs.append(message.id)
        await asyncio.to_thread(go_on.wait, 30)

    hf.handler("orders")(plain if mode == "plain" else awaited)
    sent = queue.enqueue(1)
    with Running(hf, concurrency=1):
        wait_until(lambda: runs)
        for _ in range(5):
            deadline = clock.now() + 30_000
            clock.advance(21)  # past two thirds of the time-out: about to be renewed
            wait_until(lambda deadline=deadline: _deadline(queue) > deadline)
            assert hf.sweep().requeued == 0
        go_on.set()
        wait_until(lambda: queue.stats().done == 1)
    assert runs == [sent.id]
    assert finished(hf, "orders")[0].message.attempts == 1


def _deadline(queue: Queue) -> int:
    return max((entry.lease.deadline for entry in queue.browse("leased") if entry.lease), default=0)


@pytest.mark.promise("HANDLER-5")
def test_a_stop_lets_handlers_finish_and_gives_back_the_rest(hf: Holdfast, queue: Queue) -> None:
    started: list[int] = []
    go_on = threading.Event()

    @hf.handler("orders")
    def handle(n: int) -> None:
        if n >= 500:  # quick ones first, so that the worker leases ahead
            started.append(n)
            assert go_on.wait(30)

    queue.enqueue_many(range(1000))
    with Running(hf, concurrency=3) as running:
        wait_until(lambda: len(started) == 3 and queue.stats().leased > 3)
        running.worker.stop()
        wait_until(lambda: queue.stats().leased == 3)
        go_on.set()
    assert running.clean is True
    done = sorted(done.message.payload for done in finished(hf, "orders"))
    assert done == [*range(500), *sorted(started)]
    assert [entry.message.attempts for entry in queue.browse()] == [0] * 497
    assert (queue.stats().ready, queue.stats().leased) == (497, 0)


@pytest.mark.promise("HANDLER-5")
def test_what_outlives_the_grace_time_stays_leased(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    started, go_on = threading.Event(), threading.Event()

    @hf.handler("orders")
    def handle() -> None:
        started.set()
        assert go_on.wait(30)

    queue.enqueue(1)
    with Running(hf, concurrency=1, grace=0.01) as running:
        assert started.wait(30)
    assert running.clean is False
    go_on.set()
    assert queue.stats().leased == 1  # and becomes overdue
    clock.advance(31)
    hf.sweep()
    assert queue.stats().ready == 1


class Severed:
    """A store as a process sees it that was killed: from then on nothing it does arrives."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dead = False
        self._calls = 0
        self._changed = threading.Condition()

    def kill(self) -> None:
        """Refuse further calls, and wait for those under way: their writes would arrive later."""
        with self._changed:
            self._dead = True
            assert self._changed.wait_for(lambda: self._calls == 0, 30)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **options: Any) -> Any:
            with self._changed:
                if self._dead:
                    raise StoreUnavailable("killed")
                self._calls += 1
            try:
                return method(*args, **options)
            finally:
                with self._changed:
                    self._calls -= 1
                    self._changed.notify_all()

        return call


@pytest.mark.promise("HANDLER-6")
def test_the_messages_of_a_worker_that_died_are_done_by_another(
    store: Store, hf: Holdfast, clock: ManualClock
) -> None:
    queue = hf.queue("orders")
    sent = queue.enqueue_many(range(6))
    severed = Severed(store)
    victim: Holdfast = holdfast.connect(severed, clock=clock)  # pyright: ignore
    started, end = threading.Semaphore(0), threading.Event()

    @victim.handler("orders")
    def hang(n: int) -> None:
        if n >= 2:
            started.release()
            assert end.wait(30)

    hf.handler("orders")(lambda payload: payload)
    with Running(victim, concurrency=2, grace=0):
        for _ in range(2):
            assert started.acquire(timeout=30)
        wait_until(lambda: queue.stats().done >= 2)
        severed.kill()
        drain(hf)  # what the victim had not leased
        before = queue.stats()
        clock.advance(30)
        hf.sweep()
        drain(hf)
        end.set()
    assert before.leased >= 2
    log = finished(hf, "orders")
    assert sorted(done.message.id for done in log) == sorted(m.id for m in sent)
    again = [done for done in log if done.message.attempts == 2]
    assert len(again) == before.leased
    assert whereabouts(queue).keys() == {"log"}


@pytest.mark.promise("HANDLER-8")
def test_acks_are_grouped_and_none_is_lost_when_the_store_is_away(
    store: Store, clock: ManualClock
) -> None:
    sizes: list[int] = []
    failures = [StoreUnavailable("gone for a moment")] * 3

    class Grouping:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def settle(self, moves: list[Any], now: int, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            sizes.append(len(moves))
            return store.settle(moves, now, **options)

    hf: Holdfast = holdfast.connect(Grouping(), clock=clock, rng=Random(1))  # pyright: ignore
    queue = hf.queue("orders")
    hf.handler("orders")(lambda payload: None)
    sent = queue.enqueue_many(range(500))
    with Running(hf, concurrency=8):
        wait_until(lambda: queue.stats().done == 500)
    assert not failures
    assert sum(sizes) == 500
    assert len(sizes) < 250
    assert sorted(done.message.id for done in finished(hf, "orders")) == [m.id for m in sent]


def test_a_worker_says_what_happened_to_which_message(
    hf: Holdfast, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.handler("orders")
    def handle(what: str) -> None:
        raise (Fail("never") if what == "fail" else ValueError("not now"))

    failed, retried = queue.enqueue("fail"), queue.enqueue("retry")
    with caplog.at_level(logging.INFO, "holdfast"):
        drain(hf)
    text = caplog.text
    assert f"orders {failed.id} attempt 1: dead: FAIL: never" in text
    assert f"orders {retried.id} attempt 1: again in" in text
    assert "ValueError: not now" in text


@pytest.mark.no_store
@pytest.mark.promise("HANDLER-2")
def test_a_handler_that_cannot_be_called_is_refused_at_the_start(
    hf: Holdfast, queue: Queue
) -> None:
    hf.handler("orders")(lambda payload, whatever: None)
    with pytest.raises(InvalidArgument, match="whatever"):
        hf.worker()


@pytest.mark.no_store
def test_bad_options_of_a_worker(hf: Holdfast, queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="no handler is registered"):
        hf.worker()
    hf.handler("orders", name="one")(lambda payload: None)
    with pytest.raises(InvalidArgument, match="has a handler 'one'"):
        hf.handler("orders", name="one")(lambda payload: None)
    for options, field in [
        ({"concurrency": 0}, "concurrency"),
        ({"executor": "magic"}, "executor"),
        ({"time_limit": 5}, "time_limit"),
        ({"grace": -1}, "grace"),
        ({"queues": ["a b"]}, "queue"),
    ]:
        with pytest.raises(InvalidArgument) as caught:
            hf.worker(**options)  # pyright: ignore
        assert caught.value.field == field


def test_a_handler_may_ack_by_itself(hf: Holdfast, queue: Queue) -> None:
    acked: list[str] = []

    @hf.handler("orders")
    def handle(lease: Lease) -> None:
        queue.ack(lease, result="mine")
        acked.append(lease.id)

    queue.enqueue(1)
    drain(hf)
    (done,) = finished(hf, "orders")
    assert (done.message.id, done.result) == (acked[0], "mine")


def test_results_too_large_together_are_dropped_not_the_message(hf: Holdfast, queue: Queue) -> None:
    for name in ("one", "two"):
        hf.handler("orders", name=name)(lambda: "x" * 40_000)
    queue.enqueue(1)
    drain(hf)
    assert [(done.status, done.result) for done in finished(hf, "orders")] == [("COMPLETED", None)]


def test_a_queue_deleted_and_made_again_is_worked_on(hf: Holdfast, queue: Queue) -> None:
    seen: list[Any] = []
    started, go_on = threading.Event(), threading.Event()

    @hf.handler("orders")
    def handle(n: int) -> None:
        started.set()
        assert go_on.wait(30)
        seen.append(n)

    queue.enqueue(1)
    with Running(hf, concurrency=1) as running:
        assert started.wait(30)
        queue.delete(force=True)
        go_on.set()
        wait_until(lambda: running.worker.health().why == "orders: the queue is gone")
        hf.queue("orders").enqueue(2)
        wait_until(lambda: hf.queue("orders").stats().done == 1)
        assert running.worker.health().ready
    assert seen == [1, 2]


def test_an_async_time_limit(hf: Holdfast, queue: Queue) -> None:
    @hf.handler("orders", time_limit=0.01)
    async def handle() -> None:
        await asyncio.Event().wait()

    sent = queue.enqueue(1)
    drain(hf)
    assert [error.code for error in queue.get(sent.id).errors] == ["TimeLimitExceeded"]
