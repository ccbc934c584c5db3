"""Topics: what is published reaches each group, whole or not at all, and groups do not meet."""

# pyright: basic

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    Backoff,
    GroupNotFound,
    Holdfast,
    InvalidArgument,
    NotFound,
    Outgoing,
    Queue,
    QueueNotEmpty,
    QueueNotFound,
    StoreUnavailable,
)
from holdfast.model.moves import State
from holdfast.queue import topic as topics
from holdfast.queue.topic import Topic, log_of
from holdfast.rules.lifecycle import partition_of
from holdfast.stores.contract import View, spec_of
from holdfast.testing import ManualClock, drain, wait_until
from holdfast.testing.conformance.fixtures import ids, whereabouts

DAY = 86_400


@pytest.fixture
def topic(hf: Holdfast) -> Topic:
    return hf.topic("orders")


def payloads(queue: Queue, state: State = State.READY) -> list[Any]:
    return [entry.message.payload for entry in queue.browse(state)]


def retained(hf: Holdfast, topic: str = "orders") -> list[Any]:
    page = hf.store.browse(View(log_of(topic)), None, 10_000, hf.context.clock.now())
    return [entry.message.payload for entry in page.entries]


class Broken(Exception):
    """A process that is gone, as far as the store can tell."""


def break_at(monkeypatch: pytest.MonkeyPatch, store: Any, verb: str, call: int) -> None:
    """This call of a verb, counted from 1, and all after it never reach the store."""
    real, n = getattr(store, verb), 0

    def broken(*args: Any, **options: Any) -> Any:
        nonlocal n
        n += 1
        if n >= call:
            raise Broken
        return real(*args, **options)

    monkeypatch.setattr(store, verb, broken)


# Fan-out


@pytest.mark.promise("PART-2")
def test_a_message_reaches_each_group_with_all_that_it_carries(
    topic: Topic, clock: ManualClock
) -> None:
    groups = [topic.bind("billing"), topic.bind("mail", partitions=4)]
    said = topic.publish(
        {"n": 1},
        key="k",
        type="placed",
        priority=3,
        delay=5,
        headers={"a": "b"},
        ack_timeout=9.0,
        max_attempts=7,
        backoff=Backoff(base=1.0),
    )
    assert (said.queue, said.payload, said.duplicate) == ("orders", {"n": 1}, False)
    clock.advance(5)
    for queue in groups:
        (lease,) = queue.lease(10)
        got = lease.message
        assert got.queue == queue.name and got.id == said.id
        assert got.partition == partition_of("k", said.id, queue.spec.spread)
        assert (got.payload, got.key, got.type, got.priority) == ({"n": 1}, "k", "placed", 3)
        assert (got.headers, got.ack_timeout, got.max_attempts) == ({"a": "b"}, 9.0, 7)
        assert got.backoff == Backoff(base=1.0)
        assert (got.enqueued_at, got.available_at) == (said.enqueued_at, said.available_at)
        queue.ack(lease)
        assert queue.stats().done == 1


@pytest.mark.promise("PART-2")
def test_many_at_once_in_order(topic: Topic) -> None:
    groups = [topic.bind(name) for name in ("a", "b", "c")]
    said = topic.publish_many([0, Outgoing(1, key="k"), {"n": 2}, *range(3, 700)])
    assert len(set(ids(said))) == 700
    for queue in groups:
        assert [entry.message.id for entry in queue.browse()] == ids(said)
    assert topic.publish_many([]) == []


@pytest.mark.promise("PART-2")
def test_another_connection_publishes_to_the_same_groups(
    topic: Topic, another: Callable[[], Holdfast]
) -> None:
    queue = topic.bind("billing")
    other = another().topic("orders", create=False)
    other.publish(1)
    late = other.bind("mail")
    topic.publish(2)
    assert (payloads(queue), payloads(late)) == ([1, 2], [2])
    other.unbind("mail", force=True)
    topic.publish(3)
    assert (payloads(queue), other.groups()) == ([1, 2, 3], ["billing"])


@pytest.mark.promise("PART-2")
def test_an_id_that_is_held_adds_nothing(hf: Holdfast, topic: Topic) -> None:
    billing, mail = topic.bind("billing"), topic.bind("mail")
    first = topic.publish(1)
    again = topic.publish(2, id=first.id)
    assert (again.id, again.duplicate) == (first.id, True)
    assert payloads(billing) == payloads(mail) == [1]
    mail.ack(mail.lease()[0])
    assert topic.publish(3, id=first.id).duplicate  # held by one, finished lately by the other
    assert (payloads(billing), payloads(mail)) == ([1], [])
    hf.queue(mail.name, duplicate_window=0)
    topic = hf.topic(topic.name)
    assert not topic.publish(4, id=first.id).duplicate  # that group alone has it again
    assert (payloads(billing), payloads(mail)) == ([1], [4])


def test_a_topic_without_groups_retains(hf: Holdfast, topic: Topic) -> None:
    first = topic.publish(1)
    assert topic.publish(1, id=first.id).duplicate
    assert retained(hf) == [1]
    silent = hf.topic("silent", log=False)
    assert silent.publish(1).payload == 1
    assert silent.publish_many([1, 2])[1].payload == 2


@pytest.mark.parametrize("group", ["plain", "ordered"])
def test_keys_as_bytes(topic: Topic, group: str) -> None:
    queue = topic.bind(group, partitions=5, ordered=group == "ordered")
    a, b, c = topic.publish_many(
        [Outgoing(1, key=b"caf\xc3\xa9"), Outgoing(2, key="café"), Outgoing(3, key=b"\xff\x00")]
    )
    assert a.key == b.key == "café"
    parts = {entry.message.payload: entry.message.partition for entry in queue.browse()}
    assert parts[1] == parts[2] == partition_of("café", "", 5)
    assert parts[3] == partition_of(c.key, "", 5)


# Whole or not at all


@pytest.mark.promise("PART-2")
def test_what_one_group_refuses_is_stored_nowhere(hf: Holdfast, topic: Topic) -> None:
    billing = topic.bind("billing")
    mail = topic.bind("mail", payload_max=10)
    with pytest.raises(InvalidArgument) as bad:
        topic.publish_many([1, "x" * 20])
    assert (bad.value.field, bad.value.index) == ("payload", 1)
    for field, options in {
        "key": {"key": 1},
        "priority": {"priority": 10},
        "delay": {"delay": -1},
        "headers": {"headers": []},
        "id": {"id": "x"},
    }.items():
        with pytest.raises(InvalidArgument) as bad:
            topic.publish(1, **options)
        assert bad.value.field == field
    with pytest.raises(InvalidArgument):
        topic.publish_many({"one": "payload"})
    assert payloads(billing) == payloads(mail) == retained(hf) == []


@pytest.mark.promise("PART-2")
def test_a_store_that_fails_stores_nowhere(
    hf: Holdfast, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing, mail = topic.bind("billing"), topic.bind("mail")

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(hf.store, "enqueue", away)
        with pytest.raises(StoreUnavailable):
            topic.publish(1)
    assert payloads(billing) == payloads(mail) == retained(hf) == []


@pytest.mark.promise("PART-2")
def test_a_queue_that_is_gone_leaves_nothing_half_stored(
    hf: Holdfast, topic: Topic, another: Callable[[], Holdfast]
) -> None:
    billing, mail = topic.bind("billing"), topic.bind("mail")
    said = topic.publish(1)
    copies = [
        topics.replace(said, queue=queue.name, id=f"01a1e160-0000-7000-8000-{n:012d}")
        for n in range(3)
        for queue in (billing, mail)
    ]
    another().queue(mail.name).delete(force=True)
    with pytest.raises(QueueNotFound):
        hf.store.enqueue(copies, hf.context.clock.now())
    assert payloads(billing) == [1]


@pytest.mark.promise("PART-2")
def test_a_group_whose_queue_was_deleted_is_bound_no_more(
    topic: Topic, another: Callable[[], Holdfast]
) -> None:
    billing, mail = topic.bind("billing"), topic.bind("mail")
    topic.publish(1)
    another().queue(mail.name).delete(force=True)
    topic.publish(2)
    assert payloads(billing) == [1, 2]
    assert topic.groups() == ["billing"]
    assert payloads(topic.bind("mail", start="earliest")) == [1, 2]


# Groups do not meet


@pytest.mark.promise("PART-2")
def test_a_group_never_sees_what_fails_in_another(
    hf: Holdfast, topic: Topic, clock: ManualClock
) -> None:
    bad = topic.bind("bad", max_attempts=3, backoff=Backoff(base=1, jitter="none"))
    good = topic.bind("good", partitions=3)
    deliveries: dict[str, Counter[int]] = {"bad": Counter(), "good": Counter()}
    fixed = False

    @hf.handler(bad)
    def fails_half(n: int) -> None:
        deliveries["bad"][n] += 1
        if n % 2 and not fixed:
            raise ValueError("odd")

    @hf.handler(good)
    def works(n: int, attempt: int) -> None:
        deliveries["good"][n] += 1
        assert attempt == 1

    topic.publish_many(range(20))
    for _ in range(3):
        drain(hf)
        clock.advance(60)
    assert deliveries["good"] == Counter(range(20))
    assert deliveries["bad"] == Counter({n: 3 if n % 2 else 1 for n in range(20)})
    assert (bad.stats().done, bad.stats().dead) == (10, 10)
    stats = good.stats()
    assert (stats.done, stats.dead, stats.delayed, stats.ready, stats.leased) == (20, 0, 0, 0, 0)
    assert all(not done.message.errors and done.message.attempts == 1 for done in good.log())

    fixed = True
    assert hf.redrive(bad.dlq.name).redriven == 10
    assert good.stats() == stats
    drain(hf)
    assert deliveries["good"] == Counter(range(20))
    assert (bad.stats().done, bad.stats().dead) == (20, 0)
    assert len(retained(hf)) == 20


@pytest.mark.promise("PART-2")
def test_groups_have_policies_states_and_ends_of_their_own(topic: Topic) -> None:
    a = topic.bind("a", max_attempts=1)
    b = topic.bind("b", log=False)
    topic.publish_many([1, 2])
    a.pause()
    assert (a.lease(), len(b.lease(2))) == ([], 2)
    a.resume()
    a.fail(a.lease()[0], "no")
    a.purge()
    assert whereabouts(a).keys() == {"dead"} and whereabouts(b).keys() == {"leased"}
    assert (a.policy.max_attempts, b.policy.max_attempts) == (1, 3)


@pytest.mark.promise("PART-2")
def test_an_ordered_group_beside_one_that_is_not(hf: Holdfast, topic: Topic) -> None:
    ordered = topic.bind("ordered", partitions=4, ordered=True)
    plain = topic.bind("plain")
    seen: dict[str, list[int]] = {}

    @hf.handler(ordered)
    def note(n: int, message: Any) -> None:
        seen.setdefault(message.key, []).append(n)

    for n in range(40):
        topic.publish(n, key=f"k{n % 5}")
    drain(hf, ordered.name)
    assert seen == {f"k{k}": list(range(k, 40, 5)) for k in range(5)}
    assert payloads(plain) == list(range(40))


# When a group begins


@pytest.mark.promise("PART-8")
def test_now_or_with_all_that_is_retained(topic: Topic) -> None:
    topic.publish_many(range(5))
    now, earliest = topic.bind("now"), topic.bind("earliest", start="earliest", partitions=2)
    topic.publish(5)
    assert (payloads(now), payloads(earliest)) == ([5], [0, 1, 2, 3, 4, 5])
    assert not earliest.spec.paused
    leases = earliest.lease(10)
    assert [lease.message.payload for lease in leases] == [0, 1, 2, 3, 4, 5]


@pytest.mark.promise("PART-8")
def test_what_comes_late_is_what_was_published(topic: Topic, clock: ManualClock) -> None:
    said = topic.publish_many(
        [
            Outgoing({"n": 0}, key="k", type="t", headers={"a": "b"}, max_attempts=9),
            Outgoing(1, priority=7),
            Outgoing(2, delay=60, backoff=Backoff(base=2.0), ack_timeout=3.0),
            Outgoing(3, delay=5, priority=1),
        ]
    )
    clock.advance(10)
    queue = topic.bind("late", start="earliest", partitions=3)
    assert payloads(queue) == [1, 3, {"n": 0}]
    assert payloads(queue, State.DELAYED) == [2]
    for message in said:
        got = queue.get(message.id)
        due = max(message.available_at, clock.now())
        part = partition_of(message.key, message.id, 3)
        assert got == topics.replace(
            message,
            queue=queue.name,
            partition=part,
            enqueued_at=clock.now(),
            available_at=due,
        )


@pytest.mark.promise("PART-8")
def test_more_than_a_page_is_copied_in_order(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "PAGE", 7)
    topic.publish_many(Outgoing(n, priority=n % 3 * 4, key=f"k{n % 11}") for n in range(40))
    queue = topic.bind("late", start="earliest")
    wanted = sorted(range(40), key=lambda n: (-(n % 3), n))
    assert payloads(queue) == wanted


@pytest.mark.promise("PART-8")
def test_retention_cuts_what_a_later_group_gets(
    hf: Holdfast, topic: Topic, clock: ManualClock
) -> None:
    topic.publish_many([Outgoing("old"), Outgoing("old and late", delay=9 * DAY, priority=5)])
    billing = topic.bind("billing")
    clock.advance(7 * DAY)
    topic.publish("young")
    assert hf.sweep().trimmed == 0
    clock.advance(1)
    assert hf.sweep().trimmed == 2
    assert hf.sweep().trimmed == 0
    assert payloads(topic.bind("late", start="earliest")) == ["young"]
    assert payloads(billing) == ["young"]


@pytest.mark.promise("PART-8")
def test_retention_drops_in_steps(
    hf: Holdfast, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TRIM_STEP", 4)
    monkeypatch.setattr(topics, "TRIM_STEPS_MAX", 3)
    topic = hf.topic("orders", retention=60)
    topic.publish_many(range(30))
    clock.advance(61)
    topic.publish_many(range(30, 40))
    assert [hf.sweep().trimmed for _ in range(4)] == [12, 12, 6, 0]
    assert retained(hf) == list(range(30, 40))
    hf.topic("orders", retention=0)
    clock.advance(1000 * DAY)
    assert hf.sweep().trimmed == 0
    assert retained(hf) == list(range(30, 40))


def test_what_was_dropped_is_counted_no_more(hf: Holdfast, clock: ManualClock) -> None:
    topic = hf.topic("orders", retention=60)
    topic.publish_many([1, 2, Outgoing(3, priority=4)])
    clock.advance(61)
    topic.publish(4)
    assert (topic.stats().retained, topic.stats().oldest_age) == (4, 61.0)
    hf.sweep()
    assert (topic.stats().retained, topic.stats().oldest_age) == (1, 0.0)
    stats = hf.store.stats([log_of("orders")], clock.now())[0]
    assert (stats.delayed, stats.leased, stats.dead) == (0, 0, 0)


@pytest.mark.promise("PART-8")
def test_nothing_is_kept_without_a_log(hf: Holdfast) -> None:
    topic = hf.topic("orders", log=False)
    topic.publish(1)
    assert payloads(topic.bind("a", start="earliest")) == []
    hf.topic("orders", log=True)
    topic.publish(2)
    assert payloads(topic.bind("b", start="earliest")) == [2]
    hf.topic("orders", log=False)
    topic.publish(3)
    assert spec_of(hf.store, log_of("orders")) is None
    hf.topic("orders", log=True)
    assert payloads(topic.bind("c", start="earliest")) == []
    assert payloads(topic.group("a")) == [2, 3]


@pytest.mark.promise("PART-8")
def test_binding_twice_is_harmless(hf: Holdfast, topic: Topic) -> None:
    topic.publish(1)
    queue = topic.bind("billing", start="earliest", max_attempts=5)
    queue.ack(queue.lease()[0])
    queue.pause()
    again = topic.bind("billing", start="earliest", ack_timeout=7, partitions=3)
    assert (again.name, payloads(again)) == (queue.name, [])
    assert again.spec.paused
    assert (again.policy.max_attempts, again.policy.ack_timeout) == (5, 7)
    assert again.spec.spread == 3
    with pytest.raises(InvalidArgument) as bad:
        topic.bind("billing", partitions=2)
    assert bad.value.field == "partitions"
    with pytest.raises(InvalidArgument):
        topic.bind("billing", ordered=True)
    assert topic.groups() == ["billing"]
    assert [q.name for q in hf.queues()] == ["orders@billing", "orders@billing.dlq"]


@pytest.mark.promise("PART-8")
def test_a_queue_that_was_paused_before_stays_so(hf: Holdfast, topic: Topic) -> None:
    hf.queue("orders@billing").pause()
    topic.publish(1)
    queue = topic.bind("billing", start="earliest")
    assert queue.spec.paused and payloads(queue) == [1]


@pytest.mark.promise("PART-8")
@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("put_record", 1),
        ("claim", 2),
        ("put_queues", 3),
        ("enqueue", 1),
        ("enqueue", 3),
        ("put_record", 2),
        ("delete_queues", 1),
        ("put_queues", 4),
        ("put_record", 3),
    ],
)
def test_a_binder_that_dies_is_followed_by_another(
    hf: Holdfast,
    topic: Topic,
    clock: ManualClock,
    another: Callable[[], Holdfast],
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    call: int,
) -> None:
    monkeypatch.setattr(topics, "PAGE", 10)
    monkeypatch.setattr(topics, "CLOSED_S", 0.01)
    other = another().topic("orders", create=False)
    topic.publish_many(range(35))
    with monkeypatch.context() as patch:
        break_at(patch, hf.store, verb, call)
        with pytest.raises(Broken):
            topic.bind("late", start="earliest")
    other.publish_many(range(35, 50))
    clock.advance(16)
    queue = other.bind("late", start="earliest")
    other.publish(50)
    assert not queue.spec.paused
    assert [lease.message.payload for lease in queue.lease(100)] == list(range(51))
    assert hf.topic("orders").stats().filling == []
    other.delete(force=True)
    assert hf.store.queues() == []


@pytest.mark.promise("PART-2", "PART-8")
@pytest.mark.parametrize("start", ["now", "earliest"])
def test_publishers_while_a_group_is_bound(
    hf: Holdfast, another: Callable[[], Holdfast], start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message reaches an early group once and in order, and those that were bound meanwhile
    once, in the order of each producer; all of it, or all from some moment on."""
    monkeypatch.setattr(topics, "PAGE", 16)
    topic = hf.topic("orders")
    first = topic.bind("first")
    topic.publish_many(Outgoing(["before", n]) for n in range(40))
    producers, each, binders = 3, 40, 3
    begun, problems = threading.Barrier(producers + binders, timeout=60), list[BaseException]()

    def run(work: Callable[[Topic], None]) -> None:
        try:
            mine = another().topic("orders", create=False)
            begun.wait(30)
            work(mine)
        except BaseException as error:
            problems.append(error)

    def produce(name: str) -> Callable[[Topic], None]:
        def work(topic: Topic) -> None:
            for n in range(each):
                topic.publish([name, n])

        return work

    def bind(topic: Topic) -> None:
        topic.bind("late", start=start)

    consumed: list[Any] = []
    stop = threading.Event()

    def consume() -> None:
        mine = another()
        queue = mine.queue("orders@late")
        while not stop.is_set():
            leases = queue.lease(5, wait=0.05)
            consumed.extend(lease.message.payload for lease in leases)
            queue.settle(leases)

    works = [*(produce(f"p{n}") for n in range(producers)), *[bind] * binders]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    consumer = threading.Thread(target=consume)
    for thread in (*threads, consumer):
        thread.start()
    for thread in threads:
        thread.join(120)
    late = hf.queue("orders@late")
    try:
        wait_until(lambda: problems or not late.stats().ready + late.stats().leased, 60)
    finally:
        stop.set()
        consumer.join(30)
    assert problems == []
    assert len(payloads(first)) == 40 + producers * each
    assert max(Counter(map(tuple, consumed)).values()) == 1
    for name, published in [("before", 40), *((f"p{n}", each) for n in range(producers))]:
        got = [n for who, n in consumed if who == name]
        if start == "earliest":
            assert got == list(range(published))
        else:
            assert got == list(range(published))[published - len(got) :]


# The rest


def test_a_publish_that_is_overtaken_by_a_bind_reaches_the_group(
    hf: Holdfast, topic: Topic, another: Callable[[], Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of a bind, and of the work of its group, between two steps of a publish."""
    other, real = another().topic("orders"), hf.store.enqueue
    topic.bind("first")

    def slow(before: bool, start: Any, work: bool) -> Callable[..., Any]:
        def enqueue(*args: Any, **options: Any) -> Any:
            monkeypatch.undo()
            answers = None if before else real(*args, **options)
            queue = other.bind(f"{start}-{before}-{work}", start=start)
            if work:
                queue.settle(queue.lease(100))
            return real(*args, **options) if before else answers

        return enqueue

    for n, (before, start, work) in enumerate(
        (before, start, work)
        for before in (True, False)
        for start in ("now", "earliest")
        for work in (True, False)
    ):
        monkeypatch.setattr(hf.store, "enqueue", slow(before, start, work))
        topic.publish(n)
        queue = other.group(f"{start}-{before}-{work}")
        done = [finished.message.payload for finished in queue.log()]
        wanted = list(range(n + 1)) if start == "earliest" else [n]
        assert done + payloads(queue) == wanted, (before, start, work)


@pytest.mark.promise("PART-8")
@pytest.mark.parametrize(("verb", "call"), [("delete_queues", 1), ("put_queues", 4)])
def test_a_publish_that_meets_a_binder_who_died_at_the_end(
    hf: Holdfast,
    topic: Topic,
    clock: ManualClock,
    another: Callable[[], Holdfast],
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    call: int,
) -> None:
    """All is copied and the stage is gone, or about to go, but the record does not say so."""
    binder, real = another(), hf.store.enqueue
    topic.publish(0)

    def enqueue(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        with monkeypatch.context() as patch:
            break_at(patch, binder.store, verb, call)
            with pytest.raises(Broken):
                binder.topic("orders").bind("late", start="earliest")
        return real(*args, **options)

    if binder.store is hf.store:  # in memory: what breaks for one breaks for both
        return
    monkeypatch.setattr(hf.store, "enqueue", enqueue)
    topic.publish(1)
    clock.advance(16)
    assert payloads(topic.bind("late")) == [0, 1]
    assert len(topic.group("late").lease(10)) == 2


def test_unbind_and_delete(hf: Holdfast, topic: Topic) -> None:
    topic.bind("billing")
    topic.bind("mail")
    topic.publish(1)
    with pytest.raises(QueueNotEmpty):
        topic.unbind("billing")
    with pytest.raises(QueueNotEmpty):
        topic.delete()
    assert topic.groups() == ["billing", "mail"]
    topic.unbind("billing", force=True)
    with pytest.raises(GroupNotFound, match="did you mean 'mail'"):
        topic.group("mial")
    for gone in (topic.group, topic.unbind):
        with pytest.raises(GroupNotFound):
            gone("billing")
    topic.group("mail").purge()
    topic.unbind("mail")
    assert hf.queues() == []
    assert payloads(topic.bind("again", start="earliest")) == [1]
    topic.delete(force=True)
    assert (hf.store.queues(), hf.topics()) == ([], [])
    for verb in (topic.groups, lambda: topic.publish(1), lambda: topic.bind("x"), topic.delete):
        with pytest.raises(NotFound):
            verb()
    assert hf.store.queues() == []
    assert hf.topic("orders").groups() == []


def test_topics_by_name(hf: Holdfast) -> None:
    for name in ("orders-eu", "orders", "mail"):
        hf.topic(name)
    assert [topic.name for topic in hf.topics()] == ["mail", "orders", "orders-eu"]
    assert hf.topic("orders", create=False).name == "orders"
    with pytest.raises(NotFound, match="did you mean 'orders'"):
        hf.topic("ordrs", create=False)
    hf.topic("mail").delete()
    with pytest.raises(NotFound):
        hf.topic("mail", create=False)


def test_hidden_queues_are_not_shown(hf: Holdfast, topic: Topic) -> None:
    topic.bind("billing")
    topic.publish(1)
    assert [queue.name for queue in hf.queues()] == ["orders@billing", "orders@billing.dlq"]
    assert [stats.queue for stats in hf.stats()] == ["orders@billing"]
    for verb in (hf.queue, lambda name: hf.queue(name, create=False)):
        with pytest.raises(InvalidArgument):
            verb(log_of("orders"))


@pytest.mark.no_store
@pytest.mark.parametrize("name", ["", None, 3, "a@b", ".a", "a b", "a.dlq", "x" * 129])
def test_names_that_are_none(hf: Holdfast, topic: Topic, name: Any) -> None:
    with pytest.raises(InvalidArgument) as bad:
        hf.topic(name)
    assert bad.value.field == "topic"
    for verb in (topic.bind, topic.group, topic.unbind):
        with pytest.raises(InvalidArgument) as bad:
            verb(name)
        assert bad.value.field == "group"
    assert hf.queues() == []


@pytest.mark.no_store
def test_options_that_are_none(hf: Holdfast, topic: Topic) -> None:
    for field, call in {
        "start": lambda: topic.bind("a", start="latest"),  # pyright: ignore
        "group": lambda: topic.bind("_a"),
        "max_atempts": lambda: topic.bind("a", max_atempts=1),
        "partitions": lambda: topic.bind("a", partitions=0),
        "retention": lambda: hf.topic("b", retention=-1),
        "log": lambda: hf.topic("b", log="yes"),  # pyright: ignore
    }.items():
        with pytest.raises(InvalidArgument) as bad:
            call()
        assert bad.value.field == field
    assert (topic.groups(), len(hf.topics())) == ([], 1)
