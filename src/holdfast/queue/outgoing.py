"""Turns what a producer gives into messages, checking every field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.errors import (
    InvalidArgument,
)
from holdfast.model import payload
from holdfast.model.message import (
    Message,
    Outgoing,
    check_id,
    new_ids,
)
from holdfast.model.policy import Policy, seconds
from holdfast.model.queues import QueueSpec
from holdfast.queue.checks import (
    check_content_type,
    check_headers,
    check_key,
    check_priority,
    check_text,
    check_time,
)
from holdfast.rules import lifecycle
from holdfast.rules.lifecycle import ms

_KNOWN_TYPES = (payload.JSON, payload.BYTES)


class Maker:
    """Checks outgoing messages and turns them into what the store keeps."""

    def __init__(self, spec: QueueSpec, policy: Policy, now: int) -> None:
        self._name, self._spread, self._first = spec.name, spec.spread, spec.starts[-1]
        self._now = now
        self._payload_max = policy.payload_max or 0
        self.given: set[str] = set()
        """Ids that the caller chose; all others are new."""

    def all(self, items: list[Any]) -> list[Message]:
        ids = new_ids(len(items), self._now)
        if items and not isinstance(items[0], Outgoing):  # all payloads, most of the time
            bodies = payload.encode_plain(items, self._payload_max)
            if bodies is not None:
                return list(map(self._plain, bodies, ids))
        return self.each(items, ids)

    def each(self, items: Iterable[Any], ids: Iterable[str]) -> list[Message]:
        """One after the other; the error for a bad item says its `index`."""
        messages: list[Message] = []
        try:
            for item, id in zip(items, ids, strict=True):
                messages.append(self(item, id))
        except InvalidArgument as error:
            error.index = len(messages)
            raise
        return messages

    def __call__(self, item: Any, id: str) -> Message:
        if not isinstance(item, Outgoing):
            body, content_type = payload.encode(item, None, self._payload_max)
            return self._plain(body, id, content_type)
        body, content_type = payload.encode(item.payload, item.content_type, self._payload_max)
        own = item.ack_timeout is not None or item.max_attempts is not None or item.backoff
        if own:
            Policy(
                ack_timeout=item.ack_timeout, max_attempts=item.max_attempts, backoff=item.backoff
            )
        if item.id is not None:
            id = check_id(item.id)
            self.given.add(id)
        key = check_key(item.key)
        return Message(
            id,
            self._name,
            lifecycle.partition_of(key, id, self._spread) + self._first,
            check_priority(item.priority),
            key,
            check_text("type", item.type),
            body,
            content_type if content_type in _KNOWN_TYPES else check_content_type(content_type),
            check_headers(item.headers) if item.headers is not None else {},
            self._now,
            self._available_at(item),
            0,
            item.ack_timeout,
            item.max_attempts,
            item.backoff,
        )

    def _plain(self, body: bytes, id: str, content_type: str = payload.JSON) -> Message:
        """A payload alone: nothing else to check. Most messages of a bulk enqueue are such."""
        now, part = self._now, self._first
        if self._spread > 1:
            part += lifecycle.partition_of(None, id, self._spread)
        return Message(id, self._name, part, 0, None, None, body, content_type, {}, now, now, 0)

    def _available_at(self, item: Outgoing) -> int:
        if item.delay is None and item.at is None:
            return self._now
        if item.at is None:
            seconds("delay", item.delay)
            return self._now + ms(item.delay or 0.0)
        if item.delay is not None:
            raise InvalidArgument("at", "give a delay or a time, not both")
        return max(self._now, check_time("at", item.at))
