"""Calls over gRPC, on one channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec

from holdfast.client.transport import CALL_S, QUIET, Place, with_silence
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.telemetry import tracing
from holdfast.wire import shapes as s
from holdfast.wire.operations import BY_NAME, LEASE_STREAM, WATCH, Operation
from holdfast.wire.problems import TRAILER, Problem, error_of
from holdfast.wire.proto import from_proto, message_class, service_name, to_proto


class RpcTransport:
    def __init__(self, place: Place) -> None:
        host = f"[{place.host}]" if ":" in place.host else place.host
        target = f"{host}:{place.port}"
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if place.secure:
            trusted = Path(place.ca).read_bytes() if place.ca else None
            credentials = grpc.ssl_channel_credentials(trusted)
            self._channel = grpc.secure_channel(target, credentials, options)
        else:
            self._channel = grpc.insecure_channel(target, options)
        self._target = target
        self._metadata = {"authorization": f"Bearer {place.key}"} if place.key else {}
        self._calls: dict[str, Any] = {}

    def call(self, name: str, ask: Any, *, wait: float = 0.0) -> Any:
        operation = BY_NAME[name]
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = self._unary(operation)
        timeout = CALL_S + wait if wait < 1e6 else None
        try:
            answer = call(to_proto(ask), timeout=timeout, metadata=self._carried())
        except grpc.RpcError as error:
            raise self._error(error) from error
        return from_proto(answer, operation.answer)

    def events(self, after: int | None) -> Iterator[s.EventDoc | None]:
        call = self._stream(WATCH, s.WatchAsk(after))
        try:
            for event in with_silence(_docs(call, WATCH), call.cancel):
                quiet = event is None or event.type in QUIET
                yield None if quiet else event
        except grpc.RpcError as error:
            raise self._error(error) from error

    def leases(self, ask: s.LeaseStreamAsk) -> Iterator[s.LeaseDoc]:
        """As they come; close the iterator to end it."""
        call = self._stream(LEASE_STREAM, ask)
        try:
            yield from _docs(call, LEASE_STREAM)
        except grpc.RpcError as error:
            raise self._error(error) from error
        finally:
            call.cancel()

    def _stream(self, operation: Operation, ask: Any) -> Any:
        answer: Any = message_class(operation.answer)
        open_: Any = self._channel.unary_stream(
            f"/{service_name(operation)}/{operation.name}",
            request_serializer=_serialize,
            response_deserializer=answer.FromString,
        )
        return open_(to_proto(ask), metadata=self._carried())

    def _unary(self, operation: Operation) -> Any:
        answer: Any = message_class(operation.answer)
        return self._channel.unary_unary(
            f"/{service_name(operation)}/{operation.name}",
            request_serializer=_serialize,
            response_deserializer=answer.FromString,
        )

    def _carried(self) -> tuple[tuple[str, str], ...]:
        return tuple(tracing.inject(self._metadata).items())

    def _error(self, error: Any) -> HoldfastError:
        for name, value in error.trailing_metadata() or ():
            if name == TRAILER:
                return error_of(msgspec.json.decode(value, type=Problem))
        return StoreUnavailable(f"{self._target}: {error.code().name}: {error.details()}")

    def close(self) -> None:
        self._channel.close()


def _docs(call: Any, operation: Operation) -> Iterator[Any]:
    return (from_proto(one, operation.answer) for one in call)


def _serialize(message: Any) -> bytes:
    return message.SerializeToString()
