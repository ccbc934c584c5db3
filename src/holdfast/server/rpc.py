"""The gRPC door: the same operations as services of `holdfast.v1`, with two streams."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import msgspec
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.model.message import Lease
from holdfast.server.auth import ANYBODY, Authority, Principal
from holdfast.server.events import STOP, Events
from holdfast.server.http import LARGE, Unread, the_token
from holdfast.server.service import Service
from holdfast.telemetry import tracing
from holdfast.wire import shapes as s
from holdfast.wire.operations import LEASE_STREAM, OPERATIONS, WATCH, Operation
from holdfast.wire.problems import (
    TRAILER,
    Problem,
    Stopping,
    TooManyStreams,
    problem_of,
    unexpected,
)
from holdfast.wire.proto import from_proto, message_class, service_name, to_proto

STREAM_STEP = 100
"""Leases that a stream takes at one time."""
TRAILER_BYTES = 3000
"""Of a problem, as ASCII. Its text goes beside it, and gRPC takes 8 KiB for all of it."""
Context = aio.ServicerContext[Any, Any]
_health: Any = health  # it has no types
_health_grpc: Any = health_pb2_grpc
logger = logging.getLogger("holdfast.server")


class Rpc:
    def __init__(
        self, service: Service, events: Events, authority: Authority | None, unread: Unread
    ) -> None:
        self._service = service
        self._unread = unread
        self._events = events
        self._authority = authority
        self._streams = 0
        self._stopping = asyncio.Event()
        self._health: Any = _health.aio.HealthServicer()

    def add_to(self, server: aio.Server) -> None:
        """Every service, reflection and the health service."""
        names: dict[str, dict[str, Any]] = {}
        for operation in OPERATIONS:
            methods = names.setdefault(service_name(operation), {})
            methods[operation.name] = grpc.unary_unary_rpc_method_handler(
                self._unary(operation),
                request_deserializer=_parser(operation),
                response_serializer=_serialize,
            )
        for operation, does in ((LEASE_STREAM, self._lease), (WATCH, self._watch)):
            names[service_name(operation)][operation.name] = grpc.unary_stream_rpc_method_handler(
                self._stream(operation, does),
                request_deserializer=_parser(operation),
                response_serializer=_serialize,
            )
        for name, methods in names.items():
            handler = grpc.method_handlers_generic_handler(name, methods)
            server.add_generic_rpc_handlers((handler,))
        _health_grpc.add_HealthServicer_to_server(self._health, server)
        services = [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(services, server)

    async def set_ready(self, ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        now = status.SERVING if ready else status.NOT_SERVING
        for name in ("", "holdfast.v1.MessageService", "holdfast.v1.AdminService"):
            await self._health.set(name, now)

    def stop(self) -> None:
        """Streams end, cleanly, after what they are about to send."""
        self._stopping.set()

    async def _who(self, context: Context) -> Principal:
        if self._authority is None:
            return ANYBODY
        entries = context.invocation_metadata() or ()
        given = [str(value) for name, value in entries if name == "authorization"]
        token = the_token(given)
        return await self._service.run(self._authority.check, token)

    def _unary(self, operation: Operation) -> Callable[[Any, Context], Any]:
        async def call(request: Any, context: Context) -> Any:
            with tracing.serving(operation.name, _traced(context)):
                try:
                    who = await self._who(context)
                    ask = _asked(request, operation)
                    if operation.name in LARGE:
                        await self._unread.room()
                    return to_proto(await self._service.call(operation, ask, who))
                except HoldfastError as error:
                    await _abort(context, problem_of(error))
                except Exception:
                    logger.exception("%s failed", operation.name)
                    await _abort(context, unexpected())

        return call

    def _stream(self, operation: Operation, does: Any) -> Callable[[Any, Context], Any]:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                who = await self._who(context)
                ask = _asked(request, operation)
                assert operation.right is not None
                for field in operation.guards:
                    who.demand(operation.right, getattr(ask, field))
                if not operation.guards:
                    who.demand_anywhere(operation.right)
                if self._streams >= self._service.limits.streams:
                    raise TooManyStreams(f"{self._streams} streams are open; try again later")
                self._streams += 1
                try:
                    async for answer in does(ask, who, context):
                        yield to_proto(answer)
                finally:
                    self._streams -= 1
            except HoldfastError as error:
                await _abort(context, problem_of(error))
            except Exception:
                logger.exception("%s failed", operation.name)
                await _abort(context, unexpected())

        return call

    async def _lease(
        self, ask: s.LeaseStreamAsk, who: Principal, context: Context
    ) -> AsyncIterator[s.LeaseDoc]:
        """So many leases are out as the client can take; one that ends makes room for the next."""
        out, still = _Out(self._service, ask.max_in_flight), self._service.still(who)
        seat = await self._service.run(self._service.seats.open, ask.queue, ask.owner)
        try:
            while not self._stopping.is_set():
                room = await out.room(self._stopping)
                if not room:
                    continue
                wanted = s.LeaseAsk(
                    ask.queue, min(room, STREAM_STEP), 5.0, ask.owner, ask.partitions
                )
                leases = await self._service.polls.lease(wanted, seat, still)
                unsent = list(leases)
                try:
                    for lease in leases:
                        out.add(lease)
                        yield s.LeaseDoc.of(lease)
                        unsent.remove(lease)  # only now it is written
                        if seat is not None:
                            seat.sent([lease])
                except BaseException:
                    if seat is None:
                        self._service.polls.give_back(ask.queue, unsent)
                    raise
        except Stopping:
            return  # cleanly: the client has all that was leased for it
        finally:
            out.close()
            if seat is not None:
                self._service.seats.close([seat], keep=self._stopping.is_set())

    async def _watch(
        self, ask: s.WatchAsk, who: Principal, context: Context
    ) -> AsyncIterator[s.EventDoc]:
        watcher = self._events.watch(who)
        try:
            await self._events.begin(watcher, ask.after)
            events = [*await watcher.next(0), await self._events.ping()]
            while True:
                for event in events:
                    if event is STOP:
                        return
                    payload = msgspec.Raw(msgspec.json.encode(event.payload))
                    yield s.EventDoc(event.type, event.timestamp, payload, event.seq)
                events = await self._events.heard(watcher)
        finally:
            self._events.leave(watcher)


class _Out:
    """What one stream has handed out and not heard of since."""

    def __init__(self, service: Service, most: int) -> None:
        self._service = service
        self._most = most
        self._deadlines: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def add(self, lease: Lease) -> None:
        self._deadlines[lease.token] = lease.deadline
        self._service.polls.track(lease.token, partial(self._changed_to, lease.token))

    def _changed_to(self, token: str, deadline: int | None) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._change, token, deadline)

    def _change(self, token: str, deadline: int | None) -> None:
        if deadline is None:
            self._drop(token)
        elif token in self._deadlines:
            self._deadlines[token] = deadline

    def _drop(self, token: str) -> None:
        self._deadlines.pop(token, None)
        self._changed.set()

    async def room(self, stopping: asyncio.Event) -> int:
        """How many more; waits a moment if there is none. What ran out is not out any more."""
        now = await self._service.run(self._service.at.clock.now)  # it may ask the store
        for token in [token for token, until in self._deadlines.items() if until <= now]:
            self._service.polls.forget([token])
            self._drop(token)
        if len(self._deadlines) < self._most:
            return self._most - len(self._deadlines)
        self._changed.clear()
        waits = [asyncio.ensure_future(e.wait()) for e in (self._changed, stopping)]
        try:
            await asyncio.wait(waits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return 0

    def close(self) -> None:
        self._service.polls.forget(self._deadlines)


def _parser(operation: Operation) -> Callable[[bytes], Any]:
    """Bytes that are no message are the client's fault, and told as such: see `_asked`."""
    parse: Any = message_class(operation.ask)

    def parsed(data: bytes) -> Any:
        try:
            return parse.FromString(data)
        except Exception as error:
            return error

    return parsed


def _asked(request: Any, operation: Operation) -> Any:
    if isinstance(request, Exception):
        raise InvalidArgument("request", f"is no {operation.ask.__name__}: {request}")
    return from_proto(request, operation.ask)


def _serialize(message: Any) -> bytes:
    return message.SerializeToString()


def _metadata(context: Context) -> dict[str, str]:
    return {
        str(name): value if isinstance(value, str) else ""
        for name, value in context.invocation_metadata() or ()
    }


def _traced(context: Context) -> dict[str, str]:
    return _metadata(context) if tracing.is_loaded() else {}


async def _abort(context: Context, problem: Problem) -> None:
    code = getattr(grpc.StatusCode, problem.code, grpc.StatusCode.INTERNAL)
    while len(told := json.dumps(msgspec.to_builtins(problem))) > TRAILER_BYTES:
        problem = msgspec.structs.replace(
            problem,
            detail=problem.detail[: len(problem.detail) // 2],
            field=problem.field and problem.field[: len(problem.field) // 2],
        )
    await context.abort(code, problem.detail, ((TRAILER, told),))
