"""Reads what queues hold: leases, pages, counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from holdfast.errors import QueueNotFound, StoreCorrupt, StoreError
from holdfast.model import clock
from holdfast.model.message import Lease, dlq_of, is_dlq
from holdfast.model.moves import State
from holdfast.model.queues import Depth
from holdfast.stores import page_of, read_cursor
from holdfast.stores.base import last_of_each
from holdfast.stores.contract import Entry, Page, QueueStats, View
from holdfast.stores.mongo import browse, upkeep
from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.counting import Counting
from holdfast.stores.mongo.counts import DONE, FIELDS, Counts, part_name
from holdfast.stores.mongo.layout import DELAYED, LEASED, LOG, MESSAGES, ODD, QUEUES, READY, Doc
from holdfast.stores.mongo.leasing import Leasing
from holdfast.stores.mongo.queues import Known, Queues, known_of
from holdfast.stores.mongo.rows import all_of, key_of, number, q_of, read_lease

STEP = 1000
"""Ids that one read names."""
LOOKED_UP = 100
"""Ids that one question to the log names."""

T = TypeVar("T")


class Looking:
    def __init__(
        self,
        db: Connections,
        queues: Queues,
        counts: Counts,
        counting: Counting,
        leasing: Leasing,
    ) -> None:
        self._db = db
        self._queues = queues
        self._counts = counts
        self._counting = counting
        self._leasing = leasing

    def overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        q = self._queues.must_exist(queue).q
        leases: list[Lease] = []
        with self._db.translated():
            while not leases:
                late = list(
                    self._db.get(MESSAGES)
                    .find({"q": q, "st": LEASED, "dl": {"$lte": now}})
                    .sort([("dl", 1), ("sq", 1)])
                    .limit(limit)
                )
                if not late:
                    return []
                leases = self._readable(queue, late, read_lease, now)
        return leases

    def _readable(
        self, queue: str, docs: Iterable[Doc], read: Callable[[Doc, str], T], now: int
    ) -> list[T]:
        """What can be read; the rest is set aside, for `holdfast doctor` to show."""
        good: list[T] = []
        for doc in docs:
            try:
                good.append(read(doc, queue))
            except StoreCorrupt:
                known = self._queues.must_exist(queue)
                self._counting.moving(known, now, lambda _, doc=doc: self._leasing.set_aside([doc]))
        return good

    def batch(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        known = self._queues.must_exist(queue)
        with self._db.translated():
            asked: Doc = {"ba": batch, "q": known.q, "st": LEASED}
            if after:
                asked["_id"] = {"$gt": key_of(known.home, after)}
            leases: list[Lease] = []
            while not leases:  # an empty answer would say that there are no more
                found = list(self._db.get(MESSAGES).find(asked).sort("_id", 1).limit(limit))
                if not found:
                    return []
                leases = self._readable(queue, found, read_lease, clock.wall_ms())
            return leases

    def page(self, view: View, after: str | None, limit: int, now: int) -> Page:
        cursor, known = read_cursor(after), self._queues.fresh(view.queue)
        at = self._db.get(LOG if view.state is State.LOG else MESSAGES)
        with self._db.translated():
            end = self._end()
            rows = browse.page(at, view, known.q, known.spec.partitions, cursor, limit + 1, now)
        return page_of(rows, view, limit, end)

    def _end(self) -> int:
        """The end of every line: the last tick that the server gave."""
        with self._db.client.start_session() as session:
            self._db.database.command("ping", session=session)
            if session.operation_time is not None:
                return number(session.operation_time)
        raise StoreError(f"{self._db.where.shown}: the server did not tell its time")

    def split(self, view: View, parts: int, now: int) -> list[str]:
        known = self._queues.fresh(view.queue)
        at = self._db.get(LOG if view.state is State.LOG else MESSAGES)
        with self._db.translated():
            n = browse.count(at, view, known.q, now)
            return browse.split(at, view, known.q, known.spec.partitions, parts, now, n)

    def held(self, queue: str, ids: Sequence[str]) -> list[Entry]:
        home, names = self._queues.must_exist(queue).home, self._queues.with_dlq(queue)
        docs: list[Doc] = []
        with self._db.translated():
            for start in range(0, len(ids), STEP):
                keys = [key_of(home, id) for id in ids[start : start + STEP]]
                docs += self._db.get(MESSAGES).find({"_id": {"$in": keys}})
        there = [doc for doc in docs if doc.get("q") in names and doc.get("st") != ODD]
        return [browse.found(doc, names[doc["q"]]) for doc in there]

    def logged(self, queue: str, ids: Sequence[str]) -> dict[str, Entry]:
        names, rows = self._queues.with_dlq(queue), list[Entry]()
        with self._db.translated():
            for start in range(0, len(ids), LOOKED_UP):
                some = ids[start : start + LOOKED_UP]
                asked = [{"_id": all_of(q, id)} for id in some for q in names]
                for doc in self._db.get(LOG).find({"$or": asked}):
                    with suppress(StoreCorrupt):  # see `holdfast doctor`
                        rows.append(browse.logged(doc, names[q_of(doc["_id"])]))
        return last_of_each(rows)

    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        with self._db.translated():
            docs = {doc["_id"]: doc for doc in self._db.get(QUEUES).find({})}
            for name in queues:
                if name not in docs:
                    raise QueueNotFound(f"no queue {name!r}")
            qs = {q for doc in docs.values() if isinstance(q := doc.get("qid"), int)}
            sums = self._counts.sums(qs)
            return [self._stats(known_of(docs[name]), docs, sums, now) for name in queues]

    def _stats(
        self, known: Known, docs: dict[str, Doc], sums: dict[int, Doc], now: int
    ) -> QueueStats:
        at = self._db.get(MESSAGES)
        late, heads = upkeep.heads(at, known.q, known.spec.partitions, now)
        due, oldest = late.total(), min(heads.values(), default=None)
        mine = sums.get(known.q, {})
        dlq, dead = docs.get(dlq_of(known.spec.name)), 0
        if dlq is not None and not is_dlq(known.spec.name):
            dead = sum(
                int(sums.get(dlq.get("qid", 0), {}).get(name, 0)) for name in FIELDS.values()
            )
        return QueueStats(
            queue=known.spec.name,
            ready=int(mine.get(FIELDS[READY], 0)) + due,
            delayed=int(mine.get(FIELDS[DELAYED], 0)) - due,
            leased=int(mine.get(FIELDS[LEASED], 0)),
            dead=dead,
            done=int(mine.get(DONE, 0)),
            oldest_age=None if oldest is None else max(0, now - oldest) / 1000,
            paused=known.spec.paused,
        )

    def depths(self, queue: str, now: int) -> list[Depth]:
        known = self._queues.fresh(queue)
        counted = self._counts.depths(known.q)
        for state, name in FIELDS.items():  # the first partition has the rest
            others = sum(counted[part_name(state, n)] for n in range(1, known.spec.partitions))
            counted[part_name(state, 0)] = counted[name] - others
        with self._db.translated():
            at = self._db.get(MESSAGES)
            due, oldest = upkeep.heads(at, known.q, known.spec.partitions, now)
        return [
            Depth(
                part,
                ready=counted[part_name(READY, part)] + due[part],
                delayed=counted[part_name(DELAYED, part)] - due[part],
                leased=counted[part_name(LEASED, part)],
                oldest_at=oldest.get(part),
            )
            for part in range(known.spec.partitions)
        ]
