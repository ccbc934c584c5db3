"""Takes the calls of the contract that come in several kinds apart, for every store alike.

A store that inherits from this fills in one method per kind; what it need not tell apart, such as
where an id was found, is put together here. Nothing obliges a store to use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, overload

from holdfast.model.message import Lease
from holdfast.model.moves import Settled, Transition
from holdfast.model.queues import Depth
from holdfast.stores.contract import (
    BatchEnd,
    ByPartition,
    Cut,
    Entry,
    LeaseAsk,
    Page,
    Purge,
    QueueStats,
    ReserveAsk,
    View,
)


class StoreBase(ABC):
    @overload
    def lease(self, ask: ReserveAsk, now: int) -> int: ...
    @overload
    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]: ...
    def lease(self, ask: LeaseAsk | ReserveAsk, now: int) -> list[Lease] | int:
        if isinstance(ask, ReserveAsk):
            return self._reserve(ask.as_lease(), now)
        return self._take_leases(ask, now)

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
            return self._end_batch(moves, now)
        return self._apply(moves, now, within)

    @overload
    def drop(self, what: Purge) -> int: ...
    @overload
    def drop(self, what: Sequence[Cut]) -> list[int]: ...
    def drop(self, what: Sequence[Cut] | Purge) -> list[int] | int:
        if isinstance(what, Purge):
            return self._drop_waiting(what.queue, what.limit)
        return self._drop_logged(what)

    @overload
    def stats(self, queues: ByPartition, now: int) -> list[Depth]: ...
    @overload
    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]: ...
    def stats(
        self, queues: Sequence[str] | ByPartition, now: int
    ) -> list[QueueStats] | list[Depth]:
        if isinstance(queues, ByPartition):
            return self._count_partitions(queues.queue, now)
        return self._count_queues(queues, now)

    def browse(self, view: View, after: str | None, limit: int, now: int) -> Page:
        if view.overdue_at is not None:
            return _page(self._read_overdue(view.queue, view.overdue_at, limit), None)
        if view.batch is not None:
            leases = self._read_batch(view.queue, view.batch, after, limit)
            return _page(leases, leases[-1].id if leases else None)
        return self._read_page(view, after, limit, now)

    def find(self, queue: str, ids: Sequence[str], *, log: bool = True) -> list[Entry | None]:
        # What is held first: messages go from there to the log, and none is missed on its way.
        found = {entry.message.id: entry for entry in self._find_held(queue, ids)}
        missing = [id for id in ids if id not in found] if log else []
        if missing:
            found |= self._find_logged(queue, missing)
        return [found.get(id) for id in ids]

    @abstractmethod
    def _take_leases(self, ask: LeaseAsk, now: int) -> list[Lease]: ...

    @abstractmethod
    def _reserve(self, ask: LeaseAsk, now: int) -> int:
        """Lease under `ask.batch` until NO_DEADLINE; how many."""

    @abstractmethod
    def _apply(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]: ...

    @abstractmethod
    def _end_batch(self, end: BatchEnd, now: int) -> int: ...

    @abstractmethod
    def _drop_waiting(self, queue: str, limit: int) -> int: ...

    @abstractmethod
    def _drop_logged(self, cuts: Sequence[Cut]) -> list[int]: ...

    @abstractmethod
    def _read_page(self, view: View, after: str | None, limit: int, now: int) -> Page: ...

    @abstractmethod
    def _read_overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        """Oldest deadline first."""

    @abstractmethod
    def _read_batch(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        """By id, after an id. Empty only if there are no more."""

    @abstractmethod
    def _find_held(self, queue: str, ids: Sequence[str]) -> Sequence[Entry]:
        """In no order, from the queue and its dead-letter queue."""

    @abstractmethod
    def _find_logged(self, queue: str, ids: Sequence[str]) -> Mapping[str, Entry]:
        """The last row of each, from the logs of the queue and of its dead-letter queue."""

    @abstractmethod
    def _count_queues(self, queues: Sequence[str], now: int) -> list[QueueStats]: ...

    @abstractmethod
    def _count_partitions(self, queue: str, now: int) -> list[Depth]: ...


def last_of_each(rows: Sequence[Entry]) -> dict[str, Entry]:
    """By id, the row that finished last."""
    found: dict[str, Entry] = {}
    for entry in sorted(rows, key=_finished_at):
        found[entry.message.id] = entry
    return found


def _finished_at(entry: Entry) -> tuple[int, int]:
    assert entry.finished is not None
    return entry.finished.finished_at, entry.place


def _page(leases: Sequence[Lease], after: str | None) -> Page:
    return Page([Entry(lease.message, 0, lease) for lease in leases], after, "")
