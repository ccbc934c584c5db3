"""Bad requests by name: each gets its status and a problem that names the field; nothing is stored.

Requests are written byte by byte where a client library would not let them out.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import urllib3

import holdfast
from holdfast import Holdfast, Outgoing, State
from holdfast.server.limits import Limits
from holdfast.stores.contract import Store
from holdfast.wire.operations import OPERATIONS, Operation
from holdfast.wire.proto import fields_of
from tests.server.rig import Doors, serving

pytestmark = pytest.mark.promise("SERVER-5")

BODY_MAX = 100_000
ID = "01890000-0000-7000-8000-000000000000"
DEEP = "[" * 100_000 + "]" * 100_000
MESSAGES = "/v1/queues/orders/messages"
LEASES = "/v1/queues/orders/leases"


class Client:
    def __init__(self, url: str) -> None:
        self.url = url
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self._pool = urllib3.PoolManager(retries=False)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> urllib3.BaseHTTPResponse:
        """A body that is not bytes goes as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        given = {"content-type": "application/json"} if body is not None else {}
        return self._pool.request(
            method, self.url + path, body=body, headers=given | (headers or {})
        )

    def refused(self, status: int, field: str | None, *args: Any, **more: Any) -> dict[str, Any]:
        answer = self.ask(*args, **more)
        assert answer.status == status, answer.data
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status
        assert problem.get("field") == field, problem
        return problem

    def raw(self, request: bytes) -> tuple[int, bytes]:
        """What comes back for these very bytes: the status, and the rest."""
        with socket.create_connection((self.host, self.port), timeout=20) as sock:
            sock.sendall(request)
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            return answer.status, answer.read()


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder: Path = tmp_path_factory.mktemp("bad")
    limits = Limits(body_bytes=BODY_MAX, read_seconds=0.2)
    with holdfast.connect(f"sqlite:///{folder}/bad.db") as hf, serving(hf, limits=limits) as doors:
        queue = hf.queue("orders", payload_max=50_000)
        queue.enqueue_many([1, 2, 3, Outgoing(4, delay=3600)])
        first, second = queue.lease(2)
        queue.ack(first)
        queue.fail(second, "no route")
        hf.topic("news").bind("mail")
        yield doors


@pytest.fixture
def hf(doors: Doors) -> Holdfast:
    return doors.server._hf


@pytest.fixture
def client(doors: Doors, hf: Holdfast) -> Iterator[Client]:
    """Whatever a test sends through it: afterwards the store is as it was."""
    before = kept(hf)
    yield Client(doors.http)
    assert kept(hf) == before


def kept(hf: Holdfast) -> list[Any]:
    specs = [queue.spec for queue in hf.queues()]
    return [
        *specs,
        *(_numbers(stats) for stats in hf.stats()),
        [t.stats().groups for t in hf.topics()],
    ]


def _numbers(stats: holdfast.QueueStats) -> tuple[Any, ...]:
    return (stats.queue, stats.ready, stats.delayed, stats.leased, stats.dead, stats.done)


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        (b"{", "body", "not JSON"),
        (b'{"payload": 1} {}', "body", "not JSON"),
        (b"nonsense", "body", "not JSON"),
        (b"\xef\xbb\xbf{}", "body", "not JSON"),
        (b'{"payload": NaN}', "body", "not JSON"),
        (b"[]", "body", "Expected `object`"),
        (b"null", "body", "Expected `object`"),
        (b'"text"', "body", "Expected `object`"),
        (b"", "payload", "is missing"),
        (b"{}", "payload", "is missing"),
        (b'{"payload": 1, "body": "AA=="}', "body", "not both"),
        (b'{"body": "not base64!"}', "body", "base64"),
        (b'{"body": "AAA"}', "body", "base64"),
        (b'{"body": 7}', "body", "Expected"),
        (b'{"payload": "\xff"}', "payload", "not JSON"),
        (b'{"key": "\xff", "payload": 1}', "body", "not UTF-8"),
        (b'{"key": "\\ud800abcdef", "payload": 1}', "body", "not JSON"),
        (b'{"payload": "\\ud800abcdef"}', "body", "not JSON"),
        (b'{"payload": 1e999}', "payload", "not JSON"),
        (b'{"payload": ' + b"9" * 5000 + b"}", "payload", "not JSON"),
        (b'{"payload": 1, "paylaod": 2}', "paylaod", "unknown field"),
        (b'{"payload": 1, "queue": "other"}', "queue", "unknown field"),
        (b'{"payload": 1, "priority": "high"}', "priority", "Expected `int`"),
        (b'{"payload": 1, "priority": 1.5}', "priority", "Expected `int`"),
        (b'{"payload": 1, "priority": true}', "priority", "Expected `int`"),
        (b'{"payload": 1, "priority": 10}', "priority", "must be 0 to 9"),
        (b'{"payload": 1, "priority": 1e99}', "priority", "Expected `int`"),
        (b'{"payload": 1, "priority": 99999999999999999999}', "priority", "Expected `int`"),
        (b'{"payload": 1, "delay": -1}', "delay", "negative"),
        (b'{"payload": 1, "delay": 1e300}', "delay", "at most"),
        (b'{"payload": 1, "delay": "1"}', "delay", "Expected `float"),
        (b'{"payload": 1, "at": 1e300}', "at", "at most"),
        (b'{"payload": 1, "at": 1, "delay": 1}', "at", "not both"),
        (b'{"payload": 1, "id": "7"}', "id", "must be a UUID"),
        (b'{"payload": 1, "key": "a\\u0000b"}', "key", "NUL"),
        (b'{"payload": 1, "type": "a\\u0000b"}', "type", "NUL"),
        (b'{"payload": 1, "key": "' + b"k" * 1025 + b'"}', "key", "the limit is 1024"),
        (b'{"body": "AA==", "content_type": "a\\u0000b"}', "content_type", "NUL"),
        (b'{"body": "AA==", "content_type": "a\\r\\nb"}', "content_type", "media type"),
        (b'{"payload": 1, "content_type": "text/plain"}', "content_type", "send others as body"),
        (b'{"payload": 1, "headers": {"a": 1}}', "headers[...]", "Expected `str`"),
        (b'{"payload": 1, "headers": ["a"]}', "headers", "Expected `object"),
        (b'{"payload": 1, "max_attempts": 0}', "max_attempts", "must be 1 to"),
        (b'{"payload": 1, "ack_timeout": 0}', "ack_timeout", "more than 0"),
        (b'{"payload": 1, "backoff": {"jitter": "some"}}', "backoff.jitter", "some"),
        (b'{"payload": 1, "backoff": {"max": 1e300}}', "backoff.max", "at most"),
        (b'{"payload": 1, "backoff": {"bass": 1}}', "backoff.bass", "unknown field"),
        (b'{"payload": ' + DEEP.encode()[:40_000] + b"}", "body", "not JSON"),
        (b'{"payload": "' + b"x" * 60_000 + b'"}', "payload", "the limit is 50000"),
    ],
)
def test_a_message(client: Client, body: bytes, field: str, problem: str) -> None:
    told = client.refused(400, field, "POST", MESSAGES, body)
    assert problem in told["detail"]
    assert len(told["detail"]) < 2000


@pytest.mark.parametrize("depth", [100, 500, 900, 1100, 3000, 20_000])
def test_nesting_is_refused_or_taken_and_never_a_fault(client: Client, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    for path, body in [
        (MESSAGES, b'{"payload": %s, "id": "no uuid"}' % nested),
        (f"{MESSAGES}/{ID}/ack", b'{"token": "x", "result": %s}' % nested),
        ("/v1/redrive", b'{"dlq_queue": "no.dlq", "where": {"fields": {"a": %s}}}' % nested),
        ("/v1/redrive", b'{"dlq_queue": "no.dlq", "payload": %s}' % nested),
        ("/v1/redrive", b'{"dlq_queue": "no.dlq", "merge": {"a": %s}}' % nested),
        (
            "/v1/redrive",
            b'{"dlq_queue": "orders.dlq", "dry_run": true, "merge": {"a": %s}}' % nested,
        ),
    ]:
        assert client.ask("POST", path, body).status in (200, 400, 404, 409), path


def test_a_batch_names_the_item(client: Client) -> None:
    good = {"payload": 1}
    for bad, field in [
        ({"payload": 1, "priority": 10}, "priority"),
        ({"payload": 1, "priority": "x"}, "messages[1].priority"),
        ({"payload": 1, "key": "\0"}, "key"),
        ({}, "payload"),
        ({"payload": 1, "oops": 1}, "messages[1].oops"),
    ]:
        body = {"messages": [good, bad, good]}
        told = client.refused(400, field, "POST", f"{MESSAGES}:batch", body)
        assert told["index"] == 1
        told = client.refused(400, field, "POST", "/v1/topics/news/messages:batch", body)
        assert told["index"] == 1
    client.refused(400, "messages", "POST", f"{MESSAGES}:batch", {})
    client.refused(400, "receipt", "POST", f"{MESSAGES}:batch", {"messages": [], "receipt": "\0"})
    client.refused(400, "messages", "POST", f"{MESSAGES}:batch", {"messages": [{}] * 10_001})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 10_001}, "limit"),
        ({"limit": 2**60}, "limit"),
        ({"limit": "1"}, "limit"),
        ({"wait": -1}, "wait"),
        ({"wait": 1e300}, "wait"),
        ({"owner": "\0"}, "owner"),
        ({"owner": "x" * 1025}, "owner"),
        ({"partitions": []}, "partitions"),
        ({"partitions": [-1]}, "partitions"),
        ({"partitions": [2**40]}, "partitions"),
        ({"partitions": [2**70]}, "partitions[0]"),
        ({"partitions": 1}, "partitions"),
    ],
)
def test_a_lease(client: Client, body: dict[str, Any], field: str) -> None:
    client.refused(400, field, "POST", LEASES, body)


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("ack", {}, "token"),
        ("ack", {"token": 1}, "token"),
        ("ack", {"token": "\0"}, "token"),
        ("ack", {"token": "x" * 2000}, "token"),
        ("ack", {"token": "x", "result": "y" * 70_000}, "result"),
        ("ack", {"token": "x", "owner": "\0"}, "owner"),
        ("nack", {"token": "x", "delay": -1}, "delay"),
        ("nack", {"token": "x", "delay": 1e300}, "delay"),
        ("nack", {"token": "x", "error": "text"}, "error"),
        ("fail", {"token": "x", "error": {"message": 1}}, "error.message"),
        ("release", {"token": "x", "seconds": 1}, "seconds"),
        ("extend", {"token": "x", "seconds": 0}, "seconds"),
        ("extend", {"token": "x", "seconds": 1e300}, "seconds"),
    ],
)
def test_a_settlement(client: Client, verb: str, body: dict[str, Any], field: str) -> None:
    client.refused(400, field, "POST", f"{MESSAGES}/{ID}/{verb}", body)


def test_json_inside_is_looked_at_as_well(client: Client) -> None:
    """A value that any JSON may be is only skipped when its document is read."""
    for value in (b"1e999", b"9" * 5000, b'"\xff"', b'{"a": "\xff"}'):
        result = b'{"token": "x", "result": %s}' % value
        client.refused(400, "result", "POST", f"{MESSAGES}/{ID}/ack", result)
        for field in ("payload", "merge"):
            body = b'{"dlq_queue": "orders.dlq", "%s": %s}' % (field.encode(), value)
            client.refused(400, field, "POST", "/v1/redrive", body)
        body = b'{"dlq_queue": "orders.dlq", "where": {"fields": {"a": %s}}}' % value
        client.refused(400, "where.fields", "POST", "/v1/redrive", body)


def test_a_settlement_of_nothing(client: Client) -> None:
    for verb in ("ack", "nack", "fail", "release", "extend"):
        told = client.refused(409, None, "POST", f"{MESSAGES}/{ID}/{verb}", {"token": "x"})
        assert told["title"] == "LeaseLost"
        client.refused(400, "id", "POST", f"{MESSAGES}/nonsense/{verb}", {"token": "x"})
    items = [{"id": ID, "token": "x"}, {"id": "nonsense", "token": "x"}]
    told = client.refused(400, "id", "POST", f"{LEASES}:settle", {"items": items})
    assert told["index"] == 1
    items[1] = {"id": ID, "token": "x", "outcome": "finished"}
    told = client.refused(400, "items[1].outcome", "POST", f"{LEASES}:settle", {"items": items})
    assert told["index"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("GET", "/v1/queues?limit=0", None, "limit"),
        ("GET", "/v1/queues?limit=1001", None, "limit"),
        ("GET", "/v1/queues?limit=ten", None, "limit"),
        ("GET", "/v1/queues?limit=null", None, "limit"),
        ("GET", "/v1/queues?limit=1&limit=2", None, "limit"),
        ("GET", "/v1/queues?prefx=a", None, "prefx"),
        ("GET", "/v1/queues?prefix=%ff", None, "query"),
        ("GET", "/v1/queues?prefix=%E9", None, "query"),
        ("GET", f"/v1/queues?{'&'.join('limit=1' for _ in range(200))}", None, "query"),
        ("GET", "/v1/settings?x=1", None, "x"),
        ("POST", "/v1/sweep?x=1", None, "x"),
        ("POST", f"{MESSAGES}?delay=1", {"payload": 1}, "delay"),
        ("GET", f"{MESSAGES}?state=finished", None, "state"),
        ("GET", f"{MESSAGES}?since=-1", None, "since"),
        ("GET", f"{MESSAGES}?until=9007199254740992", None, "until"),
        ("GET", f"{MESSAGES}?until={'9' * 5000}", None, "until"),
        ("GET", f"{MESSAGES}?since=1.5", None, "since"),
        ("GET", f"{MESSAGES}?header=a", None, "header"),
        ("GET", f"{MESSAGES}?field=a", None, "field"),
        ("GET", f"{MESSAGES}?field=a={DEEP[:2000]}", None, "field"),
        ("GET", f"{MESSAGES}/nonsense", None, "id"),
        ("GET", f"{MESSAGES}/%00", None, "id"),
        ("POST", "/v1/queues/orders/replay", {}, "id"),
        ("POST", "/v1/queues/orders/replay", {"id": "nonsense"}, "id"),
        ("POST", "/v1/queues/orders/replay", {"since": -1}, "since"),
        ("POST", "/v1/queues/orders/replay", {"until": 2**60}, "until"),
        ("PUT", "/v1/queues/new", {"partitions": 0}, "partitions"),
        ("PUT", "/v1/queues/new", {"partitions": 257}, "partitions"),
        ("PUT", "/v1/queues/new", {"policy": {"retention": -1}}, "retention"),
        ("PUT", "/v1/queues/new", {"policy": {"retention": 1e300}}, "retention"),
        ("PUT", "/v1/queues/new", {"policy": {"max_attempts": 2**40}}, "max_attempts"),
        ("PUT", "/v1/queues/new", {"policy": {"backoff": {"max": 1e300}}}, "backoff.max"),
        ("PUT", "/v1/queues/new", {"policy": {"exhausted": "gone"}}, "exhausted"),
        ("PUT", "/v1/queues/new", {"policy": {"mx": 1}}, "policy.mx"),
        ("DELETE", "/v1/queues/orders?force=maybe", None, "force"),
        ("PUT", "/v1/topics/new", {"retention": -1}, "retention"),
        ("PUT", "/v1/topics/news/groups/a%00b", {}, "group"),
        ("PUT", "/v1/topics/news/groups/new", {"start": "later"}, "start"),
        ("POST", "/v1/redrive", {}, "dlq_queue"),
        ("POST", "/v1/redrive", {"dlq_queue": ""}, "dlq"),
        ("POST", "/v1/redrive", {"dlq_queue": "a\0.dlq"}, "dlq"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders"}, "dlq"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "count": -1}, "count"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "count": 2**53}, "count"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "rate": 0}, "rate"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "rate": 1e300}, "rate"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "to": "a/b"}, "to"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "ids": ["x"]}, "id"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "where": {"x": 1}}, "where.x"),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "merge": []}, "edit.merge"),
        ("GET", "/v1/redrives/nonsense", None, "id"),
        ("POST", "/v1/redrives/nonsense/cancel", {}, "id"),
        ("GET", "/v1/queues/orders/failures?scan=0", None, "scan"),
        ("GET", "/events?after=nonsense", None, "last-event-id"),
        ("GET", f"/events?after={'9' * 5000}", None, "last-event-id"),
    ],
)
def test_a_field(client: Client, method: str, path: str, body: Any, field: str) -> None:
    client.refused(400, field, method, path, body)


BAD_CURSORS = ["x", "", "1", "1.2.3", "1.x", "٣.٤", "1_0.1", " 1.1", "\0", f"{'9' * 30}.1", "1e9.1"]


def test_a_cursor_on_every_store(store_factory: Callable[[], Store]) -> None:
    """Those that are no cursors are refused; those that somebody made up find something or not."""
    hf = holdfast.connect(store_factory())
    queue = hf.queue("orders")
    queue.enqueue_many([1, 2, 3, Outgoing(4, delay=3600)])
    queue.ack(queue.lease(2)[0])
    views = [f"messages?state={state}" for state in State] + ["log?limit=1"]
    with serving(hf) as doors:
        client = Client(doors.http)
        for view in views:
            for after in BAD_CURSORS:
                path = f"/v1/queues/orders/{view}&after={quote(after)}"
                told = client.refused(400, "after", "GET", path)
                assert "is not a cursor" in told["detail"]
            for after in (f"{'9' * 18}.{'9' * 18}", f"-{'9' * 18}.-1", "0.0", "-0.-0"):
                path = f"/v1/queues/orders/{view}&after={after}"
                assert client.ask("GET", path).status == 200, path
            for moment in (0, 1, 2**53 - 1):
                path = f"/v1/queues/orders/{view}&since={moment}&until={moment}"
                assert client.ask("GET", path).status == 200, path
        assert queue.stats().ready == 1 and queue.stats().leased == 1


def test_odd_values_on_every_store(store_factory: Callable[[], Store]) -> None:
    """At the edge of what is taken: it is kept, and comes back as it was."""
    hf = holdfast.connect(store_factory())
    with serving(hf) as doors:
        client = Client(doors.http)
        policy = {"backoff": {}, "retention": 100 * 365 * 24 * 3600, "payload_max": 2**31 - 1}
        assert (
            client.ask("PUT", "/v1/queues/odd", {"partitions": 256, "policy": policy}).status < 300
        )
        odd = {
            "payload": {"\0": "\0\U0001f41f", "n": 2**64, "f": 1e308},
            "headers": {"a\0": "\0", "": "", "$a.b": "\u2028"},
            "key": "\x01 \U0001f41f \uffff",
            "type": "$where.a",
            "delay": 100 * 365 * 24 * 3600,
            "ack_timeout": 100 * 365 * 24 * 3600,
            "max_attempts": 2**31 - 1,
            "backoff": {"base": 1e9, "max": 1e9, "factor": 1e308},
        }
        made = client.ask("POST", "/v1/queues/odd/messages", odd)
        assert made.status == 201, made.data
        path = f"/v1/queues/odd/messages/{made.json()['id']}"
        found = client.ask("GET", path).json()["message"]
        assert {name: found[name] for name in odd if name != "delay"} == {
            name: value for name, value in odd.items() if name != "delay"
        }
        plain = client.ask("POST", "/v1/queues/odd/messages", {**odd, "delay": 0})
        lease = client.ask("POST", "/v1/queues/odd/leases", {"owner": "\x01$"}).json()["leases"][0]
        assert lease["message"]["id"] == plain.json()["id"]
        error = {"message": "\0" * 3000, "code": "\0" * 3000}
        nack = {"token": lease["token"], "error": error, "owner": "\x01$"}
        path = f"/v1/queues/odd/messages/{lease['message']['id']}"
        assert client.ask("POST", f"{path}/nack", nack).status == 200
        (kept,) = client.ask("GET", path).json()["message"]["errors"]
        assert (kept["message"], kept["code"]) == ("\0" * 2000, "\0" * 200)
        for token in ("x", "$gt", "0" * 1024, "1|2|3", "\x01", "\U0001f41f"):
            ack = client.ask("POST", f"{path}/ack", {"token": token})
            assert ack.status == 409, (token, ack.data)
            item = {"id": lease["message"]["id"], "token": token, "outcome": "retry"}
            done = client.ask("POST", "/v1/queues/odd/leases:settle", {"items": [item]})
            assert done.json()["results"][0]["status"] == "stale"
        none = client.ask("POST", "/v1/queues/odd/leases", {"partitions": [1023]})
        assert none.json() == {"leases": []}


def test_one_bad_one_fails_alone(client: Client, hf: Holdfast) -> None:
    """Calls that come together are written together: see grouping.py."""
    queue = hf.queue("crowd")
    queue.enqueue_many(range(40))
    leases = queue.lease(40)
    bad = [
        (f"/v1/queues/crowd/messages/nonsense/{verb}", {"token": "x"})
        for verb in ("ack", "nack", "fail", "release", "extend")
    ]
    bad += [(f"/v1/queues/crowd/messages/{ID}/ack", {"token": "x", "result": "y" * 70_000})]
    bad += [(f"/v1/queues/crowd/messages/{ID}/nack", {"token": "\0"})]
    good = [(f"/v1/queues/crowd/messages/{one.id}/ack", {"token": one.token}) for one in leases]
    calls = [call for n, one in enumerate(good) for call in (one, bad[n % len(bad)])]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda call: client.ask("POST", *call).status, calls))
    assert answers == [200, 400] * 40
    queue.delete(force=True)


# Not the document but what is around it


def test_unknown_names(client: Client) -> None:
    for method, path, body in [
        ("POST", "/v1/queues/none/messages", {"payload": 1}),
        ("POST", "/v1/queues/none/messages:batch", {"messages": [{"payload": 1}]}),
        ("POST", "/v1/queues/none/messages:batch", {"messages": []}),
        ("POST", "/v1/queues/none/leases", {}),
        ("POST", "/v1/queues/none/leases", {"wait": 30}),
        ("POST", "/v1/queues/none/leases:settle", {"items": []}),
        ("POST", f"/v1/queues/none/messages/{ID}/ack", {"token": "x"}),
        ("GET", "/v1/queues/none", None),
        ("DELETE", "/v1/queues/none", None),
        ("GET", "/v1/queues/none/stats", None),
        ("GET", "/v1/queues/none/partitions", None),
        ("GET", "/v1/queues/none/consumers", None),
        ("POST", "/v1/queues/none/pause", None),
        ("POST", "/v1/queues/none/resume", None),
        ("POST", "/v1/queues/none/purge", None),
        ("GET", "/v1/queues/none/messages", None),
        ("GET", f"/v1/queues/none/messages/{ID}", None),
        ("GET", f"{MESSAGES}/{ID}", None),
        ("GET", "/v1/queues/none/log", None),
        ("POST", "/v1/queues/none/replay", {"since": 0}),
        ("POST", "/v1/queues/orders/replay", {"id": ID}),
        ("GET", "/v1/queues/none/failures", None),
        ("POST", "/v1/redrive", {"dlq_queue": "none.dlq"}),
        ("POST", "/v1/redrives", {"dlq_queue": "none.dlq"}),
        ("POST", "/v1/redrive", {"dlq_queue": "orders.dlq", "to": "none"}),
        ("GET", f"/v1/redrives/{ID}", None),
        ("POST", f"/v1/redrives/{ID}/cancel", None),
        ("POST", "/v1/topics/none/messages", {"payload": 1}),
        ("GET", "/v1/topics/none", None),
        ("DELETE", "/v1/topics/none", None),
        ("PUT", "/v1/topics/none/groups/g", {}),
        ("DELETE", "/v1/topics/none/groups/g", None),
        ("DELETE", "/v1/topics/news/groups/none", None),
    ]:
        told = client.refused(404, None, method, path, body)
        assert told["code"] == "NOT_FOUND", path


TRICKS = [
    "..", "%2e%2e", "%2E%2E%2F", ".", "%00", "a%00b", "a%0Ab", "orders%0A", "orders%20", "%20", "-",
    "caf%C3%A9", "%FF", "orders%ff", "%F0%9F%90%9F", "a@b@c", "@", "orders.dlq.dlq", "a*", "a%3Fb",
    "a%23b", "a%5Cb", "x" * 129, "x" * 5000, "%25%30%30", "a;b", "orders%3b", "news@log%00",
]  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_path_tricks(client: Client, name: str) -> None:
    for method, path, body in [
        ("PUT", f"/v1/queues/{name}", b"{}"),
        ("PUT", f"/v1/topics/{name}", b"{}"),
        ("PUT", f"/v1/topics/news/groups/{name}", b"{}"),
        ("POST", f"/v1/queues/{name}/messages", b'{"payload": 1}'),
        ("POST", f"/v1/queues/{name}/leases", b"{}"),
        ("POST", f"/v1/queues/{name}/leases", b'{"wait": 1}'),
        ("POST", f"/v1/queues/{name}/leases:settle", b'{"items": []}'),
        ("GET", f"/v1/queues/{name}/stats", b""),
        ("DELETE", f"/v1/queues/{name}", b""),
    ]:
        status, told = client.raw(request(method, path, body))
        assert status in (400, 404), (path, told)
        assert json.loads(told)["status"] == status


SLASHES = [
    "//", "/v1", "/v2/queues", "/v1/queues/", "/v1//queues", "//v1/queues", "/v1/queues/orders/",
    "/v1/queues//stats", "/docs/", "/v1/../v1/queues",
]  # fmt: skip


def test_slashes(client: Client) -> None:
    """None in a name becomes one of the path; none too many is passed over."""
    for path in ["/v1/queues/orders%2Fstats", "/v1/queues/a%2fb", "/v1/queues%2forders/stats"]:
        client.refused(400, "path", "GET", path)
    client.refused(400, "path", "PUT", "/v1/queues/a%2Fb", {})
    for path in SLASHES:
        status, told = client.raw(request("GET", path))
        assert (status, json.loads(told)["title"]) == (404, "PathNotFound"), path


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *headers]
    if not any(line.lower().startswith("host:") for line in headers):
        lines.append("Host: localhost")
    if body:
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


SAFE_HEADERS = {
    "content-security-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "referrer-policy",
    "x-content-type-options",
    "x-frame-options",
}


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/metrics", "/health/live", "/health/ready", "/none"]
)
def test_pages_beside_the_dashboard_may_do_as_little(client: Client, path: str) -> None:
    answer = client.ask("GET", path)
    assert {name.lower() for name in answer.headers} >= SAFE_HEADERS
    assert answer.headers["x-frame-options"] == "DENY"
    if path == "/docs":  # it has no script at all
        assert b"<script" not in answer.data


ODD_NUMBERS = ["1e400", "-1e400", "9" * 400, "-" + "9" * 400, "9" * 5000, "nan", "inf", "-inf",
               "NaN", "Infinity", "1e", "0x10", "\u0661", "", " ", "true", "[]", "{}"]  # fmt: skip


def _numbers_asked() -> list[tuple[Operation, str]]:
    return [
        (operation, given.name)
        for operation in OPERATIONS
        for given in fields_of(operation.ask)
        if given.of in (int, float) and given.name not in operation.in_path
    ]


@pytest.mark.parametrize(
    ("operation", "field"), _numbers_asked(), ids=lambda x: getattr(x, "name", x)
)
def test_odd_numbers(client: Client, operation: Operation, field: str) -> None:
    """In every query and body: refused, and the field is named."""
    names = {"queue": "orders", "topic": "news", "group": "mail", "id": ID}
    path = "/v1" + operation.path.format(**{**names, "dlq_queue": "orders.dlq"})
    for odd in ODD_NUMBERS:
        if operation.method in ("GET", "DELETE"):
            answer = client.ask(operation.method, f"{path}?{field}={quote(odd)}")
        else:
            answer = client.ask(operation.method, path, _body_with(operation, field, odd))
        problem = answer.json()
        assert answer.status == 400, (odd[:20], answer.data)
        assert problem["field"].startswith((field, "body")), (odd[:20], problem)
        if operation.method in ("GET", "DELETE"):
            assert problem["field"] == field, (odd[:20], problem)


def _body_with(operation: Operation, field: str, odd: str) -> bytes:
    needed = {
        "token": '"x"', "payload": "1", "dlq_queue": '"orders.dlq"', "messages": "[]",
        "items": "[]", "seconds": "1", "policy": "{}",
    }  # fmt: skip
    taken = {given.name for given in fields_of(operation.ask)} - set(operation.in_path)
    given = {name: value for name, value in needed.items() if name in taken}
    given[field] = f"[{odd or 'null'}]" if _is_list(operation, field) else (odd or '""')
    return ("{" + ", ".join(f'"{n}": {value}' for n, value in given.items()) + "}").encode()


def _is_list(operation: Operation, field: str) -> bool:
    return any(f.name == field and f.kind in ("list", "given") for f in fields_of(operation.ask))


def test_when_a_message_comes_is_told_in_seconds(doors: Doors, client: Client) -> None:
    """`at` is in seconds, as the documents say; all other times are in milliseconds."""
    queue = doors.server._hf.queue("later")
    at = doors.server._hf.context.clock.now() // 1000 + 3600.5
    made = client.ask("POST", "/v1/queues/later/messages", {"payload": 1, "at": at})
    assert made.json()["available_at"] == round(at * 1000)
    with holdfast.connect(doors.grpc) as far:
        assert far.queue("later", create=False).enqueue(1, at=at).available_at == round(at * 1000)
    said = client.ask("GET", "/openapi.json").json()
    schema = json.dumps(said["paths"]["/v1/queues/{queue}/messages"]["post"])
    assert "in seconds since 1970" in schema
    assert "`at` of a message to be stored is in seconds" in said["info"]["description"]
    assert b"<code>at</code> of a message to be stored" in client.ask("GET", "/docs").data
    queue.delete(force=True)


def test_methods(client: Client) -> None:
    for path, allowed in [
        ("/v1/queues", {"GET", "HEAD"}),
        ("/v1/queues/orders", {"GET", "HEAD", "PUT", "DELETE"}),
        (MESSAGES, {"GET", "HEAD", "POST"}),
        (LEASES, {"POST"}),
        ("/events", {"GET", "HEAD"}),
        ("/metrics", {"GET", "HEAD"}),
        ("/openapi.json", {"GET", "HEAD"}),
    ]:
        for method in {
            "GET",
            "HEAD",
            "PUT",
            "POST",
            "DELETE",
            "PATCH",
            "OPTIONS",
            "TRACE",
            "QUERY",
        }:
            if method not in allowed and method != "HEAD":
                answer = client.ask(method, path)
                assert answer.status == 405, (method, path)
                assert set(answer.headers["allow"].split(", ")) == allowed
                assert answer.json()["title"] == "MethodNotAllowed"
    status, _ = client.raw(request("NONSENSE", "/v1/queues"))
    assert status in (400, 405)


def test_head_is_a_get_without_the_answer(client: Client) -> None:
    for path in ("/v1/queues", "/v1/settings", "/health/live", "/docs", "/metrics"):
        head, get = client.ask("HEAD", path), client.ask("GET", path)
        assert (head.status, head.data) == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert client.ask("HEAD", "/v1/queues/none").status == 404


def test_media_types(client: Client) -> None:
    body = b'{"payload": 1, "priority": 10}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                 "application/jsonp", "application/xml", "", "a" * 2000):  # fmt: skip
        client.refused(415, None, "POST", MESSAGES, body, headers={"content-type": kind})
    for kind in ("application/json", "Application/JSON ; charset=utf-8"):
        client.refused(400, "priority", "POST", MESSAGES, body, headers={"content-type": kind})


def test_a_body_that_is_too_large(client: Client) -> None:
    """Said in advance, found out while it comes, and in pieces that say nothing."""
    huge = b'{"payload": "' + b"x" * BODY_MAX + b'"}'
    client.refused(413, None, "POST", MESSAGES, huge)
    declared = request("POST", MESSAGES, b"", "Content-Length: 99999999999", "X: y")
    status, told = client.raw(declared)
    assert (status, json.loads(told)["title"]) == (413, "BodyTooLarge")
    chunked = request("POST", MESSAGES, b"", "Transfer-Encoding: chunked")
    piece = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    status, told = client.raw(chunked + piece * 10)
    assert (status, json.loads(told)["title"]) == (413, "BodyTooLarge")
    fits = b'{"payload": "' + b"x" * (BODY_MAX - 16) + b'"}'
    client.refused(400, "payload", "POST", MESSAGES, fits)


def test_a_body_that_does_not_come(client: Client) -> None:
    body = b'{"payload": 1}'
    begun = request("POST", MESSAGES, body)[:-5]
    status, told = client.raw(begun)
    assert (status, json.loads(told)["title"]) == (408, "RequestTimeout")


def test_a_client_that_goes_away_in_the_middle(client: Client) -> None:
    for _ in range(5):
        with socket.create_connection((client.host, client.port)) as sock:
            sock.sendall(request("POST", MESSAGES, b'{"payload": 1}')[:-5])
    assert client.ask("GET", "/v1/queues").status == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/queues HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /v1/\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\na\x00b: c\r\n\r\n",
        b"POST /v1/sweep HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/sweep HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/sweep HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        + b"9" * 5000
        + b"\r\n\r\n",
    ],
)
def test_what_is_no_http(client: Client, request_: bytes) -> None:
    status, _ = client.raw(request_)
    assert 400 <= status < 500


# Without keys: pages of other sites that a browser shows, and names that lead here


@pytest.mark.promise("SERVER-4")
@pytest.mark.parametrize(
    "headers",
    [
        ["Host: evil.example"],
        ["Host: evil.example:8080"],
        ["Host: localhost.evil.example"],
        ["Host: 127.0.0.1.evil.example"],
        ["Host: localhost@evil.example"],
        ["Host: [::2]"],
        ["Host: ["],
        ["Origin: https://evil.example"],
        ["Origin: null"],
        ["Origin: http://localhost.evil.example"],
        ["Origin: nonsense"],
        ["Origin: "],
        ["Host: localhost:8080", "Origin: http://localhost:5173", "Sec-Fetch-Site: same-site"],
        ["Host: localhost:8080", "Origin: http://localhost"],
        ["Host: localhost:8080", "Origin: http://127.0.0.1:8080"],
        ["Host: localhost:8080", "Origin: https://localhost:8080"],
        ["Host: localhost:8080", "Origin: http://localhost:99999"],
        ["Sec-Fetch-Site: cross-site"],
    ],
)
def test_strangers(client: Client, headers: list[str]) -> None:
    for path in ("/v1/queues", "/events", "/metrics", "/none"):
        status, told = client.raw(request("GET", path, b"", *headers))
        assert (status, json.loads(told)["title"]) == (403, "PermissionDenied")
    status, told = client.raw(request("POST", MESSAGES, b'{"payload": 1}', *headers))
    assert (status, json.loads(told)["title"]) == (403, "PermissionDenied")


@pytest.mark.parametrize(
    "headers",
    [
        ["Host: localhost"],
        ["Host: LOCALHOST:1234"],
        ["Host: 127.0.0.1:8080"],
        ["Host: [::1]:8080"],
        ["Host: localhost:8080", "Origin: http://localhost:8080"],
        ["Host: LOCALHOST", "Origin: http://localhost:80", "Sec-Fetch-Site: same-origin"],
        ["Sec-Fetch-Site: none"],
    ],
)
def test_who_is_at_home(client: Client, headers: list[str]) -> None:
    status, _ = client.raw(request("GET", "/v1/queues", b"", *headers))
    assert status == 200
