"""Limits on HTTP connections, applied before a request reaches the application.

uvicorn reads a request head of any length for as long as the client likes. `Guarded` is uvicorn's
protocol with limits on the bytes and the time of each part of a request, and `Connections` limits
how many connections there are, in all and per client address. When a limit is reached, the
connection that has been waiting longest between requests makes room; only if every connection is
being served is the new one refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.server.limits import Limits
from holdfast.wire.problems import MEDIA_TYPE, Problem

LOOK_S = 1.0
"""Time between two checks of all deadlines."""
LINGER_S = 1.0
"""A refused client may read its answer for this long; closing at once would discard it."""
LINGER_BYTES = 1024 * 1024
BODY_MARGIN_S = 5.0
"""The application answers a late body first; the guard then closes what still hangs."""
WRITE_RATE = 16 * 1024
"""Bytes per second at which a client must read a large answer, beyond `write_seconds`."""
ACCEPT_RETRY_S = 0.2
FILES_RESERVED = 256
"""File descriptors kept for the store, gRPC and everything else."""

BETWEEN, HEAD, BODY, REFUSED = range(4)
"""What is being received: nothing yet of the next request, its head, its body, nothing more."""


logger = logging.getLogger("holdfast.server")


class _Connection(Protocol):
    address: str

    def check(self, now: float) -> None:
        """Act on deadlines that have passed."""
        ...

    def drop(self) -> None:
        """Close, to make room for another connection."""
        ...


class Connections:
    """Every open HTTP connection, those in a TLS handshake included. For one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = min(limits.connections, _files_max())
        self._open: dict[_Connection, None] = {}
        self._idle: dict[_Connection, None] = {}
        """Those without a request in progress, the longest idle first."""
        self._of: dict[str, dict[_Connection, bool]] = {}
        """By client address; True for those in `_idle`."""
        self._is_looking = False

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, one: _Connection) -> bool:
        """Count a new connection, dropping an idle one where there is no room."""
        own = self._of.get(one.address, {})
        if len(own) >= self.limits.client_connections and not self._drop_first(
            next((other for other, is_idle in own.items() if is_idle), None)
        ):
            return False
        if len(self._open) >= self._most and not self._drop_first(next(iter(self._idle), None)):
            return False
        self._open[one] = None
        self._of.setdefault(one.address, {})
        self.idle(one)
        if not self._is_looking:
            self._look_later(asyncio.get_running_loop())
        return True

    def replace(self, before: _Connection, after: _Connection) -> None:
        """The same connection, after its TLS handshake."""
        if before in self._open:
            self.leave(before)
            self._open[after] = None
            self._of.setdefault(after.address, {})
            self.idle(after)

    def leave(self, one: _Connection) -> None:
        if one not in self._open:
            return
        del self._open[one]
        self._idle.pop(one, None)
        own = self._of[one.address]
        del own[one]
        if not own:
            del self._of[one.address]

    def idle(self, one: _Connection) -> None:
        if one in self._open:
            self._idle[one] = None
            own = self._of[one.address]
            own.pop(one, None)  # to the end: the longest idle come first
            own[one] = True

    def busy(self, one: _Connection) -> None:
        if self._idle.pop(one, True) is None:
            self._of[one.address][one] = False

    def _drop_first(self, one: _Connection | None) -> bool:
        if one is None:
            return False
        self.leave(one)
        one.drop()
        return True

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_looking = True
        loop.call_later(min(LOOK_S, self.limits.head_seconds / 2), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_looking = False
        now = loop.time()
        for one in list(self._open):
            try:
                one.check(now)
            except Exception:  # the others have deadlines, too
                logger.exception("a connection was not checked")
        if self._open:
            self._look_later(loop)


class Guarded(HttpToolsProtocol):
    """uvicorn's HTTP protocol within limits."""

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address = ""
        self._connections = connections
        self._limits = connections.limits
        self._phase = BETWEEN
        self._deadline: float | None = None
        self._write_deadline: float | None = None
        self._received = 0
        """Bytes of the current part of the request."""
        self._quiet = 0
        """Bytes since the last piece of a body: chunk extensions and trailers."""
        self._refusal: Problem | None = None
        self.handshake: _Handshake | None = None
        """What it was counted as before."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.time() + self._limits.head_seconds
        self.address = client_address(transport)
        if self.handshake is not None:
            self._connections.replace(self.handshake, self)
        elif not self._connections.admit(self):
            self._refuse(_TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase == BETWEEN:
            self._begin_head()
        while data and self._phase != REFUSED and not self.transport.is_closing():
            if self._phase == HEAD:
                data = self._receive_head(data)
            else:
                data = self._receive_body(data)
        if self._phase == REFUSED:
            self._received += len(data)
            if self._received > LINGER_BYTES:
                self.transport.abort()

    def _receive_head(self, data: bytes) -> bytes:
        """Feed what the limit allows; the rest of `data`."""
        room = self._limits.header_bytes - self._received
        if room <= 0:
            self._refuse(_too_large(f"more than {self._limits.header_bytes} bytes"))
            return b""
        piece, rest = (data, b"") if len(data) <= room else (data[:room], data[room:])
        self._received += len(piece)
        super().data_received(piece)
        return rest

    def _receive_body(self, data: bytes) -> bytes:
        self._received += len(data)
        self._quiet += len(data)
        super().data_received(data)
        if self._phase == BODY and (
            self._quiet > self._limits.header_bytes + len(data)
            or (self._is_free and self._received > self._limits.body_bytes)
        ):
            self.transport.abort()  # endless trailers, or a body that nobody waits for
        return b""

    @property
    def _is_free(self) -> bool:
        return self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._phase != HEAD:  # a second request in the same piece of data
            self._begin_head()
        super().on_message_begin()

    def _begin_head(self) -> None:
        self._phase = HEAD
        self._received = 0
        self._deadline = self.loop.time() + self._limits.head_seconds

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self._limits.headers:
            self._refusal = _too_large(f"more than {self._limits.headers} headers")
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._phase = BODY
        self._received = self._quiet = 0
        self._deadline = self.loop.time() + self._limits.read_seconds + BODY_MARGIN_S
        self._connections.busy(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._quiet = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = BETWEEN
        self._deadline = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or _problem(400, "BadRequest", msg))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_free and not self.pipeline:
            self._connections.idle(self)

    # Slow readers

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_deadline(self.loop.time(), self.transport.get_write_buffer_size())

    def _start_write_deadline(self, now: float, unread: int) -> None:
        if self._write_deadline is None:
            self._write_deadline = now + self._limits.write_seconds + unread / WRITE_RATE

    def resume_writing(self) -> None:
        self._write_deadline = None
        super().resume_writing()

    # Deadlines

    def check(self, now: float) -> None:
        # An answer that is complete, or too small for `pause_writing`, may be unread as well.
        is_closing = self.transport.is_closing()
        unread = self.transport.get_write_buffer_size() if self._is_free and not is_closing else 0
        if unread or is_closing:
            self._start_write_deadline(now, unread)
        elif not self.flow.write_paused:
            self._write_deadline = None
        if self._write_deadline is not None and now >= self._write_deadline:
            self.transport.abort()
        elif self._deadline is not None and now >= self._deadline and not is_closing:
            self._late(now)  # a TLS transport that is closed twice cannot be aborted any more

    def _late(self, now: float) -> None:
        if self._phase == BODY and self.flow.read_paused:
            self._deadline = now + self._limits.read_seconds  # the application is slow, not they
        elif self._phase == BETWEEN or self._phase == REFUSED:
            self.transport.close()
        else:
            self._refuse(_LATE)

    def drop(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Answer if no other answer is being written, then close."""
        self._phase = REFUSED
        self._received = 0
        self._unset_keepalive_if_required()
        if not self._is_free:
            self.transport.close()
            return
        self._deadline = self.loop.time() + LINGER_S
        self.transport.write(_answer(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()


class _Handshake:
    """A connection until its TLS handshake is done."""

    def __init__(self, address: str, sock: socket.socket) -> None:
        self.address = address
        self._sock = sock

    def check(self, now: float) -> None:
        """The handshake has a timer of its own."""

    def drop(self) -> None:
        with suppress(OSError):  # the handshake then fails, and closes the socket
            self._sock.shutdown(socket.SHUT_RDWR)


class TlsAcceptor:
    """Accepts connections and does their TLS handshakes: counted from the first moment, and with
    as much time as the head of a request has."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        connections: Connections,
        make: Callable[[], Guarded],
    ) -> None:
        self._sock = sock
        self._context = context
        self._connections = connections
        self._make = make
        self._shaking: dict[asyncio.Task[None], _Handshake] = {}
        self._task = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self) -> None:
        self._task.cancel()
        for handshake in self._shaking.values():
            handshake.drop()
        await asyncio.gather(self._task, *self._shaking, return_exceptions=True)
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(self._sock)
            except OSError as error:  # out of file descriptors, say
                logger.warning("a connection was not accepted: %s", error)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            handshake = _Handshake(network(str(peer[0])), sock)
            if not self._connections.admit(handshake):
                sock.close()
                continue
            task = loop.create_task(self._shake(sock, handshake))
            self._shaking[task] = handshake
            task.add_done_callback(self._shaking.pop)

    async def _shake(self, sock: socket.socket, handshake: _Handshake) -> None:
        limits = self._connections.limits
        guarded = self._make()
        guarded.handshake = handshake
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: guarded,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=limits.head_seconds,
                ssl_shutdown_timeout=limits.write_seconds,
            )
        except OSError as error:  # so are TimeoutError and ssl.SSLError
            logger.debug("a TLS handshake failed: %s", error)
        finally:
            self._connections.leave(handshake)


def client_address(transport: Any) -> str:
    """Whom to count a connection for; of IPv6 the /64 network, which is what one client has."""
    peer: Any = transport.get_extra_info("peername")
    return network(str(peer[0])) if peer else ""


@lru_cache(10_000)
def network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def raise_file_limit() -> None:
    """As many file descriptors as the system allows: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems report a limit that they do not accept
            return


def _files_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    return max(soft - FILES_RESERVED, soft // 2, 1)


def _problem(status: int, title: str, detail: str, code: str = "INVALID_ARGUMENT") -> Problem:
    dashed = "".join(f"-{c.lower()}" if c.isupper() else c for c in title).lstrip("-")
    return Problem(
        type=f"urn:holdfast:problem:{dashed}",
        title=title,
        status=status,
        detail=detail,
        code=code,
    )


def _too_large(what: str) -> Problem:
    return _problem(431, "HeadersTooLarge", f"the head of the request has {what}")


_LATE = _problem(408, "RequestTimeout", "the request did not come in time", "DEADLINE_EXCEEDED")
_TOO_MANY = _problem(
    503, "TooManyConnections", "too many connections are open; try again later", "UNAVAILABLE"
)


def _answer(problem: Problem) -> bytes:
    body = msgspec.json.encode(problem)
    lines = [
        STATUS_LINE[problem.status].rstrip(),
        b"content-type: " + MEDIA_TYPE.encode(),
        b"content-length: %d" % len(body),
        b"connection: close",
    ]
    if problem.status == 503:
        lines.append(b"retry-after: 1")
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
