"""Keys over TLS, with the real program: who may do what, at every door, computed from the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import msgspec
import pytest
import urllib3
from msgspec import Raw

import holdfast
from holdfast import Holdfast, Outgoing, PermissionDenied, StoreUnavailable, Unauthenticated
from holdfast.client.http import _request
from holdfast.client.queues import RemoteQueue, RemoteTopic
from holdfast.server import auth
from holdfast.testing import wait_until
from holdfast.wire.operations import OPERATIONS, STREAMS, Operation
from holdfast.wire.problems import TRAILER
from holdfast.wire.proto import service_name, to_proto
from holdfast.wire.shapes import LeaseStreamAsk
from tests.server.rig import Program, certificates

pytestmark = pytest.mark.promise("SERVER-4")

ID = "01890000-0000-7000-8000-000000000000"
MAY = {
    "read": {"read"},
    "produce": {"produce"},
    "consume": {"consume", "read"},
    "admin": {"read", "produce", "consume", "admin"},
}
LISTS = {
    *("ListQueues", "ListStats", "ListTopics", "ListRedrives", "GetRedrive", "CancelRedrive"),
    "ListPipelines",
}
"""They show what a key may read, and nothing else; so whoever has the right anywhere may ask."""
HTTP = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}


@dataclass
class World:
    hf: Holdfast
    program: Program
    ca: Path
    made: dict[tuple[str, str], str] = field(default_factory=dict)

    def key(self, role: str, queues: str) -> str:
        """One for each kind, made when it is first needed."""
        if (role, queues) not in self.made:
            made = auth.create(self.hf.context, roles=[role], queues=[queues])
            self.made[role, queues] = made[1]
        return self.made[role, queues]

    def connect(self, door: str, key: str) -> Holdfast:
        url = self.program.http if door == "http" else self.program.grpc
        return holdfast.connect(url, key=key, ca=str(self.ca))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tls")
    chain, key, ca = certificates(folder)
    url = f"sqlite:///{folder}/test.db"
    options = ["--auth", "on", "--tls-cert", str(chain), "--tls-key", str(key)]
    with holdfast.connect(url) as hf:
        for name in ("orders.eu", "mail"):
            hf.queue(name)
        with Program(url, *options) as program:
            yield World(hf, program, ca)
            assert program.stop() == 0


class HttpDoor:
    def __init__(self, world: World) -> None:
        self._url = world.program.http
        self._pool = urllib3.PoolManager(retries=False, ca_certs=str(world.ca))

    def __call__(self, operation: Operation, ask: Any, key: str | None) -> tuple[str, str]:
        """ "ok", or the code of the problem; and all that came back."""
        if operation in STREAMS:
            return self.get("/events", key) if operation.name == "Watch" else ("skipped", "")
        path, body = _request(operation, ask)
        headers = {"content-type": "application/json"} | _bearer(key)
        answer = self._pool.request(operation.method, self._url + path, body=body, headers=headers)
        return self._code(answer), f"{answer.data!r} {answer.headers}"

    def get(self, path: str, key: str | None) -> tuple[str, str]:
        answer = self._pool.request(
            "GET", self._url + path, headers=_bearer(key), preload_content=False
        )
        code = self._code(answer) if answer.status >= 400 else "ok"
        told = f"{answer.data!r} {answer.headers}" if answer.status >= 400 else ""
        answer.close()
        return code, told

    def _code(self, answer: urllib3.BaseHTTPResponse) -> str:
        if answer.status < 400:
            return "ok"
        problem = json.loads(answer.data)
        code = problem["code"]
        assert answer.status == HTTP.get(code, answer.status) == problem["status"]
        assert (answer.headers.get("www-authenticate") == "Bearer") == (answer.status == 401)
        return code

    def close(self) -> None:
        self._pool.clear()


class GrpcDoor:
    def __init__(self, world: World) -> None:
        trusted = grpc.ssl_channel_credentials(world.ca.read_bytes())
        target = world.program.grpc.removeprefix("grpcs://")
        self._channel = grpc.secure_channel(target, trusted)

    def __call__(self, operation: Operation, ask: Any, key: str | None) -> tuple[str, str]:
        streams = operation in STREAMS
        open_ = self._channel.unary_stream if streams else self._channel.unary_unary
        call = open_(f"/{service_name(operation)}/{operation.name}")
        metadata = tuple(_bearer(key).items())
        try:
            answer = call(
                to_proto(ask).SerializeToString(),
                timeout=0.3 if streams else 20,
                metadata=metadata,
            )
            if streams:
                next(answer, None)
                answer.cancel()
        except grpc.RpcError as error:
            name = error.code().name  # type: ignore[attr-defined]
            if streams and name == "DEADLINE_EXCEEDED":  # nothing to say, and not refused
                return "ok", ""
            trailers = dict(error.trailing_metadata() or ())  # type: ignore[attr-defined]
            assert json.loads(trailers[TRAILER])["code"] == name
            return name, f"{error.details()} {trailers}"  # type: ignore[attr-defined]
        return "ok", ""

    def close(self) -> None:
        self._channel.close()


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": key if " " in key else f"Bearer {key}"}


@pytest.fixture(scope="module", params=["http", "grpc"])
def door(request: pytest.FixtureRequest, world: World) -> Iterator[HttpDoor | GrpcDoor]:
    door = HttpDoor(world) if request.param == "http" else GrpcDoor(world)
    yield door
    door.close()


def ask_for(operation: Operation, name: str) -> Any:
    """The least that can be asked, of this queue or topic."""
    values: dict[str, Any] = {
        "queue": name,
        "topic": name,
        "dlq_queue": f"{name}.dlq",
        "group": "group",
        "id": ID,
        "token": "token",
        "messages": [],
        "items": [],
        "payload": Raw(b"1"),
    }
    taken = {f.name for f in msgspec.structs.fields(operation.ask)}
    ids = {"id"} if operation.name in ("Enqueue", "Publish") else set()
    ids |= {"payload"} if operation.name in ("Redrive", "StartRedrive") else set()
    return operation.ask(**{n: v for n, v in values.items() if n in taken and n not in ids})


def expected(operation: Operation, role: str, queues: str, name: str) -> str:
    """As the table and the promise say, not as the code does it."""
    if operation.name == "GetIdentity":
        return "let in"
    if operation.right not in MAY[role]:
        return "PERMISSION_DENIED"
    if operation.name in LISTS or operation.name == "Watch":
        return "let in"
    inside = queues == "*" or (name.startswith("orders") and bool(operation.guards))
    return "let in" if inside else "PERMISSION_DENIED"


@pytest.mark.parametrize("queues", ["orders.*", "*"])
@pytest.mark.parametrize("role", list(MAY))
def test_every_operation(world: World, door: HttpDoor | GrpcDoor, role: str, queues: str) -> None:
    key = world.key(role, queues)
    wrong: list[tuple[str, str, str, str]] = []
    for operation in [*OPERATIONS, *STREAMS]:
        for name in ("orders.eu", "mail"):
            got, told = door(operation, ask_for(operation, name), key)
            assert key not in told and key.split("_", 2)[2] not in told
            want = expected(operation, role, queues, name)
            allowed = got not in HTTP
            if got != "skipped" and (got != want if want in HTTP else not allowed):
                wrong.append((operation.name, name, want, got))
    assert wrong == []
    for name in ("orders.eu", "mail"):  # deleted on the way
        world.hf.queue(name)


def test_no_key_or_one_that_does_not_count(world: World, door: HttpDoor | GrpcDoor) -> None:
    good = world.key("admin", "*")
    at = world.hf.context
    expired = auth.create(at, roles=["admin"], queues=["*"], expires_in=0.001)[1]
    revoked_key, revoked = auth.create(at, roles=["admin"], queues=["*"])
    auth.revoke(at, revoked_key.id)
    wait_until(lambda: auth.get(at, expired).state(at.clock.now()) == "expired")
    bad = {
        "missing": None,
        "empty": "Bearer ",
        "another scheme": f"Basic {good}",
        "no scheme": f" {good}",
        "malformed": "nonsense",
        "cut": good[:-1],
        "longer": good + "A",
        "wrong secret": good[:-20] + "A" * 20,
        "unknown": f"hf_{'a' * 12}_{'A' * 43}",
        "huge": "A" * 3000,
        "expired": expired,
        "revoked": revoked,
    }
    for operation in [*OPERATIONS, *STREAMS]:
        ask = ask_for(operation, "orders.eu")
        tried = (
            bad
            if operation.name in ("Enqueue", "ListQueues", "Watch", "Lease")
            else {name: bad[name] for name in ("missing", "wrong secret", "expired", "revoked")}
        )
        for what, key in tried.items():
            got, told = door(operation, ask, key)
            assert got in ("UNAUTHENTICATED", "skipped"), (operation.name, what)
            for secret in (good, expired, revoked, good.split("_", 2)[2], good[:-1]):
                assert secret not in told, what


def test_health_counts_for_those_who_may_read(world: World) -> None:
    pool = urllib3.PoolManager(retries=False, ca_certs=str(world.ca))

    def told(key: str | None) -> Any:
        answer = pool.request("GET", world.program.http + "/health/ready", headers=_bearer(key))
        assert answer.status == 200
        return answer.json()

    stats = world.hf.stats()
    for key in (None, "nonsense", world.key("read", "orders.*"), world.key("produce", "*")):
        assert told(key) == {"ready": True, "why": ""}
    counts = told(world.key("read", "*"))["counts"]
    assert counts["queues"] == len(stats)
    assert counts["ready"] == sum(of.ready for of in stats)
    assert counts["dead"] == sum(of.dead for of in stats)
    pool.clear()


@pytest.mark.parametrize("door_name", ["http", "grpc"])
def test_two_authorizations_are_refused(world: World, door_name: str) -> None:
    """Whichever of them counted, somebody between client and server might think otherwise."""
    path, good = "/v1/queues", f"Bearer {world.key('read', '*')}"
    for other in (good, "Bearer nonsense", ""):
        if door_name == "http":
            at = urllib3.util.parse_url(world.program.http)
            headers = urllib3.HTTPHeaderDict([("authorization", good), ("authorization", other)])
            with urllib3.HTTPSConnectionPool(at.host, at.port, ca_certs=str(world.ca)) as pool:
                answer = pool.request("GET", path, headers=headers)
            assert (answer.status, answer.json()["field"]) == (400, "authorization")
        else:
            door = GrpcDoor(world)
            call = door._channel.unary_unary("/holdfast.v1.AdminService/ListQueues")
            with pytest.raises(grpc.RpcError) as told:
                call(b"", metadata=(("authorization", good), ("authorization", other)), timeout=20)
            assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            door.close()


@pytest.mark.parametrize("door_name", ["http", "grpc"])
def test_a_producer_reads_nothing_by_repeating_an_id(world: World, door_name: str) -> None:
    """The answer to a duplicate has the message that is held, and is for those who may read it."""
    secret = Outgoing("secret", id=str(uuid4()), key="secret-key", headers={"a": "secret"})
    queue, topic = world.hf.queue("orders.eu"), world.hf.topic("orders.tell")
    topic.bind("group")
    [held] = queue.enqueue_many([secret])
    topic.publish_many([secret])
    guess = Outgoing(None, id=secret.id)
    with world.connect(door_name, world.key("produce", "*")) as producer:
        transport = producer._transport  # to look a queue up needs the right to read
        orders = RemoteQueue(transport, "orders.eu", "producer")
        made = [orders.enqueue(None, id=secret.id), *orders.enqueue_many([guess])]
        [published] = RemoteTopic(transport, "orders.tell", "producer").publish_many([guess])
    assert "secret" not in repr(published)
    for told in made:
        assert (told.id, told.duplicate) == (secret.id, True)
        assert "secret" not in repr(told)
        assert told.enqueued_at != held.enqueued_at
    with world.connect(door_name, world.key("admin", "*")) as admin:
        told = admin.queue("orders.eu", create=False).enqueue(None, id=secret.id)
        assert (told.payload, told.key, told.duplicate) == ("secret", "secret-key", True)
    world.hf.topic("orders.tell").delete(force=True)


@pytest.mark.parametrize("door_name", ["http", "grpc"])
def test_a_group_is_of_those_whose_pattern_covers_it(world: World, door_name: str) -> None:
    topic = world.hf.topic("shop")
    topic.bind("billing", max_attempts=7)
    with world.connect(door_name, world.key("admin", "shop")) as of_topic:
        shop = of_topic.topic("shop", create=False)
        for change in (
            lambda: shop.bind("billing", max_attempts=1),
            lambda: shop.bind("new"),
            lambda: shop.unbind("billing", force=True),
            lambda: shop.delete(force=True),
        ):
            with pytest.raises(PermissionDenied, match="lacks the right 'admin' on 'shop@"):
                change()
    assert topic.groups() == ["billing"]
    assert world.hf.queue("shop@billing", create=False).policy.max_attempts == 7
    with world.connect(door_name, world.key("admin", "shop*")) as of_both:
        of_both.topic("shop", create=False).bind("new")
        of_both.topic("shop", create=False).unbind("billing", force=True)
        of_both.topic("shop", create=False).delete(force=True)


def test_what_is_beside_the_table(world: World) -> None:
    door = HttpDoor(world)
    for path in ("/health/live", "/health/ready", "/docs", "/openapi.json"):
        assert door.get(path, None)[0] == "ok"
    for path in ("/metrics", "/events"):
        assert door.get(path, None)[0] == "UNAUTHENTICATED"
        assert door.get(path, world.key("produce", "*"))[0] == "PERMISSION_DENIED"
        assert door.get(path, world.key("read", "*"))[0] == "ok"
    assert door.get("/metrics", world.key("read", "orders.*"))[0] == "PERMISSION_DENIED"
    assert door.get("/events", world.key("read", "orders.*"))[0] == "ok"
    assert door.get("/v1/nothing", None)[0] == "NOT_FOUND"
    door.close()


def test_a_strange_host_is_no_matter_with_a_key(world: World) -> None:
    pool = urllib3.PoolManager(retries=False, ca_certs=str(world.ca))
    key = _bearer(world.key("read", "*"))
    for host in ("queue.example", "[", "a b", ""):
        for path, status in (("/v1/queues", 200), ("/nothing", 404)):
            answer = pool.request("GET", world.program.http + path, headers={**key, "host": host})
            assert answer.status == status
    pool.clear()


@pytest.mark.parametrize("door_name", ["http", "grpc"])
def test_lists_show_what_a_key_may_read(world: World, door_name: str) -> None:
    world.hf.topic("orders.news")
    world.hf.topic("mail.news")
    for name in ("orders.eu", "mail"):
        queue = world.hf.queue(name)
        queue.enqueue(1)
        queue.fail(queue.lease()[0])
    with world.connect(door_name, world.key("admin", "*")) as admin:
        jobs = [admin.start_redrive(f"{name}.dlq") for name in ("orders.eu", "mail")]
        assert {"orders.eu", "mail"} <= {queue.name for queue in admin.queues()}
        assert {job.id for job in jobs} <= {job.id for job in admin.list_redrives()}
    with world.connect(door_name, world.key("admin", "orders.*")) as some:
        assert {queue.name for queue in some.queues()} == {"orders.eu", "orders.eu.dlq"}
        assert {stats.queue for stats in some.stats()} == {"orders.eu"}
        assert {topic.name for topic in some.topics()} == {"orders.news"}
        assert {job.dlq for job in some.list_redrives()} == {"orders.eu.dlq"}
        assert some.get_redrive(jobs[0].id).dlq == "orders.eu.dlq"
        for touch in (some.get_redrive, some.cancel_redrive):
            with pytest.raises(PermissionDenied, match=r"lacks the right '\w+' on 'mail.dlq'"):
                touch(jobs[1].id)
        with pytest.raises(PermissionDenied, match="lacks the right 'admin' on 'mail'"):
            some.redrive("orders.eu.dlq", to="mail")
    with world.connect(door_name, world.key("produce", "*")) as producer:
        for look in (producer.queues, producer.stats, producer.topics, producer.list_redrives):
            with pytest.raises(PermissionDenied, match="lacks the right 'read'"):
                look()


@pytest.mark.parametrize("door_name", ["http", "grpc"])
def test_events_are_of_what_a_key_may_read(world: World, door_name: str) -> None:
    for name in ("orders.eu", "mail"):
        queue = world.hf.queue(name)
        queue.enqueue(1)
        queue.fail(queue.lease()[0])
    world.hf.redrive("orders.eu.dlq")
    start = max(event.seq for event in world.hf.subscribe(0).next(5))
    for dlq in ("mail.dlq", "orders.eu.dlq"):
        queue = world.hf.queue(dlq.removesuffix(".dlq"))
        queue.fail(queue.lease()[0])
        world.hf.redrive(dlq)
    with (
        world.connect(door_name, world.key("read", "orders.*")) as some,
        world.connect(door_name, world.key("read", "*")) as every,
    ):
        assert seen(some, start, 1) == ["orders.eu.dlq"]
        assert seen(every, start, 2) == ["mail.dlq", "orders.eu.dlq"]
    with (
        world.connect(door_name, world.key("produce", "*")) as producer,
        pytest.raises(PermissionDenied),
    ):
        seen(producer, start, 1)


def seen(hf: Holdfast, after: int, count: int) -> list[str]:
    news, found = hf.subscribe(after), list[str]()
    while len(found) < count:
        found += [event.payload["dlq"] for event in news.next(1) if event.type == "redrive"]
    news.close()
    return found


@pytest.mark.parametrize("door_name", ["http", "grpc"])
def test_a_revoked_key_ends(world: World, door_name: str) -> None:
    """For calls within about a second; and for those who wait, watch or hold a stream open."""
    at = world.hf.context
    key, token = auth.create(at, roles=["admin"], queues=["*"])
    with world.connect(door_name, token) as caller, world.connect(door_name, token) as waiter:
        waits = world.hf.queue(f"waits.{door_name}")
        far = waiter.queue(waits.name)
        assert far.stats().ready == 0
        news = caller.subscribe()
        news.next(0.1)
        polling = Thread(lambda: far.lease(wait=60))
        auth.revoke(at, key.id)
        wait_until(lambda: _is_refused(caller), 20)
        waits.enqueue("not for him")
        assert isinstance(polling.result(), Unauthenticated)
        assert waits.stats().ready == 1
        wait_until(lambda: _ends(news), 20)


def test_a_stream_of_leases_ends_with_its_key(world: World) -> None:
    at, queue = world.hf.context, world.hf.queue("stream")
    key, token = auth.create(at, roles=["consume"], queues=["stream"])
    with world.connect("grpc", token) as remote:
        stream = remote._transport.leases(LeaseStreamAsk("stream"))
        queue.enqueue(1)
        assert next(stream).message.queue == "stream"
        auth.revoke(at, key.id)
        wait_until(lambda: _is_refused(remote), 20)
        queue.enqueue("not for him")
        with pytest.raises(Unauthenticated, match="is revoked"):
            next(stream)
    assert queue.stats().ready == 1


def test_tls_is_tls(world: World, tmp_path: Path) -> None:
    """Not without it, and not with a certificate that somebody else has signed."""
    _, _, stranger = certificates(tmp_path)
    key = world.key("admin", "*")
    for secure, plain in ((world.program.http, "http"), (world.program.grpc, "grpc")):
        with holdfast.connect(secure, key=key, ca=str(world.ca)) as hf:
            assert hf.queues()
        with (
            holdfast.connect(secure, key=key, ca=str(stranger)) as hf,
            pytest.raises(StoreUnavailable) as error,
        ):
            hf.queues()
        assert key not in str(error.value)
        bare = secure.replace(f"{plain}s", plain)
        with holdfast.connect(bare, key=key) as hf, pytest.raises(StoreUnavailable) as error:
            hf.queues()
        assert key not in str(error.value)


class Thread:
    """What a function gives, or raises, in a thread of its own."""

    def __init__(self, does: Any) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(does)

    def result(self) -> Any:
        error = self._future.exception(30)
        self._pool.shutdown()
        return error or self._future.result()


def _is_refused(hf: Holdfast) -> bool:
    try:
        hf.queues()
    except Unauthenticated as error:
        return "is revoked" in str(error)
    return False


def _ends(news: Any) -> bool:
    """A stream that has ended gives nothing, at once, for ever."""
    return next(news._events, "ended") == "ended"
