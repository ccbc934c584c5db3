"""Long polls: whoever waits gets the next message, whatever brings it. Waiting costs nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import holdfast
from holdfast import Holdfast, Lease, QueueNotFound, StoreUnavailable
from holdfast.errors import HoldfastError
from holdfast.model.settings import Settings
from holdfast.server.limits import Limits
from holdfast.stores import open_store
from holdfast.testing import wait_until
from holdfast.wire.shapes import LeaseAsk
from servers import redis

sys.path.insert(0, str(Path(__file__).parent))
from rig import Doors, serving

every_store = pytest.mark.parametrize("store_name", ["sqlite", "postgres", "redis", "mongo"])
on_one_store = pytest.mark.parametrize("store_name", ["sqlite"])
both_doors = pytest.mark.parametrize("door", ["http", "grpc"])

NO_SWEEPS = Settings(overdue_check_interval_ms=3_600_000)
LONG = 60.0
"""Longer than any test: who comes back before that was woken."""


class Counted:
    """A store, and how often it was asked for what."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return found(*args, **options)

        return call


class Place:
    """A server, a connection to its store as another process would have, and those who wait."""

    def __init__(self, doors: Doors, other: Holdfast, store: Counted) -> None:
        self.doors = doors
        self.other = other
        self.store = store
        self.threads = ThreadPoolExecutor(16)
        self.clients = {door: holdfast.connect(doors.url(door)) for door in ("http", "grpc")}

    def poll(self, door: str, queue: str = "orders", **options: Any) -> Future[list[Lease]]:
        """Returns when the server has it in line."""
        before = self.doors.server.waiting
        remote = self.clients[door].queue(queue, create=False)
        options = {"wait": LONG, **options}
        waiting = self.threads.submit(lambda: remote.lease(**options))
        wait_until(lambda: waiting.done() or self.doors.server.waiting == before + 1)
        return waiting

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


@pytest.fixture
def place(store_url: str) -> Iterator[Place]:
    store = Counted(open_store(store_url))
    with holdfast.connect(store) as hf, holdfast.connect(store_url) as other:
        other.queue("orders")
        with serving(hf, settings=NO_SWEEPS, limits=Limits(streams=50, polls=1100)) as doors:
            place = Place(doors, other, store)
            yield place
        place.threads.shutdown()
        place.close()


def payloads(leases: list[Lease]) -> list[Any]:
    return [lease.message.payload for lease in leases]


@every_store
@both_doors
@pytest.mark.promise("LIFE-9", "SERVER-2", "DEAD-4")
def test_whatever_brings_a_message_ends_the_wait(place: Place, door: str) -> None:
    queue = place.other.queue("orders")

    queue.enqueue_many(["released", "redriven"])
    held, dead = queue.lease(2)
    queue.fail(dead)
    brings: dict[str, Callable[[], object]] = {
        "enqueued": lambda: queue.enqueue("enqueued"),
        "delayed": lambda: queue.enqueue("delayed", delay=0.05),
        "released": lambda: queue.release(held),
        "redriven": lambda: place.other.redrive("orders.dlq"),
    }
    for name, bring in brings.items():
        waiting = place.poll(door)
        bring()
        [lease] = waiting.result(LONG / 2)
        assert lease.message.payload == name
        place.clients[door].queue("orders").ack(lease)


@on_one_store
@both_doors
@pytest.mark.promise("LIFE-9")
def test_nothing_after_its_time_and_no_longer_than_the_server_lets(
    store_url: str, door: str
) -> None:
    with holdfast.connect(store_url) as hf:
        hf.queue("orders")
        with (
            serving(hf, limits=Limits(wait_seconds=0.05)) as doors,
            holdfast.connect(doors.url(door)) as remote,
        ):
            call: Any = remote._transport.call  # type: ignore[attr-defined]
            assert call("LeaseBatch", LeaseAsk("orders", wait=0.01), wait=LONG).leases == []
            assert call("LeaseBatch", LeaseAsk("orders", wait=LONG), wait=LONG).leases == []
            assert remote.queue("orders").lease(wait=0.2) == []  # the client asks again


@on_one_store
def test_who_came_first_is_served_first(place: Place) -> None:
    waiting = [place.poll(door) for door in ("http", "grpc", "http", "grpc", "http")]
    queue = place.other.queue("orders")
    for n, poll in enumerate(waiting):
        queue.enqueue(n)
        assert payloads(poll.result(LONG / 2)) == [n]
        assert not any(later.done() for later in waiting[n + 1 :])


def raw_poll(doors: Doors, **fields: Any) -> socket.socket:
    at = urlsplit(doors.http)
    body = json.dumps({"wait": LONG, **fields}).encode()
    ask = socket.create_connection((at.hostname, at.port))
    head = f"POST /v1/queues/orders/leases HTTP/1.1\r\nHost: {at.netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ask.sendall(head.encode() + body)
    return ask


@on_one_store
def test_who_hangs_up_gets_nothing_and_the_next_gets_it(place: Place) -> None:
    server = place.doors.server
    hung = raw_poll(place.doors)
    wait_until(lambda: server.waiting == 1)
    behind = place.poll("http")
    hung.close()
    wait_until(lambda: server.waiting == 1)
    place.other.queue("orders").enqueue("for the second")
    [lease] = behind.result(LONG / 2)
    assert (lease.message.payload, lease.message.attempts) == ("for the second", 1)


@every_store
def test_a_message_for_one_who_is_just_hanging_up_is_not_lost_to_others(place: Place) -> None:
    """The end of the connection is on its way when the message comes."""
    queue = place.other.queue("orders", ack_timeout=3600)
    for n in range(20):
        hung = raw_poll(place.doors)
        wait_until(lambda: place.doors.server.waiting == 1)
        behind = place.poll("grpc")
        hung.close()
        queue.enqueue(n)
        [lease] = behind.result(LONG / 2)
        assert (lease.message.payload, lease.message.attempts) == (n, 1)
        queue.ack(lease)


@on_one_store
@pytest.mark.promise("LIFE-9")
def test_a_thousand_wait_with_a_handful_of_threads(place: Place) -> None:
    queue, server = place.other.queue("orders"), place.doors.server
    before = threading.active_count()
    sockets = [raw_poll(place.doors) for _ in range(1000)]
    wait_until(lambda: server.waiting == 1000, timeout=60)
    assert threading.active_count() - before < 30
    queue.enqueue_many(range(1000))

    async def answers() -> list[Any]:
        return await asyncio.gather(*map(answer, sockets))

    async def answer(ask: socket.socket) -> Any:
        reader, writer = await asyncio.open_connection(sock=ask)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        [lease] = json.loads(await reader.readexactly(length))["leases"]
        writer.close()
        return lease["message"]["payload"]

    assert sorted(asyncio.run(answers())) == list(range(1000))
    assert server.waiting == 0


@on_one_store
def test_more_than_so_many_may_not_wait(store_url: str) -> None:
    with holdfast.connect(store_url) as hf:
        hf.queue("orders")
        with (
            serving(hf, limits=Limits(polls=1)) as doors,
            holdfast.connect(doors.http) as remote,
            ThreadPoolExecutor(1) as threads,
        ):
            first = threads.submit(lambda: remote.queue("orders").lease(wait=LONG))
            wait_until(lambda: doors.server.waiting == 1)
            for door in ("http", "grpc"):
                with (
                    holdfast.connect(doors.url(door)) as other,
                    pytest.raises(HoldfastError, match="1 wait here already"),
                ):
                    other.queue("orders").lease(wait=1)
            hf.queue("orders").enqueue("a")
            assert payloads(first.result(LONG / 2)) == ["a"]


@every_store
def test_who_waits_for_a_queue_that_is_deleted_is_told(place: Place) -> None:
    place.other.queue("short-lived")
    waiting = [place.poll(door, "short-lived") for door in ("http", "grpc")]
    place.other.queue("short-lived").delete()
    for poll in waiting:
        with pytest.raises(QueueNotFound):
            poll.result(LONG / 2)


@every_store
@pytest.mark.promise("LIFE-10")
def test_a_paused_queue_gives_nothing_until_it_is_resumed(place: Place) -> None:
    queue = place.other.queue("orders")
    waiting = place.poll("http")
    queue.pause()
    queue.enqueue("paused")
    assert place.poll("grpc", wait=0.2).result(LONG / 2) == []
    assert not waiting.done()
    queue.resume()
    assert payloads(waiting.result(LONG / 2)) == ["paused"]


@every_store
def test_who_asks_for_partitions_waits_for_those(place: Place) -> None:
    queue = place.other.queue("parts", partitions=4)
    made = [queue.enqueue(n, key=f"key {n}") for n in range(20)]
    here = [m for m in made if m.partition == 2]
    others = [m for m in made if m.partition != 2]
    assert here and others
    leases = place.clients["http"].queue("parts").lease(100, partitions=[2])
    assert sorted(payloads(leases)) == [m.payload for m in here]
    waiting = place.poll("http", "parts", partitions=[2])
    plain = place.poll("grpc")  # of another queue: nobody holds it up
    queue.release(leases[0])
    assert [lease.id for lease in waiting.result(LONG / 2)] == [leases[0].id]
    place.other.queue("orders").enqueue("plain")
    assert payloads(plain.result(LONG / 2)) == ["plain"]
    assert queue.stats().ready == len(others)


@on_one_store
@pytest.mark.parametrize("case", ["empty", "paused", "other partitions", "one was served"])
@pytest.mark.promise("LIFE-9")
def test_waiting_does_not_ask_the_store_all_the_time(place: Place, case: str) -> None:
    queue = place.other.queue("parts", partitions=4)
    options: dict[str, Any] = {"wait": 1.0}
    if case == "other partitions":
        made = queue.enqueue("not here", key="k")
        options["partitions"] = [(made.partition + 1) % 4]
    elif case == "paused":
        queue.pause()
        queue.enqueue("paused")
    elif case == "one was served":  # and more are there, for whom nobody waits
        served = place.poll("http", "parts")
        queue.enqueue_many(range(10))
        served.result(LONG / 2)
    before = place.store.calls.copy()
    if case == "one was served":
        assert place.poll("http", wait=1.0).result(LONG / 2) == []
    else:
        assert place.poll("http", "parts", **options).result(LONG / 2) == []
    asked = place.store.calls - before
    assert asked.total() < 60, asked


@pytest.mark.promise("LIFE-9")
def test_who_waits_when_the_store_goes_away_waits_on() -> None:
    with (
        redis.running(settings=redis.ALWAYS) as server,
        holdfast.connect(server.url) as other,
        holdfast.connect(Counted(store := open_store(server.url))) as hf,
    ):
        counted = hf.store
        other.queue("orders")
        with serving(hf, settings=NO_SWEEPS) as doors:
            place = Place(doors, other, counted)  # type: ignore[arg-type]
            waiting = [place.poll(door) for door in ("http", "grpc")]
            short, handle = place.poll("http", wait=0.5), place.clients["http"].queue("orders")
            server.kill()
            before = place.store.calls.copy()
            with pytest.raises(StoreUnavailable):
                handle.lease(wait=1)
            assert short.result(LONG / 2) == []  # nothing came in its time
            asked = place.store.calls - before
            assert asked.total() < 60, asked
            assert not any(poll.done() for poll in waiting)
            server.start()
            other.queue("orders").enqueue_many(["a", "b"])
            got = [payloads(poll.result(LONG / 2))[0] for poll in waiting]
            assert sorted(got) == ["a", "b"]
        place.threads.shutdown()
        place.close()
        store.close()
