"""Events of every process on a store, to everybody who watches a server of it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import holdfast
from holdfast import Holdfast, StoreUnavailable
from holdfast.model.settings import Settings
from holdfast.server.events import KEPT
from holdfast.server.limits import Limits
from holdfast.stores.contract import Event
from holdfast.testing import ManualClock, wait_until
from holdfast.work.sweeper import Sweeper
from servers import redis

sys.path.insert(0, str(Path(__file__).parent))
from rig import Doors, serving
from watching import Sse, Watch, watch

every_store = pytest.mark.parametrize("store_name", ["sqlite", "postgres", "redis", "mongo"])
on_one_store = pytest.mark.parametrize("store_name", ["sqlite"])
both_doors = pytest.mark.parametrize("door", ["http", "grpc"])

NO_SWEEPS = Settings(overdue_check_interval_ms=3_600_000)
"""Of the server under test: what is swept is swept by the test."""
Connect = Callable[[], Holdfast]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def connect(store_url: str, clock: ManualClock) -> Iterator[Connect]:
    opened: list[Holdfast] = []

    def connect() -> Holdfast:
        opened.append(holdfast.connect(store_url, clock=clock))
        return opened[-1]

    yield connect
    for hf in opened:
        hf.close()


@contextmanager
def serving_events(hf: Holdfast, **options: Any) -> Iterator[Doors]:
    with serving(hf, settings=NO_SWEEPS, **options) as doors:
        yield doors


def publish(hf: Holdfast, *names: str) -> None:
    hf.store.publish([Event("test", hf.context.clock.now(), {"name": name}) for name in names])


def names(watching: Any) -> list[str]:
    return [payload.get("name", type) for type, _, _, payload in watching.news]


def listens(watching: Any) -> None:
    """A ping has come: whatever is published from now on comes as well."""
    wait_until(lambda: watching.of("ping"))


def told_of(count: int, dead: int) -> dict[str, Any]:
    return {"count": count, "dlq_count": dead, "triggered_by": "scheduler"}


@every_store
@pytest.mark.promise("SERVER-3", "OVERDUE-8")
def test_what_another_process_swept_is_told_at_both_doors(
    connect: Connect, clock: ManualClock
) -> None:
    other = connect()
    queue, sweeper = other.queue("orders", max_attempts=2), Sweeper(other.context, NO_SWEEPS)
    with serving_events(connect()) as doors, Sse(doors.http) as sse, Watch(doors.grpc) as rpc:
        listens(sse)
        listens(rpc)
        sweeper.tick()  # nothing to do: nothing to tell
        queue.enqueue_many(range(3))
        queue.lease(3)
        clock.advance(30)
        sweeper.tick()
        first = clock.now()
        queue.enqueue("new")
        queue.lease(4)
        clock.advance(30)
        sweeper.tick()
        sweeper.tick()
        publish(other, "end")
        by_queue = {"queues": {"orders": 1}, "dlq_queues": {"orders": 3}}
        told = [
            ("requeue", first, {**told_of(3, 0), "queues": {"orders": 3}, "dlq_queues": {}}),
            ("requeue", clock.now(), {**told_of(1, 3), **by_queue}),
            ("move_to_dlq", clock.now(), {"count": 3, "queues": {"orders": 3}}),
            ("test", clock.now(), {"name": "end"}),
        ]
        for watching in (sse, rpc):
            wait_until(lambda watching=watching: names(watching)[-1:] == ["end"])
            assert [(type, at, payload) for type, _, at, payload in watching.news] == told
        assert sse.news == rpc.news
        assert sse.headers["content-type"].startswith("text/event-stream")


@on_one_store
@pytest.mark.promise("OVERDUE-7", "OVERDUE-8")
def test_the_server_sweeps_by_itself(store_url: str) -> None:
    with holdfast.connect(store_url) as hf, holdfast.connect(store_url) as other:
        queue = other.queue("orders", ack_timeout=0.01)
        queue.enqueue("left behind")
        queue.lease()
        often = Settings(overdue_check_interval_ms=20)
        with serving(hf, settings=often) as doors, Sse(doors.http, 0) as sse:
            wait_until(lambda: queue.stats().ready == 1)
            wait_until(lambda: sse.of("requeue"))
            counts = {**told_of(1, 0), "queues": {"orders": 1}, "dlq_queues": {}}
            assert [payload for _, _, _, payload in sse.news] == [counts]


@on_one_store
@both_doors
@pytest.mark.promise("SERVER-3")
def test_a_ping_says_the_time_and_where_to_go_on_from(
    connect: Connect, clock: ManualClock, door: str
) -> None:
    hf = connect()
    with serving_events(hf, ping=0.02) as doors, watch(doors, door) as watching:
        wait_until(lambda: len(watching.of("ping")) >= 3)
        assert watching.of("ping")[2] == ("ping", 0, clock.now(), {})
        publish(hf, "a", "b")
        wait_until(lambda: len(watching.news) == 2)
        newest = watching.news[-1][1]
        before = len(watching.all)
        wait_until(lambda: ("ping", newest, clock.now(), {}) in watching.all[before:])
        assert all(seq <= newest for _, seq, _, _ in watching.of("ping"))


@every_store
@both_doors
@pytest.mark.promise("SERVER-3")
def test_who_comes_back_gets_exactly_what_he_missed(connect: Connect, door: str) -> None:
    hf, other = connect(), connect()
    publish(other, "before")
    with serving_events(hf) as doors:
        with watch(doors, door) as watching:
            listens(watching)
            publish(other, "a", "b")
            publish(hf, "c")
            wait_until(lambda: len(watching.news) == 3)
            assert names(watching) == ["a", "b", "c"]
            seen = [seq for _, seq, _, _ in watching.news]
        publish(other, "d", "e")
        for n, last in enumerate([watching.of("ping")[0][1], *seen]):
            with watch(doors, door, last) as again:
                listens(again)
                publish(other, f"new {n}")
                missed = ["a", "b", "c", "d", "e", *(f"new {m}" for m in range(n + 1))][n:]
                wait_until(lambda again=again, n=n: names(again)[-1:] == [f"new {n}"])
                assert names(again) == missed
                numbers = [seq for _, seq, _, _ in again.news]
                assert numbers == sorted(set(numbers))
                assert [seq for seq in seen if seq > last] == numbers[: len(seen) - n]


@on_one_store
@both_doors
@pytest.mark.promise("SERVER-3")
def test_a_server_that_has_just_started_knows_what_was_missed(connect: Connect, door: str) -> None:
    """The numbers are the store's: it is another server that answers."""
    other = connect()
    publish(other, "a", "b")
    with serving_events(connect()) as doors, watch(doors, door, 1) as watching:
        wait_until(lambda: names(watching) == ["b"])


@on_one_store
@both_doors
@pytest.mark.promise("SERVER-3")
def test_who_was_away_for_too_long_has_to_reload(connect: Connect, door: str) -> None:
    hf = connect()
    publish(hf, *map(str, range(KEPT + 5)))
    with serving_events(hf) as doors:
        for n, unknown in enumerate((1, 4, 2**53 - 1)):
            with watch(doors, door, unknown) as watching:
                listens(watching)
                assert watching.all[0] == ("reload", None, 0, {})
                assert watching.of("ping")[0][1] == KEPT + 5 + n
                publish(hf, "after")
                wait_until(lambda watching=watching: names(watching) == ["reload", "after"])
        with watch(doors, door, 8) as watching:  # the oldest that is kept comes next
            listens(watching)
            assert names(watching)[:2] == ["8", "9"]


@on_one_store
@pytest.mark.promise("SERVER-3", "SERVER-5")
def test_an_id_that_is_no_number_is_refused(connect: Connect) -> None:
    with serving_events(connect()) as doors:
        for bad in ("x", "-1", "1.5", "9" * 30):
            with Sse(doors.http, bad) as sse:
                assert sse.ended.wait(10)
                assert sse.status == 400
                assert json.loads(sse.body)["field"] == "last-event-id"
        with Sse(doors.http, path="/events?after=0") as sse:  # for those who cannot set a header
            listens(sse)


@every_store
@pytest.mark.promise("SERVER-3")
def test_two_servers_of_a_store_agree(connect: Connect) -> None:
    hfs = [connect(), connect()]
    with serving_events(hfs[0]) as one, serving_events(hfs[1]) as two:
        with Sse(one.http) as first, Sse(two.http) as second, Watch(two.grpc) as third:
            for watching in (first, second, third):
                listens(watching)
            with ThreadPoolExecutor(4) as pool:
                for n in range(100):
                    pool.submit(publish, hfs[n % 2], f"{n}", f"{n} again")
            for watching in (first, second, third):
                wait_until(lambda watching=watching: len(watching.news) >= 200)
            assert first.news == second.news == third.news
            assert len({seq for _, seq, _, _ in first.news}) == 200
            middle = first.news[99][1]
        for doors in (one, two):  # whichever answers
            with Sse(doors.http, middle) as again:
                wait_until(lambda again=again: len(again.news) >= 100)
                assert again.news == first.news[100:]


@on_one_store
@pytest.mark.promise("SERVER-3")
def test_one_who_does_not_read_holds_up_nobody_and_has_to_reload(connect: Connect) -> None:
    hf = connect()
    large = "x" * 20_000
    with (
        serving_events(hf) as doors,
        Sse(doors.http, reads=False) as slow,
        Sse(doors.http) as quick,
        Watch(doors.grpc) as other,
    ):
        listens(quick)
        listens(other)
        for n in range(30):
            publish(hf, *(f"{n} {m} {large}" for m in range(50)))
            wait_until(lambda n=n: len(quick.news) == len(other.news) == 50 * (n + 1))
        assert names(quick) == names(other)
        slow.read.set()
        publish(hf, "end")
        wait_until(lambda: names(slow)[-1:] == names(quick)[-1:] == ["end"])
        told, whole = names(slow), names(quick)
        assert "reload" in told
        assert len(told) < 1500
        behind = told[told.index("reload") + 1 :]
        assert behind == whole[-len(behind) :]  # from there on it has everything again


@on_one_store
@both_doors
def test_numbers_that_change_are_told(connect: Connect, door: str) -> None:
    hf = connect()
    queue = hf.queue("orders")
    hf.queue("idle")
    with serving_events(hf) as doors, watch(doors, door) as watching:
        listens(watching)

        def told(name: str) -> list[tuple[int, int]]:
            stats = [payload for _, _, _, payload in watching.of("stats")]
            return [(of["ready"], of["leased"]) for of in stats if of["queue"] == name]

        queue.enqueue_many([1, 2])
        wait_until(lambda: told("orders")[-1:] == [(2, 0)])
        queue.lease()
        wait_until(lambda: told("orders")[-1:] == [(1, 1)])
        hf.queue("other").enqueue(1)
        wait_until(lambda: told("other")[-1:] == [(1, 0)])
        assert len(told("orders")) <= 3  # once for each change, and perhaps when it was first seen
        assert len(told("idle")) <= 1
        assert all(seq is None for _, seq, _, _ in watching.of("stats"))


@on_one_store
@both_doors
def test_a_queue_that_is_deleted_is_told(connect: Connect, door: str) -> None:
    hf = connect()
    queue = hf.queue("orders")
    with serving_events(hf) as doors, watch(doors, door) as watching:
        listens(watching)
        queue.enqueue(1)
        wait_until(lambda: watching.of("stats"))
        queue.delete(force=True)
        wait_until(lambda: watching.of("gone"))
        assert [payload for _, _, _, payload in watching.of("gone")] == [{"queue": "orders"}]


@on_one_store
def test_who_was_answered_between_two_looks_hears_that_it_is_otherwise(connect: Connect) -> None:
    """Paused at one look and not at the next is what everybody knows; but not who asked between."""
    hf = connect()
    queue = hf.queue("orders")
    queue.pause()
    with serving_events(hf) as doors, watch(doors, "http") as watching:

        def told() -> list[tuple[int, bool]]:
            stats = [payload for _, _, _, payload in watching.of("stats")]
            return [(of["ready"], of["paused"]) for of in stats]

        listens(watching)
        queue.enqueue(1)
        wait_until(lambda: (1, True) in told())
        with holdfast.connect(doors.http) as client:
            for _ in range(20):  # now and then a look comes in between
                known = len(told())
                queue.resume()
                assert not client.stats()[0].paused
                queue.pause()
                wait_until(lambda known=known: told()[known:][-1:] == [(1, True)])
                if told()[known:] == [(1, True)]:
                    return
    raise AssertionError(told())


@on_one_store
def test_no_more_than_so_many_watch(connect: Connect) -> None:
    with serving_events(connect(), limits=Limits(streams=2)) as doors:
        with Sse(doors.http) as first, Watch(doors.grpc) as second:
            listens(first)
            listens(second)
            with Sse(doors.http) as third, Watch(doors.grpc) as fourth:
                assert third.ended.wait(10)
                assert fourth.ended.wait(10)
                assert third.status == 429
                assert json.loads(third.body)["title"] == "TooManyStreams"
                assert fourth.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not first.ended.is_set()

        def let_in() -> bool:
            with Sse(doors.http) as again:
                wait_until(lambda: again.status)
                return again.status == 200

        wait_until(let_in)  # those two have gone


@on_one_store
def test_streams_end_cleanly_when_the_server_stops(connect: Connect) -> None:
    with serving_events(connect()) as doors:
        sse, rpc = Sse(doors.http), Watch(doors.grpc)
        listens(sse)
        listens(rpc)
    assert sse.ended.wait(10)
    assert rpc.ended.wait(10)
    assert rpc.code is grpc.StatusCode.OK
    sse.close()
    rpc.close()


@pytest.mark.promise("SERVER-3")
def test_events_go_on_when_the_store_was_away() -> None:
    with (
        redis.running(settings=redis.ALWAYS) as server,
        holdfast.connect(server.url) as hf,
        holdfast.connect(server.url) as other,
        serving_events(hf) as doors,
        Sse(doors.http) as sse,
        Watch(doors.grpc) as rpc,
    ):
        listens(sse)
        listens(rpc)
        publish(other, "before")
        wait_until(lambda: len(sse.news) == len(rpc.news) == 1)
        server.kill()
        server.start()
        publish(other, "after")
        wait_until(lambda: len(sse.news) == len(rpc.news) == 2)
        assert names(sse) == names(rpc) == ["before", "after"]
        assert not sse.ended.is_set()
        assert not rpc.ended.is_set()


@on_one_store
@both_doors
@pytest.mark.promise("SERVER-2", "SERVER-3")
def test_the_client_subscribes_like_the_library(connect: Connect, door: str) -> None:
    hf = connect()
    publish(hf, "before")
    with serving_events(hf) as doors, holdfast.connect(doors.url(door)) as remote:
        here, there = hf.subscribe(), remote.subscribe()
        publish(hf, "a")
        publish(hf, "b")
        assert there.next(5) == here.next(5)[:1]
        assert [event.payload for event in there.next(5)] == [{"name": "b"}]
        assert there.next(1.5) == []  # longer than a stream is silent
        publish(hf, "c")
        [last] = there.next(5)
        assert last.payload == {"name": "c"}
        again = remote.subscribe(after=last.seq - 2)
        assert [again.next(5)[0].payload["name"] for _ in range(2)] == ["b", "c"]
        there.close()
        threads = {thread.name for thread in threading.enumerate()}
    with pytest.raises(StoreUnavailable):
        again.next(5)
    again.close()
    assert "holdfast-watch" in threads  # that of `again`; it has ended now
    assert not [t for t in threading.enumerate() if t.name == "holdfast-watch"]
