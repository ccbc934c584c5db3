"""What can be done with queues, as a table of small stories that any connection can play.

A story gets a scene: a connection (the library's, or one over a wire), the clock behind it, and
what only a process that has the store can do. It gives back whole values; names that are made up on
the way (ids, tokens, consumers) are told apart by their order alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec

from holdfast import (
    Backoff,
    Fail,
    Holdfast,
    HoldfastError,
    Lease,
    Message,
    Queue,
    State,
)
from holdfast.errors import StoreUnavailable
from holdfast.queue.context import Context
from holdfast.testing import ManualClock, wait_until
from holdfast.wire import shapes as s

ID = "0190a000-0000-7000-8000-{:012d}"
HOUR = 3_600_000
Story = Callable[["Scene"], Any]


class Scene:
    """One run of a story."""

    def __init__(self, hf: Holdfast, at: Context, clock: ManualClock) -> None:
        self.hf = hf
        self.clock = clock
        self.at = at
        """Of the process that has the store: this one's, or the server's."""

    @property
    def transport(self) -> Any:
        """None for the library."""
        return vars(self.hf).get("_transport")

    def asks(self, name: str, ask: Any, library: Callable[[Context], Any]) -> Any:
        """An operation that is no verb of a connection."""
        return self.transport.call(name, ask) if self.transport else library(self.at)

    @contextmanager
    def streams(self, queue: str, n: int) -> Iterator[list[Lease]]:
        """The next `n` leases, as a stream where there is one. To be settled before it ends: what
        may not have arrived by then is given back."""
        if not hasattr(self.transport, "leases"):
            yield self.hf.queue(queue).lease(n, owner="me")
            return
        stream = self.transport.leases(s.LeaseStreamAsk(queue, max_in_flight=n, owner="me"))
        try:
            yield [doc.value() for doc in islice(stream, n)]
        finally:
            stream.close()

    def worked(self, id: str) -> Any:
        """A redrive, when it has come to its end: a server works it by itself."""
        if not self.transport:
            self.hf.redrive_runner().run_pending()
        wait_until(lambda: self.hf.get_redrive(id).state != "running")
        return self.hf.get_redrive(id)

    @contextmanager
    def store_breaks(self, verb: str, call: int) -> Iterator[None]:
        """The store is away when `verb` is called for the n-th time."""
        whole = self.at.store
        self.at.store = Breaking(whole, verb, call)  # type: ignore[assignment]
        try:
            yield
        finally:
            self.at.store = whole


class Breaking:
    def __init__(self, store: Any, verb: str, call: int) -> None:
        self._store = store
        self._verb = verb
        self._left = call

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            self._left -= 1
            if not self._left:
                raise StoreUnavailable("the store is gone")
        return getattr(self._store, name)


def refused(call: Callable[[], Any]) -> Any:
    """All that an error says; or what came instead."""
    try:
        return {"answer": call()}
    except HoldfastError as error:
        told = {name: getattr(error, name, None) for name in ("code", "field", "index", "redriven")}
        return {"error": type(error).__name__, **told, "text": str(error)}


def plain(value: Any) -> Any:
    """Builtins, without what differs from one run to the next."""
    known: dict[str, str] = {}

    def alias(found: re.Match[str]) -> str:
        return known.setdefault(found.group(), f"id {len(known)}")

    def walk(value: Any) -> Any:
        match value:
            case str():
                return _UUID.sub(alias, _CONSUMER.sub("a consumer", value))
            case dict():
                return {walk(k): _HIDDEN.get(k) or walk(v) for k, v in value.items()}
            case list() | tuple():
                return [walk(one) for one in value]
            case _:
                return value

    return walk(msgspec.to_builtins(value, enc_hook=_encoded))


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CONSUMER = re.compile(r"[\w.-]+:\d+:[0-9a-f]{6}")
_HIDDEN = {"token": "a token", "place": "its place", "seq": "its number"}


def _encoded(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    return {"backoff": value.to_dict()} if isinstance(value, Backoff) else repr(value)


STORIES: dict[str, Story] = {}


def story(function: Story) -> Story:
    STORIES[function.__name__] = function
    return function


def everything(queue: Queue) -> Any:
    """Whole rows of all that is known of a queue."""
    return {
        "stats": (queue.stats(), queue.dlq.stats()),
        **{f"{of.name} {state}": list(of.browse(state)) for of in both(queue) for state in State},
    }


def both(queue: Queue) -> tuple[Queue, Queue]:
    return queue, queue.dlq


def kill(queue: Queue, *items: Any, code: str = "Declined") -> list[Message]:
    """Dead letters of these, in their order."""
    sent = queue.enqueue_many(items)
    leases = queue.lease(len(items), owner="me")
    queue.settle((lease, Fail(f"no {lease.message.payload}", code=code)) for lease in leases)
    return sent
