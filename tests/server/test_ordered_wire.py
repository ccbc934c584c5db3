"""Ordered queues over a wire: by a stream, or by a name that comes back for more."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import holdfast
from holdfast import FailedPrecondition, Holdfast, InvalidArgument, Lease, LeaseLost, Outgoing
from holdfast.model.settings import Settings
from holdfast.testing import dead_letters, wait_until

sys.path.insert(0, str(Path(__file__).parent))
from leasing import Leasing
from rig import Doors, serving

on_two_stores = pytest.mark.parametrize("store_name", ["sqlite", "postgres"])
on_one_store = pytest.mark.parametrize("store_name", ["sqlite"])
both_doors = pytest.mark.parametrize("door", ["http", "grpc"])
QUICK = Settings(
    overdue_check_interval_ms=50,
    partition_lease_ms=1500,
    partition_renew_ms=200,
    partition_rebalance_ms=250,
)
KEYS, EACH = 6, 8


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(store_url) as hf:
        hf.queue("line", ordered=True, partitions=4)
        yield hf


@pytest.fixture
def doors(hf: Holdfast) -> Iterator[Doors]:
    with serving(hf, settings=QUICK) as doors:
        yield doors


@pytest.fixture
def remote(doors: Doors) -> Iterator[Holdfast]:
    with holdfast.connect(doors.http) as remote:
        yield remote


def fill(hf: Holdfast, keys: int = KEYS, each: int = EACH) -> None:
    """Numbered within their keys."""
    items = [Outgoing(n, key=f"key {key}") for n in range(each) for key in range(keys)]
    hf.queue("line").enqueue_many(items)


def by_key(leases: list[Lease]) -> dict[str, list[Any]]:
    seen: dict[str, list[Any]] = defaultdict(list)
    for lease in leases:
        seen[lease.message.key or ""].append(lease.message.payload)
    return seen


def owners(hf: Holdfast) -> set[str]:
    """Who owns partitions, by the name they gave themselves."""
    parts = hf.queue("line").partitions()
    return {(part.owner or "nobody").rpartition(":")[0] for part in parts}


def finish(hf: Holdfast, streams: list[Leasing], settle: Callable[[Lease], object]) -> list[Lease]:
    """Settle whatever comes, until the queue is empty; all that came, in its order."""
    done: list[Lease] = []
    at = dict.fromkeys(streams, 0)

    def work() -> bool:
        for stream in streams:
            for lease in stream.got[at[stream] :]:
                at[stream] += 1
                settle(lease)
                done.append(lease)
        stats = hf.queue("line").stats()
        return stats.ready + stats.delayed + stats.leased == 0

    wait_until(work, timeout=30)
    return done


@on_two_stores
@pytest.mark.promise("SERVER-2")
def test_a_stream_keeps_the_order_of_each_key(hf: Holdfast, doors: Doors, remote: Holdfast) -> None:
    fill(hf)
    queue = remote.queue("line")
    with Leasing(doors.grpc, "line", max_in_flight=10, owner="me") as stream:
        wait_until(lambda: len(stream.got) == 4)
        assert len({lease.message.partition for lease in stream.got}) == 4  # one of each at a time
        done = finish(hf, [stream], queue.ack)
    assert by_key(done) == {f"key {key}": list(range(EACH)) for key in range(KEYS)}
    wait_until(lambda: owners(hf) == {""} or "me" not in owners(hf))  # it has left


@on_one_store
@pytest.mark.promise("SERVER-2")
def test_a_message_that_fails_holds_its_key_and_no_other(
    hf: Holdfast, doors: Doors, remote: Holdfast
) -> None:
    fill(hf)
    queue = remote.queue("line")
    failed: set[str] = set()

    def settle(lease: Lease) -> None:
        if lease.message.payload == 1 and lease.id not in failed:
            failed.add(lease.id)
            queue.nack(lease, delay=0.05)
        else:
            queue.ack(lease)

    with Leasing(doors.grpc, "line", max_in_flight=2) as stream:
        done = finish(hf, [stream], settle)
    assert len(failed) == KEYS
    expected = [0, 1, 1, *range(2, EACH)]
    assert by_key(done) == {f"key {key}": expected for key in range(KEYS)}


@on_one_store
def test_no_more_are_out_than_the_client_can_take(
    hf: Holdfast, doors: Doors, remote: Holdfast
) -> None:
    fill(hf)
    with Leasing(doors.grpc, "line", max_in_flight=2) as stream:
        wait_until(lambda: len(stream.got) == 2)
        hf.queue("quiet")
        assert remote.queue("quiet").lease(wait=0.3) == []  # time enough for more
        assert len(stream.got) == 2
        remote.queue("line").ack(stream.got[0])
        wait_until(lambda: len(stream.got) == 3)


@on_two_stores
@pytest.mark.promise("SERVER-2")
def test_two_share_and_one_takes_over_from_the_one_that_is_cut(
    hf: Holdfast, doors: Doors, remote: Holdfast
) -> None:
    queue = remote.queue("line")
    with Leasing(doors.grpc, "line", max_in_flight=10, owner="second") as second:
        first = Leasing(doors.grpc, "line", max_in_flight=10, owner="first")
        wait_until(lambda: owners(hf) == {"first", "second"})
        fill(hf)
        wait_until(lambda: first.got and second.got)
        in_hand = {lease.id for lease in first.got}
        before = {lease.id for lease in second.got}
        assert not in_hand & before
        first.close()  # it never said what became of them
        done = finish(hf, [second], queue.ack)
        assert owners(hf) == {"second"}
    assert by_key(done) == {f"key {key}": list(range(EACH)) for key in range(KEYS)}
    again = {lease.id: lease.message.attempts for lease in done if lease.id in in_hand}
    assert again == dict.fromkeys(in_hand, 2)  # a consumer that dies has used one
    with pytest.raises(LeaseLost):
        queue.ack(first.got[0])


@on_one_store
def test_a_message_that_kills_whoever_gets_it_ends_with_the_dead_letters(
    hf: Holdfast, doors: Doors
) -> None:
    hf.queue("line", max_attempts=3).enqueue("poison", key="k")
    for attempt in range(1, 4):
        with Leasing(doors.grpc, "line", max_in_flight=1) as stream:
            wait_until(lambda stream=stream: stream.got)
            assert stream.got[0].message.attempts == attempt
    wait_until(lambda: dead_letters(hf, "line"))


@on_one_store
def test_one_that_ran_out_comes_again_before_what_is_behind_it(
    hf: Holdfast, doors: Doors, remote: Holdfast
) -> None:
    queue = hf.queue("line", ack_timeout=0.2)
    queue.enqueue_many([Outgoing(n, key="k", ack_timeout=None if n == 0 else 60) for n in range(3)])
    with Leasing(doors.grpc, "line", max_in_flight=5) as stream:
        wait_until(lambda: len(stream.got) == 2)
        assert stream.payloads == [0, 0]
        with pytest.raises(LeaseLost):
            remote.queue("line").ack(stream.got[0])
        longer = remote.queue("line").extend(stream.got[1], 60)
        remote.queue("line").ack(longer)
        done = finish(
            hf, [stream], lambda lease: lease.message.payload and remote.queue("line").ack(lease)
        )
    assert [lease.message.payload for lease in done] == [0, 0, 1, 2]


@on_one_store
@both_doors
@pytest.mark.promise("SERVER-2")
def test_a_consumer_of_the_client_is_like_that_of_the_library(
    hf: Holdfast, doors: Doors, door: str
) -> None:
    hf.queue("plain")
    with holdfast.connect(doors.url(door)) as remote:
        with pytest.raises(FailedPrecondition, match="is not ordered"):
            remote.consumer("plain")
        with remote.consumer("line") as one, remote.consumer("line") as two:
            hf.queue("line").enqueue_many([Outgoing(n, key="k") for n in range(4)])
            assert one.name != two.name
            [lease] = one.lease(wait=30)
            assert two.lease(10) == []
            one.nack(lease, "not yet", delay=0.05)
            [lease] = one.lease(10, wait=30)
            assert (lease.message.payload, lease.message.attempts) == (0, 2)
            assert [error.message for error in lease.message.history.errors] == ["not yet"]
            one.ack(lease, result="fine")
            [lease] = one.lease(10, wait=30)
            one.release(lease)
            [lease] = one.lease(10, wait=30)
            assert (lease.message.payload, lease.message.attempts) == (1, 1)
            one.fail(lease, "never", code="Never")
            with pytest.raises(LeaseLost):
                one.ack(lease)
            [lease] = one.lease(10, wait=30)
            assert lease.message.payload == 2
            assert lease.message.partition in one.partitions
        [lease] = two.lease(10, wait=30)  # `one` has given it back, and is forgotten after a while
        assert (lease.message.payload, lease.message.attempts) == (2, 1)
        two.close()
    assert [row.result for row in hf.queue("line").log()] == ["fine"]
    assert [m.history.errors[-1].code for m in dead_letters(hf, "line")] == ["Never"]
    wait_until(lambda: owners(hf) == {""})  # nobody comes for more


@on_one_store
@both_doors
@pytest.mark.promise("SERVER-5")
def test_who_has_no_name_is_told_to_have_one(hf: Holdfast, doors: Doors, door: str) -> None:
    from holdfast.wire.shapes import LeaseAsk

    with holdfast.connect(doors.url(door)) as remote:
        call: Any = remote._transport.call  # type: ignore[attr-defined]
        with pytest.raises(InvalidArgument) as error:
            call("LeaseBatch", LeaseAsk("line"))
        assert error.value.field == "owner"
        with pytest.raises(InvalidArgument) as error:
            call("LeaseBatch", LeaseAsk("line", owner="me", partitions=[0]))
        assert error.value.field == "partitions"


@on_one_store
def test_what_was_handed_out_can_be_settled_when_the_server_has_stopped(hf: Holdfast) -> None:
    """By another server of the same store: the token says whose it is."""
    hf.queue("line").enqueue_many([Outgoing(n, key="k") for n in range(3)])
    with serving(hf, settings=QUICK) as doors:
        stream = Leasing(doors.grpc, "line", max_in_flight=5)
        wait_until(lambda: stream.got)
    assert stream.ended.wait(10)
    assert stream.code is grpc.StatusCode.OK
    stream.close()
    with serving(hf, settings=QUICK) as doors, holdfast.connect(doors.http) as remote:
        remote.queue("line").ack(stream.got[0])
        with Leasing(doors.grpc, "line", max_in_flight=5) as next_stream:
            done = finish(hf, [next_stream], remote.queue("line").ack)
    assert [lease.message.payload for lease in done] == [1, 2]
