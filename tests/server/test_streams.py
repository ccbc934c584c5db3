"""gRPC streams of leases: no more than the client can take, and nothing lost when one ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import holdfast
from holdfast import Holdfast, State
from holdfast.model.settings import Settings
from holdfast.server import run
from holdfast.server.limits import Limits
from holdfast.testing import ManualClock, wait_until

sys.path.insert(0, str(Path(__file__).parent))
from leasing import Leasing
from rig import Doors, serving

NO_SWEEPS = Settings(overdue_check_interval_ms=3_600_000)
LARGE = "x" * 200_000
"""A few dozen of these are more than a connection takes before somebody reads."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(f"sqlite:///{tmp_path}/test.db", clock=clock) as hf:
        hf.queue("orders")
        hf.queue("quiet")
        yield hf


@pytest.fixture
def doors(hf: Holdfast) -> Iterator[Doors]:
    with serving(hf, settings=NO_SWEEPS, limits=Limits(streams=2)) as doors:
        yield doors


@pytest.fixture
def clients(doors: Doors) -> Iterator[dict[str, Holdfast]]:
    opened = {door: holdfast.connect(doors.url(door)) for door in ("http", "grpc")}
    yield opened
    for client in opened.values():
        client.close()


def has_settled_down(clients: dict[str, Holdfast]) -> None:
    """The server had time enough to do what it should not: it answered one who waited."""
    assert clients["http"].queue("quiet").lease(wait=0.1) == []


@pytest.mark.promise("SERVER-2")
def test_so_many_are_out_and_one_that_ends_makes_room(
    hf: Holdfast, doors: Doors, clients: dict[str, Holdfast]
) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(range(12))
    by_http, by_grpc = (clients[door].queue("orders") for door in ("http", "grpc"))
    with Leasing(doors.grpc, "orders", max_in_flight=3, owner="me") as stream:
        ends: list[Any] = [
            by_http.ack,
            lambda lease: by_grpc.ack(lease, result={"n": 1}),
            lambda lease: by_http.nack(lease, delay=3600),
            by_grpc.fail,
            lambda lease: by_http.settle([lease]),
            lambda lease: by_grpc.settle([lease]),
        ]
        for n, end in enumerate(ends):
            wait_until(lambda n=n: len(stream.got) == 3 + n)
            by_http.extend(stream.got[-1], 600)  # holding it for longer makes no room
            has_settled_down(clients)
            assert stream.payloads == list(range(3 + n))
            assert queue.stats().leased == 3
            end(stream.got[n])
        assert {lease.owner for lease in stream.got} == {"me"}


@pytest.mark.promise("SERVER-2")
def test_one_that_ran_out_makes_room_and_one_that_was_extended_does_not(
    hf: Holdfast, doors: Doors, clients: dict[str, Holdfast], clock: ManualClock
) -> None:
    hf.queue("orders").enqueue_many(range(10))
    with Leasing(doors.grpc, "orders", max_in_flight=3) as stream:
        wait_until(lambda: len(stream.got) == 3)
        clients["grpc"].queue("orders").extend(stream.got[0], 3600)
        clock.advance(31)
        wait_until(lambda: len(stream.got) == 5)
        has_settled_down(clients)
        assert stream.payloads == [0, 1, 2, 1, 2]  # those come again, before what is behind them
        clients["http"].queue("orders").ack(stream.got[0])  # it is still held
        wait_until(lambda: len(stream.got) == 6)


@pytest.mark.promise("SERVER-2", "FENCE-4")
def test_what_a_client_never_got_is_given_back_and_does_not_count(
    hf: Holdfast, doors: Doors
) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many([LARGE] * 60)
    with Leasing(doors.grpc, "orders", max_in_flight=60, reads=False):
        wait_until(lambda: queue.stats().leased == 60)
    wait_until(lambda: queue.stats().ready > 0)
    back = [entry.message for entry in queue.browse()]
    assert {message.attempts for message in back} == {0}
    assert len(back) + queue.stats().leased == 60


def test_a_server_that_stops_ends_its_streams_and_gives_back_what_was_not_sent(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "GRACE_S", 0.3)  # for the one who does not read
    queue = hf.queue("orders")
    with serving(hf, settings=NO_SWEEPS) as doors:
        quick = Leasing(doors.grpc, "quiet", max_in_flight=5)
        queue.enqueue_many([LARGE] * 60)
        slow = Leasing(doors.grpc, "orders", max_in_flight=60, reads=False)
        wait_until(lambda: queue.stats().leased == 60)
        hf.queue("quiet").enqueue("handed out")
        wait_until(lambda: quick.got)
    assert quick.ended.wait(10)
    assert quick.code is grpc.StatusCode.OK
    quick.close()
    slow.close()
    back = [entry.message for entry in queue.browse()]
    assert back
    assert {message.attempts for message in back} == {0}
    assert len(back) + queue.stats().leased == 60
    hf.queue("quiet").ack(quick.got[0])  # what was handed out is still its own


@pytest.mark.promise("SERVER-2")
def test_a_stream_of_nothing_says_why(hf: Holdfast, doors: Doors) -> None:
    with Leasing(doors.grpc, "nowhere", max_in_flight=1) as stream:
        assert stream.ended.wait(10)
        assert stream.code is grpc.StatusCode.NOT_FOUND
    with Leasing(doors.grpc, "quiet", max_in_flight=0) as stream:
        assert stream.ended.wait(10)
        assert stream.code is grpc.StatusCode.INVALID_ARGUMENT
    hf.queue("gone")
    with Leasing(doors.grpc, "gone", max_in_flight=1) as stream:
        wait_until(lambda: doors.server.waiting == 1)
        hf.queue("gone").delete()
        assert stream.ended.wait(10)
        assert stream.code is grpc.StatusCode.NOT_FOUND


def test_no_more_than_so_many_streams(doors: Doors) -> None:
    with Leasing(doors.grpc, "orders"), Leasing(doors.grpc, "orders") as second:
        wait_until(lambda: doors.server.waiting == 2)
        with Leasing(doors.grpc, "orders") as third:
            assert third.ended.wait(10)
            assert third.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        second.close()
        wait_until(lambda: doors.server.waiting == 1)
        with Leasing(doors.grpc, "orders"):
            wait_until(lambda: doors.server.waiting == 2)


def test_what_is_leased_is_what_is_in_line(hf: Holdfast, doors: Doors) -> None:
    """Nobody is told of a message that is not leased: the stream and the store say the same."""
    queue = hf.queue("orders")
    queue.enqueue_many(range(5))
    with Leasing(doors.grpc, "orders", max_in_flight=10) as stream:
        wait_until(lambda: len(stream.got) == 5)
        held = [entry.message.id for entry in queue.browse(State.LEASED)]
        assert sorted(held) == sorted(lease.id for lease in stream.got)
