"""What a server remembers of its queues, and what it works out from the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Outgoing
from holdfast.errors import StoreUnavailable
from holdfast.server import history
from holdfast.server.history import POINTS, SAMPLE, SPAN_MS, Recorder, Spans
from holdfast.testing import ManualClock, wait_until

pytestmark = pytest.mark.promise("DASH-1", "DASH-6")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect("memory://", clock=clock) as made:
        yield made


class Away:
    """A store that cannot be reached, as long as `is_away`."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away:
            raise StoreUnavailable("the store is gone")
        return getattr(self._store, name)


def rates(recorder: Recorder, queue: str = "orders") -> list[tuple[float, float, float]]:
    points = recorder.points(queue)
    return [(point.in_rate, point.out_rate, point.dead_rate) for point in points]


def test_rates_are_what_came_and_what_was_done(hf: Holdfast, clock: ManualClock) -> None:
    queue, recorder = hf.queue("orders"), Recorder(hf)
    queue.enqueue(0)
    recorder.look()
    clock.advance(5)
    queue.enqueue_many([Outgoing(n, delay=n % 2) for n in range(10)])
    recorder.look()
    clock.advance(10)
    first, *rest = queue.lease(5)
    queue.fail(first, "no")
    queue.settle(rest)
    recorder.look()
    clock.advance(5)
    hf.redrive("orders.dlq")  # neither came nor went
    recorder.look()
    assert rates(recorder) == [(2.0, 0.0, 0.0), (0.0, 0.4, 0.1), (0.0, 0.0, 0.0)]
    last = recorder.points("orders")[-1]
    assert (last.ready, last.delayed, last.leased, last.dead) == (7, 0, 0, 0)


def test_what_is_purged_or_made_anew_is_never_negative(hf: Holdfast, clock: ManualClock) -> None:
    queue, recorder = hf.queue("orders"), Recorder(hf)
    queue.enqueue_many(range(10))
    queue.settle(queue.lease(4))
    recorder.look()
    clock.advance(5)
    queue.purge()
    recorder.look()
    clock.advance(5)
    queue.delete(force=True)
    hf.queue("orders").enqueue(1)
    recorder.look()
    assert rates(recorder) == [(0.0, 0.0, 0.0)] * 2


def test_a_queue_that_is_gone_is_forgotten(hf: Holdfast, clock: ManualClock) -> None:
    hf.queue("bills")
    hf.queue("orders")
    recorder = Recorder(hf)
    recorder.look()
    hf.queue("orders", create=False).delete()
    clock.advance(5)
    recorder.look()
    assert recorder.queues() == ["bills"]
    assert recorder.points("orders") == []


def test_an_hour_is_kept(hf: Holdfast, clock: ManualClock) -> None:
    hf.queue("orders")
    recorder = Recorder(hf)
    for _ in range(POINTS + 50):
        recorder.look()
        clock.advance(5)
    recorder.look()
    points = recorder.points("orders")
    assert len(points) == POINTS == 3600 // 5
    assert points[-1].at == clock.now()
    assert len(recorder.points("orders", 60)) == 60


def test_a_clock_that_stands_still_makes_no_point(hf: Holdfast) -> None:
    hf.queue("orders")
    recorder = Recorder(hf)
    for _ in range(3):
        recorder.look()
    assert recorder.points("orders") == []


def test_it_goes_on_when_the_store_was_away(clock: ManualClock) -> None:
    with holdfast.connect("memory://", clock=clock) as hf:
        hf.queue("orders")
        store: Any = Away(hf.store)
        hf.context.store = store
        recorder = Recorder(hf, step=0.01)
        store.is_away = True
        recorder.start()
        wait_until(lambda: recorder._is_away)  # pyright: ignore[reportPrivateUsage]
        store.is_away = False
        wait_until(lambda: recorder.queues() == ["orders"])
        clock.advance(60)
        wait_until(lambda: len(recorder.points("orders")) == 1)
        recorder.stop(5)


def test_times_of_what_was_finished(hf: Holdfast, clock: ManualClock) -> None:
    clock.advance(SPAN_MS / 1000 - clock.now() % SPAN_MS / 1000)
    queue = hf.queue("orders", ack_timeout=100)
    queue.enqueue(1, delay=10)
    clock.advance(12)  # two of these it waited: before that it could not be leased
    lease = queue.lease()[0]
    clock.advance(4)
    queue.ack(lease)
    [span] = Spans(hf.context).of("orders")
    assert (span.count, span.wait_p50, span.handle_p95) == (1, 2.0, 4.0)
    queue.delete(force=True)
    queue = hf.queue("orders", ack_timeout=100)
    queue.enqueue(1)
    clock.advance(3)
    queue.nack(queue.lease()[0], "again", delay=5)
    clock.advance(5)  # which is no waiting
    lease = queue.lease()[0]
    clock.advance(7)
    queue.ack(lease)
    [span] = Spans(hf.context).of("orders")
    assert (span.count, span.wait_p95, span.handle_p50) == (1, 3.0, 7.0)


def test_a_span_that_is_over_is_read_once(
    hf: Holdfast, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, spans = hf.queue("orders"), Spans(hf.context)
    queue.enqueue_many(range(SAMPLE + 20))
    queue.settle(queue.lease(SAMPLE + 20))
    clock.advance(1800)
    [span] = spans.of("orders")
    assert span.count == SAMPLE
    looks: list[Any] = []
    browse = hf.store.browse
    monkeypatch.setattr(hf.store, "browse", lambda *ask: looks.append(ask) or browse(*ask))
    assert spans.of("orders") == [span]
    assert len(looks) == 1  # only the one that is not over


def test_spans_of_few_queues_are_remembered(hf: Holdfast) -> None:
    spans = Spans(hf.context)
    for n in range(history.REMEMBERED_MAX + 5):
        hf.queue(f"q{n}")
        spans.of(f"q{n}")
    assert len(spans._known) == history.REMEMBERED_MAX  # pyright: ignore[reportPrivateUsage]
