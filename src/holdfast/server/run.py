"""Starts and ends a server: both doors, the sweeper and redrives, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
import uvicorn
from grpc import aio

from holdfast.app import Holdfast
from holdfast.errors import InvalidArgument, StoreUnavailable
from holdfast.metrics import Metrics
from holdfast.model.settings import Settings, load
from holdfast.queue.redrive import RedriveRunner
from holdfast.server.auth import Authority
from holdfast.server.calls import Calls
from holdfast.server.connections import Connections, Guarded, TlsAcceptor, raise_file_limit
from holdfast.server.events import PING_S, Events
from holdfast.server.health import Health
from holdfast.server.http import Door, Unread
from holdfast.server.limits import Limits
from holdfast.server.rpc import Rpc
from holdfast.server.service import Service
from holdfast.work.sweeper import Sweeper

HEALTH_S = 2.0
GRACE_S = 10.0
KEEPALIVE_MS = 10_000
"""How often a gRPC client may ping."""
IDLE_MS = 300_000
"""A gRPC connection without a call is closed after this time; clients reconnect by themselves."""
PEER_LOOK_MS, PEER_ANSWER_MS = 60_000, 20_000
"""How often a gRPC client is pinged, and how long it may take to answer."""
GARBAGE = 20_000
"""New objects between two looks for cycles among them."""

logger = logging.getLogger("holdfast.server")


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int

    @classmethod
    def parse(cls, field: str, text: str) -> Address:
        """HOST:PORT; an IPv6 host in brackets. Port 0 takes a free one."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise InvalidArgument(field, f"must be HOST:PORT, not {text!r}")
        return cls(host.strip("[]"), int(port))

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Tls(msgspec.Struct, frozen=True):
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password="")  # or it would ask
            return context
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            problem = f"{self.certificate} and {self.key} are no certificate and its key: {why}"
            raise InvalidArgument("tls", problem) from error


class Server:
    """`await start()`, then `await stop()`; `serve` does both around signals."""

    def __init__(
        self,
        hf: Holdfast,
        *,
        http: Address | None,
        grpc: Address | None,
        auth: bool | None = None,
        tls: Tls | None = None,
        limits: Limits | None = None,
        settings: Settings | None = None,
        ping: float = PING_S,
    ) -> None:
        """`auth` None: keys are needed unless every address is loopback. Streams of events that
        have nothing to say say so every `ping` seconds."""
        if http is None and grpc is None:
            raise InvalidArgument("http", "name an address for HTTP, for gRPC or for both")
        if tls is not None:
            tls.context()  # fails now rather than at the first connection
        at = [address for address in (http, grpc) if address is not None]
        if http == grpc and at[0].port:
            raise InvalidArgument("grpc", f"{grpc} is where HTTP is; name another port")
        public = [str(address) for address in at if not address.is_loopback]
        if auth is False and public:
            raise InvalidArgument("auth", f"off is for loopback only, and {public[0]} is not")
        self.auth = bool(public) if auth is None else auth
        self.http, self.grpc = http, grpc
        self._hf = hf
        self._tls = tls
        self._limits = limits or Limits()
        self._settings = settings or load()
        self._ping = ping
        self._quit = threading.Event()
        self._threads: list[threading.Thread] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._uvicorn: HttpServer | None = None
        self._acceptor: TlsAcceptor | None = None
        self._rpc_server: aio.Server | None = None

    @property
    def is_secure(self) -> bool:
        return self._tls is not None

    @property
    def waiting(self) -> int:
        """Polls that wait for a message now."""
        return self._service.polls.waiting

    async def start(self) -> None:
        """Returns when both doors are open; the addresses then name the real ports."""
        for address in (self.http, self.grpc):
            if address is not None:  # before anything runs; and gRPC would not say why not
                listening(address).close()
        hf = self._hf
        metrics = Metrics(handle_from_leases=True).watch(hf)
        authority = Authority(hf.context) if self.auth else None
        self._redrives = RedriveRunner(hf.context, self._settings)
        self._service = Service(
            hf, self._settings, self._limits, authority=authority, started=self._redrives.wake
        )
        self._events = Events(hf, self._limits, self._service.still, ping=self._ping)
        self._service.queues.told = self._events.told
        self._health = Health(hf.context)
        self._events.start()
        self._door = Door(self._service, self._events, self._health, authority, metrics.render)
        self._unread = Unread(self._limits)  # HTTP has one of its own
        self._rpc = Rpc(self._service, self._events, authority, self._unread)
        if self.http is not None:
            await self._open_http(self.http)
        if self.grpc is not None:
            await self._open_grpc(self.grpc)
        sweeper = Sweeper(hf.context, self._settings)
        self._start_thread(sweeper.run, self._quit)
        self._redrives.start()
        self._service.recorder.start()
        self._tasks.append(asyncio.create_task(self._keep_health()))

    async def stop(self) -> None:
        """Waiting polls are answered, streams end, calls under way may finish; then the doors
        close. What was leased and not handed out is given back."""
        self._health.stopping = True
        for task in self._tasks:
            task.cancel()
        self._rpc.stop()
        self._events.stop()
        await self._service.polls.stop()
        await self._rpc.set_ready(False)
        closing: list[Any] = []
        if self._rpc_server is not None:
            closing.append(self._rpc_server.stop(GRACE_S))
        if self._uvicorn is not None:
            if self._acceptor is not None:
                await self._acceptor.stop()
            closing.append(self._uvicorn.close())
        await asyncio.gather(*closing)
        self._quit.set()
        await asyncio.to_thread(self._service.recorder.stop, GRACE_S)
        await asyncio.to_thread(self._redrives.stop)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, GRACE_S)
        await self._events.stopped()
        await self._service.stop()
        self._health.close()

    async def _open_http(self, address: Address) -> None:
        sock = listening(address)
        self.http = Address(address.host, sock.getsockname()[1])
        self._connections = Connections(self._limits)
        guarded: Any = partial(Guarded, connections=self._connections)
        self._uvicorn = HttpServer(http_config(self._door.app(), http=guarded))
        if self._tls is None:
            await self._uvicorn.open(sock)
            return
        await self._uvicorn.open()
        make = self._uvicorn.make_protocol
        self._acceptor = TlsAcceptor(sock, self._tls.context(), self._connections, make)

    async def _open_grpc(self, address: Address) -> None:
        limits = self._limits
        server = aio.server(
            interceptors=[Calls(limits, self._unread)],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS),
                ("grpc.max_metadata_size", limits.header_bytes // 4),
                ("grpc.absolute_max_metadata_size", limits.header_bytes // 4),
                ("grpc.max_concurrent_streams", limits.rpc_calls),
                ("grpc.max_allowed_incoming_connections", limits.rpc_connections),
                # For TLS and for the client's first frame.
                ("grpc.server_handshake_timeout_ms", round(limits.head_seconds * 1000)),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.keepalive_time_ms", PEER_LOOK_MS),
                ("grpc.keepalive_timeout_ms", PEER_ANSWER_MS),
            ],
        )
        self._rpc.add_to(server)
        try:
            if self._tls is None:
                port = server.add_insecure_port(str(address))
            else:
                pair = (self._tls.key.read_bytes(), self._tls.certificate.read_bytes())
                port = server.add_secure_port(str(address), grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise StoreUnavailable(f"cannot listen on {address}: {error}") from error
        self.grpc = Address(address.host, port)
        await server.start()
        self._rpc_server = server

    async def _keep_health(self) -> None:
        while True:
            await self._rpc.set_ready((await self._health.look()).ready)
            await asyncio.sleep(HEALTH_S)

    def _start_thread(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="holdfast-sweeper", daemon=True)
        thread.start()
        self._threads.append(thread)


def http_config(app: Any, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        ws="none",  # a WebSocket would leave the guarded protocol
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(GRACE_S),
        **options,
    )


class HttpServer(uvicorn.Server):
    """Without its own signals, and told when to stop."""

    async def open(self, *socks: socket.socket) -> None:
        """Serve what is accepted from these, and what `make_protocol` is given to."""
        self._serving = asyncio.create_task(self.serve(sockets=list(socks)))
        while not self.started:
            if self._serving.done():
                self._serving.result()
                raise StoreUnavailable("the HTTP server ended as it started")
            await asyncio.sleep(0.005)

    def make_protocol(self) -> Any:
        make: Any = self.config.http_protocol_class
        return make(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    async def close(self) -> None:
        self.should_exit = True
        await self._serving


def listening(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # With its protocol: else no TCP_NODELAY is set on what it accepts, and answers wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise StoreUnavailable(f"cannot listen on {address}: {error.strerror or error}") from error
    sock.setblocking(False)
    return sock


def run(server: Server, opened: Callable[[Server], None]) -> None:
    """Serve on the fastest loop there is, until a signal. The process is its own from here on."""
    # A batch makes thousands of objects, none of them in a cycle: to look for cycles after every
    # 700, as Python does by default, was a tenth of all that a batch costs.
    gc.freeze()
    gc.set_threshold(GARBAGE, 10, 10)
    raise_file_limit()
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:  # it has no wheel for this machine
        new_event_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(server, opened))


async def serve(server: Server, opened: Callable[[Server], None]) -> None:
    """Until SIGTERM or SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def on_signal() -> None:
        if asked.is_set():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            signal.raise_signal(signal.SIGTERM)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await server.start()
    opened(server)
    await asked.wait()
    logger.info("stopping")
    await server.stop()
