"""Waiting consumers are told, a line that is slow to walk is walked from its mark, upkeep."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Holdfast, Lease
from holdfast.queue import queue as queue_module
from holdfast.stores.contract import View
from holdfast.stores.postgres import queues, upkeep, wake
from holdfast.stores.postgres.connections import Connection, Sql
from holdfast.stores.postgres.lowmark import (
    BOTTOM_EVERY_S,
    BOTTOM_SHARE,
    DISTANCE,
    LATE_S,
    SLOW_IN_A_ROW,
    LowMark,
)
from holdfast.stores.postgres.settle import DAY_MS
from holdfast.testing import ManualClock, wait_until
from holdfast.work.sweeper import Sweeper


@pytest.fixture(params=["postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def hf(postgres_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(postgres_url) as hf:
        yield hf


@pytest.mark.promise("LIFE-9", "DEAD-4")
@pytest.mark.parametrize("deed", ["enqueue", "release", "redrive", "resume"])
def test_a_waiting_consumer_is_told(
    hf: Holdfast, postgres_url: str, deed: str, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a notice: it would look by itself only in an hour."""
    monkeypatch.setattr(wake, "LOOK_S", 3600.0)
    monkeypatch.setattr(queue_module, "WAIT_STEP_S", 3600.0)
    queue = hf.queue("orders")
    if deed != "enqueue":
        queue.enqueue("first")
    held = queue.lease() if deed in ("release", "redrive") else []
    if deed == "redrive":
        queue.fail(held[0])
    if deed == "resume":
        queue.pause()
    with holdfast.connect(postgres_url) as other:
        got: list[Lease] = []
        waiter = threading.Thread(target=lambda: got.extend(other.queue("orders").lease(wait=30)))
        waiter.start()
        wait_until(lambda: other.store._wake._hearing)
        match deed:
            case "enqueue":
                queue.enqueue("now")
            case "release":
                queue.release(held[0])
            case "redrive":
                hf.redrive("orders.dlq")
            case _:
                queue.resume()
        waiter.join(25)
        assert len(got) == 1


def test_a_burst_of_notices_is_few_notices_and_the_last_one_is_sent(hf: Holdfast) -> None:
    sent: list[set[str]] = []
    queue = hf.queue("orders")
    flush = hf.store._wake.flush

    def counted() -> None:
        sent.append(set(hf.store._wake._unsent))
        flush()

    hf.store._wake.flush = counted
    for n in range(200):
        queue.enqueue(n)
    wait_until(lambda: not hf.store._wake._unsent)
    assert len([topics for topics in sent if topics]) < 200


def marked(mark: LowMark, first: int, *, cost: float, now: float, bounded: bool = False) -> None:
    rows = [(9, first + n) for n in range(100)]
    mark.note(rows, seconds=cost * 120, now=now, bounded=bounded)


def test_looks_are_from_the_bottom_until_they_are_slow() -> None:
    mark, now, place = LowMark(), 0.0, 1
    for _ in range(200):
        assert mark.lows(now) is None
        marked(mark, place, cost=0.00001, now=now)
        now, place = now + 0.01, place + 100
    assert place > DISTANCE
    for _ in range(SLOW_IN_A_ROW):
        assert mark.lows(now) is None
        marked(mark, place, cost=0.0001, now=now)
        now, place = now + 0.01, place + 100
    lows = mark.lows(now)
    assert lows is not None
    late = now - LATE_S
    assert 0 < lows[9] <= place - 100 and lows[0] == 0
    assert lows[9] <= 1 + int(late / 0.01 + 1) * 100, "what is younger may not all be visible yet"
    now += BOTTOM_EVERY_S
    assert mark.lows(now) is None, "a look from the bottom is due"
    marked(mark, place, cost=0.0001, now=now)
    assert mark.lows(now) is not None, "it was slow: on from the mark"
    now += max(BOTTOM_EVERY_S, 0.0001 * 120 * BOTTOM_SHARE)
    assert mark.lows(now) is None
    marked(mark, place, cost=0.00001, now=now)
    assert mark.lows(now) is None, "it was cheap: the snapshot is gone"


def test_slow_looks_over_a_short_line_change_nothing() -> None:
    mark = LowMark()
    marked(mark, 1, cost=0.00001, now=0)
    for n in range(100):
        marked(mark, 1 + n, cost=0.01, now=n)
        assert mark.lows(n) is None


@pytest.mark.promise("LIFE-5", "LIFE-6")
def test_what_comes_in_below_the_mark_is_found(hf: Holdfast, store_name: str) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(range(30))
    first = queue.lease(10)
    mark = hf.store._leasing.low_marks["orders"]
    mark._lows = [0] * 9 + [hf.store.browse(View("orders"), None, 1, 2**60).entries[0].place]
    mark._bounded, mark._bottom_due = True, float("inf")
    queue.release(first[3])
    queue.enqueue("urgent", priority=9)
    assert [lease.message.payload for lease in queue.lease(3)] == ["urgent", 10, 11]
    mark._bottom_due = 0.0
    assert [lease.message.payload for lease in queue.lease(2)] == [3, 12]
    mark._bounded, mark._bottom_due = True, float("inf")
    queue.release(first[5])
    assert [lease.message.payload for lease in queue.lease(100)] == list(range(13, 30))
    assert [lease.message.payload for lease in queue.lease(100)] == [5]
    assert queue.stats().ready == 0, "an empty answer is true: it looked from the bottom"


@pytest.mark.promise("LOG-4")
def test_the_log_has_days_and_old_ones_are_dropped_whole(
    postgres_url: str, store_name: str
) -> None:
    clock = ManualClock()
    with holdfast.connect(postgres_url, clock=clock, retention=2 * 86400) as hf:
        queue = hf.queue("orders")
        sweeper = Sweeper(hf.context, hf._settings)
        for day in range(4):
            sweeper.tick()
            queue.enqueue_many(range(3))
            queue.settle(queue.lease(3))
            assert len(list(queue.log())) <= 9, day
            clock.advance(86400)
        today = clock.now() // DAY_MS
        sweeper.tick()
        days = _days(hf)
        assert f"log_{today}" in days and f"log_{today + 2}" in days
        assert not [name for name in days if name != "log_other" and int(name[4:]) < today - 2]
        assert len(list(queue.log())) == 6
        with hf.store._db.use() as db:
            ((logged,),) = db.execute(
                hf.store._sql("SELECT sum(logged)::int FROM holdfast.delta")
            ).fetchall()
        assert logged == 6
        assert queue.stats().done == 12


def test_what_is_finished_before_the_first_sweep_is_in_its_day(hf: Holdfast) -> None:
    hf.queue("orders").enqueue(1)
    hf.queue("orders").settle(hf.queue("orders").lease())
    assert _in_other(hf) == 0


def test_a_day_whose_rows_lie_elsewhere_is_tried_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try is an error in the server's log, and locks all of the log while it looks."""
    clock, tried, make_day = ManualClock(), list[int](), upkeep.make_day

    def noted(db: Connection, sql: Sql, day: int) -> None:
        tried.append(day)
        make_day(db, sql, day)

    monkeypatch.setattr(upkeep, "make_day", noted)
    with holdfast.connect(postgres_url, clock=clock) as hf:
        clock.advance(100 * 86400)  # nobody swept for long
        tried.clear()
        queue = hf.queue("orders")
        queue.enqueue_many(range(3))
        queue.settle(queue.lease(3))
        assert _in_other(hf) == 3
        today = clock.now() // DAY_MS
        for _ in range(3):
            hf.store.tidy(clock.now(), log_before=None)
        assert tried == [today, today + 1, today + 2]
        assert len(list(queue.log())) == 3
        clock.advance(86400)
        hf.store.tidy(clock.now(), log_before=None)
        assert tried[3:] == [today + 3]


def _in_other(hf: Holdfast) -> int:
    with hf.store._db.use() as db:
        ((rows,),) = db.execute(hf.store._sql("SELECT count(*) FROM holdfast.log_other")).fetchall()
    return rows


def _days(hf: Holdfast) -> set[str]:
    with hf.store._db.use() as db:
        rows = db.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = %s::regclass",
            (f"{hf.store._where.schema}.log",),
        ).fetchall()
    return {name for (name,) in rows}


@pytest.mark.promise("LIFE-12")
def test_counts_are_folded_while_producers_write_and_stay_right(
    hf: Holdfast, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "FOLD_EVERY", 5)
    queue = hf.queue("orders")

    def produce() -> None:
        for n in range(60):
            queue.enqueue(n)

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.stats().ready == 240
    with hf.store._db.use() as db:
        ((rows,),) = db.execute(hf.store._sql("SELECT count(*) FROM holdfast.delta")).fetchall()
    assert rows < 100


def test_upkeep_gives_the_session_back_as_it_was(hf: Holdfast) -> None:
    hf.store.tidy(hf.context.clock.now(), log_before=None)
    with hf.store._db.use() as db:
        shown = [db.execute(f"SHOW {name}").fetchone() for name in ("lock_timeout", "jit")]
    assert shown == [("5s",), ("off",)]
