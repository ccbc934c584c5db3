"""Answers end at a number of bytes: of pages, of leases, and of all that clients do not read."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import urllib3

import holdfast
from holdfast import Fail
from holdfast.server import http, sizes
from holdfast.server.limits import Limits
from holdfast.stores.contract import Page, Store
from holdfast.telemetry.observe import unobserved
from holdfast.testing import wait_until
from holdfast.wire.shapes import FailuresAsk
from tests.server.rig import Doors, serving

pytestmark = pytest.mark.promise("SERVER-5")

BUDGET = 100_000
LARGE = "x" * 30_000
COUNT = 20


def pages(doors: Doors, path: str) -> list[list[int]]:
    """Of each page the numbers in its payloads."""
    found: list[list[int]] = []
    after = None
    while after is not None or not found:
        fields = {"limit": "1000"} | ({"after": after} if after else {})
        url = f"{doors.http}/v1/queues/{path}{'&' if '?' in path else '?'}{urlencode(fields)}"
        answer = urllib3.request("GET", url)
        assert answer.status == 200, answer.data
        page = answer.json()
        rows = page["entries"] if "entries" in page else page["finished"]
        assert len(answer.data) < BUDGET + 10_000 or len(rows) == 1
        found.append([row["message"]["payload"][0] for row in rows])
        after = page.get("after")
    return found


def test_a_page_ends_at_its_budget(store_factory: Callable[[], Store]) -> None:
    with (
        holdfast.connect(store_factory()) as hf,
        serving(hf, limits=Limits(answer_bytes=BUDGET)) as doors,
    ):
        queue = hf.queue("large")
        queue.enqueue_many([[n, LARGE if n % 5 else LARGE * 5] for n in range(COUNT)])
        everything = list(range(COUNT))
        for path in ("large/messages", "large/messages?text=x"):
            found = pages(doors, path)
            assert [n for page in found for n in page] == everything
            assert max(map(len, found)) <= 3
        for lease in queue.lease(COUNT):
            queue.ack(lease)
        for path in ("large/log", "large/messages?state=log"):
            assert [n for page in pages(doors, path) for n in page] == everything
        newest = pages(doors, "large/messages?state=log&newest=true")
        # Those of one millisecond may come in any order.
        assert sorted(n for page in newest for n in page) == everything
        assert max(map(len, newest)) <= 3


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_a_lease_ends_at_its_budget(store_factory: Callable[[], Store], door: str) -> None:
    """What is too much stays in line, with no attempt counted."""
    with (
        holdfast.connect(store_factory()) as hf,
        serving(hf, limits=Limits(answer_bytes=BUDGET)) as doors,
        holdfast.connect(doors.url(door)) as far,
    ):
        queue = hf.queue("large", max_attempts=1)
        queue.enqueue_many([[n, LARGE] for n in range(COUNT)])
        remote, seen = far.queue("large", create=False), list[int]()
        while leases := remote.lease(COUNT):
            assert len(leases) <= 3
            assert queue.stats().leased == len(leases)
            assert all(lease.message.attempts == 1 for lease in leases)
            seen += [lease.message.payload[0] for lease in leases]
            remote.settle(leases)
        assert sorted(seen) == list(range(COUNT))
        queue.enqueue(["one that is larger than all of it", LARGE * 5])
        assert len(remote.lease(COUNT)) == 1


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_a_replay_ends_at_its_budget(store_factory: Callable[[], Store], door: str) -> None:
    """An answer says where to go on; a client gets all, each once, also while some finish again."""
    with (
        holdfast.connect(store_factory()) as hf,
        serving(hf, limits=Limits(answer_bytes=BUDGET)) as doors,
        holdfast.connect(doors.url(door)) as far,
    ):
        queue = hf.queue("large")
        queue.enqueue_many([[n, LARGE if n % 5 else LARGE * 5] for n in range(COUNT)])
        queue.settle(queue.lease(COUNT))
        asked: list[int] = []
        call = far.queue("large", create=False)._call

        def noted(name: str, ask: Any, **options: Any) -> Any:
            found = call(name, ask, **options)
            asked.append(len(found.messages))
            queue.settle(queue.lease(COUNT))  # what was replayed is done at once
            return found

        remote = far.queue("large", create=False)
        remote._call = noted
        made = remote.replay(since=0)
        assert sorted(message.payload[0] for message in made) == list(range(COUNT))
        assert len(asked) > COUNT // 4 and max(asked) <= 3
        assert queue.stats().done == 2 * COUNT
        assert [m.payload[0] for m in remote.replay(made[0].origin)] == [made[0].payload[0]]


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_a_look_at_failures_reads_no_more_than_its_budget(
    store_factory: Callable[[], Store], door: str
) -> None:
    store = store_factory()
    read: list[int] = []
    browse = store.browse

    def noted(*asked: Any) -> Page:
        found = browse(*asked)
        read.append(sum(len(entry.message.body) for entry in found.entries))
        return found

    with (
        holdfast.connect(store) as hf,
        serving(hf, limits=Limits(answer_bytes=BUDGET)) as doors,
        holdfast.connect(doors.url(door)) as far,
    ):
        queue = hf.queue("large")
        queue.enqueue_many([[n, LARGE] for n in range(5 * COUNT)])
        queue.settle([(lease, Fail("bad")) for lease in queue.lease(5 * COUNT)])
        unobserved(hf.store).browse = noted
        found = far.queue("large", create=False)._call("ListFailures", FailuresAsk("large"))
        assert (found.looked, found.total, len(found.groups)) == (5 * COUNT, 5 * COUNT, 1)
    first, rest = read[0], read[1:]
    assert first <= sizes.FIRST_ROWS * (len(LARGE) + 100)
    assert max(rest) <= BUDGET


def test_small_messages_are_leased_at_once() -> None:
    hf = holdfast.connect("memory://")
    queue = hf.queue("small")
    queue.enqueue_many(range(500))
    asked: list[int] = []

    def lease(limit: int) -> list[holdfast.Lease]:
        asked.append(limit)
        return queue.lease(limit)

    leasing = sizes.Leasing(1_000_000)
    assert len(leasing.lease("small", 100, lease, lambda _: None)) == 100
    assert asked == [sizes.FIRST_ROWS, 100 - sizes.FIRST_ROWS]
    assert len(leasing.lease("small", 300, lease, lambda _: None)) == 300
    assert asked[2:] == [300]


def test_answers_that_nobody_reads_are_bounded(
    store_factory: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that do not read get no more made for them; the others are answered."""
    monkeypatch.setattr(http, "ROOM_S", 0.1)
    limits = Limits(answer_bytes=12_000_000, unread_bytes=8_000_000)
    with holdfast.connect(store_factory()) as hf, serving(hf, limits=limits) as doors:
        hf.queue("large").enqueue_many(["x" * 1_000_000] * 10)
        unread = doors.server._door.unread
        socks = [slow(doors) for _ in range(2)]
        wait_until(lambda: unread._bytes >= limits.unread_bytes)
        path = f"{doors.http}/v1/queues/large"
        busy = urllib3.request("GET", f"{path}/messages", retries=False)
        assert (busy.status, busy.json()["title"]) == (503, "ServerBusy")
        assert urllib3.request("GET", f"{path}/stats").status == 200
        for sock in socks:
            sock.close()
        wait_until(lambda: unread._bytes == 0)
        assert urllib3.request("GET", f"{path}/messages?limit=1").status == 200


def slow(doors: Doors) -> socket.socket:
    """A client that asks for a page and does not read it."""
    at = urlsplit(doors.http)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.connect((at.hostname, at.port))
    sock.sendall(b"GET /v1/queues/large/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return sock
