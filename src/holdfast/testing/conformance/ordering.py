"""Ordered queues: one owner of a partition, its messages in order, whatever happens to owners."""

# pyright: basic

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
from holdfast import (
    Backoff,
    Fail,
    FailedPrecondition,
    Holdfast,
    InvalidArgument,
    Lease,
    LeaseLost,
    Message,
    Outgoing,
    Queue,
    QueueNotFound,
    Retry,
    State,
    StoreUnavailable,
)
from holdfast.model import settings
from holdfast.model.queues import partition_claim
from holdfast.rules.lifecycle import partition_of
from holdfast.stores.contract import BatchEnd, LeaseAsk, ReserveAsk
from holdfast.testing import ManualClock, wait_until
from holdfast.testing.conformance.fixtures import StoreFactory, whereabouts
from holdfast.work import ownership
from holdfast.work.ownership import Consumer, Owner, Work

LEASE, RENEW, REBALANCE = 15, 3, 5
STEP = 1.0
MORE = pytest.mark.extended

Join = Callable[[], Consumer]


@pytest.fixture
def join(hf: Holdfast, another: Callable[[], Holdfast]) -> Iterator[Join]:
    """Makes consumers of `orders`, each as in a process of its own, that do as they are told."""
    with ExitStack() as stack:
        yield lambda: another().consumer("orders", background=False)
        stack.close()


def settle_down(clock: ManualClock, consumers: list[Consumer], seconds: float) -> None:
    for _ in range(round(seconds / STEP)):
        clock.advance(STEP)
        for consumer in consumers:
            consumer.tick()


def shares(consumers: list[Consumer]) -> list[int]:
    return sorted(len(consumer.partitions) for consumer in consumers)


def payloads(leases: list[Lease]) -> list[Any]:
    return [lease.message.payload for lease in leases]


def work_off(consumers: list[Consumer], rounds: int = 100) -> list[Any]:
    """What they finish, in the order of finishing, each one message of a partition at a time."""
    done: list[Any] = []
    for _ in range(rounds):
        before = len(done)
        for consumer in consumers:
            for lease in consumer.lease(16):
                done.append(lease.message.payload)
                consumer.ack(lease)
        if len(done) == before:
            break
    return done


def keys_of(partitions: int, part: int, n: int) -> list[str]:
    found = (f"key-{i}" for i in range(10_000) if partition_of(f"key-{i}", "", partitions) == part)
    return [next(found) for _ in range(n)]


@pytest.mark.promise("PART-1")
def test_a_key_has_one_partition_in_every_process(
    hf: Holdfast, another: Callable[[], Holdfast]
) -> None:
    queue = hf.queue("orders", partitions=7)
    sent = queue.enqueue_many(Outgoing(n, key=f"user-{n % 20}") for n in range(100))
    again = another().queue("orders").enqueue_many(Outgoing(n, key=f"user-{n}") for n in range(20))
    where = {message.key: message.partition for message in again}
    assert [message.partition for message in sent] == [where[message.key] for message in sent]
    assert len(set(where.values())) > 3
    stored = {entry.message.id: entry.message for entry in queue.browse()}
    assert all(stored[message.id].partition == message.partition for message in [*sent, *again])


@pytest.mark.promise("PART-1")
def test_the_hash_is_the_documented_one(hf: Holdfast) -> None:
    queue = hf.queue("orders", partitions=8)
    wanted = {"a": 7, "b": 5, "user-1": 0, "Ünïcödé": 5, "": 4}
    assert {key: queue.enqueue(1, key=key).partition for key in wanted} == wanted


@pytest.mark.promise("PART-1")
def test_without_a_key_messages_are_spread_evenly(hf: Holdfast) -> None:
    queue = hf.queue("orders", partitions=4)
    counts = Counter(message.partition for message in queue.enqueue_many(range(2000)))
    assert sorted(counts) == [0, 1, 2, 3]
    assert all(400 < n < 600 for n in counts.values())


@pytest.mark.promise("PART-1")
def test_a_key_may_be_bytes(hf: Holdfast) -> None:
    queue = hf.queue("orders", partitions=8)
    text, encoded = queue.enqueue(1, key="Ü-1"), queue.enqueue(2, key="Ü-1".encode())
    assert (text.key, text.partition) == (encoded.key, encoded.partition)
    assert queue.enqueue(3, key=b"\xff\x00").key == "0xff00"


@pytest.mark.no_store
@pytest.mark.parametrize("key", [1, 1.5, ["a"], {"a": 1}, object()])
def test_a_key_of_another_kind_is_refused(hf: Holdfast, key: Any) -> None:
    queue = hf.queue("orders", partitions=8)
    with pytest.raises(InvalidArgument, match="key: must be text or bytes") as caught:
        queue.enqueue_many([Outgoing(1, key="fine"), Outgoing(2, key=key)])
    assert caught.value.index == 1
    assert whereabouts(queue) == {}


@pytest.mark.promise("PART-3")
def test_an_ordered_queue_is_leased_by_owners_only(hf: Holdfast) -> None:
    hf.queue("orders", ordered=True).enqueue(1)
    hf.queue("plain").enqueue(1)
    with pytest.raises(FailedPrecondition, match="orders is ordered: lease by"):
        hf.queue("orders").lease()
    with pytest.raises(FailedPrecondition, match="plain is not ordered"):
        hf.consumer("plain")
    with pytest.raises(QueueNotFound):
        hf.consumer("nothing")


@pytest.mark.promise("PART-3")
def test_a_partition_has_one_owner(hf: Holdfast, clock: ManualClock, join: Join) -> None:
    queue = hf.queue("orders", partitions=4, ordered=True)
    queue.enqueue_many(Outgoing(n, key=f"k{n}") for n in range(40))
    consumers = [join() for _ in range(3)]
    settle_down(clock, consumers, 2 * REBALANCE)
    owned = [part for consumer in consumers for part in consumer.partitions]
    assert sorted(owned) == [0, 1, 2, 3]
    by_owner = {part.partition: part.owner for part in queue.partitions()}
    for consumer in consumers:
        assert {p for p, owner in by_owner.items() if owner == consumer.name} == set(
            consumer.partitions
        )
        leases = consumer.lease(10)
        parts = [lease.message.partition for lease in leases]
        assert len(set(parts)) == len(parts)
        assert set(parts) <= set(consumer.partitions)


@pytest.mark.promise("PART-3", "PART-5")
def test_a_paused_owner_whose_lease_ran_out_settles_nothing(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(3))
    paused, other = join(), join()
    paused.tick()
    (lease,) = paused.lease()
    settle_down(clock, [other], LEASE + REBALANCE)
    assert other.partitions == [0]
    for verb in (paused.ack, paused.nack, paused.fail, paused.release):
        with pytest.raises(LeaseLost):
            verb(lease)
    with pytest.raises(LeaseLost):
        queue.ack(lease)  # the store refuses it as well, whoever asks
    assert paused.lease(10) == []
    paused.tick()
    assert paused.partitions == []
    assert work_off([other, paused]) == [0, 1, 2]
    assert [finished.consumer for finished in queue.log()] == [other.name] * 3
    first = next(queue.log()).message
    assert (first.attempts, first.errors[0].code) == (2, "OWNER_LOST")


@pytest.mark.promise("PART-3")
def test_it_settles_nothing_either_when_nobody_took_its_place(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(range(2))
    paused = join()
    paused.tick()
    (lease,) = paused.lease()
    clock.advance(LEASE)
    with pytest.raises(LeaseLost):
        paused.ack(lease)
    assert queue.stats().done == 0
    paused.tick()  # it owns the partition again, at a new epoch, and goes on where it was
    assert queue.partitions()[0].epoch == 2
    assert work_off([paused]) == [0, 1]


@pytest.mark.promise("PART-3")
def test_an_owner_that_cannot_renew_stops_before_its_claim_can_be_taken(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(Outgoing(n, key=str(n)) for n in range(3))
    cut_off, other = join(), join()
    cut_off.tick()
    (lease,) = cut_off.lease()
    clock.advance(LEASE - RENEW - 0.001)
    cut_off.ack(lease)
    (lease,) = cut_off.lease()
    clock.advance(0.001)
    assert cut_off.partitions == []
    with pytest.raises(LeaseLost):
        cut_off.ack(lease)
    assert cut_off.lease() == []
    other.tick()
    assert other.partitions == []  # and yet nobody else may begin
    assert hf.store.claim(partition_claim("orders", 0), "x", 1000, clock.now()) is None


@pytest.mark.promise("PART-3")
def test_a_claim_is_kept_by_renewing(hf: Holdfast, clock: ManualClock, join: Join) -> None:
    queue = hf.queue("orders", partitions=2, ordered=True)
    owner = join()
    owner.tick()
    settle_down(clock, [owner], 10 * LEASE)
    assert owner.partitions == [0, 1]
    assert [part.epoch for part in queue.partitions()] == [1, 1]


@pytest.mark.promise("PART-4")
@pytest.mark.parametrize("partitions", [8, *(pytest.param(n, marks=MORE) for n in (1, 3, 10))])
def test_shares_are_equal_within_two_intervals(
    hf: Holdfast, clock: ManualClock, join: Join, partitions: int
) -> None:
    hf.queue("orders", partitions=partitions, ordered=True)
    consumers: list[Consumer] = []

    def equal() -> None:
        settle_down(clock, consumers, 2 * REBALANCE)
        least, over = divmod(partitions, len(consumers))
        most = [least + 1] * over
        assert shares(consumers) == [*([least] * (len(consumers) - over)), *most]
        owned = [part for consumer in consumers for part in consumer.partitions]
        assert sorted(owned) == list(range(partitions))

    for n in (1, 1, 2, 1):
        consumers += [join() for _ in range(n)]
        equal()
    consumers.pop(0).close()
    equal()
    consumers.pop().close()
    consumers.pop().close()
    equal()


@pytest.mark.promise("PART-4")
def test_few_partitions_move_when_somebody_joins(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    hf.queue("orders", partitions=12, ordered=True)
    consumers = [join() for _ in range(3)]
    settle_down(clock, consumers, 2 * REBALANCE)
    before = [set(consumer.partitions) for consumer in consumers]
    consumers.append(join())
    settle_down(clock, consumers, 2 * REBALANCE)
    after = [set(consumer.partitions) for consumer in consumers]
    assert [len(old - new) for old, new in zip(before, after, strict=False)] == [1, 1, 1]


@pytest.mark.promise("PART-4", "PART-6")
def test_what_runs_is_finished_before_its_partition_moves(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", partitions=2, ordered=True)
    for part in range(2):
        queue.enqueue_many(Outgoing((part, n), key=keys_of(2, part, 1)[0]) for n in range(2))
    first, second = join(), join()
    first.tick()
    running = first.lease(2)
    settle_down(clock, [first, second], 2 * REBALANCE)
    assert second.partitions == []
    for lease in running:
        first.ack(lease)
    settle_down(clock, [first, second], 2)
    assert shares([first, second]) == [1, 1]
    assert sorted(work_off([first, second])) == [[0, 1], [1, 1]]


@pytest.mark.promise("PART-5")
def test_a_killed_owners_messages_go_on_at_once_and_in_order(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", partitions=2, ordered=True, ack_timeout=3600)
    for part in range(2):
        queue.enqueue_many(Outgoing((part, n), key=keys_of(2, part, 1)[0]) for n in range(4))
    killed, other = join(), join()
    killed.tick()
    assert len(killed.lease(2)) == 2
    settle_down(clock, [other], LEASE + REBALANCE)
    assert other.partitions == [0, 1]
    assert queue.stats().leased == 0
    done = work_off([other])
    for part in range(2):
        assert [n for p, n in done if p == part] == [0, 1, 2, 3]


@pytest.mark.promise("PART-5")
def test_a_message_that_kills_its_owners_dies_and_takes_no_other_with_it(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    """Leased many at a time, as a worker does: those behind it must not use up their attempts."""
    queue = hf.queue("orders", ordered=True, max_attempts=3, ack_timeout=3600)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(5))
    for _ in range(3):
        owner = Owner(another().context, queue, settings.load({}))
        owner.tick()
        work = owner.lease()
        (running,) = work.start
        assert running.lease.message.payload == 0  # and it never comes back
        clock.advance(LEASE)
    last = another().consumer("orders", background=False)
    last.tick()
    assert work_off([last]) == [1, 2, 3, 4]
    assert [entry.message.payload for entry in queue.dlq.browse()] == [0]
    assert [finished.message.attempts for finished in queue.log()] == [2, 2, 2, 2]


@pytest.mark.promise("PART-5")
def test_an_owner_that_leaves_hands_over_at_once(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", partitions=2, ordered=True)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(4))
    leaving, other = join(), join()
    leaving.tick()
    leaving.ack(leaving.lease()[0])
    assert len(leaving.lease()) == 1
    other.tick()
    leaving.close()
    settle_down(clock, [other], STEP)
    assert other.partitions == [0, 1]
    assert work_off([other]) == [1, 2, 3]
    assert [finished.message.attempts for finished in queue.log()] == [1] * 4


@pytest.mark.promise("PART-6")
def test_a_partition_is_worked_serially(hf: Holdfast, join: Join) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(Outgoing(n, key=f"k{n % 3}") for n in range(9))
    owner = join()
    owner.tick()
    (first,) = owner.lease(10)
    assert owner.lease(10) == []
    owner.ack(first)
    assert [first.message.payload, *work_off([owner])] == list(range(9))


@pytest.mark.promise("PART-6")
def test_skip_lets_later_ones_pass(hf: Holdfast, clock: ManualClock, join: Join) -> None:
    queue = hf.queue("orders", ordered=True, on_failure="skip")
    queue.enqueue_many(Outgoing(n, key="k") for n in range(4))
    owner = join()
    owner.tick()
    owner.nack(owner.lease()[0], delay=2)
    assert work_off([owner]) == [1, 2, 3]
    clock.advance(2)
    assert work_off([owner]) == [0]


@pytest.mark.promise("PART-6")
def test_block_holds_the_key_and_not_the_partition(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", ordered=True, on_failure="block")
    queue.enqueue_many(Outgoing((key, n), key=key) for n in range(3) for key in ("bad", "good"))
    queue.enqueue("no key")
    owner = join()
    owner.tick()
    owner.nack(owner.lease()[0], delay=2)
    assert work_off([owner]) == [["good", 0], ["good", 1], ["good", 2], "no key"]
    queue.enqueue(["bad", 3], key="bad")
    assert work_off([owner]) == []
    assert queue.stats().delayed == 4
    clock.advance(1.999)
    assert work_off([owner]) == []
    clock.advance(0.001)
    (again,) = owner.lease(10)
    assert (again.message.payload, again.message.attempts) == (["bad", 0], 2)
    owner.nack(again, delay=1)
    assert work_off([owner]) == []
    clock.advance(1)
    assert work_off([owner]) == [["bad", n] for n in range(4)]
    assert [finished.message.attempts for finished in queue.log()] == [1, 1, 1, 1, 3, 1, 1, 1]


@pytest.mark.promise("PART-6")
@pytest.mark.parametrize("how", ["fail", "exhausted", "purged", "discarded"])
def test_a_key_is_free_when_what_held_it_is_gone(
    hf: Holdfast, clock: ManualClock, join: Join, how: str
) -> None:
    queue = hf.queue("orders", ordered=True, max_attempts=2, backoff=Backoff(base=1, jitter="none"))
    (first, *_) = queue.enqueue_many(Outgoing(n, key="k") for n in range(3))
    owner = join()
    owner.tick()
    lease = owner.lease()[0]
    left = [1, 2]
    if how == "fail":
        owner.fail(lease, "hopeless")
    else:
        owner.nack(lease)
        assert work_off([owner]) == []
        if how == "purged":
            queue.purge()
            queue.enqueue_many(Outgoing(n, key="k") for n in left)
        clock.advance(1)
        if how == "exhausted":
            owner.nack(owner.lease()[0])
        if how == "discarded":
            assert owner.lease()[0].id == first.id
            left = [0, 1, 2]
            owner.close()
            owner = join()
            owner.tick()
    assert work_off([owner]) == left
    assert len(list(queue.dlq.browse())) == (1 if how in ("fail", "exhausted") else 0)


@pytest.mark.promise("PART-6")
def test_a_successor_knows_which_keys_are_held(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(Outgoing((key, n), key=key) for n in range(3) for key in ("bad", "good"))
    queue.enqueue("scheduled", key="good", delay=100)
    killed, other = join(), join()
    killed.tick()
    killed.nack(killed.lease()[0], delay=60)
    killed.lease()
    settle_down(clock, [other], LEASE + REBALANCE)
    assert work_off([other]) == [["good", 0], ["good", 1], ["good", 2]]
    settle_down(clock, [other], 60)
    assert work_off([other]) == [["bad", 0], ["bad", 1], ["bad", 2]]
    settle_down(clock, [other], 60)
    assert work_off([other]) == ["scheduled"]


@pytest.mark.promise("PART-6", "LIFE-6")
def test_a_key_is_held_in_every_priority(hf: Holdfast, clock: ManualClock, join: Join) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue("first", key="k")
    owner = join()
    owner.tick()
    owner.nack(owner.lease()[0], delay=1)
    queue.enqueue("urgent", key="k", priority=9)
    queue.enqueue("other", key="o")
    assert work_off([owner]) == ["other"]
    queue.enqueue("urgent, too", key="k", priority=9)
    clock.advance(1)
    assert work_off([owner]) == ["first"]
    clock.advance(0.1)
    assert work_off([owner]) == ["urgent", "urgent, too"]


@pytest.mark.promise("PART-6")
def test_what_was_swept_is_handled_again_before_what_follows(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", ordered=True, ack_timeout=2)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(3))
    owner = join()
    owner.tick()
    (slow,) = owner.lease()
    clock.advance(2)
    assert hf.sweep().requeued == 1
    owner.tick()
    with pytest.raises(LeaseLost):
        owner.ack(slow)
    assert work_off([owner]) == [0, 1, 2]


@pytest.mark.promise("PART-7")
@pytest.mark.parametrize(
    ("before", "after"), [(3, 5), *(pytest.param(*pair, marks=MORE) for pair in ((1, 4), (4, 16)))]
)
def test_a_key_keeps_its_order_when_partitions_are_added(
    hf: Holdfast, clock: ManualClock, join: Join, before: int, after: int
) -> None:
    queue = hf.queue("orders", partitions=before, ordered=True)
    keys = [f"k{n}" for n in range(12)]
    queue.enqueue_many(Outgoing((key, n), key=key) for n in range(4) for key in keys)
    consumers = [join(), join()]
    settle_down(clock, consumers, 2 * REBALANCE)
    held = [(consumer, lease) for consumer in consumers for lease in consumer.lease(20)]
    hf.queue("orders", partitions=after)
    queue.enqueue_many(Outgoing((key, n), key=key) for n in range(4, 8) for key in keys)
    settle_down(clock, consumers, 2 * REBALANCE)
    done: list[Any] = []
    for _ in range(3):  # what is held keeps its generation, and with it the next, from ending
        done += work_off(consumers, rounds=3)
        assert all(n < 4 for _, n in done)
    for consumer, lease in held:
        done.append(lease.message.payload)
        consumer.ack(lease)
    for _ in range(4):
        done += work_off(consumers)
        settle_down(clock, consumers, REBALANCE)
    for key in keys:
        assert [n for k, n in done if k == key] == list(range(8)), key
    parts = [part.partition for part in queue.partitions()]
    assert parts == list(range(before, before + after))
    assert sorted(part for c in consumers for part in c.partitions) == parts


@pytest.mark.promise("PART-7")
def test_a_message_that_failed_before_they_were_added_holds_its_key_only(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", partitions=2, ordered=True)
    keys = [f"k{n}" for n in range(8)]
    bad = queue.enqueue([keys[0], 0], key=keys[0])
    owner = join()
    owner.tick()
    owner.nack(owner.lease()[0], delay=60)
    hf.queue("orders", partitions=5)
    queue.enqueue_many(Outgoing((key, n), key=key) for n in (1, 2) for key in keys)
    settle_down(clock, [owner], 2 * REBALANCE)
    done = work_off([owner])
    assert sorted(done) == sorted([key, n] for n in (1, 2) for key in keys[1:])
    settle_down(clock, [owner], 60)
    assert work_off([owner]) == [[keys[0], 0], [keys[0], 1], [keys[0], 2]]
    assert queue.stats().lag == 0
    assert bad.partition < 2


@pytest.mark.promise("PART-7")
def test_a_producer_that_did_not_hear_of_it_breaks_no_order(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    """What it still puts into an old partition comes before what it puts into a new one later."""
    queue = hf.queue("orders", partitions=1, ordered=True)
    owner = join()
    owner.tick()
    sample = queue.enqueue("sample", key="k")
    assert work_off([owner]) == ["sample"]
    hf.queue("orders", partitions=3)
    settle_down(clock, [owner], 2 * REBALANCE)
    new = queue.enqueue("newer", key="k")
    late = [{**_fields(sample), "id": new.id[:-4] + "0000", "body": b'"older"'}]
    hf.store.enqueue([type(sample)(**fields) for fields in late], clock.now())
    assert work_off([owner]) == []
    settle_down(clock, [owner], REBALANCE)
    assert work_off([owner]) == ["older", "newer"]


def _fields(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in type(message).__struct_fields__}


@pytest.mark.promise("PART-7")
def test_partitions_are_added_more_than_once(hf: Holdfast, clock: ManualClock, join: Join) -> None:
    queue = hf.queue("orders", partitions=1, ordered=True)
    sent = 0
    for partitions in (2, 3, 4):
        queue.enqueue_many(Outgoing(sent + n, key="k") for n in range(5))
        sent += 5
        hf.queue("orders", partitions=partitions)
    queue.enqueue_many(Outgoing(sent + n, key="k") for n in range(5))
    owner, done = join(), []
    for _ in range(6):
        settle_down(clock, [owner], REBALANCE)
        done += work_off([owner])
    assert done == list(range(20))
    assert queue.spec.starts == (0, 1, 3, 6)


@pytest.mark.promise("PART-9")
def test_partitions_show_what_they_hold_and_who_has_them(
    hf: Holdfast, clock: ManualClock, join: Join
) -> None:
    queue = hf.queue("orders", partitions=2, ordered=True)
    keys = [keys_of(2, part, 1)[0] for part in range(2)]
    queue.enqueue_many(Outgoing(n, key=keys[0]) for n in range(3))
    queue.enqueue("later", key=keys[1], delay=60)
    clock.advance(4)
    owner = join()
    owner.tick()
    owner.lease()
    first, second = queue.partitions()
    assert (first.ready, first.leased, first.delayed, first.lag) == (2, 1, 0, 3)
    assert (first.oldest_age, first.owner, first.epoch) == (4.0, owner.name, 1)
    assert (second.delayed, second.lag, second.oldest_age, second.owner) == (1, 1, None, owner.name)
    stats = queue.stats()
    assert stats.lag == first.lag + second.lag == 4
    owner.close()
    assert [part.owner for part in queue.partitions()] == [None, None]


@pytest.mark.promise("PART-3")
def test_what_a_batch_holds_is_not_taken_over(hf: Holdfast, clock: ManualClock, join: Join) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(3))
    claim = hf.store.claim(partition_claim("orders", 0), "spark", 1000, clock.now())
    assert claim is not None
    ask = ReserveAsk("orders", 1, "spark", "00ff", "batch", (0,), (claim.epoch,))
    assert hf.store.lease(ask, clock.now()) == 1
    owner = join()
    settle_down(clock, [owner], LEASE)
    assert work_off([owner]) == []
    hf.store.settle(BatchEnd("orders", "batch", 10, None), clock.now())
    settle_down(clock, [owner], REBALANCE)
    assert work_off([owner]) == [1, 2]


def test_a_queue_that_is_deleted_is_let_go(hf: Holdfast, clock: ManualClock, join: Join) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue(1)
    owner = join()
    owner.tick()
    queue.delete(force=True)
    settle_down(clock, [owner], REBALANCE)
    assert owner.partitions == []
    Queue(hf.context, "orders")
    hf.queue("orders", ordered=True).enqueue(2)
    settle_down(clock, [owner], LEASE + REBALANCE)
    assert work_off([owner]) == [2]
    assert list(hf.queue("orders").browse(State.LEASED)) == []


# Workers


def notes_of(hf: Holdfast, *, kind: str = "plain") -> list[tuple[str, int, int]]:
    """A handler that fails now and then; what it is called with: key, number, attempt."""
    called: list[tuple[str, int, int]] = []

    def note(n: int, message: Message) -> None:
        called.append((message.key or "", n, message.attempts))
        if n % 11 == 5 and message.attempts < 3:
            raise Retry("not this time", delay=0)
        if n % 13 == 7:
            raise Fail("never")

    async def note_async(n: int, message: Message) -> None:
        await asyncio.sleep(0)
        note(n, message)

    hf.handler("orders")(note if kind == "plain" else note_async)
    return called


def check_calls(called: list[tuple[str, int, int]], keys: int, n: int) -> None:
    """Every key from its first number to its last, each as often as it takes."""
    for k in range(keys):
        mine = [(number, attempt) for key, number, attempt in called if key == f"k{k}"]
        wanted = [
            (number, attempt)
            for number in range(k, n, keys)
            for attempt in range(1, 4 if number % 11 == 5 else 2)
        ]
        assert mine == wanted, f"k{k}"


@pytest.mark.promise("PART-6")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_worker_handles_the_messages_of_a_key_in_order(hf: Holdfast, kind: str) -> None:
    queue = hf.queue("orders", partitions=4, ordered=True)
    queue.enqueue_many(Outgoing(n, key=f"k{n % 10}") for n in range(300))
    called = notes_of(hf, kind=kind)
    assert hf.worker(until_empty=True, concurrency=8, sweep=False).run()
    check_calls(called, 10, 300)
    assert (queue.stats().lag, queue.stats().done, queue.stats().dead) == (0, 277, 23)
    assert [part.owner for part in queue.partitions()] == [None] * 4


@pytest.mark.promise("PART-6")
def test_a_worker_does_not_wait_for_what_it_settled_before_its_lease_returned(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it ends at that moment, so another thread may start it at once."""
    queue = hf.queue("orders", ordered=True)
    queue.enqueue("first")
    may_end = threading.Event()
    lease = Owner.lease

    def slow(self: Owner, ahead: int = 0) -> Work:
        work = lease(self, ahead)
        if queue.stats().leased == 2:
            may_end.set()
            wait_until(lambda: queue.stats().done == 2)
        return work

    @hf.handler("orders")
    def handle(payload: str) -> None:
        if payload == "first":
            queue.enqueue("second")
            assert may_end.wait(30)

    monkeypatch.setattr(Owner, "lease", slow)
    assert hf.worker(until_empty=True, concurrency=2, sweep=False, grace=1).run()
    assert queue.stats().done == 2


@pytest.mark.promise("PART-6")
def test_a_worker_until_empty_goes_on_with_what_another_thread_took_up(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that keeps the partitions takes up what has just been leased: to the one that
    leased it, the queue looks empty."""
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(range(5))
    looked_again = threading.Event()
    lease = Owner.lease

    def robbed(self: Owner, ahead: int = 0) -> Work:
        if queue.stats().leased:
            looked_again.set()
        work = lease(self, ahead)
        with self._lock:
            self._todo.add(work)
        self.nudge.set()
        wait_until(lambda: not self._todo.leased)
        return Work()

    @hf.handler("orders")
    def handle(n: int) -> None:
        looked_again.wait(5)

    monkeypatch.setattr(Owner, "lease", robbed)
    assert hf.worker(until_empty=True, concurrency=2, sweep=False).run()
    assert queue.stats().done == 5


@pytest.mark.promise("PART-4", "PART-5", "PART-6")
def test_workers_share_the_partitions_and_hand_them_over(
    store_factory: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real clock: workers keep their claims in their own time."""
    for name, ms in {"LEASE": 6000, "RENEW": 300, "REBALANCE": 500}.items():
        monkeypatch.setenv(f"HOLDFAST_PARTITION_{name}_MS", str(ms))
    hf, other = (holdfast.connect(store_factory()) for _ in range(2))
    queue = hf.queue("orders", partitions=4, ordered=True)
    called = notes_of(hf)
    other.handlers.add(hf.handlers.all()[0])
    first, second = hf.worker(sweep=False), other.worker(sweep=False)
    threads = [threading.Thread(target=worker.run) for worker in (first, second)]

    def owners() -> Counter[str | None]:
        return Counter(part.owner for part in queue.partitions())

    threads[0].start()
    wait_until(lambda: list(owners().values()) == [4] and None not in owners(), 30)
    threads[1].start()
    wait_until(lambda: sorted(owners().values()) == [2, 2] and None not in owners(), 30)
    queue.enqueue_many(Outgoing(n, key=f"k{n % 10}") for n in range(200))
    first.stop()
    threads[0].join()
    wait_until(lambda: list(owners().values()) == [4] and None not in owners(), 30)
    wait_until(lambda: queue.stats().lag == 0, 30)
    second.stop()
    threads[1].join()
    check_calls(called, 10, 200)


@pytest.mark.promise("PART-5")
def test_a_worker_that_stops_gives_back_what_did_not_start(hf: Holdfast) -> None:
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(20))
    begun, go_on = threading.Event(), threading.Event()

    @hf.handler("orders")
    def handle(n: int) -> None:
        begun.set()
        go_on.wait(30)

    worker = hf.worker(sweep=False)
    running = threading.Thread(target=worker.run)
    running.start()
    assert begun.wait(30)
    worker.stop()
    wait_until(lambda: queue.stats().leased == 1)
    assert queue.partitions()[0].owner is not None  # it may finish what it began
    go_on.set()
    running.join()
    assert (queue.stats().done, queue.stats().ready) == (1, 19)
    assert {entry.message.attempts for entry in queue.browse()} == {0}
    assert queue.partitions()[0].owner is None


class _Unheard:
    """A store whose next lease is done, and its answer lost."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.fails = False

    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]:
        leases = self._store.lease(ask, now)
        if self.fails and leases:
            self.fails = False
            raise StoreUnavailable("the connection broke off")
        return leases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.promise("PART-6")
def test_a_lease_whose_answer_was_lost_is_passed_by_nothing(
    store_factory: StoreFactory, clock: ManualClock
) -> None:
    unheard: Any = _Unheard(store_factory())
    hf = holdfast.connect(unheard, clock=clock)
    queue = hf.queue("orders", ordered=True, ack_timeout=3600)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(3))
    owner = hf.consumer("orders", background=False)
    owner.tick()
    owner.ack(owner.lease()[0])
    unheard.fails = True
    with pytest.raises(StoreUnavailable):
        owner.lease()
    assert work_off([owner]) == []
    owner.tick()
    assert work_off([owner]) == [1, 2]
    owner.close()


@pytest.mark.promise("PART-6")
def test_an_ack_that_the_store_did_not_take_may_be_repeated(
    store_factory: StoreFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = holdfast.connect(store_factory(), clock=clock)
    queue = hf.queue("orders", ordered=True)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(3))
    owner = hf.consumer("orders", background=False)
    owner.tick()
    (lease,) = owner.lease()

    def away(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(hf.store, "settle", away)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                owner.nack(lease, delay=1)
    owner.nack(lease, delay=1)
    owner.nack(lease, delay=1)  # again: fine
    assert work_off([owner]) == []
    clock.advance(1)
    assert work_off([owner]) == [0, 1, 2]
    with pytest.raises(LeaseLost):
        owner.ack(lease)
    owner.close()


@pytest.mark.promise("PART-3")
def test_an_owner_that_is_frozen_while_it_takes_over_takes_nothing_from_its_successor(
    store_factory: StoreFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [holdfast.connect(store_factory(), clock=clock) for _ in range(3)]
    queue = connections[0].queue("orders", ordered=True, ack_timeout=3600)
    queue.enqueue_many(Outgoing(n, key="k") for n in range(3))
    dead, frozen, other = (hf.consumer("orders", background=False) for hf in connections)
    dead.tick()
    assert len(dead.lease()) == 1
    clock.advance(LEASE)
    browse, taken, begun = connections[1].store.browse, list[Lease](), list[bool]()

    def slow(*args: Any) -> Any:
        if not begun:
            begun.append(True)
            clock.advance(LEASE)
            other.tick()
            taken.extend(other.lease())
        return browse(*args)

    with monkeypatch.context() as patch:
        patch.setattr(connections[1].store, "browse", slow)
        frozen.tick()
    assert payloads(taken) == [0]
    other.ack(taken[0])
    assert frozen.partitions == []
    assert [taken[0].message.payload, *work_off([frozen, other])] == [0, 1, 2]
    other.close()


@pytest.mark.promise("PART-3")
def test_a_claim_that_ran_out_within_a_tick_is_a_new_one(
    store_factory: StoreFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen between renewing and looking at the shares: what was in line goes back."""
    hf = holdfast.connect(store_factory(), clock=clock)
    queue = hf.queue("orders", partitions=2, ordered=True)
    queue.enqueue_many(Outgoing(n, key=keys_of(2, 0, 1)[0]) for n in range(5))
    hf.store.claim(partition_claim("orders", 1), "another", LEASE * 1000, clock.now())
    owner = Owner(hf.context, queue, settings.load({}))
    owner.tick()
    assert owner.lease().leased == 5
    clock.advance(REBALANCE)
    with monkeypatch.context() as patch:
        patch.setattr(owner, "_hand_over", lambda: clock.advance(LEASE))
        patch.setattr(ownership.secrets, "randbelow", lambda n: 0)
        back = owner.tick().back
    clock.advance(REBALANCE)
    back += owner.tick().back
    assert len(back) == 4
    assert not any(owner.holds(delivery, clock.now()) for delivery in back)
    assert owner.owned() == [0, 1]
