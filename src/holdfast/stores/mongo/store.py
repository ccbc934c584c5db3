"""MongoDB: a message is one document; every move of it is filtered by its state and its token.

What a caller may rely on as one step (a batch that is enqueued or settled) is a transaction. A
lease is not: a process that dies in a transaction leaves its documents locked to everybody else,
for a minute. See docs/adr/0010 and 0018.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.model.message import Finished, Lease, Message
from holdfast.model.moves import Enqueued, Settled, Transition
from holdfast.model.queues import Depth, QueueSpec
from holdfast.stores.base import StoreBase
from holdfast.stores.contract import (
    BatchEnd,
    Claim,
    Cut,
    Entry,
    Event,
    LeaseAsk,
    Page,
    QueueStats,
    Record,
    View,
)
from holdfast.stores.mongo import records, upkeep
from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.consuming import Consuming
from holdfast.stores.mongo.counting import Counting
from holdfast.stores.mongo.counts import Counts
from holdfast.stores.mongo.dropping import Dropping
from holdfast.stores.mongo.layout import CLAIMS, MESSAGES, RECORDS
from holdfast.stores.mongo.leasing import Leasing
from holdfast.stores.mongo.looking import Looking
from holdfast.stores.mongo.queues import Queues
from holdfast.stores.mongo.schema import Schema
from holdfast.stores.mongo.settling import Settlements
from holdfast.stores.mongo.storing import Storing
from holdfast.stores.mongo.url import Where, where
from holdfast.stores.mongo.waiting import Waiting
from holdfast.stores.mongo.wake import News, Subscription, Wake


def open_url(url: str) -> MongoStore:
    return MongoStore(where(url))


class MongoStore(StoreBase):
    def __init__(self, where: Where) -> None:
        self._where = where
        self._db = Connections(where)
        self._counts = Counts(self._db)
        self._waking = (os.getpid(), Wake(self._db))
        self._queues = Queues(self._db)
        self._counting = Counting(self._db, self._counts, self._queues)
        self._leasing = Leasing(self._db)
        self._storing = Storing(self._db, self._queues, self._counting)
        self._consuming = Consuming(self._db, self._queues, self._counting, self._leasing)
        self._settlements = Settlements(
            self._db, self._queues, self._counting, self._leasing.remembered
        )
        self._looking = Looking(self._db, self._queues, self._counts, self._counting, self._leasing)
        self._dropping = Dropping(self._db, self._queues, self._counting)

    @property
    def _wake(self) -> Wake:
        """A process that was forked off has none of its parent's threads, and needs its own."""
        if self._waking[0] != os.getpid():
            self._waking = (os.getpid(), Wake(self._db))
        return self._waking[1]

    def migrate(self) -> None:
        self._db.store = Schema(self._db, self._counting).migrate()

    def close(self) -> None:
        self._wake.stop()
        self._db.close()

    def time(self) -> int:
        with self._db.translated():
            said = self._db.database.command("hello")["localTime"]
        return round(said.timestamp() * 1000)

    # Queues

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        done = self._queues.put(specs)
        self._tell(spec.name for spec in specs)
        return done

    def queues(
        self, names: Sequence[str] | None = None, *, overdue: int | None = None
    ) -> list[QueueSpec]:
        if names is not None:
            known = self._queues.look_up_all(names) if len(names) > 1 else None
            found = known.values() if known else [self._queues.look_up(name) for name in names]
            return [each.spec for each in found if each is not None]
        if overdue is None:
            return self._queues.all()
        with self._db.translated():
            return self._queues.numbered(upkeep.late(self._db.get(MESSAGES), overdue))

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        gone = self._queues.delete(names, only_empty=only_empty)
        for q in gone or ():
            with self._db.translated():
                upkeep.drop_all(self._db, q)
        return gone is not None

    # Messages

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any = None,
        receipt: str | None = None,
        finished_since: Mapping[int, int] | None = None,
    ) -> list[Enqueued]:
        if not messages:
            return []
        stored = self._storing.enqueue(
            messages, now, within=within, receipt=receipt, finished_since=finished_since or {}
        )
        if within is None:
            self._tell({message.queue for message in messages})
        return stored

    def _take_leases(self, ask: LeaseAsk, now: int) -> list[Lease]:
        return self._consuming.lease(ask, now)

    def _reserve(self, ask: LeaseAsk, now: int) -> int:
        return self._consuming.reserve(ask, now)

    def _end_batch(self, end: BatchEnd, now: int) -> int:
        return self._settlements.end_batch(end, now)

    def _apply(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]:
        if not moves:
            return []
        answers = self._settlements.settle(moves, now, within)
        if within is None:
            self._tell({move.to_queue for move in moves} - {""})
        return answers

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        return self._storing.restore(queue, rows, now) if rows else 0

    def _drop_waiting(self, queue: str, limit: int) -> int:
        return self._dropping.purge(queue, limit, self.time())

    def _drop_logged(self, cuts: Sequence[Cut]) -> list[int]:
        return self._dropping.trim(cuts)

    # Looking

    def _read_overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        return self._looking.overdue(queue, now, limit)

    def _read_batch(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        return self._looking.batch(queue, batch, after, limit)

    def _read_page(self, view: View, after: str | None, limit: int, now: int) -> Page:
        return self._looking.page(view, after, limit, now)

    def split(self, view: View, parts: int, now: int) -> list[str]:
        return self._looking.split(view, parts, now)

    def _find_held(self, queue: str, ids: Sequence[str]) -> list[Entry]:
        return self._looking.held(queue, ids)

    def _find_logged(self, queue: str, ids: Sequence[str]) -> Mapping[str, Entry]:
        return self._looking.logged(queue, ids)

    def _count_queues(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        return self._looking.stats(queues, now)

    def _count_partitions(self, queue: str, now: int) -> list[Depth]:
        return self._looking.depths(queue, now)

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        waiting = Waiting(self._db, self._queues, self._leasing, self._consuming, self._wake)
        return waiting.wait(queues, now, timeout, partitions)

    # Upkeep

    def tidy(self, now: int, *, log_before: int | None) -> None:
        """Put the counts right, end what deleting a queue began, keep the log's own time-out."""
        self._counts.repair(now)
        self._counts.fold(now)
        with self._db.translated():
            upkeep.bury(self._db)
            upkeep.expire(self._db, None if log_before is None else now - log_before)

    # Claims, records, events

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        with self._db.translated():
            return records.claim(self._db.get(CLAIMS), name, owner, ttl_ms, now)

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        with self._db.translated():
            return records.claims(self._db.get(CLAIMS), names)

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        with self._db.translated():
            return records.put(self._db.get(RECORDS), kind, name, value, revision, now)

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        with self._db.translated():
            return records.read(self._db.get(RECORDS), kind, prefix, after, limit)

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        with self._db.translated():
            return records.drop(self._db.get(RECORDS), kind, prefix, before, limit)

    def publish(self, events: Sequence[Event]) -> None:
        if events:
            News(self._db, self._wake).publish(events)

    def subscribe(self, after: int | None = None) -> Subscription:
        return News(self._db, self._wake).subscribe(after)

    def look(self) -> dict[str, Any]:
        """What an operator wants to know of the server; see `holdfast doctor`."""
        with self._db.translated():
            return upkeep.look(self._db)

    def _tell(self, names: Iterable[str]) -> None:
        """Those who wait in this process need no stream to hear of it."""
        known = [self._queues.remembered(name) for name in names]
        self._wake.tell([queue.q for queue in known if queue])
