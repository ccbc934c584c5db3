"""Messages: enqueueing and publishing them, and how they are shown."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from holdfast.model.backoff import Backoff
from holdfast.model.fields import with_plain
from holdfast.model.message import ErrorInfo, Finished, History, Lease, Message
from holdfast.model.payload import JSON
from holdfast.wire.shapes.base import (
    BATCH_MAX,
    Ask,
    Body,
    Doc,
    Headers,
    Id,
    Name,
    Payload,
    Priority,
    Time,
    Token,
    Whole,
    says,
    with_plain_fields,
)


class BackoffDoc(Ask, frozen=True):
    base: Annotated[float | None, says("Seconds before the first retry.")] = None
    factor: Annotated[float | None, says("By which each wait is longer than the last.")] = None
    max: Annotated[float | None, says("The longest wait in seconds.")] = None
    jitter: Annotated[str | None, says("none, full or decorrelated.")] = None

    def value(self) -> Backoff:
        jitter: Any = self.jitter
        return Backoff(self.base, self.factor, self.max, jitter)

    @classmethod
    def complete(cls, backoff: Backoff) -> BackoffDoc:
        """With the defaults of what was left out."""
        return cls(backoff.base, backoff.factor, backoff.max, backoff.jitter)

    @classmethod
    def of(cls, backoff: Backoff | None) -> BackoffDoc | None:
        return None if backoff is None else cls(**backoff.to_dict())


class ErrorDoc(Doc, frozen=True):
    """One failed delivery."""

    message: str
    code: str
    at: Time
    attempt: int
    consumer: str | None = None
    handler: str | None = None
    traceback: Annotated[str | None, says("Where a handler raised it.")] = None


@with_plain_fields(sent=False)
class MessageDoc(Doc, frozen=True, kw_only=True):
    """A message. JSON is in `payload`, text and bytes are in `body`."""

    id: Id
    queue: Name
    partition: int
    priority: int
    key: str | None = None
    type: str | None = None
    content_type: str
    payload: Payload = UNSET
    body: Body = None
    headers: Headers = {}
    enqueued_at: Time
    available_at: Time
    attempts: int
    ack_timeout: float | None = None
    max_attempts: int | None = None
    backoff: BackoffDoc | None = None
    first_leased_at: Time | None = None
    errors: list[ErrorDoc] = []
    handled: Annotated[Raw | UnsetType, says("Results of handlers that succeeded.")] = UNSET
    last_delay: Annotated[float | None, says("Seconds of the last backoff.")] = None
    source: str | None = None
    dead_at: Time | None = None
    reason: str | None = None
    redriven: int = 0
    origin: str | None = None
    duplicate: bool = False

    @classmethod
    def of(cls, message: Message) -> MessageDoc:
        history = message.history
        json, body = _parts(message)
        doc = cls(
            id=message.id,
            queue=message.queue,
            partition=message.partition,
            priority=message.priority,
            key=message.key,
            type=message.type,
            content_type=message.content_type,
            payload=json,
            body=body,
            headers=message.headers,
            enqueued_at=message.enqueued_at,
            available_at=message.available_at,
            attempts=message.attempts,
            ack_timeout=message.ack_timeout,
            max_attempts=message.max_attempts,
            backoff=BackoffDoc.of(message.backoff),
            first_leased_at=message.first_leased_at,
            errors=[_error(error) for error in history.errors],
            handled=Raw(msgspec.json.encode(history.handled)) if history.handled else UNSET,
            last_delay=history.delay,
            source=history.source,
            dead_at=history.dead_at,
            reason=history.reason,
            redriven=history.redriven,
            origin=history.origin,
            duplicate=message.duplicate,
        )
        return with_plain(doc, message)

    def value(self) -> Message:
        """The library's message again."""
        raw = self.body if self.payload is UNSET else bytes(self.payload)
        handled: dict[str, Any] = {} if self.handled is UNSET else msgspec.json.decode(self.handled)
        history = History(
            errors=tuple(ErrorInfo(**msgspec.structs.asdict(error)) for error in self.errors),
            handled=handled,
            delay=self.last_delay,
            source=self.source,
            dead_at=self.dead_at,
            reason=self.reason,
            redriven=self.redriven,
            origin=self.origin,
        )
        return Message(
            self.id,
            self.queue,
            self.partition,
            self.priority,
            self.key,
            self.type,
            b"" if raw is None else raw,
            self.content_type,
            self.headers,
            self.enqueued_at,
            self.available_at,
            self.attempts,
            self.ack_timeout,
            self.max_attempts,
            self.backoff and self.backoff.value(),
            self.first_leased_at,
            with_plain(history, self),
            self.duplicate,
        )


def _error(error: ErrorInfo) -> ErrorDoc:
    return ErrorDoc(**msgspec.structs.asdict(error))


def _parts(message: Message) -> tuple[Raw | UnsetType, bytes | None]:
    """JSON as it was written; everything else, and JSON that somebody has damaged, as bytes."""
    if message.content_type != JSON:
        return UNSET, message.body
    try:
        msgspec.json.decode(message.body)
    except (ValueError, msgspec.MsgspecError):
        return UNSET, message.body
    return Raw(message.body), None


class LeaseDoc(Doc, frozen=True):
    message: MessageDoc
    token: Token
    deadline: Time
    leased_at: Time
    owner: str

    @classmethod
    def of(cls, lease: Lease) -> LeaseDoc:
        return cls(
            message=MessageDoc.of(lease.message),
            token=lease.token,
            deadline=lease.deadline,
            leased_at=lease.leased_at,
            owner=lease.owner,
        )

    def value(self) -> Lease:
        message = self.message.value()
        return Lease(message, self.token, self.deadline, self.leased_at, self.owner)


class FinishedDoc(Doc, frozen=True):
    message: MessageDoc
    status: str
    finished_at: Time
    first_leased_at: Time | None = None
    last_leased_at: Time | None = None
    consumer: str | None = None
    result: Annotated[Raw | UnsetType, says("What the handler gave.")] = UNSET

    @classmethod
    def of(cls, finished: Finished) -> FinishedDoc:
        result = UNSET if finished.result is None else Raw(msgspec.json.encode(finished.result))
        return cls(
            message=MessageDoc.of(finished.message),
            status=finished.status,
            finished_at=finished.finished_at,
            first_leased_at=finished.first_leased_at,
            last_leased_at=finished.last_leased_at,
            consumer=finished.consumer,
            result=result,
        )

    def value(self) -> Finished:
        status: Any = self.status
        return Finished(
            self.message.value(),
            status,
            self.finished_at,
            self.first_leased_at,
            self.last_leased_at,
            self.consumer,
            None if self.result is UNSET else msgspec.json.decode(self.result),
        )


@with_plain_fields(sent=True)
class OutgoingDoc(Ask, frozen=True):
    """A message to be: `payload` (a JSON value) or `body` (bytes), and what else it needs."""

    payload: Payload = UNSET
    body: Body = None
    content_type: Annotated[str | None, says("Of the body; default application/json.")] = None
    id: Annotated[str | None, says("A UUID of your own: repeating the call is safe.")] = None
    key: Annotated[str | None, says("Same key, same partition.", maxLength=1024)] = None
    type: Annotated[str | None, says("Which handlers get it.", maxLength=1024)] = None
    priority: Priority = 0
    delay: Annotated[float | None, says("Seconds to wait first.", minimum=0)] = None
    at: Annotated[float | None, says("Not before this time: in seconds since 1970.")] = None
    headers: Headers | None = None
    ack_timeout: Annotated[float | None, says("Its own lease time in seconds.")] = None
    max_attempts: Annotated[Whole | None, says("Its own number of deliveries.")] = None
    backoff: BackoffDoc | None = None


class EnqueueAsk(OutgoingDoc, frozen=True, kw_only=True):
    queue: Name


class PublishAsk(OutgoingDoc, frozen=True, kw_only=True):
    topic: Name


Outgoings = Annotated[list[OutgoingDoc], Meta(max_length=BATCH_MAX)]


class EnqueueBatchAsk(Ask, frozen=True):
    queue: Name
    messages: Outgoings
    receipt: Annotated[
        str | None, says("Names this call on this queue: repeated, it stores nothing.")
    ] = None


class PublishBatchAsk(Ask, frozen=True):
    topic: Name
    messages: Outgoings


class EnqueuedDoc(Doc, frozen=True, omit_defaults=False):
    """What the store made of a message; the rest is as it was sent."""

    id: Id
    queue: Annotated[str, says("Or the topic.")]
    partition: int
    enqueued_at: Time
    available_at: Time
    duplicate: Annotated[bool, says("The id was there: nothing was stored.")] = False
    message: Annotated[
        MessageDoc | None, says("Of a duplicate: what is there, for a key that may read it.")
    ] = None

    @classmethod
    def of(cls, message: Message) -> EnqueuedDoc:
        return cls(
            message.id,
            message.queue,
            message.partition,
            message.enqueued_at,
            message.available_at,
            message.duplicate,
            MessageDoc.of(message) if message.duplicate else None,
        )

    def value(self, sent: Message) -> Message:
        """The library's message again, from what the caller sent."""
        if self.message is not None:
            return self.message.value()
        return msgspec.structs.replace(
            sent,
            id=self.id,
            queue=self.queue,
            partition=self.partition,
            enqueued_at=self.enqueued_at,
            available_at=self.available_at,
            duplicate=self.duplicate,
        )


class EnqueuedsDoc(Doc, frozen=True):
    messages: list[EnqueuedDoc]


class MessagesDoc(Doc, frozen=True):
    messages: list[MessageDoc]
    after: Annotated[
        str | None,
        says("There is more than one answer may hold: ask again with this, and with `until`."),
    ] = None
    until: Annotated[Time | None, says("Where the range ends, if `after` is given.")] = None
