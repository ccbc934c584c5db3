"""Who watches a server in a test: everything that he was told, by either door."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import grpc

from holdfast.wire.operations import WATCH
from holdfast.wire.proto import message_class, service_name
from holdfast.wire.shapes import WatchAsk

SMALL = 4096


class Watching:
    """Keeps what came, in order: (type, seq, timestamp, payload); seq is None if it has none."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int | None, int, Any]] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watching")
        self._thread.start()

    @property
    def news(self) -> list[tuple[str, int | None, int, Any]]:
        """Without what is said again and again."""
        return [event for event in self.all if event[0] not in ("ping", "stats")]

    def of(self, type: str) -> list[tuple[str, int | None, int, Any]]:
        return [event for event in self.all if event[0] == type]

    def _run(self) -> None:
        try:
            self._read()
        finally:
            self.ended.set()

    def _read(self) -> None: ...

    def close(self) -> None:
        self._thread.join()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sse(Watching):
    """`reads=False`: it asks, and then takes nothing until `read` is set."""

    def __init__(
        self, url: str, last: int | str | None = None, *, path: str = "/events", reads: bool = True
    ) -> None:
        at = urlsplit(url)
        self._socket = socket.socket()
        if not reads:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self._socket.connect((at.hostname, at.port))
        header = "" if last is None else f"Last-Event-ID: {last}\r\n"
        ask = f"GET {path} HTTP/1.1\r\nHost: {at.netloc}\r\n{header}\r\n"
        self._socket.sendall(ask.encode())
        self._file = self._socket.makefile("rb")
        self.read = threading.Event()
        if reads:
            self.read.set()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        super().__init__()

    def _read(self) -> None:
        self.read.wait()
        with suppress(OSError, ValueError):
            self.status = int(self._file.readline().split()[1])
            while line := self._file.readline().strip():
                name, _, value = line.decode().partition(": ")
                self.headers[name.lower()] = value
            if self.status != 200:
                self.body = self._file.read(int(self.headers["content-length"]))
                return
            self._read_chunks()

    def _read_chunks(self) -> None:
        pending = b""
        while size := int(self._file.readline(), 16):
            pending += self._file.read(size)
            self._file.readline()
            *blocks, pending = pending.split(b"\n\n")
            for block in blocks:
                fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
                if "data" in fields:
                    self._take(fields)

    def _take(self, fields: dict[str, str]) -> None:
        data = json.loads(fields["data"])
        assert data["type"] == fields["event"]
        seq = int(fields["id"]) if "id" in fields else None
        self.all.append((data["type"], seq, data["timestamp"], data["payload"]))

    def close(self) -> None:
        self.read.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        super().close()
        self._file.close()
        self._socket.close()


class Watch(Watching):
    """The same by gRPC, with no client of ours."""

    def __init__(self, url: str, last: int | None = None) -> None:
        self._channel = grpc.insecure_channel(urlsplit(url).netloc)
        stream: Any = self._channel.unary_stream(
            f"/{service_name(WATCH)}/Watch",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_class(WATCH.answer).FromString,  # type: ignore[attr-defined]
        )
        self._call = stream(message_class(WatchAsk)(after=last))
        self.code: grpc.StatusCode | None = None
        super().__init__()

    def _read(self) -> None:
        try:
            for event in self._call:
                seq = event.seq if event.seq or event.type == "ping" else None
                self.all.append((event.type, seq, event.timestamp, json.loads(event.payload_json)))
        except grpc.RpcError:
            pass
        self.code = self._call.code()

    def close(self) -> None:
        self._call.cancel()
        super().close()
        self._channel.close()


def watch(doors: Any, door: str, last: int | None = None) -> Any:
    return Sse(doors.http, last) if door == "http" else Watch(doors.grpc, last)
