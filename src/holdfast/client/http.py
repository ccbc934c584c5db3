"""Calls over HTTP, on connections that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from msgspec import UNSET

from holdfast.client.transport import CALL_S, QUIET, Place, with_silence
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.telemetry import tracing
from holdfast.wire.operations import BY_NAME, Operation
from holdfast.wire.problems import MEDIA_TYPE, Problem, error_of
from holdfast.wire.shapes import EventDoc

POOL = 32
EVENTS_S = 60.0
"""A stream of events on which there is not even a ping for so long is dead."""


class HttpTransport:
    def __init__(self, place: Place) -> None:
        scheme = "https" if place.secure else "http"
        host = f"[{place.host}]" if ":" in place.host else place.host
        self._base = f"{scheme}://{host}:{place.port}"
        self._headers = {"authorization": f"Bearer {place.key}"} if place.key else {}
        self._pool = urllib3.PoolManager(
            maxsize=POOL, block=False, retries=False, ca_certs=place.ca
        )
        self._closed = False

    def call(self, name: str, ask: Any, *, wait: float = 0.0) -> Any:
        operation = BY_NAME[name]
        url, body = _request(operation, ask)
        headers = tracing.inject(self._headers)
        if body is not None:
            headers["content-type"] = "application/json"
        timeout = urllib3.Timeout(connect=CALL_S, read=CALL_S + wait if wait < 1e6 else None)
        try:
            response = self._pool.request(
                operation.method, self._base + url, body=body, headers=headers, timeout=timeout
            )
        except urllib3.exceptions.HTTPError as error:
            raise StoreUnavailable(f"{self._base}: {error}") from error
        if response.status >= 400:
            raise _error(response.status, response.headers.get("content-type"), response.data)
        return msgspec.json.decode(response.data, type=operation.answer)

    def events(self, after: int | None) -> Iterator[EventDoc | None]:
        headers = dict(self._headers)
        if after is not None:
            headers["last-event-id"] = str(after)
        timeout = urllib3.Timeout(connect=CALL_S, read=EVENTS_S)
        try:
            response = self._pool.request(
                "GET",
                self._base + "/events",
                headers=headers,
                preload_content=False,
                timeout=timeout,
            )
            if response.status >= 400:
                raise _error(response.status, response.headers.get("content-type"), response.data)
            try:
                yield from with_silence(_parsed(response), partial(_end, response))
            finally:
                response.close()
        except urllib3.exceptions.HTTPError as error:
            raise StoreUnavailable(f"{self._base}: {error}") from error

    def close(self) -> None:
        self._closed = True
        self._pool.clear()


def _request(operation: Operation, ask: Any) -> tuple[str, bytes | None]:
    """The path, with what belongs in it, and the body."""
    path, in_path = operation.path, operation.in_path
    given = {
        name: value
        for name in operation.ask.__struct_fields__
        if name not in in_path and (value := getattr(ask, name)) is not None and value is not UNSET
    }
    for name in in_path:
        path = path.replace(f"{{{name}}}", quote(getattr(ask, name), safe="") or "%20")
    if operation.method not in ("GET", "DELETE"):
        return f"/v1{path}", msgspec.json.encode(given)
    query = urlencode(
        {name: _plain(value) for name, value in given.items()}, doseq=True, errors="surrogatepass"
    )
    return f"/v1{path}?{query}", None


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _error(status: int, media_type: str | None, body: bytes) -> HoldfastError:
    if media_type == MEDIA_TYPE:
        return error_of(msgspec.json.decode(body, type=Problem))
    return StoreUnavailable(f"the server answered {status}: {body[:200].decode(errors='replace')}")


def _end(response: urllib3.BaseHTTPResponse) -> None:
    with suppress(RuntimeError):  # it has ended by itself
        response.shutdown()


def _parsed(response: urllib3.BaseHTTPResponse) -> Iterator[EventDoc | None]:
    """Server-Sent Events; None for those that only say that the stream lives."""
    pending = b""
    while True:
        part = response.read1(65536)
        if not part:
            return
        pending += part
        *whole, pending = pending.split(b"\n\n")
        for block in whole:
            if b"data: " in block:
                yield _event(block)


def _event(block: bytes) -> EventDoc | None:
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
    if fields[b"event"].decode() in QUIET:
        return None
    told = msgspec.json.decode(fields[b"data"], type=EventDoc)
    return msgspec.structs.replace(told, seq=int(fields.get(b"id", b"0")))
