"""PostgreSQL: the store that many processes on many machines share.

Every statement finds its rows by an index that no statistics can talk it out of, takes whole
batches, and waits for no lock that another consumer holds. See docs/adr/0007.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.model.message import Finished, Lease, Message
from holdfast.model.moves import Enqueued, Settled, State, Target, Transition
from holdfast.model.queues import Depth, QueueSpec
from holdfast.stores.contract import BatchEnd, Claim, Cut, Event, LeaseAsk, View
from holdfast.stores.kit.figures import Heads
from holdfast.stores.kit.forks import PerProcess
from holdfast.stores.kit.specs import check_version
from holdfast.stores.kit.waiting import Watch
from holdfast.stores.postgres import arrays, arrow, settle, upkeep
from holdfast.stores.postgres import statements as texts
from holdfast.stores.postgres.connections import Connection, Connections, Where
from holdfast.stores.postgres.enqueueing import Enqueueing
from holdfast.stores.postgres.joined import joined
from holdfast.stores.postgres.leasing import Leasing
from holdfast.stores.postgres.queues import Queues
from holdfast.stores.postgres.rows import read_lease
from holdfast.stores.postgres.schema import in_schema
from holdfast.stores.postgres.settling import Settling
from holdfast.stores.postgres.url import where
from holdfast.stores.postgres.wake import Wake
from holdfast.stores.sql.store import EVENTS, EVENTS_KEPT, Row, Rows, SqlStore, between, scripts

T = TypeVar("T")


def open_url(url: str) -> PostgresStore:
    return PostgresStore(where(url))


class PostgresStore(SqlStore[Connections]):
    statements = texts
    look_again_s = 0.01

    def __init__(self, where: Where) -> None:
        self._where = where
        self._db = Connections(where)
        self._sql = self._db.sql
        self._waking = PerProcess(lambda: Wake(self._db, where.schema))
        self._queues = Queues(self._db)
        self._enqueueing = Enqueueing(self._db)
        self._leasing = Leasing(self._db, self._queues)
        self._settling = Settling(self._db, self._queues)
        self._upkeep = upkeep.Upkeep(self._db)
        self._arrow = arrow.Reader(where)
        self._id = ""

    @property
    def _wake(self) -> Wake:
        return self._waking.get()

    def migrate(self) -> None:
        """Make or upgrade the schema, in one transaction, under a lock: others wait, then look."""
        steps = migrations(schema=self._where.schema)
        with self._db.use() as db:
            version = self._version(db)
            check_version(self._where.shown, version, len(steps))
            if version == len(steps):
                return
            with db.transaction():
                db.execute(
                    "SELECT pg_advisory_xact_lock(hashtext(%s))", (f"{self._where.schema}.",)
                )
                there = db.execute(texts.THERE, (self._where.schema,)).fetchall()
                version = self._version(db)  # others may have been here
                for n, script in enumerate(steps[version:], version):
                    if there and n == 0:  # who owns the schema need not be allowed to make one
                        script = _without(in_schema(texts.MAKE, self._where.schema), script)
                    db.execute(script.encode(), prepare=False)
            self._version(db)

    def _version(self, db: Connection) -> int:
        # Not to_regclass: inside a transaction it may still answer from a cache of before the lock.
        if not db.execute(texts.MADE, (self._where.schema,)).fetchall():
            return 0
        rows = db.execute(self._sql("SELECT name, value FROM holdfast.meta")).fetchall()
        values = dict(rows)
        self._id = values.get("store", "")
        try:
            return int(values.get("version", "0"))
        except ValueError:
            raise StoreCorrupt(
                f"{self._where.shown}: not a Holdfast schema: {self._where.schema}"
            ) from None

    def close(self) -> None:
        self._wake.stop()
        self._arrow.close()
        self._db.close()

    def time(self) -> int:
        now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        return self._db.rows(now, {})[0][0]

    # What SqlStore asks for

    def _qid(self, queue: str) -> int:
        return self._queues.qid(queue)

    def _lease_of(self, row: Row, queue: str, at: int) -> Lease:
        return read_lease(row, queue, at)

    def _page(
        self, rows: Rows, view: View, qid: int, after: tuple[int, int], limit: int, now: int
    ) -> list[Row]:
        bind: dict[str, Any] = {
            "qid": qid,
            "now": now,
            "first": after[0],
            "second": after[1],
            **between(view),
            "limit": limit,
            "id": view.id,
        }
        by_id = view.state is State.LOG and view.id is not None
        found: list[Row] = []
        for statement in (texts.LOG_ONE,) if by_id else texts.PAGES[view.state]:
            found += rows(statement, bind)
        return sorted(found, key=lambda row: row[:2])[:limit]

    def _heads(self, rows: Rows, queues: Mapping[int, int], now: int) -> dict[int, Heads]:
        split = {qid: n for qid, n in queues.items() if n > 1}
        heads = {qid: Heads() for qid in queues}
        bind: dict[str, Any] = {
            "whole": arrays.ints([qid for qid in queues if qid not in split]),
            "split": arrays.ints(list(split)),
            "partitions": arrays.ints(list(split.values())),
        }
        for qid, *head in rows(texts.HEADS, bind):
            heads[qid].add(*head)
        for qid, *head, n in rows(texts.DUE, {"qids": list(queues), "now": now}):
            heads[qid].add(*head, due=n)
        return heads

    def _watch(self, topics: Sequence[str]) -> Watch:
        return self._wake.watch(topics)

    def _ready_in(self, qid: int, partitions: Sequence[int], of: int) -> bool:
        if of == 1:
            return 0 in partitions
        bind = {"qid": qid, "partitions": arrays.ints(partitions)}
        return bool(self._db.rows(texts.READY_IN, bind))

    # Queues

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        done = self._queues.put(specs)
        self._wake.tell([spec.name for spec in specs])
        return done

    def _named(self, names: Sequence[str]) -> list[QueueSpec]:
        known = self._queues.look_up_all(names)
        return [known[name][0] for name in names if name in known]

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        return self._queues.delete(names, only_empty=only_empty)

    def _count_partitions(self, queue: str, now: int) -> list[Depth]:
        depths = super()._count_partitions(queue, now)
        self._queues.forget_unless(queue, len(depths))
        return depths

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
        names = sorted({message.queue for message in messages})
        if within is not None:
            with joined(within, self._where, self._id) as db:
                answers = self._enqueueing.within(db, messages, now, receipt, finished_since)
                db.execute(*self._wake.notice(names))
            return answers
        answers = self._enqueueing.enqueue(messages, now, receipt, finished_since)
        self._wake.tell(names)
        self._queues.fold()
        return answers

    def _take_leases(self, ask: LeaseAsk, now: int) -> list[Lease]:
        return self._leasing.lease(ask, now)

    def _reserve(self, ask: LeaseAsk, now: int) -> int:
        return self._leasing.reserve(ask, now)

    def _end_batch(self, end: BatchEnd, now: int) -> int:
        return self._settling.end_batch(end, now)

    def _apply(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]:
        if not moves:
            return []
        woken = sorted({move.to_queue for move in moves if move.target is Target.WAITING})
        if within is not None:
            with joined(within, self._where, self._id) as db:
                answers = settle.settle(self._db.within(db), moves, now)
                if woken:
                    db.execute(*self._wake.notice(woken))
            return answers
        answers = self._settling.settle(moves, now)
        if woken:
            self._wake.tell(woken)
        self._queues.fold(len({move.queue for move in moves}))
        return answers

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        return self._enqueueing.restore(queue, rows, now) if rows else 0

    def _drop_logged(self, cuts: Sequence[Cut]) -> list[int]:
        return self._upkeep.trim(cuts)

    def _drop_waiting(self, queue: str, limit: int) -> int:
        return self._upkeep.purge(self._qid(queue), limit)

    def tidy(self, now: int, *, log_before: int | None) -> None:
        """Vacuum what is written most, fold the counts, make and drop the log's days."""
        self._upkeep.tidy(now, log_before)

    # Claims, records, events

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        rows = self._db.rows(texts.CLAIM, {"name": name, "owner": owner, "ttl": ttl_ms, "now": now})
        return Claim(name, owner, rows[0][0], now + ttl_ms) if rows and ttl_ms else None

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        bind = {"kind": kind, "name": name, "value": value, "revision": revision, "now": now}
        if value is None:
            statement = texts.ABSENT if revision == 0 else texts.DELETE
        elif revision is None:
            statement = texts.EITHER
        else:
            statement = texts.CHANGE if revision else texts.NEW
        return bool(self._db.rows(statement, bind)) or (value is None and revision is None)

    def publish(self, events: Sequence[Event]) -> None:
        def write(rows: Rows) -> None:
            # One after the other: a number that is seen has all smaller ones before it.
            rows(texts.LOCK, {"name": f"{self._where.schema}.event"})
            for event in events:
                payload = msgspec.json.encode(event.payload).decode()
                bind = {"type": event.type, "at": event.timestamp, "payload": payload}
                rows(texts.NEW_EVENT, bind)
            rows(texts.FORGET_EVENTS, {"kept": EVENTS_KEPT})

        self._db.transact(write)
        self._wake.tell([EVENTS])

    def arrow_walks(self, view: View) -> int:
        return arrow.walks(view.state) if view.id is None and arrow.is_there() else 0

    def read_arrow(self, view: View, after: str | None, now: int, walk: int) -> Iterator[Any]:
        qid = self._qid(view.queue)
        return self._arrow.read(arrow.view_statement(self._sql, view, qid, now, walk, after))

    def leased_arrow(self, queue: str, batch: str, after: str | None) -> Iterator[Any]:
        qid = self._qid(queue)
        return self._arrow.read(arrow.batch_statement(self._sql, qid, batch, after))

    def look(self) -> dict[str, Any]:
        """What an operator wants to know of the server; see `holdfast doctor`."""
        return dict(zip(texts.FACTS, self._db.rows(texts.LOOK, {})[0], strict=True))


def migrations(url: str = "", *, schema: str = "holdfast") -> list[str]:
    """The scripts, in order: forward only, numbered by their names, each a whole transaction."""
    schema = where(url).schema if url else schema
    return [in_schema(script, schema) for script in scripts("holdfast.stores.postgres")]


def _without(statement: str, script: str) -> str:
    before, found, after = script.partition(statement)
    if not found:
        raise ValueError(f"a migration has no {statement!r}")
    return before + after
