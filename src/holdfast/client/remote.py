"""Holdfast, queues and topics that live behind a server. They mean what they mean in the library.

Rules are applied by the server, which has the clock, the policy and the dice. What needs the store
itself is not here: transactions (`within=`), workers.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, Raw

from holdfast.app import Holdfast
from holdfast.client.transport import Transport, place
from holdfast.errors import (
    FailedPrecondition,
    GroupNotFound,
    InvalidArgument,
    LeaseLost,
    MessageNotFound,
    MissingExtra,
    StoreUnavailable,
    did_you_mean,
)
from holdfast.model import payload as payloads
from holdfast.model.clock import monotonic
from holdfast.model.errortext import TRACEBACK_MAX, traceback_of
from holdfast.model.message import Lease, Message, Outgoing, check_id, check_queue_name, dlq_of
from holdfast.model.moves import Settled, State
from holdfast.model.policy import Policy, seconds
from holdfast.model.queues import QueueSpec
from holdfast.queue.checks import check_state
from holdfast.queue.outgoing import Maker
from holdfast.queue.queue import PartitionStats, Queue
from holdfast.queue.redrive import DeadFilter, Redriven
from holdfast.queue.redrive.choosing import checked
from holdfast.queue.redrive.moving import named
from holdfast.queue.topic import Start, Topic, TopicStats, check_group_name, check_topic_name
from holdfast.rules.decide import encode_result
from holdfast.rules.outcome import Done, Extend, Fail, Outcome, Release, Retry, describe
from holdfast.stores.contract import Entry, Event, QueueStats, Subscription
from holdfast.wire import shapes as s
from holdfast.work.handlers import Registry
from holdfast.work.sweeper import Swept

HTTP_PORT = 8080
GRPC_PORT = 8081
PAGE = 500


def open_url(url: str, *, key: str | None = None, ca: str | None = None) -> RemoteHoldfast:
    """A connection to a server; nothing is sent before the first call."""
    try:
        return RemoteHoldfast(_transport(url, key, ca), url)
    except ModuleNotFoundError as error:
        raise MissingExtra("a server's client needs: pip install 'holdfast[client]'") from error


def _transport(url: str, key: str | None, ca: str | None) -> Transport:
    if url.startswith("grpc"):
        from holdfast.client.rpc import RpcTransport

        return RpcTransport(place(url, GRPC_PORT, key=key, ca=ca))
    from holdfast.client.http import HttpTransport

    return HttpTransport(place(url, HTTP_PORT, key=key, ca=ca))


class RemoteHoldfast(Holdfast):
    """Queues of a server. Thread-safe; make one per process and keep it."""

    def __init__(self, transport: Transport, url: str) -> None:
        self.url = url
        self._call = transport.call
        self._transport = transport
        self._registry = Registry()
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("_at", "_settings"):
            raise FailedPrecondition(
                "this needs the store itself; connect to that, not to a server"
            )
        raise AttributeError(name)

    def queue(
        self,
        name: str,
        *,
        create: bool = True,
        partitions: int | None = None,
        ordered: bool | None = None,
        **policy: Any,
    ) -> RemoteQueue:
        check_queue_name(name)
        given = _policy(policy)
        if not create and given == s.PolicyDoc() and partitions is None and ordered is None:
            self._call("GetQueue", s.QueueAsk(name))
        else:
            if not create:
                self._call("GetQueue", s.QueueAsk(name))
            self._call("CreateQueue", s.PutQueueAsk(name, partitions, ordered, given))
        return RemoteQueue(self._transport, name, self._name)

    def consumer(self, queue: str | Queue, *, background: bool = True) -> Any:
        """Lease from an ordered queue. Its partitions are kept by the server, so that there is
        nothing to do in the background."""
        of = self.queue(queue.name if isinstance(queue, Queue) else queue, create=False)
        if not of.spec.ordered:
            raise FailedPrecondition(f"{of.name} is not ordered: lease from the queue itself")
        return RemoteConsumer(of, f"{self._name}:{secrets.token_hex(2)}")

    def queues(self) -> list[Queue]:
        found = list(_all(self._transport, "ListQueues", "queues", "queue"))
        return [RemoteQueue(self._transport, doc.queue, self._name) for doc in found]

    def stats(self) -> list[QueueStats]:
        return [doc.value() for doc in _all(self._transport, "ListStats", "stats", "queue")]

    def topic(
        self,
        name: str,
        *,
        create: bool = True,
        log: bool | None = None,
        retention: float | None = None,
    ) -> RemoteTopic:
        check_topic_name(name)
        if not create:
            self._call("GetTopic", s.TopicAsk(name))
        if create or log is not None or retention is not None:
            self._call("CreateTopic", s.PutTopicAsk(name, log, retention))
        return RemoteTopic(self._transport, name, self._name)

    def topics(self) -> list[Topic]:
        found = list(_all(self._transport, "ListTopics", "topics", "topic"))
        return [RemoteTopic(self._transport, doc.topic, self._name) for doc in found]

    def redrive(self, dlq: str, count: int = 0, **options: Any) -> Redriven:
        for name in ("progress", "cancel"):
            if options.pop(name, None) is not None:
                raise FailedPrecondition(f"{name}: over a wire start_redrive, and look at it")
        ask = _redrive_ask(dlq, count, **options)
        done = self._call("Redrive", ask, wait=float("inf"))
        return Redriven(**msgspec.structs.asdict(done))

    def start_redrive(self, dlq: str, count: int = 0, **options: Any) -> Any:
        """The server's document of it: id, state, redriven, looked, total, ..."""
        return self._call("StartRedrive", _redrive_ask(dlq, count, **options))

    def get_redrive(self, id: str) -> Any:
        return self._call("GetRedrive", s.RedriveIdAsk(id))

    def list_redrives(self) -> Any:
        return self._call("ListRedrives", s.NoAsk()).redrives

    def cancel_redrive(self, id: str) -> Any:
        return self._call("CancelRedrive", s.RedriveIdAsk(id))

    def sweep(self) -> Swept:
        done = self._call("Sweep", s.NoAsk(), wait=600.0)
        return Swept(*msgspec.structs.astuple(done))

    def subscribe(self, after: int | None = None) -> Subscription:
        return _Subscription(self._transport.events(after))

    # What a server alone knows; its documents, as they come

    def identity(self) -> s.IdentityDoc:
        """Who this connection is to the server, and what it may."""
        return self._call("GetIdentity", s.NoAsk())

    def history(self, queue: str | None = None) -> s.HistoryDoc:
        """Numbers and rates of the last hour; of one queue, also how long messages took."""
        return self._call("GetHistory", s.HistoryAsk(queue))

    def actions(
        self, queue: str | None = None, *, after: str | None = None, limit: int = 100
    ) -> s.ActionsDoc:
        """Who did what through servers, the newest first."""
        return self._call("ListActions", s.ActionsAsk(queue, after, limit))

    def pipelines(self) -> s.PipelinesDoc:
        """Spark queries, and how far they are."""
        return self._call("ListPipelines", s.NoAsk())

    def reports(self, limit: int = 100) -> list[s.ReportDoc]:
        return self._call("ListReports", s.ReportsAsk(limit)).reports

    def report(self, id: str) -> s.ReportDoc:
        """With its page."""
        return self._call("GetReport", s.ReportIdAsk(id))

    def close(self) -> None:
        self._transport.close()


class RemoteQueue(Queue):
    def __init__(self, transport: Transport, name: str, owner: str) -> None:
        self.name = name
        self._transport = transport
        self._call = transport.call
        self._owner = owner

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("_at", "_policies"):
            raise FailedPrecondition(
                "this needs the store itself; connect to that, not to a server"
            )
        raise AttributeError(name)

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
        """Checked as far as it can be here: what cannot be written down, and who joins what."""
        _no_transaction(within)
        sent, docs = _outgoing_docs(items)
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
            raise FailedPrecondition("batch: this needs the store itself")
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
        _no_transaction(within)
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

    def settle_one(self, lease: Lease, outcome: Outcome) -> None:
        self._settle_one(lease, outcome)

    def _settle_one(self, lease: Lease, outcome: Outcome, within: Any = None) -> Any:
        """By the verb of its own, so that a lost lease is an error."""
        _no_transaction(within)
        self._own(lease)
        fields = _outcome_fields(outcome)
        name, kind = _VERBS[fields.pop("outcome")]
        ask = kind(self.name, lease.id, lease.token, owner=lease.owner, **fields)
        return self._call(name, ask)

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
    """An ordered queue by hand, like `holdfast.work.ownership.Consumer`: one message of each
    partition at a time, in order. The server keeps its partitions while it leases and settles, and
    for HOLDFAST_PARTITION_LEASE_MS after that."""

    def __init__(self, queue: RemoteQueue, name: str) -> None:
        self.name = name
        self._queue = queue
        self._here: dict[str, Lease] = {}

    @property
    def partitions(self) -> list[int]:
        """Those that it owns now."""
        parts = self._queue.partitions()
        return [p.partition for p in parts if (p.owner or "").startswith(f"{self.name}:")]

    def tick(self) -> None:
        """The server does that."""

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
            self._queue.settle_one(lease, outcome)
        except LeaseLost:
            self._here.pop(lease.token, None)
            raise
        self._here.pop(lease.token, None)

    def close(self) -> None:
        """Give back what was not settled."""
        if self._here:
            self._queue.settle([(lease, Release()) for lease in self._here.values()])
            self._here.clear()

    def __enter__(self) -> RemoteConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteTopic(Topic):
    def __init__(self, transport: Transport, name: str, owner: str) -> None:
        self.name = name
        self._transport = transport
        self._call = transport.call
        self._owner = owner

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("_at", "_make_queue", "_record", "_publisher"):
            raise FailedPrecondition(
                "this needs the store itself; connect to that, not to a server"
            )
        raise AttributeError(name)

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
        ask = s.BindAsk(self.name, group, start, partitions, ordered, _policy(policy))
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
        _no_transaction(within)
        sent, docs = _outgoing_docs(items)
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


class _Subscription:
    def __init__(self, events: Iterator[s.EventDoc | None]) -> None:
        self._events = events
        self._first = next(events, None)  # now it is there: nothing is missed from here on

    def next(self, timeout: float) -> list[Event]:
        """Those that come within the time; a stream says every second that it lives."""
        until = monotonic() + timeout
        doc, self._first = self._first, None
        while doc is None:
            try:
                doc = next(self._events)
            except StopIteration:
                raise StoreUnavailable("the server ended the stream of events") from None
            if doc is None and monotonic() >= until:
                return []
        return [Event(doc.type, doc.timestamp, msgspec.json.decode(doc.payload), doc.seq)]

    def close(self) -> None:
        close: Callable[[], None] | None = getattr(self._events, "close", None)
        if close is not None:
            close()


_VERBS: dict[str, tuple[str, Any]] = {
    "done": ("Ack", s.AckAsk),
    "retry": ("Nack", s.NackAsk),
    "fail": ("Fail", s.FailAsk),
    "release": ("Release", s.ReleaseAsk),
    "extend": ("Extend", s.ExtendAsk),
}


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


def _outgoing_docs(items: list[Any]) -> tuple[list[Message], list[s.OutgoingDoc]]:
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
    return s.OutgoingDoc(
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


_NO_ID = "00000000-0000-7000-8000-000000000000"
_CHECK = Maker(QueueSpec("any"), Policy(payload_max=2**31 - 1), now=0)
"""The library's own checks, before anything is sent. Sizes are the server's to judge."""


def _redrive_ask(
    dlq: str,
    count: int = 0,
    *,
    ids: Iterable[str] | None = None,
    where: Any = None,
    rate: float | None = None,
    to: str | None = None,
    edit: Any = None,
    dry_run: bool = False,
) -> s.RedriveAsk:
    named(dlq)
    options, editor = checked(
        count, ids=ids, where=where, rate=rate, to=to, edit=edit, dry_run=dry_run
    )
    if editor is not None and options.edit is None:
        raise FailedPrecondition("edit: a function cannot be sent; give an Edit")
    return s.RedriveAsk(
        dlq,
        options.count,
        None if options.ids is None else list(options.ids),
        _filter(options.where),
        options.rate,
        options.to,
        _raw(options.edit.payload if options.edit else UNSET),
        _raw(options.edit.merge if options.edit else UNSET),
        options.dry_run,
    )


def _filter(where: DeadFilter | None) -> s.DeadFilterDoc | None:
    if where is None:
        return None
    given = msgspec.structs.asdict(where)
    given["fields"] = _raw(where.fields or UNSET)
    return s.DeadFilterDoc(**given)


def _raw(value: Any) -> Any:
    return UNSET if value is UNSET else Raw(msgspec.json.encode(value))


def _all(transport: Transport, name: str, field: str, key: str) -> Iterator[Any]:
    """A list by name, page after page."""
    after = ""
    while True:
        found = getattr(transport.call(name, s.ListAsk(after=after)), field)
        yield from found
        if len(found) < s.PAGE_MAX:
            return
        after = getattr(found[-1], key)


def _entry(doc: s.EntryDoc) -> Entry:
    message = doc.message.value()
    lease = None
    if doc.deadline is not None:
        lease = Lease(message, "", doc.deadline, doc.leased_at or 0, doc.owner or "")
    return Entry(message, 0, lease, doc.finished and doc.finished.value())


def _policy(fields: dict[str, Any]) -> s.PolicyDoc:
    return s.PolicyDoc.of(Policy.of(**fields))


def _no_transaction(within: Any) -> None:
    if within is not None:
        raise FailedPrecondition("within: a server is in no transaction of yours")
