"""Enqueueing and publishing."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from msgspec import UNSET, Raw
from msgspec.structs import astuple

from holdfast.errors import InvalidArgument
from holdfast.model.fields import with_plain
from holdfast.model.message import Message, Outgoing
from holdfast.model.payload import JSON
from holdfast.server.auth import Principal
from holdfast.server.grouping import Grouped, Grouping
from holdfast.server.handles import Handles
from holdfast.telemetry import tracing
from holdfast.wire import shapes as s


class Messages:
    def __init__(self, handles: Handles, threads: Executor) -> None:
        self._handles = handles
        self._enqueues = Grouping(threads, self._enqueue_group)

    async def enqueue(self, ask: s.EnqueueAsk, who: Principal) -> s.EnqueuedDoc:
        return _enqueued(await self._enqueues.add(ask.queue, _item(ask)), ask.queue, who)

    def _enqueue_group(self, queue: str, items: Sequence[Any]) -> Grouped[Message]:
        return self._handles.queue(queue).enqueue_each(items)

    def enqueue_batch(self, ask: s.EnqueueBatchAsk, who: Principal) -> s.EnqueuedsDoc:
        items = _all_outgoing(ask.messages)
        made = self._handles.queue(ask.queue).enqueue_many(items, receipt=ask.receipt)
        return s.EnqueuedsDoc([_enqueued(message, ask.queue, who) for message in made])

    def publish(self, ask: s.PublishAsk, who: Principal) -> s.EnqueuedDoc:
        [made] = self._handles.topic(ask.topic).publish_many([outgoing(ask)])
        return _enqueued(made, ask.topic, who)

    def publish_batch(self, ask: s.PublishBatchAsk, who: Principal) -> s.EnqueuedsDoc:
        made = self._handles.topic(ask.topic).publish_many(_all_outgoing(ask.messages))
        return s.EnqueuedsDoc([_enqueued(message, ask.topic, who) for message in made])


def outgoing(ask: s.OutgoingDoc) -> Outgoing:
    """What a client sent, as the library takes it. JSON is kept as it was written."""
    if ask.payload is not UNSET and ask.body is not None:
        raise InvalidArgument("body", "give payload or body, not both")
    if ask.payload is not UNSET:
        if ask.content_type not in (None, JSON):
            raise InvalidArgument("content_type", f"a payload is {JSON}; send others as body")
        body, content_type = bytes(ask.payload), JSON
    elif ask.body is not None:
        body, content_type = ask.body, ask.content_type
    else:
        raise InvalidArgument("payload", "is missing: give payload (JSON) or body (base64)")
    made = Outgoing(
        body,
        ask.id,
        ask.key,
        ask.type,
        ask.priority,
        ask.delay,
        ask.at,
        tracing.inject(ask.headers) if tracing.is_loaded() else ask.headers,
        ask.ack_timeout,
        ask.max_attempts,
        ask.backoff and ask.backoff.value(),
        content_type,
    )
    return with_plain(made, ask, sent=True)


def _all_outgoing(asks: Sequence[s.OutgoingDoc]) -> list[Any]:
    items: list[Any] = []
    try:
        for ask in asks:
            items.append(_item(ask))  # noqa: PERF401, their number is that of the bad one
    except InvalidArgument as error:
        error.index = len(items)
        raise
    return items


def _item(ask: s.OutgoingDoc) -> Outgoing | Raw:
    """The payload, where nothing else was sent: most are such, and have less to check."""
    if ask.payload is UNSET or tracing.is_loaded() or astuple(ask)[1:_OWN] != _NOTHING_ELSE:
        return outgoing(ask)
    return ask.payload


_NOTHING_ELSE = astuple(s.OutgoingDoc())[1:]
_OWN = len(_NOTHING_ELSE) + 1
"""Those of a single ask have the queue behind them."""


def _enqueued(message: Message, to: str, who: Principal) -> s.EnqueuedDoc:
    """A duplicate answers with the message that is held, to those who may read it."""
    if message.duplicate and not who.may("read", to):
        return s.EnqueuedDoc(message.id, to, 0, 0, 0, duplicate=True)
    return s.EnqueuedDoc.of(message)
