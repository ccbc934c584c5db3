"""The life of a batch: reserved, sealed, read, settled; by processes that die at any point."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import (
    Backoff,
    FailedPrecondition,
    Holdfast,
    Lease,
    Outgoing,
    Queue,
    QueueNotFound,
    State,
)
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import (
    another,
    clock,
    hf,
    ids,
    queue,
    store,
    whereabouts,
)
from holdfast.work.handlers import Problem, Verdict
from holdfast.work.ledger import (
    FORGET_MS,
    LEFTOVER_MS,
    LOST_MS,
    QUERY,
    RESERVED_MS,
    STRAY_MS,
    VERDICT,
    Batches,
    Judged,
    Offset,
    Part,
    Query,
    QueryFenced,
    QueryNotFound,
    StaleCheckpoint,
    abandon,
    ask_to_stop,
    is_alive,
    judge,
    publish,
    queries,
    read,
    sweep,
)

sys.path.insert(0, str(Path(__file__).parent))
from flaky import Died, Flaky

__all__ = ["another", "clock", "hf", "queue", "store"]  # fixtures

START = Offset()
RETRY = Verdict(problems=(Problem("not now", "BUSY", "h"),))
FATAL = Verdict(problems=(Problem("never", "BAD", "h"),), fatal=True)


def process(hf: Holdfast, **options: Any) -> Batches:
    """What a process that has just started knows: nothing."""
    return Batches(hf.context, "orders", **options)


def reserve(batches: Batches, start: Offset, limit: int = 1000) -> Offset:
    end = batches.reserve(start, limit)
    assert end is not None
    return end


def leases(hf: Holdfast, parts: list[Part]) -> list[Lease]:
    found = [read(hf.context, "orders", part.name) for part in parts]
    return [lease for pages in found for some in pages for lease in some]


def the_query(hf: Holdfast) -> Query:
    (query,) = queries(hf.context)
    return query


def give_verdicts(hf: Holdfast, end: Offset, attempt: str, verdicts: dict[str, Verdict]) -> None:
    """As a batch of handlers does it: for every message that is held, one piece for each part."""
    n = 0
    while part := leases(hf, [Part(f"{end.hold}.{n}", 0)]):
        told = [Judged(_bare(lease), verdicts.get(lease.id, Verdict())) for lease in part]
        assert judge(hf.context, end.hold, attempt, n, iter(told)) == len(part)
        n += 1


def _bare(lease: Lease) -> Lease:
    return replace(lease, message=replace(lease.message, body=b""))


def move(hf: Holdfast, clock: ManualClock, ms: int) -> int:
    """Let time go by and sweep once."""
    clock.advance(ms / 1000)
    return sweep(hf.context, clock.now())


# One process


def test_a_batch_is_reserved_sealed_read_and_settled(
    hf: Holdfast, queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = queue.enqueue_many(range(5))
    batches = process(hf, name="to the lake")
    end = reserve(batches, START, 3)
    assert (end.batch, queue.stats().leased, queue.stats().ready) == (1, 3, 2)
    clock.advance(1)
    parts = batches.seal(end)
    assert [part.rows for part in parts] == [3]
    assert ids(leases(hf, parts)) == ids(sent[:3])
    monkeypatch.setattr("holdfast.work.ledger.PAGE", 2)
    assert ids(leases(hf, parts)) == ids(sent[:3])  # as often as one likes
    assert queue.stats().done == 0
    clock.advance(1)
    second = reserve(batches, end, 3)
    assert [f.message.id for f in queue.log()] == ids(sent[:3])
    assert {f.status for f in queue.log()} == {"COMPLETED"}
    assert (second.query, second.batch) == (end.query, 2) and second.hold != end.hold
    assert ids(leases(hf, batches.seal(second))) == ids(sent[3:])
    assert batches.reserve(second, 3) is None
    assert whereabouts(queue) == {"log": ids(sent)}
    query = the_query(hf)
    assert (query.name, query.queue, query.batch, query.settled) == ("to the lake", "orders", 2, 2)
    assert (query.taken, query.done, query.retried, query.dead, query.held) == (5, 5, 0, 0, 0)
    assert query.settled_at == clock.now()
    assert batches.query == query


def test_reserving_again_before_it_is_sealed_gives_the_same(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(5))
    batches = process(hf)
    end = reserve(batches, START, 3)
    assert reserve(batches, START, 3) == end
    assert queue.stats().leased == 3
    assert batches.seal(end) == batches.seal(end)


def test_nothing_is_reserved_where_nothing_is_ready(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    batches = process(hf)
    assert batches.reserve(START, 10) is None
    queue.enqueue(1, delay=5)
    assert batches.reserve(START, 10) is None
    clock.advance(5)
    queue.pause()
    assert batches.reserve(START, 10) is None
    queue.resume()
    assert batches.reserve(START, 0) is None
    assert reserve(batches, START, 10).batch == 1
    assert len(queries(hf.context)) == 1


def test_a_batch_is_cut_into_parts(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(100))
    batches = process(hf, part_rows=8)
    end = reserve(batches, START, 30)
    parts = batches.seal(end)
    assert [part.rows for part in parts] == [8, 8, 8, 6]
    assert sorted(ids(leases(hf, parts))) == ids(sent[:30])
    second = reserve(batches, end, 1000)
    parts = batches.seal(second)
    assert [part.rows for part in parts] == [8] * 8 + [6]
    assert sorted(ids(leases(hf, parts))) == ids(sent[30:])
    assert batches.reserve(second, 1000) is None
    assert queue.stats().done == 100


def test_small_batches_are_one_part_and_large_ones_slices(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(9000))
    batches = process(hf, slices=3)
    first = reserve(batches, START, 900)
    assert [part.rows for part in batches.seal(first)] == [900]
    second = reserve(batches, first, 6000)
    assert [part.rows for part in batches.seal(second)] == [2000, 2000, 2000]
    third = reserve(batches, second, 6000)
    assert [part.rows for part in batches.seal(third)] == [1000, 1000, 100]


def test_order_and_priority_hold_between_batches(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(Outgoing(n, priority=n % 2 * 9) for n in range(10))
    batches, start = process(hf), START
    for wanted in ({1, 3, 5, 7, 9}, {0, 2, 4, 6, 8}):
        start = reserve(batches, start, 5)
        found = leases(hf, batches.seal(start))
        assert {lease.message.payload for lease in found} == wanted
        assert {lease.message.attempts for lease in found} == {1}


def test_where_no_log_is_kept_none_is_written(hf: Holdfast) -> None:
    queue = hf.queue("orders", log=False)
    queue.enqueue_many(range(3))
    batches = process(hf)
    end = reserve(batches, START)
    batches.seal(end)
    assert batches.reserve(end, 10) is None
    assert whereabouts(queue) == {}
    assert queue.stats().done == 3


# A process that comes back


def test_after_reserving_it_is_given_back_and_reserved_anew(
    hf: Holdfast, queue: Queue, another: Callable[[], Holdfast]
) -> None:
    sent = queue.enqueue_many(range(20))
    first = process(hf)
    settled = reserve(first, START, 5)
    first.seal(settled)
    lost = reserve(first, settled, 10)  # never reached the log of its query
    later = another()
    second = process(later)
    end = reserve(second, settled, 10)
    assert end.query == lost.query and end.batch == lost.batch and end.hold != lost.hold
    found = leases(later, second.seal(end))
    assert ids(found) == ids(sent[5:15])
    assert {lease.message.attempts for lease in found} == {1}  # nobody has read them
    assert (queue.stats().leased, queue.stats().ready, queue.stats().done) == (10, 5, 5)


def test_the_first_batch_of_a_process_that_died_comes_back_in_time(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    """It had no name yet, so nobody can ask for it."""
    sent = queue.enqueue_many(range(3))
    reserve(process(hf), START)
    assert process(hf).reserve(START, 10) is None
    assert move(hf, clock, RESERVED_MS) == 3
    batches = process(hf)
    assert ids(leases(hf, batches.seal(reserve(batches, START)))) == ids(sent)


def test_after_sealing_the_same_rows_are_read_again(
    hf: Holdfast, queue: Queue, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    queue.enqueue_many(range(10))
    first = process(hf, part_rows=3)
    end = reserve(first, START)
    before = leases(hf, first.seal(end))
    for _ in range(3):
        queue.enqueue(99, priority=9)
        move(hf, clock, 40 * 86_400_000)
        later = another()
        again = process(later)
        assert leases(later, again.seal(end)) == before
    assert ids(leases(later, again.seal(reserve(again, end)))) == [
        entry.message.id for entry in queue.browse(State.LEASED)
    ]
    assert queue.stats().done == 10


def test_after_the_offset_was_written_it_is_sealed_by_the_next(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(4))
    end = reserve(process(hf), START)
    again = process(hf)
    assert ids(leases(hf, again.seal(end))) == ids(sent)
    assert again.reserve(end, 10) is None
    assert queue.stats().done == 4


def test_after_verdicts_they_still_count(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(4))
    first = process(hf, needs_verdicts=True)
    end = reserve(first, START)
    first.seal(end)
    give_verdicts(hf, end, "a", {sent[1].id: FATAL})
    publish(hf.context, end.query, end.hold, "a")
    again = process(hf, needs_verdicts=True)
    assert again.reserve(end, 10) is None
    assert whereabouts(queue) == {"log": ids([sent[0], *sent[2:]]), "dead": [sent[1].id]}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["settle", "end batch", "put_record", "drop_records"])
def test_a_settling_that_is_cut_short_is_taken_up(
    hf: Holdfast, queue: Queue, call: str, when: str
) -> None:
    sent = queue.enqueue_many(range(10))
    flaky = Flaky(hf.store)
    broken = Batches(replace(hf.context, store=flaky), "orders", part_rows=3)
    end = reserve(broken, START)
    broken.seal(end)
    give_verdicts(hf, end, "a", {sent[1].id: FATAL, sent[5].id: Verdict({"h": 7})})
    publish(hf.context, end.query, end.hold, "a")
    flaky.fail(call, 1, when)
    with pytest.raises(Died):
        broken.reserve(end, 10)
    assert flaky.died
    for batches in (broken, process(hf)):  # the same process may try again, too
        assert batches.reserve(end, 10) is None
    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.done, stats.dead) == (0, 0, 9, 1)
    assert {f.message.id: f.result for f in queue.log()} == {
        m.id: 7 if m is sent[5] else None for m in sent if m is not sent[1]
    }
    query = the_query(hf)
    assert (query.settled, query.done, query.dead, query.taken) == (1, 9, 1, 10)


def test_the_counts_of_a_settling_that_is_repeated(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(4))
    batches = process(hf)
    end = reserve(batches, START)
    batches.seal(end)
    for _ in range(3):
        assert batches.reserve(end, 10) is None
    assert (the_query(hf).done, queue.stats().done) == (4, 4)


# Verdicts


def test_a_retry_waits_for_its_backoff_and_dies_when_out_of_attempts(
    hf: Holdfast, clock: ManualClock
) -> None:
    queue = hf.queue("orders", max_attempts=3, backoff=Backoff(base=10, jitter="none"))
    sent = queue.enqueue("x", priority=4)
    batches, start, waits = process(hf, needs_verdicts=True), START, []
    for attempt in (1, 2, 3):
        start = reserve(batches, start)
        (lease,) = leases(hf, batches.seal(start))
        assert lease.message.attempts == attempt
        give_verdicts(hf, start, "a", {sent.id: RETRY})
        publish(hf.context, start.query, start.hold, "a")
        clock.advance(1)
        assert batches.reserve(start, 10) is None
        if attempt < 3:
            waits.append(queue.get(sent.id).available_at - clock.now())
            clock.advance(waits[-1] / 1000)
    assert waits[0] == 10_000 and waits[1] > waits[0]
    (dead,) = [entry.message for entry in queue.dlq.browse()]
    assert (dead.id, dead.attempts, dead.reason) == (sent.id, 3, "max attempts exceeded")
    assert [(e.message, e.code, e.attempt, e.handler) for e in dead.errors] == [
        ("not now", "BUSY", n, "h") for n in (1, 2, 3)
    ]
    assert {e.consumer for e in dead.errors} == {f"spark:{start.query}"}
    assert dead.payload == "x"  # the body was not in the verdict, and is not lost by it
    query = the_query(hf)
    assert (query.taken, query.done, query.retried, query.dead) == (3, 0, 2, 1)
    assert hf.store.records(VERDICT) == []


def test_each_message_has_its_verdict(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue_many(range(8))
    batches = process(hf, part_rows=3)
    end = reserve(batches, START)
    batches.seal(end)
    told = {
        sent[0].id: Verdict({"h": {"n": 1}}),
        sent[2].id: replace(RETRY, delay=30.0),
        sent[4].id: FATAL,
        sent[7].id: RETRY,
    }
    give_verdicts(hf, end, "a", told)
    publish(hf.context, end.query, end.hold, "a")
    assert batches.reserve(end, 0) is None
    assert queue.get(sent[2].id).available_at == clock.now() + 30_000
    assert queue.dlq.get(sent[4].id).reason == "failed"
    assert queue.get(sent[7].id).attempts == 1
    log = {f.message.payload: f.result for f in queue.log()}
    assert log == {0: {"n": 1}, 1: None, 3: None, 5: None, 6: None}
    query = the_query(hf)
    assert (query.done, query.retried, query.dead) == (5, 2, 1)


def test_one_without_a_verdict_is_done(hf: Holdfast, queue: Queue) -> None:
    """Verdicts may name only those that did not work."""
    sent = queue.enqueue_many(range(3))
    batches = process(hf)
    end = reserve(batches, START)
    found = leases(hf, batches.seal(end))
    judge(hf.context, end.hold, "a", 0, [Judged(_bare(found[1]), FATAL)])
    publish(hf.context, end.query, end.hold, "a")
    batches.reserve(end, 0)
    assert whereabouts(queue) == {"log": [sent[0].id, sent[2].id], "dead": [sent[1].id]}


def test_only_the_published_attempt_counts(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(3))
    batches = process(hf)
    end = reserve(batches, START)
    batches.seal(end)
    give_verdicts(hf, end, "first", {m.id: FATAL for m in sent})
    give_verdicts(hf, end, "second", {sent[1].id: FATAL})
    give_verdicts(hf, end, "third", {m.id: FATAL for m in sent})
    publish(hf.context, end.query, end.hold, "first")
    publish(hf.context, end.query, end.hold, "second")
    batches.reserve(end, 0)
    assert whereabouts(queue) == {"log": [sent[0].id, sent[2].id], "dead": [sent[1].id]}
    assert hf.store.records(VERDICT) == []


def test_verdicts_of_a_piece_written_again_replace_the_first(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(3))
    batches = process(hf)
    end = reserve(batches, START)
    batches.seal(end)
    give_verdicts(hf, end, "a", {m.id: FATAL for m in sent})
    give_verdicts(hf, end, "a", {})
    publish(hf.context, end.query, end.hold, "a")
    batches.reserve(end, 0)
    assert whereabouts(queue) == {"log": ids(sent)}


def test_verdicts_that_are_not_published_are_missed(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(3))
    batches = process(hf, needs_verdicts=True)
    end = reserve(batches, START)
    batches.seal(end)
    give_verdicts(hf, end, "a", {})
    with pytest.raises(FailedPrecondition, match="no verdicts"):
        batches.reserve(end, 10)
    assert (queue.stats().leased, queue.stats().done) == (3, 0)
    publish(hf.context, end.query, end.hold, "a")
    assert batches.reserve(end, 10) is None
    assert queue.stats().done == 3


def test_verdicts_on_a_batch_that_is_not_held_are_refused(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(1)
    batches = process(hf)
    end = reserve(batches, START)
    for query, hold in ((end.query, "another"), ("nobody", end.hold)):
        with pytest.raises(QueryFenced):
            publish(hf.context, query, hold, "a")
    abandon(hf.context, end.query)
    with pytest.raises(QueryFenced):
        publish(hf.context, end.query, end.hold, "a")


def test_more_verdicts_than_fit_one_record(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.work.ledger.JUDGED_ROWS", 2)
    queue = hf.queue("orders")
    sent = queue.enqueue_many(range(50))
    batches = process(hf)
    end = reserve(batches, START)
    batches.seal(end)
    give_verdicts(hf, end, "a", {m.id: FATAL for m in sent[::2]})
    assert len(hf.store.records(VERDICT)) == 25
    publish(hf.context, end.query, end.hold, "a")
    batches.reserve(end, 0)
    assert (queue.stats().done, queue.stats().dead) == (25, 25)


def test_a_policy_of_a_message_goes_through_a_verdict(hf: Holdfast, queue: Queue) -> None:
    own = Backoff(base=77, jitter="none")
    sent = queue.enqueue("x", backoff=own, max_attempts=2, headers={"h": "v"}, key="k")
    batches = process(hf)
    end = reserve(batches, START)
    batches.seal(end)
    give_verdicts(hf, end, "a", {sent.id: RETRY})
    publish(hf.context, end.query, end.hold, "a")
    batches.reserve(end, 0)
    back = queue.get(sent.id)
    assert back.available_at - hf.context.clock.now() == 77_000
    assert (back.backoff, back.max_attempts, back.headers, back.payload) == (
        own,
        2,
        {"h": "v"},
        "x",
    )


def test_a_dead_letter_whose_queue_is_gone_stays_in_its_own(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many([Outgoing(n, priority=n) for n in range(3)])
    batches = process(hf)
    end = reserve(batches, START)
    batches.seal(end)
    give_verdicts(hf, end, "a", {sent[2].id: FATAL, sent[1].id: RETRY})
    publish(hf.context, end.query, end.hold, "a")
    hf.store.delete_queues(["orders.dlq"], only_empty=False)
    batches.reserve(end, 0)
    assert [f.message.id for f in queue.log()] == [sent[0].id]
    (back,) = [entry.message for entry in queue.browse(State.READY)]
    assert back.id == sent[2].id
    assert (back.dead_at, back.reason, back.source) == (None, None, None)  # it is not dead
    assert [e.message for e in back.errors] == ["never"]
    queue.enqueue("low", priority=1)
    (first,) = queue.lease()
    assert first.id == sent[2].id  # its priority is what it was
    assert first.message.attempts == 2


def test_verdicts_outlast_a_long_absence(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    """What failed must not be acked because its verdict was thrown away as a leftover."""
    sent = queue.enqueue_many(range(3))
    batches = process(hf, needs_verdicts=True)
    end = reserve(batches, START)
    batches.seal(end)
    give_verdicts(hf, end, "a", {sent[1].id: FATAL})
    publish(hf.context, end.query, end.hold, "a")
    for _ in range(3):
        move(hf, clock, LEFTOVER_MS)
    again = process(hf, needs_verdicts=True)
    assert again.reserve(end, 10) is None
    assert [f.message.id for f in queue.log()] == [sent[0].id, sent[2].id]
    assert queue.stats().dead == 1


def test_verdicts_that_nobody_came_for_are_forgotten(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(1)
    batches = process(hf)
    end = reserve(batches, START)
    batches.seal(end)
    give_verdicts(hf, end, "a", {})
    abandon(hf.context, end.query)
    move(hf, clock, LEFTOVER_MS)
    assert len(hf.store.records(VERDICT)) == 1
    move(hf, clock, 1)
    assert hf.store.records(VERDICT) == []


# Who may


def test_the_process_before_is_fenced_off(
    hf: Holdfast, queue: Queue, another: Callable[[], Holdfast]
) -> None:
    queue.enqueue_many(range(10))
    first = process(hf)
    one = reserve(first, START, 3)
    first.seal(one)
    two = reserve(first, one, 3)
    second = process(another())
    second.seal(two)
    for act in (
        first.beat,
        lambda: first.seal(two),
        lambda: first.reserve(one, 3),
        lambda: first.reserve(two, 3),
    ):
        with pytest.raises(QueryFenced):
            act()
    assert queue.stats().done == 3
    second.beat()
    assert reserve(second, two, 3).batch == 3


def test_a_process_that_is_fenced_while_it_takes_holds_nothing_for_long(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    sent = queue.enqueue_many(range(10))
    flaky = Flaky(hf.store)
    slow = Batches(replace(hf.context, store=flaky), "orders", part_rows=2)
    one = reserve(slow, START, 1)
    slow.seal(one)
    taken: list[Offset] = []

    def meanwhile() -> None:
        if not taken:
            taken.append(reserve(process(hf), one, 4))

    flaky.before("reserve", meanwhile)
    with pytest.raises(QueryFenced):
        slow.reserve(one, 6)
    second = taken[0]
    assert queue.stats().leased == 6  # four of the second, two of nobody
    assert move(hf, clock, 1) == 2
    again = process(hf)
    assert sorted(ids(leases(hf, again.seal(second)))) == ids(sent[1:5])


def test_a_reader_keeps_to_its_query_and_queue(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(3))
    batches = process(hf)
    end = reserve(batches, START, 1)
    with pytest.raises(QueryFenced):
        batches.seal(replace(end, query="another"))
    hf.queue("bills")
    with pytest.raises(FailedPrecondition, match="cannot change its queue"):
        Batches(hf.context, "bills").reserve(end, 1)


def test_an_old_checkpoint_is_refused(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(10))
    batches, offsets = process(hf), [START]
    for _ in range(3):
        offsets.append(reserve(batches, offsets[-1], 2))
        batches.seal(offsets[-1])
    reserve(batches, offsets[-1], 2)
    for old in offsets[1:3]:
        with pytest.raises(StaleCheckpoint, match="old copy"):
            process(hf).reserve(old, 2)
    for old in offsets[1:]:
        with pytest.raises(StaleCheckpoint, match="old copy"):
            process(hf).seal(old)
    assert queue.stats().done == 6
    last = process(hf)
    assert reserve(last, offsets[3], 2).batch == 4


def test_two_on_one_checkpoint_lose_nothing(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    """The first reserves, the second reserves; the first one's offset is in the log."""
    sent = queue.enqueue_many(range(6))
    first = process(hf)
    one = reserve(first, START, 2)
    first.seal(one)
    theirs = reserve(first, one, 2)
    reserve(process(hf), one, 2)  # it will find the offset taken, and stop
    third = process(hf)
    assert third.seal(theirs) == []
    end = reserve(third, theirs, 10)
    assert sorted(ids(leases(hf, third.seal(end)))) == ids(sent[2:])
    assert third.reserve(end, 10) is None
    assert (queue.stats().leased, queue.stats().done) == (0, 6)


def test_a_sealed_batch_is_not_given_back_to_an_older_checkpoint(
    hf: Holdfast, queue: Queue
) -> None:
    """A second process read the checkpoint just before the batch came into its log: the first is
    reading the batch, and nobody will ask it to stop."""
    sent = queue.enqueue_many(range(6))
    first = process(hf)
    one = reserve(first, START, 2)
    first.seal(one)
    two = reserve(first, one, 2)
    parts = first.seal(two)
    with pytest.raises(StaleCheckpoint):
        process(hf).reserve(one, 2)
    assert ids(leases(hf, parts)) == ids(sent[2:4])
    third = process(hf)
    assert ids(leases(hf, third.seal(two))) == ids(sent[2:4])
    assert reserve(third, two, 2).batch == 3
    assert queue.stats().done == 4


def test_of_two_copies_of_a_checkpoint_one_goes_on(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(6))
    first = process(hf)
    one = reserve(first, START, 2)
    first.seal(one)
    theirs = reserve(first, one, 2)
    second = process(hf)
    mine = reserve(second, one, 2)
    parts = second.seal(mine)
    copy = process(hf)  # the first one's, with another offset for the same batch
    assert copy.seal(theirs) == []
    with pytest.raises(StaleCheckpoint):
        copy.reserve(theirs, 2)
    assert ids(leases(hf, parts)) == ids(sent[2:4])
    assert reserve(process(hf), mine, 2).batch == 3
    assert queue.stats().done == 4


def test_two_queries_share_a_queue(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(40))
    pair = [process(hf), process(hf)]
    offsets, got = [START, START], [list[str](), list[str]()]
    for _ in range(4):
        for n, batches in enumerate(pair):
            offsets[n] = reserve(batches, offsets[n], 5)
            got[n] += ids(leases(hf, batches.seal(offsets[n])))
    for n, batches in enumerate(pair):
        assert batches.reserve(offsets[n], 5) is None
    assert len(got[0]) == len(got[1]) == 20
    assert sorted(got[0] + got[1]) == ids(sent)
    assert [query.done for query in queries(hf.context)] == [20, 20]
    assert len({query.id for query in queries(hf.context)}) == 2


def test_a_plain_consumer_beside_it(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(10))
    batches = process(hf)
    mine = queue.lease(3)
    end = reserve(batches, START, 3)
    mine += queue.lease(10)
    assert ids(leases(hf, batches.seal(end))) == ids(sent[3:6])
    queue.settle(mine)
    assert batches.reserve(end, 3) is None
    assert sorted(f.message.id for f in queue.log()) == ids(sent)


# The sweep


def test_a_batch_that_is_never_sealed_is_given_back_in_its_time(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    sent = queue.enqueue_many(range(5))
    batches = process(hf, part_rows=2)
    end = reserve(batches, START)
    assert move(hf, clock, RESERVED_MS - 1) == 0
    assert queue.stats().leased == 5
    assert move(hf, clock, 1) == 5
    assert whereabouts(queue) == {"ready": ids(sent)}
    assert [lease.message.attempts for lease in queue.lease(5)] == [1] * 5
    assert batches.seal(end) == []


def test_sealing_in_time_keeps_it(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many(range(5))
    batches = process(hf)
    end = reserve(batches, START)
    clock.advance((RESERVED_MS - 1) / 1000)
    batches.seal(end)
    for _ in range(4):
        assert move(hf, clock, 60 * 86_400_000) == 0
        hf.sweep()
    assert queue.stats().leased == 5
    assert is_alive(the_query(hf), clock.now()) is False
    assert process(hf).reserve(end, 10) is None
    assert queue.stats().done == 5


def test_after_a_give_back_the_batch_is_empty_and_the_query_goes_on(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    sent = queue.enqueue_many(range(5))
    batches = process(hf)
    end = reserve(batches, START)
    move(hf, clock, RESERVED_MS)
    assert batches.seal(end) == []
    assert batches.seal(end) == []
    following = reserve(batches, end)
    assert following.batch == 2
    assert ids(leases(hf, batches.seal(following))) == ids(sent)
    assert queue.stats().done == 0
    assert batches.reserve(following, 10) is None
    assert queue.stats().done == 5


def test_a_lost_query_that_says_so_has_its_batch_delivered_again(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    sent = queue.enqueue_many(range(3))
    batches = process(hf, on_lost="redeliver")
    end = reserve(batches, START)
    batches.seal(end)
    clock.advance(30)
    batches.beat()
    assert move(hf, clock, LOST_MS - 1) == 0
    assert move(hf, clock, 1) == 3
    assert [entry.message.attempts for entry in queue.browse()] == [1, 1, 1]  # it counts
    assert [e.code for e in queue.get(sent[0].id).errors] == ["ACK_TIMEOUT"]
    assert [lease.message.attempts for lease in queue.lease(3)] == [2, 2, 2]
    assert batches.seal(end) == []
    assert batches.reserve(end, 10) is None
    assert queue.stats().done == 0


def test_a_lost_batch_dies_when_it_is_out_of_attempts(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", max_attempts=2)
    sent = queue.enqueue(1)
    for _ in range(2):
        batches = process(hf, on_lost="redeliver")
        batches.seal(reserve(batches, START))
        assert move(hf, clock, LOST_MS) == 1
    assert queue.dlq.get(sent.id).attempts == 2


def test_a_late_call_after_a_give_back_is_swept(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    """A process was killed while its store took messages for it: the store did so later."""
    sent = queue.enqueue_many(range(9))
    flaky = Flaky(hf.store)
    dying = Batches(replace(hf.context, store=flaky), "orders", part_rows=3)
    flaky.fail("reserve", 2, "late")
    with pytest.raises(Died):
        dying.reserve(START, 9)
    assert queue.stats().leased == 3
    assert move(hf, clock, RESERVED_MS) == 3
    flaky.now_they_come()
    assert queue.stats().leased == 3
    assert move(hf, clock, STRAY_MS - 1) == 3
    assert whereabouts(queue) == {"ready": ids(sent)}
    move(hf, clock, LOST_MS)
    move(hf, clock, LOST_MS)
    assert queries(hf.context) == []


def test_a_stray_is_not_forgotten_before_its_time(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    """As above, and the sweep ticks often, as it does."""
    queue.enqueue_many(range(3))
    flaky = Flaky(hf.store)
    dying = Batches(replace(hf.context, store=flaky), "orders")
    flaky.fail("reserve", 1, "late")
    with pytest.raises(Died):
        dying.reserve(START, 3)
    move(hf, clock, RESERVED_MS)
    for _ in range(8):
        move(hf, clock, 60_000)
    flaky.now_they_come()
    assert queue.stats().leased == 3
    assert move(hf, clock, 1) == 3
    assert queue.stats().ready == 3


def test_a_late_call_after_the_query_went_on_is_swept(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    sent = queue.enqueue_many(range(9))
    one = reserve(first := process(hf), START, 1)
    first.seal(one)
    flaky = Flaky(hf.store)
    dying = Batches(replace(hf.context, store=flaky), "orders")
    flaky.fail("reserve", 1, "late")
    with pytest.raises(Died):
        dying.reserve(one, 3)
    batches = process(hf)
    two = reserve(batches, one, 3)
    assert ids(leases(hf, batches.seal(two))) == ids(sent[1:4])
    flaky.now_they_come()
    three = reserve(batches, two, 2)
    assert ids(leases(hf, batches.seal(three))) == ids(sent[7:])
    assert move(hf, clock, 1) == 3
    assert sorted(ids(queue.lease(9))) == ids(sent[4:7])


def test_queries_that_are_not_used_are_forgotten(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    unused = process(hf)
    assert unused.reserve(START, 10) is None
    queue.enqueue(1)
    used = process(hf)
    end = reserve(used, START)
    used.seal(end)
    assert used.reserve(end, 10) is None
    assert len(queries(hf.context)) == 2
    clock.advance(LOST_MS / 1000 - 0.001)
    unused.beat()  # it lives, and only waits
    move(hf, clock, 1)
    assert len(queries(hf.context)) == 2
    move(hf, clock, LOST_MS)
    assert [query.id for query in queries(hf.context)] == [end.query]
    move(hf, clock, FORGET_MS - 2 * LOST_MS - 1)
    assert [query.id for query in queries(hf.context)] == [end.query]
    move(hf, clock, 2 * LOST_MS)
    assert hf.store.records(QUERY) == []
    queue.enqueue(2)
    assert reserve(process(hf), end).batch == 2  # it goes on where its checkpoint is


def test_a_query_that_was_forgotten_goes_on_after_its_open_batch(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    """Its offset was in the log, its messages were given back, it was away for months."""
    queue.enqueue_many(range(3))
    end = reserve(process(hf), START)
    for _ in range(4):
        move(hf, clock, FORGET_MS)
    assert queries(hf.context) == []
    batches = process(hf)
    assert batches.seal(end) == []
    following = reserve(batches, end)
    assert len(leases(hf, batches.seal(following))) == 3


def test_a_sweep_by_the_sweeper(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many(range(3))
    reserve(process(hf), START)
    clock.advance(RESERVED_MS / 1000)
    assert hf.sweep().requeued == 3
    assert queue.stats().ready == 3


# Letting go by hand


def test_abandoned_it_is_given_back_and_fenced(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    sent = queue.enqueue_many(range(5))
    batches = process(hf, part_rows=2)
    end = reserve(batches, START)
    batches.seal(end)
    assert abandon(hf.context, end.query) == 5
    assert abandon(hf.context, end.query) == 0
    assert whereabouts(queue) == {"ready": ids(sent)}
    assert [entry.message.attempts for entry in queue.browse()] == [0] * 5
    for act in (batches.beat, lambda: batches.seal(end), lambda: batches.reserve(end, 5)):
        with pytest.raises(QueryFenced):
            act()
    again = process(hf)  # and it may come back with what it knows
    assert again.seal(end) == []
    following = reserve(again, end)
    assert ids(leases(hf, again.seal(following))) == ids(sent)
    with pytest.raises(QueryNotFound):
        abandon(hf.context, "nobody")


def test_asked_to_stop_it_settles_and_reserves_no_more(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(5))
    batches = process(hf)
    end = reserve(batches, START, 2)
    batches.seal(end)
    assert ask_to_stop(hf.context, end.query).held == 2
    batches.beat()
    for _ in range(2):
        assert batches.reserve(end, 2) is None
    assert ask_to_stop(hf.context, end.query).held == 0
    assert (queue.stats().ready, queue.stats().done) == (3, 2)
    assert reserve(process(hf), end, 2).batch == 2  # whoever starts it again means it
    with pytest.raises(QueryNotFound):
        ask_to_stop(hf.context, "nobody")


def test_a_query_tells_of_its_last_batches(
    hf: Holdfast, queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.work.ledger.HISTORY", 2)
    sent = queue.enqueue_many(range(9))
    batches, start = process(hf), START
    for n in range(3):
        start = reserve(batches, start, 3)
        batches.seal(start)
        give_verdicts(hf, start, "a", {sent[3 * n].id: FATAL} if n else {})
        publish(hf.context, start.query, start.hold, "a")
        clock.advance(n)
        batches.reserve(start, 0)
    past = [(p.batch, p.rows, p.done, p.retried, p.dead, p.ms) for p in the_query(hf).history]
    assert past == [(2, 3, 2, 0, 1, 1000), (3, 3, 2, 0, 1, 2000)]
    assert the_query(hf).history[-1].settled_at == clock.now()


def test_a_queue_that_is_deleted_under_a_query(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_many(range(5))
    batches = process(hf, part_rows=2)
    end = reserve(batches, START, 4)
    batches.seal(end)
    give_verdicts(hf, end, "a", {})
    publish(hf.context, end.query, end.hold, "a")
    queue.delete(force=True)
    with pytest.raises(QueueNotFound):
        batches.reserve(end, 4)
    move(hf, clock, RESERVED_MS)
    hf.queue("orders").enqueue("new")
    following = reserve(batches, end, 4)
    assert [x.message.payload for x in leases(hf, batches.seal(following))] == ["new"]


def test_a_deleted_queue_is_nothing_to_sweep_or_to_abandon(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_many(range(5))
    ends = [reserve(process(hf), START, 2), reserve(process(hf), START, 2)]
    queue.delete(force=True)
    assert move(hf, clock, RESERVED_MS) == 0
    assert abandon(hf.context, ends[0].query) == 0
    assert hf.sweep().requeued == 0


def test_a_dead_letter_queue_is_a_queue(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(3))
    for lease in queue.lease(3):
        queue.fail(lease, "x")
    batches = Batches(hf.context, "orders.dlq")
    end = reserve(batches, START)
    assert [part.rows for part in batches.seal(end)] == [3]
    assert batches.reserve(end, 3) is None
    assert {f.status for f in queue.dlq.log()} == {"COMPLETED_WITH_ERRORS"}
    assert queue.stats().dead == 0


@pytest.fixture(autouse=True)
def nothing_is_left_open(hf: Holdfast) -> Iterator[None]:
    """Whatever a test did: the counts of the store are those of a full count."""
    yield
    for each in hf.queues():
        stats = each.stats()
        for state, n in (
            ("ready", stats.ready),
            ("delayed", stats.delayed),
            ("leased", stats.leased),
        ):
            assert n == sum(1 for _ in each.browse(state))


def test_a_query_gets_what_is_overdue_while_nobody_sweeps(
    hf: Holdfast, queue: Queue, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    sent = queue.enqueue(1)
    queue.lease(owner="gone")
    batches = process(another())
    clock.advance(29.999)
    assert batches.reserve(START, 10) is None
    clock.advance(1.001)  # a look is made once a second at most
    end = reserve(batches, START)
    assert [one.id for one in leases(hf, batches.seal(end))] == [sent.id]
