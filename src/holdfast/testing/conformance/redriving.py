"""Redrive: which dead letters, where to, what becomes of them; and jobs that outlive a process."""

# pyright: basic

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from holdfast import (
    DeadFilter,
    Edit,
    EditFailed,
    Fail,
    Holdfast,
    InvalidArgument,
    Message,
    Outgoing,
    Progress,
    Queue,
    QueueNotFound,
    RedriveFailed,
    Redriven,
    RedriveNotFound,
    SourceQueueGone,
)
from holdfast.app import LocalHoldfast as App
from holdfast.errors import StoreUnavailable
from holdfast.model.message import new_ids
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.redrive import BATCH
from holdfast.queue.redrive.jobs import KIND
from holdfast.rules.lifecycle import home_partition
from holdfast.stores.contract import Store
from holdfast.testing import ManualClock, wait_until
from holdfast.testing.conformance.fixtures import ids, whereabouts

DAY = 86_400


def kill(queue: Queue, *items: Any, code: str = "ERROR") -> list[str]:
    """Let these messages die, one after the other; their ids in the order of dying."""
    queue.enqueue_many(items)
    leases = queue.lease(len(items))
    queue.settle((lease, Fail("poison", code=code)) for lease in leases)
    return ids(leases)


def dead(queue: Queue) -> list[str]:
    return whereabouts(queue).get("dead", [])


def ready(queue: Queue) -> list[str]:
    return whereabouts(queue).get("ready", [])


def on(store: Any, hf: Holdfast, clock: ManualClock) -> App:
    """A connection whose store is another object: one that does something in between."""
    context = hf.context
    return App(Context(store, clock, Random(1), context.policy, context.owner), Settings())


class Between:
    """A store that calls `before(n)` before the nth settle."""

    def __init__(self, store: Store, before: Callable[[int], object]) -> None:
        self._store = store
        self._before = before
        self._settled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def settle(self, moves: Any, now: int) -> Any:
        self._settled += 1
        self._before(self._settled)
        return self._store.settle(moves, now)


# Which ones


@pytest.mark.promise("DEAD-7")
def test_redrive_by_id(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    died = kill(queue, *range(5))
    alive = queue.enqueue("alive")
    (unknown,) = new_ids(1, clock.now())
    [held] = queue.dlq.lease()
    assert held.id == died[0]
    wanted = [died[3], died[1], unknown, alive.id, died[3], held.id]
    assert hf.redrive("orders.dlq", ids=wanted) == Redriven(
        "orders.dlq", redriven=2, looked=4, missing=2, skipped=1, to="orders"
    )
    assert ready(queue) == [died[1], died[3], alive.id]
    assert hf.redrive("orders.dlq", ids=[]).redriven == 0
    assert hf.redrive("orders.dlq", ids=[died[2].upper()]).redriven == 1  # as UUIDs may be written
    assert dead(queue) == [died[4], died[0]]
    for bad in ("x", "abc", [1], ["nonsense"], {}, 7):
        with pytest.raises(InvalidArgument, match="id"):
            hf.redrive("orders.dlq", ids=bad)  # pyright: ignore


@pytest.mark.promise("DEAD-7")
def test_redrive_by_id_out_of_many(hf: Holdfast, queue: Queue) -> None:
    died = kill(queue, *range(3 * BATCH))
    wanted = [died[2 * BATCH], died[BATCH], died[-1]]
    assert hf.redrive("orders.dlq", ids=wanted, count=2).redriven == 2
    assert ready(queue) == sorted(wanted[:2])
    answer = hf.redrive("orders.dlq", ids=wanted)
    assert (answer.redriven, answer.missing) == (1, 2)


FILTERS = [
    (DeadFilter(code="Declined"), [1]),
    (DeadFilter(key="c-1"), [0, 2]),
    (DeadFilter(type="placed"), [0, 1]),
    (DeadFilter(headers={"trace": "t1"}), [0, 3]),
    (DeadFilter(headers={"trace": "t1", "x": ""}), [3]),
    (DeadFilter(fields={"customer.id": 7}), [0, 2]),
    (DeadFilter(fields={"customer.id": 7, "n": 2}), [2]),
    (DeadFilter(fields={"items.1": "b"}), [3]),
    (DeadFilter(fields={"paid": True}), [1]),
    (DeadFilter(fields={"paid": None}), [3]),
    (DeadFilter(reason="failed"), [0, 1, 2, 3]),
    (DeadFilter(reason="ack timeout exceeded"), [4]),
    (DeadFilter(older_than=20), [0, 1, 2]),
    (DeadFilter(newer_than=20), [3, 4]),
    (DeadFilter(older_than=20, newer_than=30), [1, 2]),
    (DeadFilter(key="c-1", type="placed"), [0]),
    (DeadFilter(key="nobody"), []),
    (DeadFilter(), [0, 1, 2, 3, 4]),
]


@pytest.fixture
def various(queue: Queue, hf: Holdfast, clock: ManualClock) -> list[str]:
    """Five that died of different things, at 40, 29, 20, 10 and 0 seconds ago."""
    items = [
        Outgoing({"n": 0, "customer": {"id": 7}}, key="c-1", type="placed"),
        Outgoing({"n": 1, "customer": {"id": 8}, "paid": True}, key="c-2", type="placed"),
        Outgoing({"n": 2, "customer": {"id": 7}, "paid": 1}, key="c-1", type="paid"),
        Outgoing({"items": ["a", "b"], "paid": None}, headers={"trace": "t1", "x": ""}),
    ]
    items[0] = Outgoing(items[0].payload, key="c-1", type="placed", headers={"trace": "t1"})
    died: list[str] = []
    for item, code, then in zip(items, "ABCD", (11, 9, 10, 10), strict=True):
        died += kill(queue, item, code="Declined" if code == "B" else code)
        clock.advance(then)
    clock.advance(-10)
    late = queue.enqueue(b"\x00", max_attempts=1, ack_timeout=10, content_type="image/png")
    queue.lease()
    clock.advance(10)
    hf.sweep()
    return [*died, late.id]


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize(("where", "wanted"), FILTERS)
def test_redrive_by_filter(
    hf: Holdfast,
    queue: Queue,
    clock: ManualClock,
    various: list[str],
    where: DeadFilter,
    wanted: list[int],
) -> None:
    assert dead(queue) == various
    expected = [various[n] for n in wanted]
    assert hf.redrive("orders.dlq", where=where, dry_run=True).redriven == len(wanted)
    answer = hf.redrive("orders.dlq", where=where)
    assert (answer.redriven, answer.looked) == (len(wanted), 5)
    assert sorted(ready(queue)) == sorted(expected)
    assert dead(queue) == [id for id in various if id not in expected]


@pytest.mark.promise("DEAD-7")
def test_a_filter_and_a_count_take_the_oldest_that_match(hf: Holdfast, queue: Queue) -> None:
    died = kill(queue, *({"even": n % 2 == 0} for n in range(3 * BATCH)))
    where, count = DeadFilter(fields={"even": True}), BATCH + 20
    assert hf.redrive("orders.dlq", count, where=where).redriven == count
    assert ready(queue) == died[: 2 * count : 2]
    assert hf.redrive("orders.dlq", where=where).redriven == 3 * BATCH // 2 - count
    assert dead(queue) == died[1::2]


@pytest.mark.promise("DEAD-7")
def test_what_no_filter_is(hf: Holdfast, queue: Queue) -> None:
    for bad, named in [
        ({"kee": "k"}, r"where\.kee: no such field; did you mean 'key'"),
        ({"key": 7}, r"where\.key"),
        ({"older_than": -1}, r"where\.older_than"),
        ({"newer_than": "1h"}, r"where\.newer_than"),
        ({"headers": {"a": 1}}, r"where\.headers\.a"),
        ({"headers": "a=b"}, r"where\.headers"),
        ({"fields": {"a": float("inf")}}, r"where\.fields"),
        ({"fields": ["a"]}, r"where\.fields"),
        (["key"], "where"),
    ]:
        with pytest.raises(InvalidArgument, match=named):
            hf.redrive("orders.dlq", where=bad)  # pyright: ignore
    died = kill(queue, Outgoing(1, key="k"), 2)
    assert hf.redrive("orders.dlq", where={"key": "k"}).redriven == 1  # pyright: ignore
    assert dead(queue) == died[1:]


# How fast, how far


@pytest.mark.promise("DEAD-7")
def test_a_rate_makes_it_wait_and_waiting_can_be_cancelled(hf: Holdfast, queue: Queue) -> None:
    died = kill(queue, *range(5))
    seen: list[Progress] = []
    answer = hf.redrive(
        "orders.dlq",
        rate=0.001,  # the second would come after a quarter of an hour
        progress=seen.append,
        cancel=lambda: bool(seen),
    )
    assert (answer.redriven, answer.cancelled) == (1, True)
    assert (ready(queue), dead(queue)) == (died[:1], died[1:])
    for bad in (0, -1, "fast", True, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="rate"):
            hf.redrive("orders.dlq", rate=bad)  # pyright: ignore


@pytest.mark.promise("DEAD-7")
def test_a_rate_moves_all_in_steps_by_the_stopwatch(
    hf: Holdfast, queue: Queue, store: Store
) -> None:
    died = kill(queue, *range(50))
    times: list[float] = []

    class Stopwatch(ManualClock):
        """Each look at it takes a second: nothing is ever waited for."""

        at = 0.0

        def monotonic(self) -> float:
            self.at += 1
            return self.at

    clock = Stopwatch()
    watched = Between(store, lambda n: times.append(clock.at))
    assert on(watched, hf, clock).redrive("orders.dlq", rate=20).redriven == 50
    assert ready(queue) == died
    assert len(times) == 25  # two at a time: a tenth of a second's worth


@pytest.mark.promise("DEAD-7")
def test_progress_is_told_after_every_batch(hf: Holdfast, queue: Queue) -> None:
    kill(queue, *range(2 * BATCH + 10))
    queue.dlq.lease()
    total = 2 * BATCH + 10
    seen: list[Progress] = []
    hf.redrive("orders.dlq", progress=seen.append)
    assert seen == [
        Progress(BATCH, BATCH, 0, total),
        Progress(2 * BATCH, 2 * BATCH, 0, total),
        Progress(total - 1, total - 1, 0, total),
    ]


@pytest.mark.promise("DEAD-7")
def test_a_cancelled_redrive_stops_between_batches(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    died = kill(queue, *range(3 * BATCH))
    cancel = threading.Event()
    watched = Between(store, lambda n: cancel.set() if n == 2 else None)
    answer = on(watched, hf, clock).redrive("orders.dlq", cancel=cancel)
    assert answer == Redriven("orders.dlq", 2 * BATCH, 2 * BATCH, cancelled=True, to="orders")
    assert (ready(queue), dead(queue)) == (died[: 2 * BATCH], died[2 * BATCH :])
    assert hf.redrive("orders.dlq", cancel=cancel).redriven == 0
    cancel.clear()
    assert not hf.redrive("orders.dlq", cancel=cancel).cancelled
    with pytest.raises(InvalidArgument, match="cancel"):
        hf.redrive("orders.dlq", cancel="now")  # pyright: ignore


@pytest.mark.promise("DEAD-7")
def test_a_dry_run_moves_nothing(hf: Holdfast, queue: Queue) -> None:
    died = kill(queue, *range(BATCH + 10))
    before = [queue.dlq.get(id) for id in died[:3]]
    answer = hf.redrive("orders.dlq", dry_run=True, rate=0.001, edit=lambda message: "new")
    assert answer == Redriven("orders.dlq", BATCH + 10, BATCH + 10, dry_run=True, to="orders")
    assert hf.redrive("orders.dlq", 5, dry_run=True).redriven == 5
    assert whereabouts(queue) == {"dead": died}
    assert [queue.dlq.get(id) for id in died[:3]] == before


@pytest.mark.promise("DEAD-7")
def test_what_others_took_meanwhile_is_skipped(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    died = kill(queue, *range(5))
    watched = Between(store, lambda n: queue.dlq.lease(2) if n == 1 else None)
    answer = on(watched, hf, clock).redrive("orders.dlq", 2)
    assert (answer.redriven, answer.skipped, answer.looked) == (2, 2, 4)  # and two more were read
    assert ready(queue) == died[2:4]


# Where to


@pytest.mark.promise("DEAD-7")
def test_redrive_to_another_queue(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", partitions=2)
    other = hf.queue("repair", partitions=7)
    items = [Outgoing(n, key=f"k{n}", priority=n, headers={"n": str(n)}) for n in range(8)]
    died = sorted(kill(queue, *items))
    before = {id: queue.dlq.get(id) for id in died}
    clock.advance(5)
    answer = hf.redrive("orders.dlq", to="repair")
    assert answer == Redriven("orders.dlq", 8, 8, to="repair")
    assert whereabouts(queue) == {}
    assert sorted(ready(other)) == died
    for id in died:
        there, was = other.get(id), before[id]
        assert there == Message(
            id=id,
            queue="repair",
            partition=home_partition(was.key, id, other.spec),
            priority=was.priority,
            key=was.key,
            type=None,
            body=was.body,
            content_type=was.content_type,
            headers=was.headers,
            enqueued_at=was.enqueued_at,
            available_at=clock.now(),
            attempts=0,
            first_leased_at=was.first_leased_at,
            history=type(was.history)(errors=was.errors, redriven=1),
        )
    leases = other.lease(10)
    assert [lease.message.priority for lease in leases] == [7, 6, 5, 4, 3, 2, 1, 0]
    other.fail(leases[0], "there too")
    assert other.dlq.get(leases[0].id).source == "repair"
    other.settle(leases[1:])
    assert (other.stats().done, other.stats().dead, queue.stats().dead) == (7, 1, 0)


@pytest.mark.promise("DEAD-7")
def test_redrive_to_a_queue_whose_partitions_grew(hf: Holdfast, queue: Queue) -> None:
    hf.queue("repair", partitions=2)
    other = hf.queue("repair", partitions=3)
    died = kill(queue, *(Outgoing(n, key=f"k{n}") for n in range(20)))
    hf.redrive("orders.dlq", to="repair")
    assert {other.get(id).partition for id in died} == {2, 3, 4}


@pytest.mark.promise("DEAD-7")
def test_redrive_to_an_ordered_queue(hf: Holdfast, queue: Queue) -> None:
    hf.queue("repair", partitions=4, ordered=True)
    died = kill(queue, *(Outgoing(n, key="one") for n in range(5)))
    assert hf.redrive("orders.dlq", to="repair").redriven == 5
    with hf.consumer("repair", background=False) as consumer:
        consumer.tick()
        got: list[str] = []
        while leases := consumer.lease():
            got += ids(leases)
            consumer.ack(leases[0])
    assert got == died


@pytest.mark.promise("DEAD-7")
def test_to_its_own_queue_the_partition_stays(hf: Holdfast) -> None:
    queue = hf.queue("orders", partitions=2)
    (id,) = kill(queue, Outgoing(1, key="k"))
    was = queue.dlq.get(id).partition
    hf.queue("orders", partitions=5)
    assert hf.redrive("orders.dlq", to="orders").redriven == 1
    assert queue.get(id).partition == was


@pytest.mark.promise("DEAD-7")
def test_a_dead_letter_whose_id_is_there_already_stays(hf: Holdfast, queue: Queue) -> None:
    other = hf.queue("repair")
    died = kill(queue, *range(3))
    other.enqueue("mine", id=died[1])
    answer = hf.redrive("orders.dlq", to="repair")
    assert (answer.redriven, answer.skipped) == (2, 1)
    assert (dead(queue), other.get(died[1]).payload) == ([died[1]], "mine")


@pytest.mark.promise("DEAD-7", "DEAD-8")
def test_where_to_is_checked_last(hf: Holdfast, queue: Queue) -> None:
    hf.queue("lone.dlq")
    hf.topic("shop")
    (id,) = kill(queue, 1)
    with pytest.raises(InvalidArgument, match="dlq"):
        hf.redrive("", -1, to="")
    with pytest.raises(InvalidArgument, match="count"):
        hf.redrive("nowhere.dlq", -1, to="nowhere")
    with pytest.raises(QueueNotFound, match=r"nowhere\.dlq"):
        hf.redrive("nowhere.dlq", to="nowhere either")
    with pytest.raises(InvalidArgument, match="dlq"):
        hf.redrive("orders", to="nowhere")
    with pytest.raises(SourceQueueGone):
        hf.redrive("lone.dlq", to="nowhere")
    with pytest.raises(QueueNotFound, match="did you mean 'orders'"):
        hf.redrive("orders.dlq", to="ordrs")
    for bad in ("orders.dlq", "lone.dlq", "", 7, "a b"):
        with pytest.raises(InvalidArgument, match="to"):
            hf.redrive("orders.dlq", to=bad)  # pyright: ignore
    assert dead(queue) == [id]


@pytest.mark.promise("DEAD-8")
def test_a_store_that_fails_at_once_has_moved_none(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    class Away:
        def __getattr__(self, name: str) -> Any:
            raise StoreUnavailable("the store is gone")

    with pytest.raises(RedriveFailed, match="the store is gone") as failed:
        on(Away(), hf, clock).redrive("orders.dlq")
    assert (failed.value.redriven, failed.value.code) == (0, "INTERNAL")
    with pytest.raises(InvalidArgument):
        on(Away(), hf, clock).redrive("")


# What becomes of them


@pytest.mark.promise("DEAD-7")
def test_an_edited_payload(hf: Holdfast, queue: Queue) -> None:
    died = kill(
        queue,
        {"n": 1},
        {"n": 2},
        Outgoing("text", content_type="text/plain"),
        Outgoing(b"\x89PNG", content_type="image/png"),
        Outgoing(b"raw"),
    )

    def edit(message: Message) -> Any:
        assert message.queue == "orders.dlq"
        match message.payload:
            case {"n": 1}:
                return None
            case {"n": n}:
                return {"n": n * 10}
            case str(text):
                return text.upper()
            case b"raw":
                return ["now", "JSON"]
            case other:
                return other + b"!"

    before = {id: queue.dlq.get(id) for id in died}
    assert hf.redrive("orders.dlq", edit=edit).redriven == 5
    got = [queue.get(id) for id in died]
    assert [(message.payload, message.content_type) for message in got] == [
        ({"n": 1}, "application/json"),
        ({"n": 20}, "application/json"),
        ("TEXT", "text/plain"),
        (b"\x89PNG!", "image/png"),
        (["now", "JSON"], "application/json"),
    ]
    assert [m.headers for m in got] == [before[m.id].headers for m in got]
    leased = {lease.id: lease.message.body for lease in queue.lease(10)}
    assert leased == {message.id: message.body for message in got}


@pytest.mark.promise("DEAD-7")
def test_an_edit_as_a_value(hf: Holdfast, queue: Queue) -> None:
    kill(queue, {"a": {"b": 1, "c": 2}, "d": 3}, code="X")
    edit = Edit(merge={"a": {"b": None, "e": [1]}, "d": "new"})
    hf.redrive("orders.dlq", edit=edit)
    [lease] = queue.lease()
    assert lease.message.payload == {"a": {"c": 2, "e": [1]}, "d": "new"}
    queue.fail(lease)
    hf.redrive("orders.dlq", edit=Edit(payload=None))
    [lease] = queue.lease()
    assert (lease.message.body, lease.message.content_type) == (b"null", "application/json")
    queue.fail(lease)
    hf.redrive("orders.dlq", edit={"payload": [1.5, "é"]})  # pyright: ignore
    assert queue.lease()[0].message.payload == [1.5, "é"]


@pytest.mark.promise("DEAD-7")
def test_a_new_payload_in_another_queue(hf: Holdfast, queue: Queue) -> None:
    other = hf.queue("repair", partitions=3)
    (id,) = kill(queue, Outgoing({"n": 1}, key="k"))
    hf.redrive("orders.dlq", to="repair", edit=Edit(merge={"n": 2}))
    [lease] = other.lease()
    assert (lease.id, lease.message.payload, lease.message.key) == (id, {"n": 2}, "k")


@pytest.mark.promise("DEAD-7")
def test_an_edit_that_cannot_be_names_the_message(hf: Holdfast, queue: Queue) -> None:
    hf.queue("orders", payload_max=100)
    good = kill(queue, *range(BATCH))
    (bad,) = kill(queue, Outgoing(b"\x00", content_type="image/png"))
    for edit, why in [
        (Edit(merge={"n": 1}), "image/png"),
        (lambda m: "x" * 200 if m.id == bad else None, "limit is 100"),
        (lambda m: float("nan") if m.id == bad else None, "not a JSON number"),
        (lambda m: 1 / 0 if m.id == bad else None, "ZeroDivisionError"),
    ]:
        with pytest.raises(EditFailed, match=why) as failed:
            hf.redrive("orders.dlq", edit=edit)  # pyright: ignore
        assert (failed.value.id, failed.value.code) == (bad, "INVALID_ARGUMENT")
        assert bad in str(failed.value)
        moved = failed.value.redriven
        assert (moved, ready(queue), dead(queue)) == (BATCH, good, [bad])
        kill_redriven(queue, BATCH)
        hf.redrive("orders.dlq", ids=[bad])  # to the end of the line again
        kill_redriven(queue, 1)
    for nonsense in (Edit, "x", 7):
        with pytest.raises(InvalidArgument, match="edit"):
            hf.redrive("orders.dlq", edit=nonsense if nonsense is not Edit else {})  # pyright: ignore


# Jobs


@pytest.mark.promise("DEAD-7")
def test_a_job_is_worked_by_whoever_runs(
    hf: Holdfast, queue: Queue, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    other = hf.queue("repair", partitions=3)
    died = kill(queue, *({"n": n} for n in range(BATCH + 50)))
    job = hf.start_redrive(
        "orders.dlq",
        BATCH + 10,
        where=DeadFilter(reason="failed", newer_than=60),
        to="repair",
        edit=Edit(merge={"fixed": True}),
    )
    assert (job.state, job.total, job.redriven, job.to) == ("running", BATCH + 50, 0, "repair")
    late = kill(queue, {"n": "late"})
    theirs = another()
    assert theirs.get_redrive(job.id) == job
    assert theirs.list_redrives() == [job]
    clock.advance(1000)  # the age that a filter asks for is that at the start
    assert theirs.redrive_runner().run_pending() == 1
    done = hf.get_redrive(job.id)
    assert (done.state, done.redriven, done.finished_at) == ("done", BATCH + 10, clock.now())
    assert (done.looked, done.skipped, done.error) == (BATCH + 50, 0, None)
    assert sorted(ready(other)) == died[: BATCH + 10]
    assert dead(queue) == died[BATCH + 10 :] + late
    assert {lease.message.payload["fixed"] for lease in other.lease(500)} == {True}
    assert hf.redrive_runner().run_pending() == 0
    assert hf.cancel_redrive(job.id) == done  # it has ended


@pytest.mark.promise("DEAD-6", "DEAD-7")
def test_a_job_leaves_alone_what_died_after_it_was_started(hf: Holdfast, queue: Queue) -> None:
    died = kill(queue, *range(5))
    job = hf.start_redrive("orders.dlq")
    late = kill(queue, *range(3))
    hf.redrive_runner().run_pending()
    assert (ready(queue), dead(queue)) == (died, late)
    assert hf.get_redrive(job.id).redriven == 5


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("point", ["before settle", "after settle"])
def test_a_job_goes_on_after_its_runner_died(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock, point: str
) -> None:
    class Died(BaseException):
        """As a kill would: nothing is caught, nothing is written down any more."""

    class Dying(Between):
        def settle(self, moves: Any, now: int) -> Any:
            if point == "before settle":
                return super().settle(moves, now)
            answers = self._store.settle(moves, now)
            super().settle([], now)
            return answers

    def die(n: int) -> None:
        if n == 2:
            raise Died

    died = kill(queue, *range(4 * BATCH))
    job = hf.start_redrive("orders.dlq")
    with pytest.raises(Died):
        on(Dying(store, die), hf, clock).redrive_runner().run_pending()
    runner = hf.redrive_runner()
    assert runner.run_pending() == 0  # it may still be alive
    late = kill_redriven(queue, 3)
    clock.advance(15)
    assert runner.run_pending() == 1
    after = hf.get_redrive(job.id)
    assert after.state == "done"
    assert after.redriven == 4 * BATCH
    assert sorted(ready(queue)) == sorted(set(died) - set(late))
    assert dead(queue) == late
    assert {queue.get(id).redriven for id in died} == {1}


def kill_redriven(queue: Queue, n: int) -> list[str]:
    """Some of those that were moved die again, before the next runner comes."""
    leases = queue.lease(n)
    queue.settle((lease, Fail("again")) for lease in leases)
    return ids(leases)


@pytest.mark.promise("DEAD-7")
def test_two_runners_on_one_job_move_each_message_once(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    """One is so slow that it counts as dead; when it comes back, it finds out and stops."""
    died = kill(queue, *range(4 * BATCH))
    job = hf.start_redrive("orders.dlq")

    def sleep(n: int) -> None:
        if n == 2:
            clock.advance(15)
            assert hf.redrive_runner().run_pending() == 1

    on(Between(store, sleep), hf, clock).redrive_runner().run_pending()
    after = hf.get_redrive(job.id)
    assert (after.state, after.redriven) == ("done", 4 * BATCH)
    assert whereabouts(queue) == {"ready": died}
    assert {entry.message.redriven for entry in queue.browse()} == {1}


@pytest.mark.promise("DEAD-7")
def test_a_job_is_cancelled_from_another_connection(
    hf: Holdfast, queue: Queue, store: Store, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    died = kill(queue, *range(4 * BATCH))
    theirs = another()
    job = hf.start_redrive("orders.dlq")

    def cancel(n: int) -> None:
        if n == 2:
            asked = theirs.cancel_redrive(job.id)
            assert (asked.state, asked.cancelling) == ("running", True)

    on(Between(store, cancel), hf, clock).redrive_runner().run_pending()
    after = theirs.get_redrive(job.id)
    assert (after.state, after.redriven) == ("cancelled", 2 * BATCH)
    assert (ready(queue), dead(queue)) == (died[: 2 * BATCH], died[2 * BATCH :])


@pytest.mark.promise("DEAD-7")
def test_a_job_that_nobody_works_is_cancelled_at_once(hf: Holdfast, queue: Queue) -> None:
    died = kill(queue, 1)
    job = hf.start_redrive("orders.dlq")
    assert hf.cancel_redrive(job.id).state == "cancelled"
    assert hf.redrive_runner().run_pending() == 0
    assert dead(queue) == died


@pytest.mark.promise("DEAD-7")
def test_a_job_that_waits_for_its_rate_is_alive_and_can_be_cancelled(
    hf: Holdfast, queue: Queue
) -> None:
    died = kill(queue, *range(3))
    slow = hf.start_redrive("orders.dlq", rate=0.001)
    runner = hf.redrive_runner()
    runner.start()
    try:
        wait_until(lambda: hf.get_redrive(slow.id).redriven == 1)
        quick = hf.start_redrive("orders.dlq", ids=[died[2]])  # not held up by the other
        runner.wake()
        wait_until(lambda: hf.get_redrive(quick.id).state == "done")
        hf.cancel_redrive(slow.id)
        wait_until(lambda: hf.get_redrive(slow.id).state == "cancelled")
    finally:
        runner.stop()
    assert (ready(queue), dead(queue)) == ([died[0], died[2]], [died[1]])


@pytest.mark.promise("DEAD-7")
def test_a_runner_that_is_stopped_leaves_its_jobs_to_others(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    died = kill(queue, *range(3))
    job = hf.start_redrive("orders.dlq", rate=0.001)
    runner = hf.redrive_runner()
    runner.start()
    wait_until(lambda: hf.get_redrive(job.id).redriven == 1)
    runner.stop()
    assert hf.get_redrive(job.id).state == "running"
    other = hf.redrive_runner()
    other.start()
    wait_until(lambda: hf.get_redrive(job.id).redriven == 2)  # the next begins without a wait
    other.stop()
    assert (ready(queue), dead(queue)) == (died[:2], died[2:])


@pytest.mark.promise("DEAD-7")
def test_a_job_that_cannot_go_on_says_why(hf: Holdfast, queue: Queue) -> None:
    died = kill(queue, Outgoing(b"\x00"))
    merge = hf.start_redrive("orders.dlq", edit=Edit(merge={"a": 1}))
    other = hf.queue("repair")
    gone = hf.start_redrive("orders.dlq", to="repair")
    other.delete()
    assert hf.redrive_runner().run_pending() == 2
    failed = hf.get_redrive(merge.id)
    assert (failed.state, failed.redriven) == ("failed", 0)
    assert died[0] in (failed.error or "")
    failed = hf.get_redrive(gone.id)
    assert (failed.state, failed.finished_at is None) == ("failed", False)
    assert "repair" in (failed.error or "")
    assert dead(queue) == died
    with pytest.raises(InvalidArgument, match="cannot be stored"):
        hf.start_redrive("orders.dlq", edit=lambda message: None)
    with pytest.raises(QueueNotFound):
        hf.start_redrive("nowhere.dlq")
    with pytest.raises(RedriveNotFound):
        hf.get_redrive(died[0])
    with pytest.raises(InvalidArgument):
        hf.cancel_redrive("x")


@pytest.mark.promise("DEAD-7")
def test_a_job_goes_on_when_the_store_was_away(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    died = kill(queue, *range(2 * BATCH))
    job = hf.start_redrive("orders.dlq")

    def away(n: int) -> None:
        if n == 2:
            raise StoreUnavailable("the store is away")

    on(Between(store, away), hf, clock).redrive_runner().run_pending()
    assert hf.get_redrive(job.id).state == "running"
    clock.advance(15)
    hf.redrive_runner().run_pending()
    after = hf.get_redrive(job.id)
    assert (after.state, after.redriven, ready(queue)) == ("done", 2 * BATCH, died)


@pytest.mark.promise("DEAD-7")
def test_jobs_tell_those_who_watch(hf: Holdfast, queue: Queue) -> None:
    kill(queue, *range(3))
    with_news = hf.subscribe()
    job = hf.start_redrive("orders.dlq")
    hf.redrive_runner().run_pending()
    kill_redriven(queue, 1)
    hf.redrive("orders.dlq")
    got: list[Any] = []

    def heard() -> bool:
        got.extend(event.payload for event in with_news.next(1) if event.type == "redrive")
        return len(got) == 2

    wait_until(heard)
    with_news.close()
    where = {"queue": "orders", "dlq": "orders.dlq"}
    assert got == [
        {**where, "count": 3, "id": job.id, "state": "done"},
        {**where, "count": 1, "id": None, "state": "done"},
    ]


@pytest.mark.promise("DEAD-7")
def test_only_finished_jobs_are_forgotten_after_a_day(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    waits = hf.start_redrive("orders.dlq")
    done = hf.start_redrive("orders.dlq")
    hf.cancel_redrive(done.id)
    clock.advance(DAY)
    hf.sweep()
    assert [job.id for job in hf.list_redrives()] == [done.id, waits.id]
    clock.advance(0.001)
    hf.sweep()
    assert [job.id for job in hf.list_redrives()] == [waits.id]
    clock.advance(30 * DAY)
    hf.sweep()
    assert len(store.records(KIND)) == 1
    assert hf.redrive_runner().run_pending() == 1
