"""Claims on partitions: who may lease from them, what they hold, how a queue gets more of them."""

# pyright: basic

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, InvalidArgument, Lease, Outgoing, QueueNotFound
from holdfast.model.moves import Target, Transition, Verb
from holdfast.model.queues import Depth, partition_claim
from holdfast.rules.lifecycle import partition_of
from holdfast.stores.contract import ByPartition, Claim, LeaseAsk, ReserveAsk, Store, batch_in
from holdfast.testing import ManualClock, wait_until

TTL = 15_000


def own(store: Store, part: int, owner: str, now: int, ttl: int = TTL) -> Claim | None:
    return store.claim(partition_claim("orders", part), owner, ttl, now)


def ask(owner: str, parts: tuple[int, ...], epochs: tuple[int, ...], limit: int = 10) -> LeaseAsk:
    token = secrets.token_hex(8)
    return LeaseAsk("orders", limit, owner, token, 30_000, parts, epochs=epochs)


def payloads(leases: list[Lease]) -> list[Any]:
    return [lease.message.payload for lease in leases]


def key_in(part: int, of: int) -> str:
    return next(key for n in range(10_000) if partition_of(key := f"k{n}", "", of) == part)


@pytest.fixture
def ordered(hf: Holdfast) -> Holdfast:
    """Three partitions with two messages in each."""
    queue = hf.queue("orders", partitions=3, ordered=True)
    for n in range(2):
        for part in range(3):
            queue.enqueue([part, n], key=key_in(part, 3))
    return hf


@pytest.mark.promise("PART-3")
def test_a_partition_gives_to_its_owner_at_its_epoch_only(
    ordered: Holdfast, clock: ManualClock
) -> None:
    store, now = ordered.store, clock.now()
    first = own(store, 1, "a", now)
    assert first is not None and first.epoch == 1
    assert store.lease(ask("b", (1,), (1,)), now) == []
    assert store.lease(ask("a", (1,), (2,)), now) == []
    assert store.lease(ask("a", (0, 2), (1, 1)), now) == []
    leases = store.lease(ask("a", (0, 1, 2), (1, 1, 1), limit=1), now)
    assert payloads(leases) == [[1, 0]]
    assert leases[0].owner == "a" and leases[0].message.attempts == 1
    assert payloads(store.lease(ask("a", (1,), (1,)), now)) == [[1, 1]]


@pytest.mark.promise("PART-3")
def test_a_claim_that_ran_out_gives_nothing(ordered: Holdfast, clock: ManualClock) -> None:
    store, now = ordered.store, clock.now()
    own(store, 0, "a", now)
    assert store.lease(ask("a", (0,), (1,), limit=1), now + TTL) == []
    assert payloads(store.lease(ask("a", (0,), (1,), limit=1), now + TTL - 1)) == [[0, 0]]
    taken = own(store, 0, "b", now + TTL)
    assert taken is not None and taken.epoch == 2
    assert store.lease(ask("a", (0,), (1,)), now + TTL - 1) == []
    assert payloads(store.lease(ask("b", (0,), (2,)), now + TTL)) == [[0, 1]]


@pytest.mark.promise("PART-3")
def test_who_claims_again_after_the_claim_ran_out_has_a_new_epoch(
    ordered: Holdfast, clock: ManualClock
) -> None:
    store, now = ordered.store, clock.now()
    own(store, 0, "a", now)
    again = own(store, 0, "a", now + TTL)
    assert again == Claim(partition_claim("orders", 0), "a", 2, now + 2 * TTL)
    assert store.lease(ask("a", (0,), (1,)), now + TTL) == []
    assert payloads(store.lease(ask("a", (0,), (2,)), now + TTL)) == [[0, 0], [0, 1]]


@pytest.mark.promise("PART-5")
def test_a_claim_that_was_given_up_is_free_at_once(ordered: Holdfast, clock: ManualClock) -> None:
    store, now = ordered.store, clock.now()
    own(store, 2, "a", now)
    assert own(store, 2, "a", now, ttl=0) is None
    assert store.lease(ask("a", (2,), (1,)), now) == []
    assert own(store, 2, "b", now) == Claim(partition_claim("orders", 2), "b", 2, now + TTL)


@pytest.mark.promise("PART-3", "PART-9")
def test_claims_are_read_as_they_are_stored(ordered: Holdfast, clock: ManualClock) -> None:
    store, now = ordered.store, clock.now()
    own(store, 0, "a", now)
    own(store, 1, "b: x y", now)
    own(store, 1, "b: x y", now + 1, ttl=0)
    store.claim("sweep", "c", 1000, now)
    names = [*(partition_claim("orders", part) for part in range(3)), "sweep", "never"]
    assert store.claims(names) == [
        Claim(names[0], "a", 1, now + TTL),
        Claim(names[1], "b: x y", 1, now + 1),
        None,
        Claim("sweep", "c", 1, now + 1000),
        None,
    ]
    assert store.claims([]) == []


@pytest.mark.promise("PART-3")
def test_a_partition_is_held_for_a_batch_by_its_owner_only(
    ordered: Holdfast, clock: ManualClock
) -> None:
    store, now = ordered.store, clock.now()
    own(store, 1, "a", now)
    wrong = ReserveAsk("orders", 10, "a", "00aa", "batch", (0, 1), (1, 2))
    assert store.lease(wrong, now) == 0
    right = ReserveAsk("orders", 10, "a", "00ab", "batch", (0, 1), (1, 1))
    assert store.lease(right, now) == 2
    held = batch_in(store, "orders", "batch", None, 10)
    assert sorted(payloads(held)) == [[1, 0], [1, 1]]


@pytest.mark.promise("PART-6")
def test_the_head_of_the_line_is_exact_however_many_are_due(
    hf: Holdfast, clock: ManualClock
) -> None:
    queue, n = hf.queue("orders", ordered=True), 2500
    queue.enqueue_many(Outgoing(("later", i), delay=1 + i % 2) for i in range(n))
    queue.enqueue("last")
    clock.advance(5)
    own(hf.store, 0, "a", clock.now())
    found: list[Any] = []
    while leases := hf.store.lease(ask("a", (0,), (1,), limit=700 + len(found)), clock.now()):
        found += payloads(leases)
    assert found == [*(["later", i] for i in range(n)), "last"]


@pytest.mark.promise("PART-6")
def test_what_comes_back_takes_its_place_in_its_partition(
    ordered: Holdfast, clock: ManualClock
) -> None:
    store, now = ordered.store, clock.now()
    own(store, 1, "a", now)
    leases = store.lease(ask("a", (1,), (1,)), now)
    for n, lease in reversed(list(enumerate(leases))):
        back = Transition(
            Verb.RELEASE, "orders", lease.id, Target.WAITING, lease.token, to_queue="orders",
            available_at=now + 10, attempts=n,
        )  # fmt: skip
        store.settle([back], now)
    assert store.lease(ask("a", (1,), (1,)), now + 9) == []
    again = store.lease(ask("a", (1,), (1,)), now + 10)
    assert payloads(again) == [[1, 0], [1, 1]]
    assert [lease.message.attempts for lease in again] == [1, 2]


@pytest.mark.promise("PART-9")
def test_each_partition_says_what_it_holds(ordered: Holdfast, clock: ManualClock) -> None:
    store, queue, then = ordered.store, ordered.queue("orders"), clock.now()
    clock.advance(7)
    now = clock.now()
    queue.enqueue("later", key=key_in(0, 3), delay=5)
    queue.enqueue("important", key=key_in(2, 3), priority=5)
    own(store, 1, "a", now)
    leases = store.lease(ask("a", (1,), (1,), limit=1), now)
    assert store.stats(ByPartition("orders"), now) == [
        Depth(0, ready=2, delayed=1, leased=0, oldest_at=then),
        Depth(1, ready=1, delayed=0, leased=1, oldest_at=then),
        Depth(2, ready=3, delayed=0, leased=0, oldest_at=then),
    ]
    clock.advance(5)
    assert store.stats(ByPartition("orders"), clock.now())[0] == Depth(0, 3, 0, 0, then)
    queue.settle([])
    done = Transition(Verb.ACK, "orders", leases[0].id, Target.DONE, leases[0].token)
    store.settle([done], now)
    own(store, 1, "a", clock.now())
    rest = store.lease(ask("a", (1,), (1,)), clock.now())
    dead = Transition(
        Verb.FAIL, "orders", rest[0].id, Target.WAITING, rest[0].token, to_queue="orders.dlq",
        tail=True, available_at=now, attempts=1,
    )  # fmt: skip
    store.settle([dead], now)
    assert store.stats(ByPartition("orders"), clock.now())[1] == Depth(1, 0, 0, 0, None)
    assert store.stats(ByPartition("orders.dlq"), clock.now())[1] == Depth(1, 1, 0, 0, then)
    queue.purge()
    assert store.stats(ByPartition("orders"), clock.now()) == [
        Depth(p, 0, 0, 0, None) for p in range(3)
    ]
    with pytest.raises(QueueNotFound):
        store.stats(ByPartition("nothing"), now)


@pytest.mark.promise("PART-9")
@pytest.mark.parametrize("partitions", [1, 4])
def test_the_partitions_add_up_to_the_queue(
    hf: Holdfast, clock: ManualClock, partitions: int
) -> None:
    queue = hf.queue("orders", partitions=partitions)
    queue.enqueue_many(Outgoing(n, delay=n % 3 * 10) for n in range(90))
    leases = queue.lease(20)
    queue.settle(leases[:5])
    for lease in leases[5:10]:
        queue.nack(lease, delay=60)
    for lease in leases[10:12]:
        queue.fail(lease)
    clock.advance(10)
    hf.redrive("orders.dlq", 1)
    depths, stats = hf.store.stats(ByPartition("orders"), clock.now()), queue.stats()
    sums = [
        sum(getattr(depth, kind) for depth in depths) for kind in ("ready", "delayed", "leased")
    ]
    assert sums == [stats.ready, stats.delayed, stats.leased]
    dead = hf.store.stats(ByPartition("orders.dlq"), clock.now())
    assert [sum(depth.ready for depth in dead), len(dead)] == [1, partitions]


@pytest.mark.promise("PART-7")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 4), (4, 16), (3, 5)])
def test_more_partitions_begin_a_new_generation_and_lose_nothing(
    hf: Holdfast, another: Callable[[], Holdfast], before: int, after: int
) -> None:
    queue = hf.queue("orders", partitions=before)
    old = queue.enqueue_many(Outgoing(n, key=f"k{n}") for n in range(40))
    held, dead = queue.lease(4), queue.lease(2)
    for lease in dead:
        queue.fail(lease)
    other = another()
    other.queue("orders", partitions=after)
    wait_until(lambda: queue.spec.spread == after)  # a store may remember it for a moment
    spec = queue.spec
    assert (spec.spread, spec.partitions, spec.starts) == (after, before + after, (0, before))
    new = other.queue("orders").enqueue_many(Outgoing(n, key=f"k{n}") for n in range(40, 80))
    assert {message.partition for message in old} <= set(range(before))
    assert [m.partition for m in new] == [before + partition_of(m.key, m.id, after) for m in new]
    assert len(hf.store.stats(ByPartition("orders"), 0)) == before + after
    queue.release(held[0])
    queue.settle(held[1:])
    assert hf.redrive("orders.dlq").redriven == 2
    rest = queue.lease(100)
    assert sorted(payloads(rest)) == [0, *range(4, 80)]
    assert payloads(rest) == sorted(payloads(rest))
    queue.settle(rest)
    assert (queue.stats().done, queue.stats().ready, queue.stats().leased) == (80, 0, 0)


@pytest.mark.promise("PART-7")
def test_fewer_partitions_are_refused(hf: Holdfast) -> None:
    hf.queue("orders", partitions=4)
    with pytest.raises(InvalidArgument, match=r"partitions: orders has 4.*added"):
        hf.queue("orders", partitions=3)
    assert hf.queue("orders", partitions=4).spec.partitions == 4


@pytest.mark.promise("PART-3")
def test_whether_a_queue_is_ordered_is_kept(hf: Holdfast, another: Callable[[], Holdfast]) -> None:
    hf.queue("orders", partitions=2, ordered=True, on_failure="skip")
    spec = another().queue("orders").spec
    assert (spec.ordered, spec.partitions, spec.policy.on_failure) == (True, 2, "skip")
    assert not hf.queue("orders.dlq").spec.ordered
    with pytest.raises(InvalidArgument, match=r"ordered: orders is ordered; .* created"):
        another().queue("orders", ordered=False)


def test_who_waits_for_a_partition_is_not_woken_by_another(
    ordered: Holdfast, clock: ManualClock
) -> None:
    """Two waits on one partition: the second would come back at once if others counted."""
    store, now = ordered.store, clock.now()
    own(store, 0, "a", now)
    store.wait(["orders"], now, 60, partitions=[0, 1])  # there is something
    assert len(store.lease(ask("a", (0,), (1,)), now)) == 2
    came: list[str] = []

    def wait() -> None:
        store.wait(["orders"], now, 60, partitions=[0])
        came.append("back")

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert came == []
    ordered.queue("orders").enqueue("news", key=key_in(0, 3))
    waiting.join(30)
    assert came == ["back"]
