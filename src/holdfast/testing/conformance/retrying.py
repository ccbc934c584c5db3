"""Nack, fail, backoff, and which policy holds."""

# pyright: basic

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Backoff, ErrorInfo, Holdfast, InvalidArgument, Queue, Retry
from holdfast.stores.contract import Store
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import whereabouts

PLAIN = Backoff(jitter="none")


@pytest.mark.promise("RETRY-1", "RETRY-4")
def test_attempts_come_back_after_their_backoff(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("slow", max_attempts=12, backoff=PLAIN)
    sent = queue.enqueue(1)
    waits: list[int] = []
    for _ in range(11):
        (lease,) = queue.lease()
        failed_at = clock.now()
        queue.nack(lease, "no")
        waits.append(queue.get(sent.id).available_at - failed_at)
        clock.advance(waits[-1] / 1000 - 0.001)
        assert queue.lease() == []
        clock.advance(0.001)
    assert waits == [1000 * s for s in (5, 10, 20, 40, 80, 160, 320, 640, 1280, 1800, 1800)]


@pytest.mark.promise("RETRY-2")
def test_jitter_stays_in_its_window(hf: Holdfast, clock: ManualClock) -> None:
    for jitter, low, high in [("none", 10, 10), ("full", 0, 10), ("decorrelated", 10, 30)]:
        queue = hf.queue(f"q-{jitter}", backoff=Backoff(base=10, jitter=jitter))  # pyright: ignore
        queue.enqueue_many(range(50))
        queue.settle([(lease, Retry("no")) for lease in queue.lease(50)])
        waits = [e.message.available_at - clock.now() for e in queue.browse("delayed")]
        assert len(waits) == 50
        assert all(low * 1000 <= wait <= high * 1000 for wait in waits), jitter
        assert (len(set(waits)) > 10) == (jitter != "none")


@pytest.mark.promise("RETRY-2")
def test_decorrelated_jitter_grows_from_the_last_delay(hf: Holdfast, clock: ManualClock) -> None:
    backoff = Backoff(base=10, max=100, jitter="decorrelated")
    queue = hf.queue("grows", max_attempts=30, backoff=backoff)
    sent = queue.enqueue(1)
    last = 10_000.0
    for _ in range(20):
        queue.nack(queue.lease()[0], "no")
        wait = queue.get(sent.id).available_at - clock.now()
        assert 10_000 <= wait <= min(100_000, 3 * last + 1)
        last = wait
        clock.advance(wait / 1000)


@pytest.mark.no_store
@pytest.mark.promise("RETRY-2")
def test_an_unknown_jitter_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidArgument, match=r"backoff\.jitter: 'ful'; did you mean 'full'"):
        Backoff(jitter="ful")  # pyright: ignore
    hf.queue("orders", backoff=Backoff(jitter="full"))


@pytest.mark.promise("RETRY-3")
def test_the_nearest_policy_wins_field_by_field(store: Store, clock: ManualClock) -> None:
    hf = holdfast.connect(
        store, clock=clock, ack_timeout=7, max_attempts=6, backoff=Backoff(base=3, factor=3)
    )
    queue = hf.queue("orders", max_attempts=5, backoff=Backoff(factor=4, jitter="none"))
    own = queue.enqueue("own", backoff=Backoff(base=1), max_attempts=2)
    plain = queue.enqueue("plain")
    assert [lease.deadline - clock.now() for lease in queue.lease(2)] == [7000, 7000]
    clock.advance(7)
    hf.sweep()
    leases = queue.lease(2)
    assert [lease.message.attempts for lease in leases] == [2, 2]
    for lease in leases:
        queue.nack(lease, "no")
    assert queue.get(own.id).queue == "orders.dlq"  # its own two attempts
    assert queue.get(plain.id).available_at == clock.now() + 12_000  # 3 s * 4^1, no jitter
    queue.enqueue("third", backoff=Backoff(base=1))
    (third,) = queue.lease()
    queue.nack(third, "no")
    assert queue.get(third.id).available_at == clock.now() + 1000


@pytest.mark.promise("RETRY-3")
def test_fields_given_later_update_a_queue_and_leave_the_others(hf: Holdfast, another: Any) -> None:
    hf.queue("orders", max_attempts=5, ack_timeout=9, backoff=Backoff(base=1))
    hf.queue("orders", ack_timeout=8, backoff=Backoff(factor=3))
    policy = another().queue("orders").policy
    assert (policy.max_attempts, policy.ack_timeout) == (5, 8)
    assert policy.backoff == Backoff(base=1, factor=3)
    assert policy.log is True
    with pytest.raises(InvalidArgument, match=r"max_atempts: .*did you mean 'max_attempts'"):
        hf.queue("orders", max_atempts=3)
    with pytest.raises(InvalidArgument, match="max_attempts"):
        hf.queue("orders", max_attempts=0)
    assert hf.queue("orders").policy == policy


@pytest.mark.promise("RETRY-4")
def test_a_nack_keeps_the_error(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue(1)
    queue.nack(queue.lease(owner="a")[0], ValueError("bad date"), delay=2)
    first = ErrorInfo("bad date", "ValueError", clock.now(), 1, "a")
    assert queue.get(sent.id).errors == (first,)
    assert queue.get(sent.id).available_at == clock.now() + 2000  # delay= wins over the policy
    clock.advance(2)
    (lease,) = queue.lease(owner="b")
    assert lease.message.errors == (first,)
    queue.nack(lease, {"message": "refused", "code": "E42"}, delay=0)
    second = ErrorInfo("refused", "E42", clock.now(), 2, "b")
    assert queue.get(sent.id).errors == (first, second)
    assert len(queue.lease()) == 1  # a delay of 0 is now


@pytest.mark.promise("RETRY-4")
def test_a_retried_message_keeps_its_place(queue: Queue) -> None:
    sent = queue.enqueue_many([1, 2, 3])
    queue.nack(queue.lease()[0], delay=0)
    assert whereabouts(queue) == {"ready": [m.id for m in sent]}


@pytest.mark.promise("RETRY-5")
def test_out_of_attempts_is_dead(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue(1)
    for _ in range(2):
        queue.nack(queue.lease()[0], "no", delay=0)
        assert queue.stats().dead == 0
    queue.nack(queue.lease()[0], "no", delay=0)
    assert whereabouts(queue) == {"dead": [sent.id]}
    dead = queue.dlq.get(sent.id)
    assert (dead.queue, dead.source, dead.reason) == (
        "orders.dlq",
        "orders",
        "max attempts exceeded",
    )
    assert [error.attempt for error in dead.errors] == [1, 2, 3]
    assert dead.dead_at == clock.now()


@pytest.mark.promise("RETRY-5")
def test_fail_is_dead_at_once(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue(1, max_attempts=100)
    queue.fail(queue.lease(owner="me")[0], "no such customer", code="NO_CUSTOMER")
    dead = queue.dlq.get(sent.id)
    assert dead.reason == "failed"
    assert dead.errors == (ErrorInfo("no such customer", "NO_CUSTOMER", clock.now(), 1, "me"),)


@pytest.mark.promise("RETRY-6")
def test_a_thousand_failures_come_back_spread_out(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", backoff=Backoff(base=100))
    queue.enqueue_many(range(1000))
    queue.settle([(lease, Retry("down")) for lease in queue.lease(1000)])
    waits = sorted(e.message.available_at - clock.now() for e in queue.browse("delayed"))
    tenths = [sum(n * 10_000 <= wait < (n + 1) * 10_000 for wait in waits) for n in range(10)]
    assert sum(tenths) == 1000
    assert all(50 <= tenth <= 150 for tenth in tenths), tenths  # 100 expected, sigma 9.5
