"""A connection to a server. Queues and topics behave as they do on a store.

The server applies the rules: it has the clock, the policy and the random source. What needs the
store itself raises FailedPrecondition: transactions (`within=`), workers.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from holdfast.app import Holdfast
from holdfast.client.queues import RemoteConsumer, RemoteQueue, RemoteTopic, policy_doc, raw
from holdfast.client.transport import Transport, place
from holdfast.errors import FailedPrecondition, MissingExtra, StoreUnavailable
from holdfast.model.clock import monotonic
from holdfast.model.message import check_queue_name
from holdfast.queue.context import Context
from holdfast.queue.interface import Queue, Topic
from holdfast.queue.redrive import (
    DeadFilter,
    Edit,
    Editor,
    Progress,
    Redriven,
    RedriveRunner,
    Stopped,
)
from holdfast.queue.redrive.choosing import checked
from holdfast.queue.redrive.moving import named
from holdfast.queue.topic import check_topic_name
from holdfast.stores.contract import Event, QueueStats, Store, Subscription
from holdfast.wire import shapes as s
from holdfast.work.sweeper import Swept

if TYPE_CHECKING:
    from holdfast.work.worker import Executor, Worker

NEEDS_STORE = "this needs the store itself: connect to the URL of the store, not of a server"


class NotOnServer(FailedPrecondition, AttributeError):
    """An attribute of a connection to a store. An AttributeError, so that `hasattr` is False."""


HTTP_PORT = 8080
GRPC_PORT = 8081


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
    """A connection to a server."""

    def __init__(self, transport: Transport, url: str) -> None:
        super().__init__(url)
        self._call = transport.call
        self._transport = transport
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"

    @property
    def store(self) -> Store:
        raise NotOnServer(NEEDS_STORE)

    @property
    def context(self) -> Context:
        raise NotOnServer(NEEDS_STORE)

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
        given = policy_doc(policy)
        if not create and given == s.PolicyDoc() and partitions is None and ordered is None:
            self._call("GetQueue", s.QueueAsk(name))
        else:
            if not create:
                self._call("GetQueue", s.QueueAsk(name))
            self._call("CreateQueue", s.PutQueueAsk(name, partitions, ordered, given))
        return RemoteQueue(self._transport, name, self._name)

    def consumer(self, queue: str | Queue, *, background: bool = True) -> RemoteConsumer:
        """Lease from an ordered queue. The server keeps its partitions: nothing runs in the
        background."""
        of = self.queue(queue.name if isinstance(queue, Queue) else queue, create=False)
        if not of.spec.ordered:
            raise FailedPrecondition(f"{of.name} is not ordered: lease from the queue itself")
        return RemoteConsumer(self._transport, of, f"{self._name}:{secrets.token_hex(2)}")

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

    def redrive(
        self,
        dlq: str,
        count: int = 0,
        *,
        ids: Sequence[Any] | None = None,
        where: DeadFilter | None = None,
        rate: float | None = None,
        to: str | None = None,
        edit: Edit | Editor | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], object] | None = None,
        cancel: threading.Event | Stopped | None = None,
    ) -> Redriven:
        for name, given in {"progress": progress, "cancel": cancel}.items():
            if given is not None:
                raise FailedPrecondition(
                    f"{name}: not supported over HTTP and gRPC; use start_redrive(), then poll "
                    "get_redrive() or call cancel_redrive()"
                )
        ask = _redrive_ask(
            dlq, count, ids=ids, where=where, rate=rate, to=to, edit=edit, dry_run=dry_run
        )
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

    def redrive_runner(self) -> RedriveRunner:
        raise FailedPrecondition(f"{NEEDS_STORE}. Every server runs one")

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 16,
        executor: Executor = "thread",
        time_limit: float | None = None,
        grace: float = 30.0,
        until_empty: bool = False,
        sweep: bool = True,
    ) -> Worker:
        raise FailedPrecondition(f"{NEEDS_STORE}. Without the store: lease() and ack()")

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
        raw(options.edit.payload if options.edit else UNSET),
        raw(options.edit.merge if options.edit else UNSET),
        options.dry_run,
    )


def _filter(where: DeadFilter | None) -> s.DeadFilterDoc | None:
    if where is None:
        return None
    given = msgspec.structs.asdict(where)
    given["fields"] = raw(where.fields or UNSET)
    return s.DeadFilterDoc(**given)


def _all(transport: Transport, name: str, field: str, key: str) -> Iterator[Any]:
    """A list by name, page after page."""
    after = ""
    while True:
        found = getattr(transport.call(name, s.ListAsk(after=after)), field)
        yield from found
        if len(found) < s.PAGE_MAX:
            return
        after = getattr(found[-1], key)
