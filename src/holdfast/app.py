"""A connection: queues, handlers and the worker on one store."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast.errors import FailedPrecondition, InvalidArgument, QueueNotFound, did_you_mean, shown
from holdfast.model import settings
from holdfast.model.clock import Clock, StoreClock
from holdfast.model.message import check_queue_name, dlq_of, is_dlq
from holdfast.model.policy import DEFAULTS, Policy, whole
from holdfast.model.queues import QueueSpec
from holdfast.queue import redrive
from holdfast.queue.checks import PARTITIONS_TOTAL
from holdfast.queue.context import Context
from holdfast.queue.interface import Consumer, Queue, Topic
from holdfast.queue.queue import LocalQueue
from holdfast.queue.topic import LocalTopic, is_hidden, open_topic, topics
from holdfast.stores import open_store
from holdfast.stores.contract import QueueStats, Store, Subscription
from holdfast.telemetry.announce import announcing
from holdfast.telemetry.observe import Observer
from holdfast.work.handlers import Handler, Registry
from holdfast.work.sweeper import Sweeper, Swept

if TYPE_CHECKING:
    from holdfast.work.worker import Executor, Worker

REMOTE = ("http://", "https://", "grpc://", "grpcs://")
PARTITIONS_MAX = 256

logger = logging.getLogger("holdfast")
F = TypeVar("F", bound=Callable[..., Any])


def connect(
    url: str | Store,
    *,
    clock: Clock | None = None,
    rng: Random | None = None,
    observer: Observer | None = None,
    key: str | None = None,
    ca: str | None = None,
    **policy: Any,
) -> Holdfast:
    """Open a store by URL: sqlite:///jobs.db, or memory:// for tests. Or a server that has one:
    http://host:8080 or grpc://host:8081, with its `key` if it asks for one (https, grpcs: `ca` is a
    file of certificates to trust).

    Policy fields (max_attempts, ack_timeout, backoff, ...) hold for every queue and message that
    does not say otherwise. An `observer` is told of all that goes through this connection. A clock
    and a random source are for tests.
    """
    if isinstance(url, str) and url.startswith(REMOTE):
        _only_a_store_takes(clock=clock, rng=rng, observer=observer, **policy)
        return import_module("holdfast.client").open_url(url, key=key, ca=ca)
    _only_a_server_takes(key=key, ca=ca)
    env = settings.load()
    own = Policy.of(**policy).over(env.policy).over(DEFAULTS)
    store = open_store(url) if isinstance(url, str) else url
    owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    store = announcing(store)
    at = Context(store, clock or StoreClock(store.time), rng or Random(), own, owner)
    at.requeue_batch_size = env.requeue_batch_size
    if observer is not None:
        at.observe(observer)
    return LocalHoldfast(at, env, url if isinstance(url, str) else None)


def _only_a_store_takes(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidArgument(name, "is the server's: set it there, or on the queue")


def _only_a_server_takes(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidArgument(name, "is for a server, and this is a store")


class Holdfast(ABC):
    """A connection: to a store, or to a server that has one. Thread-safe; make one per process and
    keep it."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        """Where it is connected to, with its password if it has one; None for a store object."""
        self._registry = Registry()

    @property
    @abstractmethod
    def store(self) -> Store:
        """The store itself."""

    @property
    @abstractmethod
    def context(self) -> Context:
        """The store, the clock and the policy of the connection."""

    @property
    def handlers(self) -> Registry:
        return self._registry

    @abstractmethod
    def queue(
        self,
        name: str,
        *,
        create: bool = True,
        partitions: int | None = None,
        ordered: bool | None = None,
        **policy: Any,
    ) -> Queue:
        """The queue of that name, made if it is new; fields that are given update its policy.

        `create=False` refuses a name that is not there. In an `ordered` queue each partition is
        worked by one consumer at a time, in order. More `partitions` can be added at any time.
        """

    @abstractmethod
    def queues(self) -> list[Queue]:
        """Every queue, dead-letter queues included, by name."""

    @abstractmethod
    def consumer(self, queue: str | Queue, *, background: bool = True) -> Consumer:
        """Lease from an ordered queue by hand; workers do this by themselves."""

    @abstractmethod
    def topic(
        self,
        name: str,
        *,
        create: bool = True,
        log: bool | None = None,
        retention: float | None = None,
    ) -> Topic:
        """The topic of that name, made if it is new; what is given is changed.

        It retains what is published for groups that are bound later: for `retention` seconds (7
        days; 0 keeps everything), or not at all with `log=False`.
        """

    @abstractmethod
    def topics(self) -> list[Topic]:
        """Every topic, by name."""

    @abstractmethod
    def stats(self) -> list[QueueStats]:
        """Of every queue; dead letters are counted with the queue they came from."""

    @abstractmethod
    def redrive(
        self,
        dlq: str,
        count: int = 0,
        *,
        ids: Sequence[Any] | None = None,
        where: redrive.DeadFilter | None = None,
        rate: float | None = None,
        to: str | None = None,
        edit: redrive.Edit | redrive.Editor | None = None,
        dry_run: bool = False,
        progress: Callable[[redrive.Progress], object] | None = None,
        cancel: threading.Event | redrive.Stopped | None = None,
    ) -> redrive.Redriven:
        """Put the `count` oldest dead letters back into their queue; 0 puts back all.

        Only those named by `ids`, and those that a filter takes: `where=DeadFilter(code="Declined",
        older_than=3600)`. At most `rate` a second. Into another queue with `to`. With a new payload
        by `edit`: a function of the message (None leaves it as it is), or an `Edit`. A dry run
        moves nothing and says what would be moved. `progress` is called after every batch; `cancel`
        is an event, or a function, that is looked at before each.
        """

    @abstractmethod
    def start_redrive(self, dlq: str, count: int = 0, **options: Any) -> redrive.RedriveJob:
        """A redrive that outlives this process, with the same options: `edit` must be an `Edit`.

        It is written down here and worked by a `redrive_runner`, in this process or another.
        """

    @abstractmethod
    def get_redrive(self, id: Any) -> redrive.RedriveJob:
        """How far a redrive is."""

    @abstractmethod
    def list_redrives(self) -> list[redrive.RedriveJob]:
        """Those that run, and those that ended within a day: the newest first."""

    @abstractmethod
    def cancel_redrive(self, id: Any) -> redrive.RedriveJob:
        """Stop it after its current batch, in whatever process it runs."""

    @abstractmethod
    def redrive_runner(self) -> redrive.RedriveRunner:
        """Works what `start_redrive` wrote down; servers run one."""

    @abstractmethod
    def sweep(self) -> Swept:
        """Settle every overdue lease now. Also runs by itself in every worker."""

    @abstractmethod
    def subscribe(self, after: int | None = None) -> Subscription:
        """Small events (requeue, move_to_dlq, redrive) from every process on this store."""

    def handler(
        self,
        queue: str | Queue,
        *,
        type: str | None = None,
        name: str | None = None,
        time_limit: float | None = None,
    ) -> Callable[[F], F]:
        """Register a plain or async function for a queue, or for one message type in it.

        It gets the payload (decoded into the type it annotates) and, if it asks for them by name
        or type, the `message`, the `lease` and the `attempt` number.
        """
        target = queue.name if isinstance(queue, Queue) else queue

        def register(function: F) -> F:
            self._registry.add(Handler(function, target, type, name, time_limit))
            return function

        return register

    @abstractmethod
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
        """A worker to run in a thread of your own; `work` is this with signals."""

    def work(self, **options: Any) -> bool:
        """Run the handlers until SIGTERM or SIGINT (or, `until_empty`, until nothing is ready).

        Takes the options of `worker`. On the first signal running handlers may finish, and what
        never started is given back; a second one ends the process at once. True: all settled.
        """
        worker = self.worker(**options)
        with _Signals(worker):
            return worker.run()

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalHoldfast(Holdfast):
    """A connection to a store."""

    def __init__(self, context: Context, env: settings.Settings, url: str | None = None) -> None:
        super().__init__(url)
        self._at = context
        self._settings = env

    @property
    def store(self) -> Store:
        return self._at.store

    @property
    def context(self) -> Context:
        return self._at

    def queue(
        self,
        name: str,
        *,
        create: bool = True,
        partitions: int | None = None,
        ordered: bool | None = None,
        **policy: Any,
    ) -> LocalQueue:
        check_queue_name(name)
        given = Policy.of(**policy)
        whole("partitions", partitions, low=1, high=PARTITIONS_MAX)
        if ordered not in (None, True, False):
            raise InvalidArgument("ordered", f"must be True or False, not {shown(ordered)}")
        while True:
            stored = self._at.spec(name)
            if stored is None and not create:
                raise QueueNotFound(f"no queue {name!r}; {did_you_mean(name, self._names())}")
            if stored is None:
                wanted = self._new(name, partitions or 1, bool(ordered), given)
            else:
                wanted = self._updated(stored, partitions, ordered, given)
            if not wanted or self._at.store.put_queues(wanted):
                return LocalQueue(self._at, name)

    def _new(self, name: str, partitions: int, ordered: bool, policy: Policy) -> list[QueueSpec]:
        if ordered and is_dlq(name):
            raise InvalidArgument("ordered", f"{name}: dead letters have no order to keep")
        now = self._at.clock.now()
        specs = [QueueSpec(name, partitions, policy, created_at=now, ordered=ordered)]
        if not is_dlq(name) and self._at.spec(dlq_of(name)) is None:
            specs.append(QueueSpec(dlq_of(name), partitions, created_at=now))
        return specs

    def _updated(
        self, stored: QueueSpec, partitions: int | None, ordered: bool | None, given: Policy
    ) -> list[QueueSpec]:
        """The specs to write; none if nothing changes."""
        if ordered is not None and ordered != stored.ordered:
            how = "ordered" if stored.ordered else "not ordered"
            raise InvalidArgument(
                "ordered", f"{stored.name} is {how}; this is set when a queue is created"
            )
        replace = msgspec.structs.replace
        changed = replace(stored, policy=given.over(stored.policy))
        if partitions is None or partitions == stored.spread:
            return [] if changed == stored else [changed]
        if partitions < stored.spread:
            raise InvalidArgument(
                "partitions",
                f"{stored.name} has {stored.spread}; they can be added, not taken away",
            )
        if is_dlq(stored.name):
            raise InvalidArgument("partitions", f"{stored.name} has those of its queue")
        total = stored.partitions + partitions
        if total > PARTITIONS_TOTAL:
            raise InvalidArgument(
                "partitions",
                f"{stored.name} would have {total} with those it had before, and the limit is "
                f"{PARTITIONS_TOTAL}: move to a new queue",
            )
        starts = (*stored.starts, stored.partitions)
        grown = [replace(changed, partitions=total, starts=starts)]
        dead = self._at.spec(dlq_of(stored.name))
        if dead is not None:
            grown.append(replace(dead, partitions=total, starts=starts))
        return grown

    def consumer(self, queue: str | Queue, *, background: bool = True) -> Consumer:
        from holdfast.work import ownership  # here: producers need none of it

        of = self.queue(queue.name if isinstance(queue, Queue) else queue, create=False)
        if not of.spec.ordered:
            raise FailedPrecondition(f"{of.name} is not ordered: lease from the queue itself")
        owner = ownership.Owner(self._at, of, self._settings, batch=1)
        return ownership.Consumer(owner, background=background)

    def topic(
        self,
        name: str,
        *,
        create: bool = True,
        log: bool | None = None,
        retention: float | None = None,
    ) -> LocalTopic:
        return open_topic(self._at, self.queue, name, create=create, log=log, retention=retention)

    def topics(self) -> list[Topic]:
        return [*topics(self._at, self.queue)]

    def queues(self) -> list[Queue]:
        return [LocalQueue(self._at, name) for name in self._names()]

    def _names(self) -> list[str]:
        """Of every queue but those that topics keep for themselves."""
        return [spec.name for spec in self._at.store.queues() if not is_hidden(spec.name)]

    def stats(self) -> list[QueueStats]:
        names = self._names()
        homes = set(names)
        shown = [n for n in names if not (is_dlq(n) and n.removesuffix(".dlq") in homes)]
        return self._at.store.stats(shown, self._at.clock.now())

    def redrive(
        self,
        dlq: str,
        count: int = 0,
        *,
        ids: Sequence[Any] | None = None,
        where: redrive.DeadFilter | None = None,
        rate: float | None = None,
        to: str | None = None,
        edit: redrive.Edit | redrive.Editor | None = None,
        dry_run: bool = False,
        progress: Callable[[redrive.Progress], object] | None = None,
        cancel: threading.Event | redrive.Stopped | None = None,
    ) -> redrive.Redriven:
        return redrive.redrive(
            self._at,
            dlq,
            count,
            ids=ids,
            where=where,
            rate=rate,
            to=to,
            edit=edit,
            dry_run=dry_run,
            progress=progress,
            cancel=cancel,
        )

    def start_redrive(self, dlq: str, count: int = 0, **options: Any) -> redrive.RedriveJob:
        return redrive.start_redrive(self._at, dlq, count, **options)

    def get_redrive(self, id: Any) -> redrive.RedriveJob:
        return redrive.get_redrive(self._at, id)

    def list_redrives(self) -> list[redrive.RedriveJob]:
        return redrive.list_redrives(self._at)

    def cancel_redrive(self, id: Any) -> redrive.RedriveJob:
        return redrive.cancel_redrive(self._at, id)

    def redrive_runner(self) -> redrive.RedriveRunner:
        return redrive.RedriveRunner(self._at, self._settings)

    def sweep(self) -> Swept:
        sweeper = Sweeper(self._at, self._settings)
        return sweeper.sweep(self._at.clock.now(), triggered_by="manual")

    def subscribe(self, after: int | None = None) -> Subscription:
        return self._at.store.subscribe(after)

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
        from holdfast.work.worker import Worker  # here: producers need none of what it imports

        for name in queues or self._registry.queues():
            self.queue(name)
        return Worker(
            self._at,
            self._registry,
            self._settings,
            queues=queues,
            concurrency=concurrency,
            executor=executor,
            time_limit=time_limit,
            grace=grace,
            until_empty=until_empty,
            sweep=sweep,
        )

    def close(self) -> None:
        self._at.store.close()


class _Signals:
    """SIGTERM and SIGINT stop a worker; the second one ends the process. Main thread only."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._before: dict[int, Any] = {}
        self._asked = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(128 + number)  # what ran becomes overdue and is delivered again
        self._asked = True
        self._worker.stop()
