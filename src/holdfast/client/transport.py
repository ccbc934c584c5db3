"""How a call gets to a server: over HTTP or over gRPC."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import InvalidArgument, did_you_mean

CALL_S = 30.0
"""A call that is not answered for so long has failed; one that waits, after that as well."""
OPTIONS = {"key", "ca"}


SILENCE_S = 1.0
QUIET = ("ping", "stats")
"""Events that say that a stream lives, and numbers for pages: no news of the library's."""


class Transport(Protocol):
    def call(self, name: str, ask: Any, *, wait: float = 0.0) -> Any:
        """Do an operation of the table; raises the library's own errors."""
        ...

    def events(self, after: int | None) -> Iterator[Any]:
        """EventDocs as they come, and None when one is only told that the stream lives, or when
        nothing came for a second. Close it to end it."""
        ...

    def close(self) -> None: ...


class Place(msgspec.Struct, frozen=True):
    """Where a server is, and how to be let in."""

    host: str
    port: int
    secure: bool
    key: str | None
    ca: str | None
    """A file of certificates to trust instead of the system's."""


def place(url: str, port: int, *, key: str | None = None, ca: str | None = None) -> Place:
    """Of grpc://[:key@]host[:port][?ca=file]. A key in the URL, or beside it."""
    try:
        parts = urlsplit(url)
        where, number = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument("url", f"not a server's URL: {error}") from None
    if not where:
        raise InvalidArgument("url", "names no host")
    if parts.path not in ("", "/"):
        raise InvalidArgument("url", f"a server has no path, and this one has {parts.path!r}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise InvalidArgument(f"url option {name}", did_you_mean(name, OPTIONS))
    inside = unquote(parts.password) if parts.password else options.get("key")
    secure = parts.scheme in ("https", "grpcs")
    return Place(where, number or port, secure, key or inside, ca or options.get("ca"))


def with_silence(stream: Iterator[Any], end: Callable[[], None]) -> Iterator[Any]:
    """What comes, and None whenever nothing came for a while. `end` makes the stream end: it is
    called, from here, when nobody wants to hear more."""
    come: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def pump() -> None:
        try:
            for one in stream:
                come.put(one)
            come.put(_END)
        except Exception as error:
            come.put(error)

    thread = threading.Thread(target=pump, name="holdfast-watch", daemon=True)
    thread.start()
    try:
        while True:
            try:
                one = come.get(timeout=SILENCE_S)
            except queue.Empty:
                one = None
            if one is _END:
                return
            if isinstance(one, Exception):
                raise one
            yield one
    finally:
        end()
        thread.join()


_END = object()
