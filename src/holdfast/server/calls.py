"""Limits on gRPC calls that grpcio does not have: on the time that a call's message takes to
arrive, on the calls that one client has open at a time, and on answers that nobody has read.

grpcio calls a handler of one message when the message is there, and offers no way to end a call
before. So every handler is made one of a stream of messages, which is called at once and reads the
only message itself; a client sees no difference.

What is no call cannot be limited from here: grpcio says nothing of connections.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any, cast

import grpc
from grpc import aio

from holdfast.server.connections import network
from holdfast.server.http import Unread
from holdfast.server.limits import Limits

TOO_MANY = "this address has {} calls open; try again later, or with fewer"
TOO_LATE = "the message of the call did not come within {} s"
NONE_CAME = "the call ended without a message"
COUNTED_BYTES = 4096
"""What smaller answers take is bounded by the number of calls."""

Context = aio.ServicerContext[Any, Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
_grpc: Any = grpc  # its handlers are typed for the synchronous server
_EOF = cast(Any, aio).EOF


class Calls(aio.ServerInterceptor):
    def __init__(self, limits: Limits, unread: Unread) -> None:
        self._limits = limits
        self._unread = unread
        self._of: Counter[str] = Counter()
        self._made: dict[str, Any] = {}
        """Handlers by method."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        method: Any = handler_call_details.method
        if method not in self._made:
            handler = await continuation(handler_call_details)
            if handler is None or handler.request_streaming:
                return handler
            self._made[method] = self._over(handler)
        return self._made[method]

    def _over(self, handler: Any) -> Any:
        codecs = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            does = self._unary(handler.unary_unary)
            return _grpc.stream_unary_rpc_method_handler(does, **codecs)
        does = self._stream(handler.unary_stream)
        return _grpc.stream_stream_rpc_method_handler(does, **codecs)

    def _unary(self, does: Any) -> Any:
        async def call(_: Any, context: Context) -> Any:
            client = await self._enter(context)
            try:
                answer = await does(await self._message(context), context)
            finally:
                self._leave(client)
            if (size := answer.ByteSize()) >= COUNTED_BYTES:
                self._unread.sent(size)

                def done(_: Any) -> None:
                    self._unread.read(size)

                context.add_done_callback(cast(Any, done))
            return answer

        return call

    def _stream(self, does: Any) -> Any:
        async def calls(_: Any, context: Context) -> AsyncIterator[Any]:
            client = await self._enter(context)
            try:
                async for answer in does(await self._message(context), context):
                    yield answer
            finally:
                self._leave(client)

        async def call(_: Any, context: Context) -> None:
            client = await self._enter(context)
            try:
                await does(await self._message(context), context)
            finally:
                self._leave(client)

        return calls if inspect.isasyncgenfunction(does) else call

    async def _message(self, context: Context) -> Any:
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                message = await context.read()
        except TimeoutError:
            text = TOO_LATE.format(self._limits.read_seconds)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        if message is _EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NONE_CAME)
        return message

    async def _enter(self, context: Context) -> str:
        client, most = _client(context.peer()), self._limits.rpc_client_calls
        if self._of[client] >= most:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY.format(most))
        self._of[client] += 1
        return client

    def _leave(self, client: str) -> None:
        self._of[client] -= 1
        if not self._of[client]:
            del self._of[client]


@lru_cache(10_000)
def _client(peer: Any) -> str:
    return network(_address(peer))


def _address(peer: Any) -> str:
    """Of "ipv4:127.0.0.1:50000" or "ipv6:%5B::1%5D:50000"."""
    host = cast(str, peer).partition(":")[2].rpartition(":")[0]
    return host.removeprefix("%5B").removesuffix("%5D")
