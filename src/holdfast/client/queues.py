"""Queues, topics and consumers of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from holdfast.client.transport import Transport
from holdfast.errors import (
    FailedPrecondition,
    GroupNotFound,
    InvalidArgument,
    LeaseLost,
    MessageNotFound,
    did_you_mean,
)
from holdfast.model import payload as payloads
from holdfast.model.clock import monotonic
from holdfast.model.errortext import TRACEBACK_MAX, traceback_of
from holdfast.model.fields import with_plain
from holdfast.model.message import Lease, Message, Outgoing, check_id, dlq_of
from holdfast.model.moves import Settled, State
from holdfast.model.policy import Policy, seconds
from holdfast.model.queues import QueueSpec
from holdfast.queue.checks import check_state
from holdfast.queue.interface import PartitionStats, Queue, Start, Topic, TopicStats
from holdfast.queue.outgoing import Maker
from holdfast.queue.topic import check_group_name
from holdfast.rules.decide import encode_result
from holdfast.rules.outcome import Done, Extend, Fail, Outcome, Release, Retry, describe
from holdfast.stores.contract import Entry, QueueStats
from holdfast.wire import shapes as s

PAGE = 500


class RemoteQueue(Queue):
    """A queue of a server."""

    def __init__(self, transport: Transport, name: str, owner: str) -> None:
        super().__init__(name)
        self._transport = transport
        self._call = transport.call
        self._owner = owner

    @property
    def dlq(self) -> RemoteQueue:
        return RemoteQueue(self._transport, dlq_of(self.name), self._owner)

    @property
    def spec(self) -> QueueSpec:
        return self._call("GetQueue", s.QueueAsk(self.name)).value()

    @property
    def policy(self) -> Policy:
        own = self._call("GetQueue", s.QueueAsk(self.name)).policy.value()
        return own.over(self._call("GetSettings", s.NoAsk()).policy.value())

    def _enqueue(self, items: list[Any], within: Any, receipt: str | None = None) -> list[Message]:
        """Check what can be checked here before anything is sent."""
        no_transaction(within)
        sent, docs = outgoing_docs(items)
        if len(docs) == 1 and receipt is None:
            fields = msgspec.structs.asdict(docs[0])
            answers = [self._call("Enqueue", s.EnqueueAsk(queue=self.name, **fields))]
        else:
            ask = s.EnqueueBatchAsk(self.name, docs, receipt)
            answers = self._call("EnqueueBatch", ask).messages
        return [doc.value(message) for doc, message in zip(answers, sent, strict=True)]

    def lease(
        self,
        limit: int = 1,
        wait: float = 0.0,
        *,
        owner: str | None = None,
        partitions: Sequence[int] | None = None,
        batch: str | None = None,
    ) -> list[Lease]:
        if batch is not None:
            raise FailedPrecondition("batch: not supported over HTTP and gRPC; leave it out")
        seconds("wait", wait)
        chosen = None if partitions is None else list(partitions)
        until = monotonic() + wait
        while True:
            left = max(0.0, until - monotonic())
            ask = s.LeaseAsk(self.name, limit, left, owner or self._owner, chosen)
            found = self._call("LeaseBatch", ask, wait=left).leases
            if found or monotonic() >= until:
                return [doc.value() for doc in found]

    def settle(
        self, items: Iterable[Lease | tuple[Lease, Outcome]], *, within: Any = None
    ) -> list[Settled]:
        no_transaction(within)
        asked = [self._item(item) for item in items]
        done = self._call("Settle", s.SettleAsk(self.name, asked))
        return [Settled(doc.status) for doc in done.results]

    def _item(self, item: Lease | tuple[Lease, Outcome]) -> s.SettleItem:
        lease, outcome = (item, Done()) if isinstance(item, Lease) else item
        self._own(lease)
        fields = _outcome_fields(outcome)
        return s.SettleItem(lease.id, lease.token, owner=lease.owner, **fields)

    def _own(self, lease: Lease) -> None:
        if lease.message.queue != self.name:
            raise InvalidArgument(
                "lease", f"is of queue {lease.message.queue!r}, not {self.name!r}"
            )

    def _settle_one(self, lease: Lease, outcome: Outcome, within: Any = None) -> Any:
        no_transaction(within)
        self._own(lease)
        return _settle_by_verb(self._call, lease, outcome)

    def stats(self) -> QueueStats:
        return self._call("GetStats", s.QueueAsk(self.name)).value()

    def partitions(self) -> list[PartitionStats]:
        docs = self._call("ListPartitions", s.QueueAsk(self.name)).partitions
        return [doc.value() for doc in docs]

    def get(self, id: Any) -> Message:
        found = self._call("GetMessage", s.MessageAsk(self.name, check_id(id)))
        if found.state == "done":
            raise MessageNotFound(f"{self.name} holds no message {id}")
        return found.message.value()

    def browse(
        self,
        state: State | str = State.READY,
        *,
        since: int | None = None,
        until: int | None = None,
    ) -> Iterator[Entry]:
        after: str | None = None
        while True:
            wanted: Any = str(check_state(state))
            ask = s.BrowseAsk(self.name, wanted, after, PAGE, since, until)
            found = self._call("Browse", ask)
            yield from (_entry(doc) for doc in found.entries)
            after = found.after
            if after is None:
                return

    def replay(
        self, id: Any = None, *, since: int | None = None, until: int | None = None
    ) -> list[Message]:
        """An answer holds as many as the server's limit of bytes allows; this asks for the rest."""
        ask = s.ReplayAsk(self.name, None if id is None else check_id(id), since, until)
        made: list[Message] = []
        while True:
            found = self._call("Replay", ask, wait=600.0)
            made += [doc.value() for doc in found.messages]
            if found.after is None:
                return made
            ask = s.ReplayAsk(self.name, None, since, found.until, found.after)

    def pause(self) -> None:
        self._call("Pause", s.QueueAsk(self.name))

    def resume(self) -> None:
        self._call("Resume", s.QueueAsk(self.name))

    def purge(self) -> int:
        return self._call("Purge", s.QueueAsk(self.name), wait=600.0).count

    def delete(self, *, force: bool = False) -> None:
        self._call("DeleteQueue", s.DeleteQueueAsk(self.name, force), wait=600.0)


class RemoteConsumer:
    """A consumer of an ordered queue (`interface.Consumer`). The server keeps its partitions while
    it leases and settles, and for HOLDFAST_PARTITION_LEASE_MS after that."""

    def __init__(self, transport: Transport, queue: RemoteQueue, name: str) -> None:
        self.name = name
        self._call = transport.call
        self._queue = queue
        self._here: dict[str, Lease] = {}

    @property
    def partitions(self) -> list[int]:
        """The partitions that it owns now."""
        parts = self._queue.partitions()
        return [p.partition for p in parts if (p.owner or "").startswith(f"{self.name}:")]

    def tick(self) -> None:
        """Do nothing: the server keeps the partitions."""

    def lease(self, limit: int = 1, wait: float = 0.0) -> list[Lease]:
        leases = self._queue.lease(limit, wait, owner=self.name)
        self._here.update((lease.token, lease) for lease in leases)
        return leases

    def ack(self, lease: Lease, *, result: Any = None) -> None:
        self.settle(lease, Done(result))

    def nack(self, lease: Lease, error: Any = None, *, delay: float | None = None) -> None:
        self.settle(lease, Retry(error, delay=delay))

    def fail(self, lease: Lease, error: Any = "failed", *, code: str | None = None) -> None:
        self.settle(lease, Fail(error, code=code))

    def release(self, lease: Lease, *, delay: float | None = None) -> None:
        self.settle(lease, Release(delay=delay))

    def settle(self, lease: Lease, outcome: Done | Retry | Fail | Release) -> None:
        try:
            _settle_by_verb(self._call, lease, outcome)
        except LeaseLost:
            self._here.pop(lease.token, None)
            raise
        self._here.pop(lease.token, None)

    def close(self, *, keep: bool = False) -> None:
        if self._here and not keep:
            self._queue.settle([(lease, Release()) for lease in self._here.values()])
        self._here.clear()

    def __enter__(self) -> RemoteConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteTopic(Topic):
    """A topic of a server."""

    def __init__(self, transport: Transport, name: str, owner: str) -> None:
        super().__init__(name)
        self._transport = transport
        self._call = transport.call
        self._owner = owner

    def bind(
        self,
        group: str,
        *,
        start: Start = "now",
        partitions: int | None = None,
        ordered: bool | None = None,
        **policy: Any,
    ) -> RemoteQueue:
        self._queue_of(check_group_name(group))
        ask = s.BindAsk(self.name, group, start, partitions, ordered, policy_doc(policy))
        return self._queue(self._call("Bind", ask, wait=600.0).queue)

    def group(self, group: str) -> RemoteQueue:
        queue = self._queue_of(check_group_name(group))
        if group not in (known := self.groups()):
            hint = did_you_mean(group, known)
            raise GroupNotFound(f"topic {self.name!r} has no group {group!r}; {hint}")
        return self._queue(queue)

    def groups(self) -> list[str]:
        found = self._call("GetTopic", s.TopicAsk(self.name))
        return sorted({*found.groups, *found.filling})

    def unbind(self, group: str, *, force: bool = False) -> None:
        self._queue_of(check_group_name(group))
        self._call("Unbind", s.UnbindAsk(self.name, group, force))

    def delete(self, *, force: bool = False) -> None:
        self._call("DeleteTopic", s.DeleteTopicAsk(self.name, force))

    def _publish(self, items: list[Any], within: Any) -> list[Message]:
        no_transaction(within)
        sent, docs = outgoing_docs(items)
        if len(docs) == 1:
            fields = msgspec.structs.asdict(docs[0])
            answers = [self._call("Publish", s.PublishAsk(topic=self.name, **fields))]
        else:
            answers = self._call("PublishBatch", s.PublishBatchAsk(self.name, docs)).messages
        return [doc.value(message) for doc, message in zip(answers, sent, strict=True)]

    def stats(self) -> TopicStats:
        found = self._call("GetTopic", s.TopicAsk(self.name))
        return TopicStats(
            found.topic,
            {name: doc.value() for name, doc in found.groups.items()},
            found.filling,
            found.retained,
            found.oldest_age,
            found.log,
            found.retention,
        )

    def _queue(self, name: str) -> RemoteQueue:
        return RemoteQueue(self._transport, name, self._owner)


_VERBS: dict[str, tuple[str, Any]] = {
    "done": ("Ack", s.AckAsk),
    "retry": ("Nack", s.NackAsk),
    "fail": ("Fail", s.FailAsk),
    "release": ("Release", s.ReleaseAsk),
    "extend": ("Extend", s.ExtendAsk),
}


def _settle_by_verb(call: Callable[..., Any], lease: Lease, outcome: Outcome) -> Any:
    """By ack, nack, ...: unlike Settle, they answer a lost lease with an error."""
    fields = _outcome_fields(outcome)
    name, kind = _VERBS[fields.pop("outcome")]
    return call(name, kind(lease.message.queue, lease.id, lease.token, owner=lease.owner, **fields))


def _outcome_fields(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Done(result=result):
            encoded = UNSET if result is None else Raw(encode_result(result))
            return {"outcome": "done", "result": encoded}
        case Retry():
            return {"outcome": "retry", "error": _error(outcome), "delay": outcome.delay}
        case Fail():
            return {"outcome": "fail", "error": _error(outcome)}
        case Release():
            return {"outcome": "release", "delay": outcome.delay}
        case Extend(seconds=length):
            return {"outcome": "extend", "seconds": length}


def _error(outcome: Retry | Fail) -> s.ErrorAsk:
    text, code = describe(outcome)
    error = outcome.error
    where = traceback_of(error, TRACEBACK_MAX) if isinstance(error, BaseException) else None
    return s.ErrorAsk(text, code, where)


def outgoing_docs(items: list[Any]) -> tuple[list[Message], list[s.OutgoingDoc]]:
    """What to send, and the messages, of which only what the store adds comes back."""
    docs: list[s.OutgoingDoc] = []
    messages: list[Message] = []
    for n, item in enumerate(items):
        try:
            message = _CHECK(item, _NO_ID)
        except InvalidArgument as error:
            error.index = n
            raise
        messages.append(message)
        docs.append(_outgoing_doc(item if isinstance(item, Outgoing) else Outgoing(item), message))
    return messages, docs


def _outgoing_doc(item: Outgoing, message: Message) -> s.OutgoingDoc:
    is_json = message.content_type == payloads.JSON
    doc = s.OutgoingDoc(
        payload=Raw(message.body) if is_json else UNSET,
        body=None if is_json else message.body,
        content_type=None if is_json else message.content_type,
        id=None if item.id is None else message.id,
        key=message.key,
        type=message.type,
        priority=message.priority,
        delay=item.delay,
        at=None if item.at is None else message.available_at / 1000,
        headers=message.headers or None,
        ack_timeout=message.ack_timeout,
        max_attempts=message.max_attempts,
        backoff=s.BackoffDoc.of(message.backoff),
    )
    return with_plain(doc, message, sent=True)


_NO_ID = "00000000-0000-7000-8000-000000000000"
_CHECK = Maker(QueueSpec("any"), Policy(payload_max=2**31 - 1), now=0)
"""The library's own checks, before anything is sent. Sizes are the server's to judge."""


def raw(value: Any) -> Any:
    return UNSET if value is UNSET else Raw(msgspec.json.encode(value))


def _entry(doc: s.EntryDoc) -> Entry:
    message = doc.message.value()
    lease = None
    if doc.deadline is not None:
        lease = Lease(message, "", doc.deadline, doc.leased_at or 0, doc.owner or "")
    return Entry(message, 0, lease, doc.finished and doc.finished.value())


def policy_doc(fields: dict[str, Any]) -> s.PolicyDoc:
    return s.PolicyDoc.of(Policy.of(**fields))


def no_transaction(within: Any) -> None:
    if within is not None:
        raise FailedPrecondition(
            "within: not supported over HTTP and gRPC; connect to the store itself"
        )
