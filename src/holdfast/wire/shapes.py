"""The documents that clients send and get. Field names are the library's own.

Times are milliseconds since 1970 by the store's clock, lengths of time are seconds. A number as a
field's `Meta` limits it is checked here, what the library checks is left to the library, so that
one and the same error comes out of every door.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from holdfast.model.backoff import Backoff
from holdfast.model.message import NAME_MAX, ErrorInfo, Finished, History, Lease, Message
from holdfast.model.payload import JSON
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.queue.interface import PartitionStats
from holdfast.queue.queue import LEASE_MAX
from holdfast.stores.contract import QueueStats

PAGE_MAX = 1000
BATCH_MAX = 10_000
WAIT_MAX_S = 60.0
WHOLE_MAX = 2**53 - 1


def _says(text: str, **schema: Any) -> Meta:
    """A description and limits for the OpenAPI file; the library checks them."""
    return Meta(description=text, extra_json_schema=schema or None)


Time = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Name = Annotated[str, _says("Letters, digits, '_', '.', '-' and one '@'.", maxLength=NAME_MAX)]
Id = Annotated[str, _says("A UUID.")]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1), _says("0 to 9, highest first.")]
Seconds = Annotated[float, _says("Seconds.", minimum=0)]
Token = Annotated[str, _says("Of the lease; it ends with it.", maxLength=1024)]
Headers = Annotated[dict[str, str], _says("Text by name; 64 KiB in all.")]
Payload = Annotated[Raw | UnsetType, _says("Any JSON value; or give `body`.")]
Body = Annotated[bytes | None, _says("Bytes, in base64; instead of `payload`.")]
Whole = Annotated[int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="At most so many.")]
Cursor = Annotated[str | None, _says("The `after` of the page before.")]
State = Literal["ready", "delayed", "leased", "log"]


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client sends: a field that is not known is refused, not passed over."""


class Doc(msgspec.Struct, frozen=True, omit_defaults=True):
    """What comes back. A field that is not there has its default."""


class Nothing(Doc, frozen=True):
    """There is nothing to say."""


class BackoffDoc(Ask, frozen=True):
    base: Annotated[float | None, _says("Seconds before the first retry.")] = None
    factor: Annotated[float | None, _says("By which each wait is longer than the last.")] = None
    max: Annotated[float | None, _says("The longest wait in seconds.")] = None
    jitter: Annotated[str | None, _says("none, full or decorrelated.")] = None

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


class PolicyDoc(Ask, frozen=True):
    """Rules of a queue. What is left out is inherited."""

    ack_timeout: Annotated[float | None, _says("Seconds a lease lasts.")] = None
    max_attempts: Annotated[Whole | None, _says("Deliveries before it is dead.")] = None
    backoff: BackoffDoc | None = None
    overdue_backoff: Annotated[bool | None, _says("Overdue ones wait their backoff.")] = None
    exhausted: Annotated[str | None, _says("dead or complete.")] = None
    log: Annotated[bool | None, _says("Keep what is finished.")] = None
    retention: Annotated[float | None, _says("Seconds it is kept; 0: for ever.")] = None
    retention_count: Annotated[Whole | None, _says("How many are kept; 0: no limit.")] = None
    payload_max: Annotated[Whole | None, _says("Bytes a payload may have.")] = None
    on_failure: Annotated[str | None, _says("Ordered queues: block or skip.")] = None
    on_misfit: Annotated[str | None, _says("Payload of another type: dead or retry.")] = None
    traceback_max: Annotated[Whole | None, _says("Characters of a traceback; 0: none.")] = None
    duplicate_window: Annotated[
        float | None, _says("Seconds after it finished for which an id is a duplicate; 0: none.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """As keywords of `Holdfast.queue`: what was given."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        given["backoff"] = self.backoff and self.backoff.value()
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def of(cls, policy: Policy) -> PolicyDoc:
        given: dict[str, Any] = {**policy.to_dict(), "backoff": BackoffDoc.of(policy.backoff)}
        return cls(**given)

    def value(self) -> Policy:
        return Policy(**self.fields())


class ErrorDoc(Doc, frozen=True):
    """One failed delivery."""

    message: str
    code: str
    at: Time
    attempt: int
    consumer: str | None = None
    handler: str | None = None
    traceback: Annotated[str | None, _says("Where a handler raised it.")] = None


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
    handled: Annotated[Raw | UnsetType, _says("Results of handlers that succeeded.")] = UNSET
    last_delay: Annotated[float | None, _says("Seconds of the last backoff.")] = None
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
        return cls(
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
            history,
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
    result: Annotated[Raw | UnsetType, _says("What the handler gave.")] = UNSET

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


class QueueDoc(Doc, frozen=True):
    """A queue as it is set up. `policy` is what was given, `in_force` is all of it."""

    queue: Name
    partitions: Annotated[int, _says("Over which new messages are spread.")]
    total_partitions: Annotated[int, _says("With those from before it grew.")]
    starts: Annotated[list[int], _says("The first partition of each generation.")]
    ordered: bool
    paused: bool
    created_at: Time
    revision: int
    policy: PolicyDoc
    in_force: PolicyDoc

    @classmethod
    def of(cls, spec: QueueSpec, complete: Policy) -> QueueDoc:
        return cls(
            queue=spec.name,
            partitions=spec.spread,
            total_partitions=spec.partitions,
            starts=list(spec.starts),
            ordered=spec.ordered,
            paused=spec.paused,
            created_at=spec.created_at,
            revision=spec.revision,
            policy=PolicyDoc.of(spec.policy),
            in_force=msgspec.structs.replace(
                PolicyDoc.of(complete), backoff=BackoffDoc.complete(complete.backoff or Backoff())
            ),
        )

    def value(self) -> QueueSpec:
        return QueueSpec(
            self.queue,
            self.total_partitions,
            self.policy.value(),
            self.paused,
            self.created_at,
            self.revision,
            self.ordered,
            tuple(self.starts) or (0,),
        )


class StatsDoc(Doc, frozen=True, omit_defaults=False):
    queue: Name
    ready: int
    delayed: int
    leased: int
    dead: int
    done: int
    oldest_age: Annotated[float | None, _says("Seconds; null when none is ready.")]
    paused: bool
    lag: Annotated[int, _says("All that is not finished, dead letters apart.")] = 0

    @classmethod
    def of(cls, stats: QueueStats) -> StatsDoc:
        return cls(**msgspec.structs.asdict(stats), lag=stats.lag)

    def value(self) -> QueueStats:
        given = msgspec.structs.asdict(self)
        del given["lag"]  # the library adds it up by itself
        return QueueStats(**given)


class PartitionDoc(Doc, frozen=True, omit_defaults=False):
    partition: int
    ready: int
    delayed: int
    leased: int
    lag: int
    oldest_age: float | None
    owner: str | None
    epoch: int

    @classmethod
    def of(cls, part: PartitionStats) -> PartitionDoc:
        return cls(**msgspec.structs.asdict(part))

    def value(self) -> PartitionStats:
        return PartitionStats(**msgspec.structs.asdict(self))


class EventDoc(Doc, frozen=True, omit_defaults=False):
    type: str
    timestamp: Time
    payload: Raw
    seq: int = 0


# Asks and answers, in the order of the table


class OutgoingDoc(Ask, frozen=True):
    """A message to be: `payload` (a JSON value) or `body` (bytes), and what else it needs."""

    payload: Payload = UNSET
    body: Body = None
    content_type: Annotated[str | None, _says("Of the body; default application/json.")] = None
    id: Annotated[str | None, _says("A UUID of your own: repeating the call is safe.")] = None
    key: Annotated[str | None, _says("Same key, same partition.", maxLength=1024)] = None
    type: Annotated[str | None, _says("Which handlers get it.", maxLength=1024)] = None
    priority: Priority = 0
    delay: Annotated[float | None, _says("Seconds to wait first.", minimum=0)] = None
    at: Annotated[float | None, _says("Not before this time: in seconds since 1970.")] = None
    headers: Headers | None = None
    ack_timeout: Annotated[float | None, _says("Its own lease time in seconds.")] = None
    max_attempts: Annotated[Whole | None, _says("Its own number of deliveries.")] = None
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
        str | None, _says("Names this call on this queue: repeated, it stores nothing.")
    ] = None


class PublishBatchAsk(Ask, frozen=True):
    topic: Name
    messages: Outgoings


class EnqueuedDoc(Doc, frozen=True, omit_defaults=False):
    """What the store made of a message; the rest is as it was sent."""

    id: Id
    queue: Annotated[str, _says("Or the topic.")]
    partition: int
    enqueued_at: Time
    available_at: Time
    duplicate: Annotated[bool, _says("The id was there: nothing was stored.")] = False
    message: Annotated[
        MessageDoc | None, _says("Of a duplicate: what is there, for a key that may read it.")
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
        _says("There is more than one answer may hold: ask again with this, and with `until`."),
    ] = None
    until: Annotated[Time | None, _says("Where the range ends, if `after` is given.")] = None


class LeaseAsk(Ask, frozen=True):
    queue: Name
    limit: Annotated[int, Meta(ge=-(2**31), le=2**31), _says(f"1 to {LEASE_MAX}.")] = 1
    wait: Annotated[float, _says("Seconds to wait for the first.", minimum=0)] = 0.0
    owner: Annotated[
        str | None,
        _says(
            "Your name, for people. An ordered queue needs it, the same each time.", maxLength=1024
        ),
    ] = None
    partitions: Annotated[list[Whole] | None, _says("Only these.")] = None


class LeasesDoc(Doc, frozen=True):
    leases: list[LeaseDoc]


class LeaseStreamAsk(Ask, frozen=True):
    """A stream of leases. No more than `max_in_flight` are out at a time: the next is sent when
    one was settled through this server, or has run out."""

    queue: Name
    max_in_flight: Annotated[int, Meta(ge=1, le=LEASE_MAX)] = 10
    owner: str | None = None
    partitions: list[Whole] | None = None


class ErrorAsk(Ask, frozen=True):
    message: str = ""
    code: str | None = None
    traceback: Annotated[str | None, _says("Where it was raised; shortened by policy.")] = None


class SettleItem(Ask, frozen=True):
    """How one lease ends."""

    id: Id
    token: Token
    outcome: Annotated[
        Literal["done", "retry", "fail", "release", "extend"], _says("What became of it.")
    ] = "done"
    result: Annotated[Raw | UnsetType, _says("done: JSON for the log.")] = UNSET
    error: ErrorAsk | None = None
    delay: Annotated[float | None, _says("retry, release: seconds until it comes again.")] = None
    seconds: Annotated[float | None, _says("extend: from now; else its own time.")] = None
    owner: Annotated[str | None, _says("Whose error it is.")] = None


class SettleAsk(Ask, frozen=True):
    queue: Name
    items: Annotated[list[SettleItem], Meta(max_length=BATCH_MAX)]


class SettledDoc(Doc, frozen=True, omit_defaults=False):
    id: Id
    status: Annotated[str, _says("applied, already or stale.")]
    deadline: Time | None = None


class SettledsDoc(Doc, frozen=True):
    results: list[SettledDoc]


class AckAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    result: Annotated[Raw | UnsetType, _says("JSON for the log.")] = UNSET
    owner: str | None = None


class NackAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    error: ErrorAsk | None = None
    delay: Annotated[float | None, _says("Seconds, instead of the backoff.", minimum=0)] = None
    owner: str | None = None


class FailAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    error: ErrorAsk | None = None
    owner: str | None = None


class ReleaseAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    owner: str | None = None
    delay: Annotated[float | None, _says("Seconds until it comes again.", minimum=0)] = None


class ExtendAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    seconds: Annotated[float | None, _says("From now; else its own time-out.")] = None
    owner: str | None = None


class QueueAsk(Ask, frozen=True):
    queue: Name


class PutQueueAsk(Ask, frozen=True):
    queue: Name
    partitions: Annotated[Whole | None, _says("1 to 256; more can be added.")] = None
    ordered: Annotated[bool | None, _says("Set when it is made.")] = None
    policy: PolicyDoc = PolicyDoc()


class DeleteQueueAsk(Ask, frozen=True):
    queue: Name
    force: Annotated[bool, _says("Also when it holds messages.")] = False


class ListAsk(Ask, frozen=True):
    prefix: Annotated[str, _says("Only names that begin so.")] = ""
    after: Annotated[str, _says("Only names behind this one.")] = ""
    limit: Limit = PAGE_MAX


class QueuesDoc(Doc, frozen=True):
    queues: list[QueueDoc]


class StatsListDoc(Doc, frozen=True):
    stats: list[StatsDoc]


class PartitionsDoc(Doc, frozen=True):
    partitions: list[PartitionDoc]


class CountDoc(Doc, frozen=True, omit_defaults=False):
    count: int


class BrowseAsk(Ask, frozen=True):
    """A page of messages that match all that is given. `after` of the answer goes on from there,
    also when a page is short: a page looks at so many messages at most."""

    queue: Name
    state: State = "ready"
    after: Cursor = None
    limit: Limit = 100
    since: Time | None = None
    until: Time | None = None
    key: str | None = None
    type: str | None = None
    text: Annotated[str | None, _says("In the payload, headers or errors.")] = None
    code: Annotated[str | None, _says("Of the last error.")] = None
    reason: Annotated[str | None, _says("Of a dead letter.")] = None
    header: Annotated[list[str], _says("name=value, each must be there.")] = []
    field: Annotated[list[str], _says("path=JSON value, in a JSON payload.")] = []
    id: Annotated[str | None, _says("Only this one, found at once.")] = None
    fingerprint: Annotated[str | None, _says("Dead letters of this failure group.")] = None
    newest: Annotated[bool, _says("log: the last finished first.")] = False


class EntryDoc(Doc, frozen=True):
    message: MessageDoc
    token: Annotated[str | None, _says("Never shown.")] = None
    deadline: Time | None = None
    leased_at: Time | None = None
    owner: str | None = None
    finished: FinishedDoc | None = None


class PageDoc(Doc, frozen=True):
    entries: list[EntryDoc]
    after: Cursor = None
    looked: int = 0
    now: Annotated[int, _says("The store's time, for countdowns.")] = 0


class MessageAsk(Ask, frozen=True):
    queue: Name
    id: Id


class MomentDoc(Doc, frozen=True):
    """One step in the life of a message."""

    at: Time
    what: str
    consumer: str | None = None
    attempt: int | None = None
    detail: str | None = None
    traceback: str | None = None


class DetailDoc(Doc, frozen=True):
    message: MessageDoc
    state: Annotated[str, _says("ready, delayed, leased, dead or done.")]
    deadline: Time | None = None
    owner: str | None = None
    finished: FinishedDoc | None = None
    timeline: list[MomentDoc] = []
    now: Annotated[int, _says("The store's time, for countdowns.")] = 0


class LogAsk(Ask, frozen=True):
    queue: Name
    after: Cursor = None
    limit: Limit = 100
    since: Time | None = None
    until: Time | None = None


class LogDoc(Doc, frozen=True):
    finished: list[FinishedDoc]
    after: Cursor = None


class ReplayAsk(Ask, frozen=True):
    queue: Name
    id: Annotated[str | None, _says("One message; or a range:")] = None
    since: Time | None = None
    until: Time | None = None
    after: Annotated[str | None, _says("Of an answer that was not the last: go on there.")] = None


class FailuresAsk(Ask, frozen=True):
    queue: Annotated[str, _says("A queue, or its dead letters.")]
    scan: Annotated[int, Meta(ge=1, le=100_000, description="Look at so many.")] = 10_000


class BucketDoc(Doc, frozen=True, omit_defaults=False):
    at: Time
    count: int


class FailureDoc(Doc, frozen=True, kw_only=True):
    """Dead letters that died of the same thing."""

    fingerprint: str
    reason: str | None = None
    code: str | None = None
    error: Annotated[str | None, _says("Its text, without what differs.")] = None
    handler: str | None = None
    count: int
    first_dead_at: Time | None = None
    last_dead_at: Time | None = None
    examples: list[str] = []
    by_time: list[BucketDoc] = []


class FailuresDoc(Doc, frozen=True):
    dlq: str
    groups: Annotated[list[FailureDoc], _says("The largest first.")]
    looked: int
    total: int
    bucket_ms: Annotated[int, _says("How long a bucket of `by_time` is.")]


class DeadFilterDoc(Ask, frozen=True):
    """Which dead letters: those that match all that is given."""

    reason: str | None = None
    code: Annotated[str | None, _says("Of the last error.")] = None
    key: str | None = None
    type: str | None = None
    older_than: Annotated[float | None, _says("Dead for so many seconds.")] = None
    newer_than: Annotated[float | None, _says("Dead for less than that.")] = None
    headers: dict[str, str] | None = None
    fields: Annotated[Raw | UnsetType, _says('{"path.in.payload": value}')] = UNSET
    fingerprint: Annotated[str | None, _says("Of a failure group.")] = None


class RedriveAsk(Ask, frozen=True):
    """Dead letters back to their queue, oldest first."""

    dlq_queue: Annotated[str, _says("The dead-letter queue.")]
    count: Annotated[Whole, _says("At most so many; 0: all.", minimum=0)] = 0
    ids: Annotated[list[str], Meta(max_length=BATCH_MAX)] | None = None
    where: DeadFilterDoc | None = None
    rate: Annotated[float | None, _says("Messages a second at most.")] = None
    to: Annotated[str | None, _says("To this queue, not to where they came from.")] = None
    payload: Annotated[Raw | UnsetType, _says("With this payload.")] = UNSET
    merge: Annotated[Raw | UnsetType, _says("With this JSON Merge Patch on it.")] = UNSET
    dry_run: Annotated[bool, _says("Only say how many.")] = False


class RedrivenDoc(Doc, frozen=True, omit_defaults=False):
    dlq: str
    redriven: int
    looked: int = 0
    missing: int = 0
    skipped: int = 0
    cancelled: bool = False
    dry_run: bool = False
    to: str | None = None


class RedriveIdAsk(Ask, frozen=True):
    id: Annotated[str, _says("Of the redrive.")]


class RedriveDoc(Doc, frozen=True, omit_defaults=False):
    """A redrive that goes on by itself."""

    id: str
    dlq: str
    state: Annotated[str, _says("running, done, cancelled or failed.")]
    redriven: int
    looked: int
    skipped: int
    missing: int
    total: int
    to: str | None
    created_at: Time
    updated_at: Time
    finished_at: Time | None
    error: str | None


class RedrivesDoc(Doc, frozen=True):
    redrives: list[RedriveDoc]


class TopicAsk(Ask, frozen=True):
    topic: Name


class PutTopicAsk(Ask, frozen=True):
    topic: Name
    log: Annotated[bool | None, _says("Keep what is published, for later groups.")] = None
    retention: Annotated[float | None, _says("Seconds it is kept; 0: for ever.")] = None


class DeleteTopicAsk(Ask, frozen=True):
    topic: Name
    force: bool = False


class BindAsk(Ask, frozen=True):
    topic: Name
    group: Annotated[str, _says("The group's name.")]
    start: Annotated[str, _says("now or earliest.")] = "now"
    partitions: Whole | None = None
    ordered: bool | None = None
    policy: PolicyDoc = PolicyDoc()


class UnbindAsk(Ask, frozen=True):
    topic: Name
    group: str
    force: bool = False


class TopicDoc(Doc, frozen=True, omit_defaults=False):
    topic: Name
    groups: dict[str, StatsDoc]
    filling: list[str]
    retained: int
    oldest_age: float | None
    log: bool
    retention: float


class TopicsDoc(Doc, frozen=True):
    topics: list[TopicDoc]


class ConsumerDoc(Doc, frozen=True):
    """Who holds what of a queue now."""

    owner: str
    leases: int = 0
    oldest_leased_at: Time | None = None
    next_deadline: Time | None = None
    partitions: list[int] = []


class ConsumersDoc(Doc, frozen=True):
    consumers: list[ConsumerDoc]
    looked: int = 0
    now: int = 0


class SweptDoc(Doc, frozen=True, omit_defaults=False):
    requeued: int
    dead: int
    completed: int
    trimmed: int


class NoAsk(Ask, frozen=True):
    """Nothing to say."""


class SettingsDoc(Doc, frozen=True, omit_defaults=False):
    version: str
    store: Annotated[str, _says("Its kind.")]
    auth: bool
    overdue_check_interval_ms: int
    requeue_batch_size: int
    partition_lease_ms: int
    partition_renew_ms: int
    partition_rebalance_ms: int
    policy: PolicyDoc
    limits: dict[str, float]
    now: int


class WatchAsk(Ask, frozen=True):
    after: Annotated[Time | None, _says("The `seq` of the last event that was seen.")] = None


# What a page shows beside the queues themselves


class IdentityDoc(Doc, frozen=True, omit_defaults=False):
    """Who is asking, and what they may."""

    id: Annotated[str, _says("Of the key; empty where no key is asked for.")]
    name: str
    rights: list[str]
    queues: Annotated[list[str], _says("Patterns of names; * is every queue.")]
    auth: Annotated[bool, _says("Whether this server asks for keys.")]


class HistoryAsk(Ask, frozen=True):
    queue: Annotated[str | None, _says("One queue in full; else all, the last few minutes.")] = None


class PointDoc(Doc, frozen=True, omit_defaults=False):
    """One look at a queue; the rates are a second, since the look before."""

    at: Time
    ready: int
    delayed: int
    leased: int
    dead: int
    in_rate: float
    out_rate: float
    dead_rate: float


class SpanDoc(Doc, frozen=True, omit_defaults=False):
    """How long messages waited and were worked on, in seconds, of a sample of those that were
    finished in the `span_ms` from `at` on."""

    at: Time
    count: Annotated[int, _says("How many were looked at.")]
    wait_p50: float
    wait_p95: float
    handle_p50: float
    handle_p95: float


class QueueHistoryDoc(Doc, frozen=True, omit_defaults=False):
    queue: Name
    points: Annotated[list[PointDoc], _says("Oldest first.")]
    spans: Annotated[list[SpanDoc], _says("Oldest first; only when one queue is asked for.")]


class HistoryDoc(Doc, frozen=True, omit_defaults=False):
    step_ms: Annotated[int, _says("From one point to the next.")]
    span_ms: int
    now: Time
    queues: list[QueueHistoryDoc]


class ActionsAsk(Ask, frozen=True):
    queue: Annotated[str | None, _says("Only what was done to this one or its dead.")] = None
    after: Cursor = None
    limit: Limit = 100


class ActionDoc(Doc, frozen=True, omit_defaults=False):
    """Something that an administrator did through a server."""

    id: str
    at: Time
    who: Annotated[str, _says("The name of the key.")]
    key_id: str
    what: Annotated[str, _says("The operation: pause, purge, redrive, ...")]
    queue: Annotated[str | None, _says("Or the topic; null is the whole store.")]
    count: Annotated[int | None, _says("How many messages; null where that says nothing.")]
    detail: Annotated[str, _says("What was asked for, as JSON.")]


class ActionsDoc(Doc, frozen=True):
    actions: Annotated[list[ActionDoc], _says("The newest first.")]
    after: Cursor = None


class BatchDoc(Doc, frozen=True, omit_defaults=False):
    """A batch of a Spark query that was settled."""

    batch: int
    rows: int
    done: int
    retried: int
    dead: int
    ms: Annotated[int, _says("From reserving to settling.")]
    settled_at: Time


class PipelineDoc(Doc, frozen=True, omit_defaults=False):
    """A Spark query that reads from a queue."""

    query: str
    name: str
    queue: Name
    state: Annotated[str, _says("running, idle, stopped, gone or in doubt.")]
    batch: Annotated[int, _says("The batch that is held, or was last.")]
    held: Annotated[int, _says("Messages in its hands.")]
    sealed: Annotated[bool, _says("The batch was handed to the query.")]
    since: Annotated[int | None, _says("When the batch that is held was begun.")]
    backlog: Annotated[int | None, _says("Ready and delayed; null: the queue is gone.")]
    done: int
    retried: int
    dead: int
    on_lost: str
    started_at: Time
    seen_at: Time
    settled_at: Time | None
    batch_ms: Annotated[int, _says("How long the last batch took.")]
    history: Annotated[list[BatchDoc], _says("The last batches, oldest first.")]


class PipelinesDoc(Doc, frozen=True, omit_defaults=False):
    pipelines: list[PipelineDoc]
    now: Time


class ReportsAsk(Ask, frozen=True):
    limit: Limit = 100


class ReportIdAsk(Ask, frozen=True):
    id: Annotated[str, _says("Of the report.")]


class ReportDoc(Doc, frozen=True):
    """A report that a Spark job made."""

    id: str
    made_at: Time
    title: str = ""
    lake: Annotated[str, _says("Where its tables are.")] = ""
    rows: Annotated[int, _says("Log rows that it looked at.")] = 0
    summary: Annotated[Raw | UnsetType, _says("Its main numbers.")] = UNSET
    html: Annotated[str | None, _says("The page itself; of one report only.")] = None


class ReportsDoc(Doc, frozen=True):
    reports: Annotated[list[ReportDoc], _says("The newest first.")]
