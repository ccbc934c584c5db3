"""Who holds a gRPC stream of leases in a test, with no client of ours."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlsplit

import grpc

from holdfast import Lease
from holdfast.wire.operations import LEASE_STREAM
from holdfast.wire.proto import from_proto, message_class, service_name
from holdfast.wire.shapes import LeaseStreamAsk


class Leasing:
    """`got` has what came, in order. `reads=False`: takes nothing."""

    def __init__(self, url: str, queue: str, *, reads: bool = True, **fields: Any) -> None:
        self._channel = grpc.insecure_channel(urlsplit(url).netloc)
        stream: Any = self._channel.unary_stream(
            f"/{service_name(LEASE_STREAM)}/Lease",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_class(LEASE_STREAM.answer).FromString,  # type: ignore[attr-defined]
        )
        self._call = stream(message_class(LeaseStreamAsk)(queue=queue, **fields))
        self.got: list[Lease] = []
        self.code: grpc.StatusCode | None = None
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="leasing")
        if reads:
            self._thread.start()

    @property
    def payloads(self) -> list[Any]:
        return [lease.message.payload for lease in self.got]

    def _read(self) -> None:
        try:
            for one in self._call:
                self.got.append(from_proto(one, LEASE_STREAM.answer).value())
        except grpc.RpcError:
            pass
        self.code = self._call.code()
        self.ended.set()

    def close(self) -> None:
        self._call.cancel()
        if self._thread.ident is not None:
            self._thread.join()
        self._channel.close()

    def __enter__(self) -> Leasing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
