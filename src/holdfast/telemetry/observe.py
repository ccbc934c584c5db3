"""Reports to observers, batch by batch, what went through a connection.

All that can happen to a message is an enqueue, a lease or a settlement (docs/adr/0001), and the
contract has one method for each (docs/adr/0017). So one wrapper around the store sees everything,
whoever asked: a producer, a worker, the sweeper, a redrive, Spark. A connection that nobody
watches does not have this wrapper.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from threading import current_thread, main_thread
from typing import Any, ParamSpec, Protocol, cast, overload, runtime_checkable

from holdfast.model.message import Lease, Message, Status
from holdfast.model.moves import Enqueued, Settled, Transition
from holdfast.stores.contract import BatchEnd, LeaseAsk, ReserveAsk, Store

P = ParamSpec("P")
logger = logging.getLogger("holdfast.observe")


class Observer(Protocol):
    """Called once a batch, when the store has answered, in the thread that asked: be quick.

    Several threads may call at once. One that raises is logged, the first time, and changes nothing
    else. What a caller's own transaction (`within=`) took counts before it is committed. An
    observer that also has the methods of `BatchObserver` is told of Spark's batches.
    """

    def enqueued(self, messages: Sequence[Message], answers: Sequence[Enqueued]) -> None: ...

    def leased(self, leases: Sequence[Lease]) -> None:
        """Messages of one queue; a lease from several queues is reported queue by queue."""
        ...

    def settled(self, moves: Sequence[Transition], answers: Sequence[Settled]) -> None:
        """Acks, retries, deaths, releases, extensions, what a sweep or a redrive moved."""
        ...

    def handled(self, queue: str, seconds: float, ok: bool) -> None:
        """A worker ran the handlers of one delivery: for so long, and all of them succeeded."""
        ...


@runtime_checkable
class BatchObserver(Protocol):
    """What an observer may have besides: Spark leases and acks whole batches by a name, and what
    they hold is not read at that time. So there is only a number to report."""

    def reserved(self, queue: str, count: int) -> None:
        """So many messages were leased for a batch."""
        ...

    def ended(self, queue: str, count: int, status: Status | None) -> None:
        """So many messages of a batch were acked, and went to the log with this status."""
        ...


class Safe:
    """An observer that cannot hurt."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._batches = observer if isinstance(observer, BatchObserver) else None
        self._failed = False

    def enqueued(self, messages: Sequence[Message], answers: Sequence[Enqueued]) -> None:
        self._try(self.observer.enqueued, messages, answers)

    def leased(self, leases: Sequence[Lease]) -> None:
        self._try(self.observer.leased, leases)

    def settled(self, moves: Sequence[Transition], answers: Sequence[Settled]) -> None:
        self._try(self.observer.settled, moves, answers)

    def handled(self, queue: str, seconds: float, ok: bool) -> None:
        self._try(self.observer.handled, queue, seconds, ok)

    def reserved(self, queue: str, count: int) -> None:
        if self._batches is not None:
            self._try(self._batches.reserved, queue, count)

    def ended(self, queue: str, count: int, status: Status | None) -> None:
        if self._batches is not None:
            self._try(self._batches.ended, queue, count, status)

    def _try(self, call: Callable[P, None], *args: P.args, **options: P.kwargs) -> None:
        try:
            call(*args, **options)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise  # Ctrl-C
            if not self._failed:
                self._failed = True
                logger.exception(
                    "%s failed; its further failures are not logged", type(self.observer)
                )


def observed(store: Store, observer: Safe) -> Store:
    """The same store, with somebody who watches what goes in and out."""
    return cast(Store, _Observed(store, observer))


class Wrapper:
    """A store that has another one inside, and passes on what it does not do itself."""

    def __init__(self, store: Store) -> None:
        self.wrapped = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


def unobserved(store: Store) -> Store:
    """The store itself, whoever watches it."""
    return list(wraps(store))[-1]


def wraps(store: Store) -> Iterator[Store]:
    """The store as it was given, then what is inside each wrapper, the store itself last."""
    while True:
        yield store
        if not isinstance(store, Wrapper):
            return
        store = store.wrapped


class _Observed(Wrapper):
    def __init__(self, store: Store, observer: Safe) -> None:
        super().__init__(store)
        self._observer = observer

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any = None,
        receipt: str | None = None,
        finished_since: Mapping[int, int] | None = None,
    ) -> list[Enqueued]:
        answers = self.wrapped.enqueue(
            messages, now, within=within, receipt=receipt, finished_since=finished_since
        )
        self._observer.enqueued(messages, answers)
        return answers

    @overload
    def lease(self, ask: ReserveAsk, now: int) -> int: ...
    @overload
    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]: ...
    def lease(self, ask: LeaseAsk | ReserveAsk, now: int) -> list[Lease] | int:
        if isinstance(ask, ReserveAsk):
            count = self.wrapped.lease(ask, now)
            if count:
                self._observer.reserved(ask.queue, count)
            return count
        leases = self.wrapped.lease(ask, now)
        for _, of_queue in groupby(leases, lambda lease: lease.message.queue):
            self._observer.leased(list(of_queue))
        return leases

    @overload
    def settle(self, moves: BatchEnd, now: int, *, within: None = None) -> int: ...
    @overload
    def settle(
        self, moves: Sequence[Transition], now: int, *, within: Any = None
    ) -> list[Settled]: ...
    def settle(
        self, moves: Sequence[Transition] | BatchEnd, now: int, *, within: Any = None
    ) -> list[Settled] | int:
        if isinstance(moves, BatchEnd):
            count = self.wrapped.settle(moves, now)
            if count:
                self._observer.ended(moves.queue, count, moves.status)
            return count
        answers = self.wrapped.settle(moves, now, within=within)
        if moves:
            self._observer.settled(moves, answers)
        return answers
