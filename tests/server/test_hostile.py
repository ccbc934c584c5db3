"""Clients that send too much, too slowly or nothing: each is cut off, and others are served."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import msgspec
import pytest
import urllib3

import holdfast
from holdfast.server import connections
from holdfast.server import http as http_door
from holdfast.server.limits import Limits
from holdfast.server.run import Tls
from holdfast.stores.contract import Store
from holdfast.testing import wait_until
from holdfast.wire.operations import WATCH
from holdfast.wire.proto import message_class, service_name
from holdfast.wire.shapes import BrowseAsk
from tests.server.rig import Doors, certificates, serving

pytestmark = pytest.mark.promise("SERVER-5")

HEADER_BYTES = 8 * 1024
LIMITS = Limits(
    header_bytes=HEADER_BYTES,
    headers=20,
    body_bytes=100_000,
    connections=8,
    client_connections=5,
    rpc_connections=4,
    rpc_client_calls=3,
)
"""The times are the usual ones: a busy machine needs some for a handshake. Tests move the clock."""
HASTY = msgspec.structs.replace(LIMITS, head_seconds=0.5, read_seconds=0.2)
DAY = 86400.0
HEAD = b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/queues/orders/messages HTTP/1.1\r\nHost: localhost\r\n"
POLL = b"POST /v1/queues/orders/leases HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module", params=["plain", "tls"])
def doors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with _doors(request.param, LIMITS, tmp_path_factory.mktemp("hostile")) as doors:
        yield doors


@pytest.fixture(params=["plain", "tls"])
def hasty(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """With times so short that a test can wait for them, and a handshake may fail."""
    with _doors(request.param, HASTY, tmp_path) as doors:
        yield doors


@contextmanager
def _doors(kind: str, limits: Limits, folder: Path) -> Iterator[Doors]:
    tls = None
    if kind == "tls":
        chain, key, _ = certificates(folder)
        tls = Tls(chain, key)
    with (
        holdfast.connect(f"sqlite:///{folder}/hostile.db") as hf,
        serving(hf, limits=limits, tls=tls) as doors,
    ):
        hf.queue("orders")
        yield doors


@pytest.fixture
def opened(doors: Doors) -> Iterator[Callable[[], socket.socket]]:
    """Makes connections, and ends all of them after the test."""
    with opening(doors) as connect:
        yield connect
    _wait_for_none(doors)


@contextmanager
def opening(doors: Doors) -> Iterator[Callable[..., socket.socket]]:
    made: list[socket.socket] = []

    def connect(source: str = "") -> socket.socket:
        sock = plain(doors, source)
        if doors.server.is_secure:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(sock)
        made.append(sock)
        return sock

    try:
        yield connect
    finally:
        for sock in made:
            sock.close()


def plain(doors: Doors, source: str = "") -> socket.socket:
    at = urlsplit(doors.http)
    sock = socket.socket()
    sock.bind((source, 0))
    sock.settimeout(20)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # it does not take much unread
    sock.connect((at.hostname, at.port))
    return sock


def _wait_for_none(doors: Doors) -> None:
    wait_until(lambda: len(doors.server._connections) == 0)


def later(doors: Doors, seconds: float) -> None:
    """What the server does about connections that are still like this after so many seconds."""

    def look() -> None:
        for one in list(doors.server._connections._open):
            one.check(doors.loop.time() + seconds)

    doors.loop.call_soon_threadsafe(look)


def wait_for_head(doors: Doors) -> None:
    """Until the server has seen the begin of a request."""
    wait_until(lambda: any(one._phase == connections.HEAD for one in guarded(doors)))


def _open(doors: Doors) -> list[Any]:
    return list(doors.server._connections._open)


def guarded(doors: Doors) -> list[connections.Guarded]:
    """Those that have had their handshakes."""
    return [one for one in _open(doors) if isinstance(one, connections.Guarded)]


def answer(sock: socket.socket) -> tuple[int, Any]:
    with http.client.HTTPResponse(sock) as got:
        got.begin()
        return got.status, json.loads(got.read() or b"null")


def rest(sock: socket.socket) -> bytes:
    """All that still comes, until the server closes the connection."""
    got = b""
    with suppress(ConnectionResetError, BrokenPipeError, ssl.SSLError):
        while piece := sock.recv(65536):
            got += piece
    return got


def pour(sock: socket.socket, piece: bytes, most: int) -> int:
    """Send until the server does not take any more; how much it took."""
    sent = 0
    with suppress(ConnectionError, ssl.SSLError, TimeoutError):
        while sent < most:
            sock.sendall(piece)
            sent += len(piece)
    return sent


ENDLESS = [
    HEAD + b"X: " + b"x" * HEADER_BYTES,
    HEAD + b"x" * HEADER_BYTES,
    b"GET /" + b"x" * HEADER_BYTES,
    b"G" * HEADER_BYTES,
    HEAD + b"a: b\r\n" * 21 + b"\r\n",
    HEAD + b": b\r\n" * 21,
]


@pytest.mark.parametrize("request_", ENDLESS)
def test_a_head_that_is_too_large(
    doors: Doors, opened: Callable[[], socket.socket], request_: bytes
) -> None:
    sock = opened()
    sock.sendall(request_)
    status, problem = answer(sock)
    assert status in (400, 431)
    if b"x" * 100 in request_ or b"a: b" in request_:
        assert (status, problem["title"]) == (431, "HeadersTooLarge")
    assert rest(sock) == b""


def test_a_head_that_never_ends(opened: Callable[[], socket.socket]) -> None:
    sock = opened()
    sock.sendall(HEAD + b"X: ")
    assert pour(sock, b"x" * 65536, 2**26) < 2**25


def test_a_second_request_has_the_same_limits(
    doors: Doors, opened: Callable[[], socket.socket]
) -> None:
    sock = opened()
    sock.sendall(HEAD + b"\r\n")
    assert answer(sock)[0] == 200
    sock.sendall(HEAD + b"X: " + b"x" * HEADER_BYTES)
    assert answer(sock)[0] == 431
    two = opened()
    two.sendall(HEAD + b"\r\n" + HEAD + b"X: " + b"x" * HEADER_BYTES)
    assert answer(two)[0] == 200
    later(doors, LIMITS.head_seconds)  # what came with the first head is not counted
    assert rest(two)[:12] in (b"", b"HTTP/1.1 431", b"HTTP/1.1 408")


def test_a_head_of_the_greatest_size_is_read(opened: Callable[[], socket.socket]) -> None:
    sock = opened()
    most = HEAD + b"X: " + b"x" * (HEADER_BYTES - len(HEAD) - 7) + b"\r\n\r\n"
    assert len(most) == HEADER_BYTES
    sock.sendall(most)
    assert answer(sock)[0] == 200


@pytest.mark.parametrize("begun", [b"G", b"\r\n", HEAD, HEAD + b"X:"])
def test_a_head_that_does_not_come(
    doors: Doors, opened: Callable[[], socket.socket], begun: bytes
) -> None:
    sock = opened()
    sock.sendall(begun)
    wait_for_head(doors)
    later(doors, LIMITS.head_seconds)
    status, problem = answer(sock)
    assert (status, problem["title"]) == (408, "RequestTimeout")
    assert rest(sock) == b""


def test_a_head_that_drips(doors: Doors, opened: Callable[[], socket.socket]) -> None:
    """Each byte comes soon after the last, which is no reason to wait for ever."""
    sock = opened()
    sock.sendall(HEAD + b"X: ")
    wait_for_head(doors)
    (one,) = guarded(doors)
    for n in range(3):
        received = one._received
        sock.sendall(b"x")
        wait_until(lambda received=received: one._received > received)
        later(doors, LIMITS.head_seconds if n == 2 else 0.0)
    status, problem = answer(sock)
    assert (status, problem["title"]) == (408, "RequestTimeout")


def test_a_connection_that_says_nothing(doors: Doors, opened: Callable[[], socket.socket]) -> None:
    sock = opened()
    wait_until(lambda: bool(guarded(doors)))
    later(doors, LIMITS.head_seconds)
    assert rest(sock) == b""


def test_one_that_does_not_answer_the_end_of_tls(
    doors: Doors, opened: Callable[[], socket.socket]
) -> None:
    sock = opened()
    wait_until(lambda: bool(guarded(doors)))
    for _ in range(3):
        later(doors, LIMITS.head_seconds)
    if doors.server.is_secure:
        assert len(_open(doors)) == 1
    later(doors, DAY)
    _wait_for_none(doors)
    assert rest(sock) == b""


def test_nobody_has_to_look_for_one_that_says_nothing(hasty: Doors) -> None:
    """With TLS: for a handshake that never begins, or never ends."""
    with plain(hasty) as sock, plain(hasty) as other:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        assert rest(sock) == b"" or not hasty.server.is_secure  # this is no HTTP
        assert rest(other) == b""
    _wait_for_none(hasty)


def test_a_body_that_nobody_waits_for(doors: Doors, opened: Callable[[], socket.socket]) -> None:
    """The answer was given before the body, which then goes on and on."""
    head = b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    sock = opened()
    sock.sendall(head)
    assert answer(sock)[0] == 404
    assert pour(sock, b"x" * 65536, 2**27) < 2**26
    slow = opened()
    slow.sendall(head + b"x")
    assert answer(slow)[0] == 404
    later(doors, LIMITS.read_seconds + connections.BODY_MARGIN_S)
    assert b"408" in rest(slow)[:12]


@pytest.mark.parametrize("kind", ["trailer", "extension"])
def test_what_a_chunked_body_may_have_beside_it(
    opened: Callable[[], socket.socket], kind: str
) -> None:
    sock = opened()
    sock.sendall(
        POST
        + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"d\r\n"
        + b'{"payload": 1\r\n'
        + (b"0\r\nX: " if kind == "trailer" else b"1;")
    )
    assert pour(sock, b"x" * 4096, 2**27) < 2**25


def test_a_client_that_does_not_read(doors: Doors, opened: Callable[[], socket.socket]) -> None:
    hf = holdfast.connect(doors.server._hf.context.store)
    large = hf.queue("large")
    large.enqueue_many(["x" * 1_000_000] * 12)
    sock = opened()
    sock.sendall(b"GET /v1/queues/large/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_until(lambda: any(one.flow.write_paused for one in guarded(doors)))
    later(doors, LIMITS.write_seconds)
    assert len(_open(doors)) == 1  # so large an answer has more time
    later(doors, DAY)
    _wait_for_none(doors)
    large.delete(force=True)


def test_an_upgrade_stays_within_the_limits(opened: Callable[[], socket.socket]) -> None:
    sock = opened()
    sock.sendall(
        HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert answer(sock)[0] == 200


def test_idle_connections_make_room(doors: Doors, opened: Callable[[], socket.socket]) -> None:
    """The one that has been quiet longest goes first."""
    socks: list[socket.socket] = []
    for _ in range(LIMITS.client_connections):
        socks.append(sock := opened())
        sock.sendall(HEAD + b"\r\n")
        assert answer(sock)[0] == 200
    socks[0].sendall(HEAD + b"\r\n")
    assert answer(socks[0])[0] == 200
    new = opened()
    new.sendall(HEAD + b"\r\n")
    assert answer(new)[0] == 200
    assert rest(socks[1]) == b""
    for sock in (socks[0], *socks[2:]):
        sock.sendall(HEAD + b"\r\n")
        assert answer(sock)[0] == 200


def test_a_connection_too_many(doors: Doors, opened: Callable[[], socket.socket]) -> None:
    body = b'{"wait": 30}'
    poll = POLL + b"Content-Type: application/json\r\nContent-Length: 12\r\n\r\n" + body
    socks: list[socket.socket] = []
    for _ in range(LIMITS.client_connections):
        socks.append(sock := opened())
        sock.sendall(poll)
    wait_until(lambda: doors.server.waiting == len(socks))
    if doors.server.is_secure:
        with pytest.raises(OSError):
            opened().recv(1)
    else:
        status, problem = answer(opened())
        assert (status, problem["title"]) == (503, "TooManyConnections")
    socks[0].close()
    wait_until(lambda: doors.server.waiting == len(socks) - 1)
    again = opened()
    again.sendall(HEAD + b"\r\n")
    assert answer(again)[0] == 200


def test_many_clients_have_a_limit_together(doors: Doors) -> None:
    """Each client has an address of its own, so the limit for one client does not apply."""
    with opening(doors) as connect, ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda n: _quietly(connect, f"127.0.1.{n}"), range(1, 21)))
        last = connect("127.0.2.1")  # accepted after all of these
        last.sendall(HEAD + b"\r\n")
        assert answer(last)[0] == 200
        assert len(doors.server._connections) <= LIMITS.connections
    _wait_for_none(doors)


def _quietly(connect: Callable[[str], socket.socket], source: str) -> None:
    with suppress(OSError):
        connect(source)


def test_others_are_served_meanwhile(doors: Doors, opened: Callable[[], socket.socket]) -> None:
    for n in range(3 * LIMITS.client_connections):
        with suppress(OSError):  # it may be dropped for the next one
            opened().sendall(ENDLESS[n % 3][: HEADER_BYTES // 2])
        pool = urllib3.PoolManager(cert_reqs="CERT_NONE", assert_hostname=False)
        with suppress(Warning):
            assert pool.request("GET", doors.http + "/health/live").status == 200
        pool.clear()


# gRPC


def channel(doors: Doors, n: int = 0) -> grpc.Channel:
    at = urlsplit(doors.grpc)
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(f"{at.hostname}:{at.port}", options)


def health(opened: grpc.Channel, metadata: Any = (), timeout: float = 10) -> Any:
    call = opened.unary_unary("/grpc.health.v1.Health/Check")
    return call(b"", metadata=metadata, timeout=timeout)


PLAIN = pytest.mark.parametrize("doors", ["plain"], indirect=True)
"""Certificates are tested over HTTP."""
HASTY_PLAIN = pytest.mark.parametrize("hasty", ["plain"], indirect=True)


@PLAIN
def test_metadata_that_is_too_large(doors: Doors) -> None:
    with channel(doors) as opened:
        with pytest.raises(grpc.RpcError) as told:
            health(opened, (("x", "y" * HEADER_BYTES),))
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        health(opened, (("x", "y" * 100),))


@HASTY_PLAIN
def test_a_grpc_connection_that_says_nothing(hasty: Doors) -> None:
    at = urlsplit(hasty.grpc)
    with socket.create_connection((at.hostname, at.port), timeout=20) as sock:
        assert rest(sock) is not None  # the server's own first frame, then the end


@PLAIN
def test_grpc_connections_have_a_limit(doors: Doors) -> None:
    opened = [channel(doors) for _ in range(LIMITS.rpc_connections)]
    for one in opened:
        health(one)
    with channel(doors) as one_more, pytest.raises(grpc.RpcError) as told:
        health(one_more, timeout=1)
    assert told.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    for one in opened:
        health(one)
        one.close()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def call_by_hand(doors: Doors, method: str, message: bytes | None, window: int) -> socket.socket:
    """A call over HTTP/2 of which the message never comes (None), or whose answer has no room."""
    at = urlsplit(doors.grpc)
    sock = socket.create_connection((at.hostname, at.port), timeout=20)
    head = {
        ":method": "POST", ":scheme": "http", ":path": f"/holdfast.v1.{method}",
        ":authority": "localhost", "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    fields = b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in head.items()
    )
    settings = (4).to_bytes(2) + window.to_bytes(4)
    sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings))
    sock.sendall(frame(1, 4, 1, fields))
    if message is not None:
        sock.sendall(frame(0, 1, 1, b"\0" + len(message).to_bytes(4) + message))
    return sock


def ended(sock: socket.socket) -> bool:
    """Whether the server ends stream 1, by its trailers or by a reset."""
    with sock, sock.makefile("rb") as file:
        while head := file.read(9):
            file.read(int.from_bytes(head[:3]))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9])
            if stream == 1 and (kind == 3 or flags & 1):
                return True
    return False


@HASTY_PLAIN
@pytest.mark.parametrize("method", ["MessageService/Enqueue", "MessageService/LeaseStream"])
def test_a_grpc_message_that_never_comes(hasty: Doors, method: str) -> None:
    assert ended(call_by_hand(hasty, method, None, 65535))
    with channel(hasty) as opened:
        health(opened)


def test_grpc_answers_that_nobody_reads_are_bounded(
    store_factory: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_door, "ROOM_S", 0.1)
    limits = Limits(unread_bytes=30_000)
    with holdfast.connect(store_factory()) as hf, serving(hf, limits=limits) as doors:
        hf.queue("orders").enqueue("x" * 20_000)
        ask: Any = message_class(BrowseAsk)(queue="orders")
        unread, asked = doors.server._unread, ask.SerializeToString()
        socks = [call_by_hand(doors, "AdminService/Browse", asked, 0) for _ in range(2)]
        wait_until(lambda: unread._bytes >= limits.unread_bytes)
        with channel(doors) as opened:
            browse = opened.unary_unary("/holdfast.v1.AdminService/Browse")
            with pytest.raises(grpc.RpcError) as told:
                browse(asked, timeout=10)
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE
            health(opened)
            for sock in socks:
                sock.close()
            wait_until(lambda: unread._bytes == 0)
            assert len(browse(asked, timeout=10)) > 20_000


@PLAIN
def test_grpc_calls_of_one_client_have_a_limit(doors: Doors) -> None:
    with channel(doors) as opened:
        watch = opened.unary_stream(f"/{service_name(WATCH)}/{WATCH.name}")
        streams = [watch(b"") for _ in range(LIMITS.rpc_client_calls)]
        for stream in streams:
            next(stream)
        with pytest.raises(grpc.RpcError) as told:
            health(opened)
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "this address has 3 calls open" in str(told.value.details())
        streams.pop().cancel()

        def is_served() -> bool:
            with suppress(grpc.RpcError):
                return health(opened) is not None
            return False

        wait_until(is_served)
        for stream in streams:
            stream.cancel()


def test_the_limits_are_checked() -> None:
    for name in ("header_bytes", "headers", "connections", "client_connections", "rpc_calls"):
        with pytest.raises(holdfast.InvalidArgument, match=name):
            Limits(**{name: 0})
    for name in ("head_seconds", "write_seconds"):
        with pytest.raises(holdfast.InvalidArgument, match=name):
            Limits(**{name: -1})
