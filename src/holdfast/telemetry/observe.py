"""For whoever wants to watch a connection: told, batch by batch, what went through it.

All that can happen to a message is an enqueue, a lease or a settlement (docs/adr/0001). So one
wrapper around the store sees it, whoever asked: a producer, a worker, the sweeper, a redrive; no
verb can forget to tell. A connection that nobody watches does not have this wrapper.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from threading import current_thread, main_thread
from typing import Any, ParamSpec, Protocol, cast

from holdfast.model.message import Lease, Message
from holdfast.model.moves import Enqueued, Settled, Transition
from holdfast.stores.contract import LeaseAsk, Store

P = ParamSpec("P")
logger = logging.getLogger("holdfast.observe")


class Observer(Protocol):
    """Called once a batch, when the store has answered, in the thread that asked: be quick.

    Several threads may call at once. One that raises is logged, the first time, and changes nothing
    else. What a caller's own transaction (`within=`) took counts before it is committed.
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


class Safe:
    """An observer that cannot hurt."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._failed = False

    def enqueued(self, messages: Sequence[Message], answers: Sequence[Enqueued]) -> None:
        self._try(self.observer.enqueued, messages, answers)

    def leased(self, leases: Sequence[Lease]) -> None:
        self._try(self.observer.leased, leases)

    def settled(self, moves: Sequence[Transition], answers: Sequence[Settled]) -> None:
        self._try(self.observer.settled, moves, answers)

    def handled(self, queue: str, seconds: float, ok: bool) -> None:
        self._try(self.observer.handled, queue, seconds, ok)

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


def observed(store: Store, observer: Observer) -> Store:
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
    def __init__(self, store: Store, observer: Observer) -> None:
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

    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]:
        leases = self.wrapped.lease(ask, now)
        for _, of_queue in groupby(leases, lambda lease: lease.message.queue):
            self._observer.leased(list(of_queue))
        return leases

    def settle(self, moves: Sequence[Transition], now: int, *, within: Any = None) -> list[Settled]:
        answers = self.wrapped.settle(moves, now, within=within)
        if moves:
            self._observer.settled(moves, answers)
        return answers
