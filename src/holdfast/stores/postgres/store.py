"""PostgreSQL: the store that many processes on many machines share.

Every statement finds its rows by an index that no statistics can talk it out of, takes whole
batches, and waits for no lock that another consumer holds. See docs/adr/0007.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib.resources import files
from operator import itemgetter
from typing import Any, LiteralString, TypeVar, cast

import msgspec
from psycopg import errors

from holdfast.errors import (
    HoldfastError,
    StoreCorrupt,
    StoreUnavailable,
)
from holdfast.model import clock
from holdfast.model.message import Finished, Lease, Message, Status
from holdfast.model.moves import Enqueued, Settled, Target, Transition, Verb
from holdfast.model.queues import Depth, QueueSpec, partition_claim
from holdfast.stores.contract import Claim, Cut, Event, LeaseAsk, Page, QueueStats, Record, View
from holdfast.stores.kit.figures import Heads, depths_of, queue_stats
from holdfast.stores.kit.forks import PerProcess
from holdfast.stores.kit.pages import page_of, read_cursor
from holdfast.stores.kit.specs import (
    Remembered,
    all_exist,
    check_version,
    must_exist,
    number_of,
    read_policy,
    write_policy,
)
from holdfast.stores.kit.waiting import Subscription, wait_for_messages
from holdfast.stores.postgres import arrays, arrow, browse, records, settle, upkeep
from holdfast.stores.postgres.connections import (
    UPKEEP_S,
    Connection,
    Connections,
    Sql,
    Where,
    quoted,
)
from holdfast.stores.postgres.joined import joined
from holdfast.stores.postgres.lowmark import LANES, LowMark
from holdfast.stores.postgres.rows import (
    read_lease,
    take_lease,
    take_lease_of,
    token_base,
    write_finished,
    write_messages,
)
from holdfast.stores.postgres.settle import DAY_MS, DELAYED, READY, Counts
from holdfast.stores.postgres.statements import (
    ANYTHING,
    ANYWAY,
    BATCH,
    CLAIM,
    CLAIMS,
    DEPTH,
    DEPTHS,
    DUE,
    END,
    ENQUEUE,
    ENQUEUE_NEW,
    FACTS,
    FINISHED,
    GET,
    HEADS,
    HOLD,
    HOLD_OWNED,
    HOLD_OWNED_PARTS,
    HOLD_PARTS,
    HOLDS,
    LATE_QUEUES,
    LEASE,
    LEASE_ABOVE,
    LEASE_MANY,
    LEASE_OWNED,
    LEASE_OWNED_PARTS,
    LEASE_PARTS,
    LOOK,
    MADE,
    MAKE,
    OLDEST,
    OVERDUE,
    PROMOTE,
    PROMOTE_ALL,
    PROMOTE_MANY,
    PURGE,
    PUT_QUEUE,
    READY_IN,
    RESTORE,
    SPEC,
    SPLIT,
    SPLIT_NEW,
    TAKE_BACK,
    THERE,
    TO_TRIM,
    TRIM,
)
from holdfast.stores.postgres.url import where
from holdfast.stores.postgres.wake import Wake
from holdfast.stores.rows import first_of_each, read_message

PROMOTE_MAX = 10_000
"""Delayed messages that one lease call makes ready; more come due in the next calls."""
PROMOTE_EVERY = 8
"""Leases from many queues that were full in a row, after which it looks for what is due."""
EVENTS_KEPT = 1000
SPLIT_MAX = 10_000
"""Messages that are marked at a time when a queue gets a second partition."""
LOOK_AGAIN_S = 0.01
"""Who waits for some partitions looks no more often, whatever comes into the others."""
FOLD_EVERY = 256
"""Writes of one process after which it folds the counts."""
EVENTS = "event"

T = TypeVar("T")


def open_url(url: str) -> PostgresStore:
    return PostgresStore(where(url))


_Known = tuple[QueueSpec, int]
"""A queue's settings and its qid."""


class PostgresStore:
    def __init__(self, where: Where) -> None:
        self._where = where
        self._db = Connections(where)
        self._waking = PerProcess(lambda: Wake(self._db, where.schema))
        self._sql: Sql = lru_cache(maxsize=None)(partial(in_schema, schema=where.schema))
        self._upkeep = upkeep.Upkeep(self._db, self._sql)
        self._arrow = arrow.Reader(where, self._sql)
        self._known: Remembered[_Known] = Remembered()
        self._low_marks: dict[str, LowMark] = {}
        self._unfolded = 0
        self._full_leases = 0
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
                there = db.execute(THERE, (self._where.schema,)).fetchall()
                for script in steps[self._version(db) :]:
                    if there:  # who owns the schema need not be allowed to make one
                        script = script.replace(in_schema(MAKE, self._where.schema), "")
                    db.execute(script.encode(), prepare=False)
            self._version(db)

    def _version(self, db: Connection) -> int:
        # Not to_regclass: inside a transaction it may still answer from a cache of before the lock.
        if not db.execute(MADE, (self._where.schema,)).fetchall():
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
        return self._run(now, {})[0][0]

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        self._known.forget()
        for spec in specs:
            if spec.revision and spec.partitions > 1:
                self._split(spec.name)

        def put(db: Connection) -> bool:
            db.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", (f"{self._where.schema}.queue",)
            )
            stored = db.execute(self._sql(SPEC)).fetchall()
            revisions = {row[1]: _spec(row).revision for row in stored}
            if any(revisions.get(spec.name, 0) != spec.revision for spec in specs):
                return False
            qids = {row[1]: row[0] for row in stored}
            for spec in specs:
                qids[spec.name] = number_of(spec.name, qids.get, lambda: self._new_home(db))
                bind: dict[str, Any] = {
                    "qid": qids[spec.name],
                    "name": spec.name,
                    "partitions": spec.partitions,
                    "paused": spec.paused,
                    "policy": write_policy(spec.policy),
                    "created_at": spec.created_at,
                    "revision": spec.revision + 1,
                    "ordered": spec.ordered,
                    "starts": list(spec.starts),
                }
                db.execute(self._sql(PUT_QUEUE), bind)
            return True

        done = self._db.run(put)
        self._known.forget()
        self._wake.tell([spec.name for spec in specs])
        return done

    def _split(self, name: str) -> None:
        """Mark the messages of a queue that has one partition, before it gets a second one: from
        then on they are found by their partition only if they are marked. In steps, so that nobody
        waits for long. What is leased is marked when it comes back."""
        for (qid,) in self._run(SPLIT_NEW, {"name": name}):
            for state in (DELAYED, READY):
                while self._run(SPLIT.format(state=state), {"qid": qid, "limit": SPLIT_MAX})[0][0]:
                    pass

    def _new_home(self, db: Connection) -> int:
        row = db.execute(self._sql("SELECT nextval('holdfast.home')")).fetchone()
        assert row is not None
        return row[0]

    def get_queue(self, name: str) -> QueueSpec | None:
        known = self._look_up(name)
        return known[0] if known else None

    def queues(self, *, overdue: int | None = None) -> list[QueueSpec]:
        if overdue is not None:
            return [_spec(row) for row in self._run(LATE_QUEUES, {"now": overdue})]
        return [_spec(row) for row in self._run(SPEC + " ORDER BY name", {})]

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        self._known.forget()

        def delete(db: Connection) -> bool:
            db.execute("SET LOCAL statement_timeout = 0")
            # Waits for everybody who is enqueueing, and lets nobody begin to.
            locked = SPEC + " WHERE name = ANY(%(names)s) ORDER BY qid FOR UPDATE"
            found = db.execute(self._sql(locked), {"names": list(names)}).fetchall()
            qids = {"qids": [row[0] for row in found]}
            if only_empty and db.execute(self._sql(HOLDS), qids).fetchall():
                return False
            for table in ("message", "log", "delta", "queue"):
                db.execute(
                    self._sql(f"DELETE FROM holdfast.{table} WHERE qid = ANY(%(qids)s)"), qids
                )
            return True

        deleted = self._db.run(delete, timeout=UPKEEP_S)
        self._known.forget()
        return deleted

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
                answers = self._enqueue(db, messages, now, names, receipt, finished_since)
                db.execute(*self._wake.notice(names))
            return answers
        if len(names) == 1 and receipt is None and not finished_since:
            answers = self._insert(messages, now)
        else:
            answers = self._db.run(
                lambda db: self._enqueue(db, messages, now, names, receipt, finished_since),
                at_once=receipt is None and not finished_since,
            )
        self._wake.tell(names)
        self._fold()
        return answers

    def _insert(self, messages: Sequence[Message], now: int) -> list[Enqueued]:
        bind = {**write_messages(messages, now), "queue": messages[0].queue, "n": len(messages)}
        try:
            row = self._run(ENQUEUE_NEW, bind)[0]
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, errors.UniqueViolation):
                raise
            row = self._run(ENQUEUE, bind)[0]
        return _enqueued(messages, row)

    def _enqueue(
        self,
        db: Connection,
        messages: Sequence[Message],
        now: int,
        names: list[str],
        receipt: str | None,
        finished_since: Mapping[int, int] | None,
    ) -> list[Enqueued]:
        if receipt is not None and not records.note(db, self._sql, receipt, now):
            return [Enqueued.HELD] * len(messages)
        answers: dict[int, Enqueued] = {}
        sent: list[tuple[list[int], Any]] = []
        for name in names:  # all are sent, in a pipeline at once, before the first answer is read
            mine = [n for n, message in enumerate(messages) if message.queue == name]
            part = [messages[n] for n in mine]
            bind = {**write_messages(part, now), "queue": name, "n": len(part)}
            sent.append((mine, db.execute(self._sql(ENQUEUE), bind, binary=True)))
        for mine, cursor in sent:
            told = _enqueued([messages[n] for n in mine], cursor.fetchone())
            answers |= zip(mine, told, strict=True)
        if finished_since:
            new = [n for n in finished_since if answers[n] is Enqueued.STORED]
            answers |= self._take_back(db, messages, new, finished_since)
        return [answers[n] for n in range(len(messages))]

    def _take_back(
        self, db: Connection, messages: Sequence[Message], new: list[int], since: Mapping[int, int]
    ) -> dict[int, Enqueued]:
        """Of what was just stored, what had finished before. No other connection can enqueue or
        finish these ids until this transaction ends, so a look after the insert misses no row."""
        finished: dict[int, Enqueued] = {}
        by_queue: dict[str, list[int]] = {}
        again: list[int] = []
        for n in new:
            by_queue.setdefault(messages[n].queue, []).append(n)
        for queue, mine in sorted(by_queue.items()):
            bind: dict[str, Any] = {
                "queue": queue,
                "ids": arrays.uuids([messages[n].id for n in mine]),
                "sinces": arrays.ints([since[n] for n in mine]),
                "first": min(since[n] for n in mine),
            }
            found = db.execute(self._sql(FINISHED), bind, binary=True).fetchall()
            again = [mine[number - 1] for (number,) in found]
            if again:
                bind = {"queue": queue, "ids": arrays.uuids([messages[n].id for n in again])}
                db.execute(self._sql(TAKE_BACK), bind, binary=True)
                finished |= dict.fromkeys(again, Enqueued.HELD)
        return finished

    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]:
        if ask.others:
            return self._lease_many(ask, now)
        take = self._take if ask.epochs is None else self._take_exactly
        rows = self._lease(ask, now, _LEASES, take)
        return [take_lease(row, ask, now) for row in rows or ()]

    def _lease_many(self, ask: LeaseAsk, now: int) -> list[Lease]:
        """One statement. Delayed messages that are due are looked for, in a second one, when there
        is room left, and now and then when there is none."""
        asks = list(ask.each())
        bind = _lease_many_bind(ask, asks, now)
        rows = self._run(LEASE_MANY, bind)
        self._full_leases = 0 if len(rows) < ask.limit else self._full_leases + 1
        if self._full_leases % PROMOTE_EVERY == 0 and self._run(PROMOTE_MANY, bind)[0][0]:
            left, given = ask.limit - len(rows), Counter(row[0] for row in rows)
            if left:
                mosts = [one.limit - given[n] for n, one in enumerate(asks, 1)]
                more = {"mosts": arrays.ints(mosts), "limit": left, "anyway": True}
                rows += self._run(LEASE_MANY, {**bind, **more})
        if rows:
            self._fold(len({row[0] for row in rows}))
        rows.sort(key=_in_turn)
        return [take_lease_of(row, asks, now) for row in rows]

    def hold(self, ask: LeaseAsk, now: int) -> int:
        def count(statement: str, bind: dict[str, Any]) -> int:
            return self._run(statement, bind)[0][0]

        return self._lease(ask, now, _HOLDS, count) or 0

    def _lease(
        self,
        ask: LeaseAsk,
        now: int,
        statements: dict[tuple[bool, bool], str],
        take: Callable[[str, dict[str, Any]], T],
    ) -> T | None:
        split, owned = self._is_split(ask), ask.epochs is not None
        if ask.partitions is not None and not split and 0 not in ask.partitions:
            return None
        statement, bind = statements[owned, split], _lease_bind(ask, now, split)
        taken = take(statement, bind)
        if not taken and self._promote(ask.queue, now, every=owned):
            taken = take(statement, bind)
            if not taken and not owned:
                taken = take(ANYWAY[statement], bind)
        if taken:
            self._fold()
        elif self._is_split(ask) != split:
            return self._lease(ask, now, statements, take)
        return taken

    def _is_split(self, ask: LeaseAsk) -> bool:
        """Whether it asks for some partitions of a queue that has several."""
        if ask.partitions is None:
            return False
        if max(ask.partitions, default=0) >= self._must_exist(ask.queue)[0].partitions:
            self._known.forget(ask.queue)  # somebody knows better
        return self._must_exist(ask.queue)[0].partitions > 1

    def finish(self, queue: str, batch: str, limit: int, now: int, status: Status | None) -> int:
        bind: dict[str, Any] = {
            "qid": self._qid(queue),
            "batch": batch,
            "limit": limit,
            "now": now,
            "day": 0 if status is None else now // DAY_MS,
            "status": status,
            "verb": Verb.ACK.value,
        }
        n = self._run(settle.FINISH_BATCH, bind)[0][0]
        if n:
            self._fold()
        return n

    def _take(self, statement: str, bind: dict[str, Any]) -> list[tuple[Any, ...]]:
        """In the order of the line. Looks from the bottom, or from where it was worked off to."""
        mark = self._low_marks.setdefault(bind["queue"], LowMark())
        start = clock.monotonic()
        lows = mark.lows(start) if statement is LEASE else None
        rows: list[tuple[Any, ...]] = []
        if lows is not None:
            rows = self._run(LEASE_ABOVE, {**bind, "ranks": _RANKS, "lows": arrays.ints(lows)})
        if not rows:
            lows, start = None, clock.monotonic()
            rows = self._run(statement, bind)
        rows.sort(key=_in_line)
        end = clock.monotonic()
        mark.note(rows, seconds=end - start, now=end, bounded=lows is not None)
        return rows

    def _take_exactly(self, statement: str, bind: dict[str, Any]) -> list[tuple[Any, ...]]:
        return sorted(self._run(statement, bind), key=_in_line)

    def _promote(self, queue: str, now: int, *, every: bool) -> bool:
        """Make ready what is due. Whether there is, or was a moment ago, anything to lease."""
        found = next(iter(self._run(ANYTHING, {"names": [queue]})), None)
        _, qid, paused, partitions, ready, due = must_exist(queue, found)
        self._forget_unless(queue, partitions)
        if paused or due is None or due > now:
            return ready and not paused
        bind = {"qid": qid, "now": now, "limit": PROMOTE_MAX}
        if not every:
            self._run(PROMOTE, bind)
        while every and self._run(PROMOTE_ALL, bind)[0][0]:
            pass
        return True

    def settle(self, moves: Sequence[Transition], now: int, *, within: Any = None) -> list[Settled]:
        if not moves:
            return []
        woken = sorted({move.to_queue for move in moves if move.target is Target.WAITING})
        if within is not None:
            with joined(within, self._where, self._id) as db:
                answers = self._settle(db, moves, now)
                if woken:
                    db.execute(*self._wake.notice(woken))
            return answers
        groups = settle.alike_by_queue(moves)
        if len(groups) == 1:
            answers = self._finish(moves, now)
        elif groups:
            answers = self._finish_many(moves, groups, now)
        else:
            answers = self._db.run(lambda db: self._settle(db, moves, now))
        if woken:
            self._wake.tell(woken)
        self._fold(len({move.queue for move in moves}))
        return answers

    def _finish(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """Acks of one queue: a single statement, and a second look only at what was not held."""
        known = self._look_up(moves[0].queue)
        if known is None:
            return [Settled.STALE] * len(moves)
        bind = settle.finish_bind(moves, now, known[1])
        n, ids = self._run(settle.FINISH_ALIKE, bind)[0]
        if n == len(moves):
            return [Settled.APPLIED] * n
        acked: set[str] = set(ids or ())
        rest = [move for move in moves if move.id not in acked]
        self._known.forget()
        found = iter(self._db.run(lambda db: self._settle(db, rest, now)))
        return [Settled.APPLIED if move.id in acked else next(found) for move in moves]

    def _finish_many(
        self, moves: Sequence[Transition], groups: dict[str, list[int]], now: int
    ) -> list[Settled]:
        """Acks of several queues: a statement for each, all sent before the first answer is read.
        What was not held gets a second look."""

        def finish(db: Connection) -> set[int]:
            qids: dict[str, int] = self._qids(db, moves)
            sent: list[tuple[list[int], Any]] = []
            for name, group in groups.items():
                qid = qids.get(name)
                if qid is not None:
                    bind = settle.finish_bind([moves[n] for n in group], now, qid)
                    statement = self._sql(settle.FINISH_ALIKE)
                    sent.append((group, db.execute(statement, bind, binary=True)))
            done: set[int] = set()
            for group, cursor in sent:
                count, ids = cursor.fetchone()
                acked: set[str] = set(ids or ())
                done.update(n for n in group if count == len(group) or moves[n].id in acked)
            return done

        done = self._db.run(finish, at_once=True)
        rest = [n for n in range(len(moves)) if n not in done]
        answers = dict.fromkeys(done, Settled.APPLIED)
        if rest:
            again = self._db.run(lambda db: self._settle(db, [moves[n] for n in rest], now))
            answers.update(zip(rest, again, strict=True))
        return [answers[n] for n in range(len(moves))]

    def _settle(self, db: Connection, moves: Sequence[Transition], now: int) -> list[Settled]:
        return settle.settle(db, self._sql, moves, now, self._qids(db, moves))

    def _qids(self, db: Connection, moves: Sequence[Transition]) -> dict[str, int]:
        names = {"names": list({move.queue for move in moves})}
        found = "SELECT name, qid FROM holdfast.queue WHERE name = ANY(%(names)s)"
        return dict(db.execute(self._sql(found), names).fetchall())

    def overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        bind = {"qid": self._qid(queue), "now": now, "limit": limit}
        return [read_lease(row, queue, 0) for row in self._run(OVERDUE, bind)]

    def leased(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        bind = {
            "qid": self._qid(queue),
            "batch": batch,
            "after": after,
            "limit": limit,
        }
        return [read_lease(row, queue, 0) for row in self._run(BATCH, bind)]

    def browse(self, view: View, after: str | None, limit: int, now: int) -> Page:
        cursor, qid = read_cursor(after), self._qid(view.queue)

        def read(db: Connection) -> tuple[int, list[Any]]:
            (end,) = db.execute(self._sql(END)).fetchone() or (0,)
            return end, browse.page(db, self._sql, view, qid, cursor, limit + 1, now)

        end, rows = self._snapshot(read)
        return page_of(rows, view, limit, end)

    def split(self, view: View, parts: int, now: int) -> list[str]:
        qid = self._qid(view.queue)
        return self._snapshot(lambda db: browse.split(db, self._sql, view, qid, parts))

    def get(self, queue: str, ids: Sequence[str]) -> list[Message]:
        bind = {"home": self._qid(queue) // 2, "ids": arrays.uuids(ids)}
        return [read_message(row, row[0], 1) for row in self._run(GET, bind)]

    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        found = self._snapshot(lambda db: self._stats(db, queues, now))
        return [must_exist(name, found.get(name)) for name in queues]

    def _stats(self, db: Connection, queues: Sequence[str], now: int) -> dict[str, QueueStats]:
        rows = db.execute(self._sql(DEPTHS), {"names": list(queues)}, binary=True).fetchall()
        heads = self._heads(db, {row[1]: row[3] for row in rows}, now)
        return {
            name: queue_stats(
                name,
                counts,
                due=heads[qid].due.total(),
                dead=dead,
                oldest_at=min(heads[qid].oldest().values(), default=None),
                paused=paused,
                now=now,
            )
            for name, qid, paused, _, *counts, dead in rows
        }

    def _heads(self, db: Connection, queues: dict[int, int], now: int) -> dict[int, Heads]:
        """Of queues by their number of partitions."""
        split = {qid: n for qid, n in queues.items() if n > 1}
        heads = {qid: Heads() for qid in queues}
        bind: dict[str, Any] = {
            "whole": arrays.ints([qid for qid in queues if qid not in split]),
            "split": arrays.ints(list(split)),
            "partitions": arrays.ints(list(split.values())),
        }
        for qid, *head in db.execute(self._sql(HEADS), bind, binary=True):
            heads[qid].add(*head)
        bind = {"qids": list(queues), "now": now}
        for qid, *head, n in db.execute(self._sql(DUE), bind, binary=True):
            heads[qid].add(*head, due=n)
        return heads

    def depths(self, queue: str, now: int) -> list[Depth]:
        depths: list[Depth] = self._snapshot(lambda db: self._depths(db, queue, now))
        self._forget_unless(queue, len(depths))
        return depths

    def _depths(self, db: Connection, queue: str, now: int) -> list[Depth]:
        shape = "SELECT qid, partitions FROM holdfast.queue WHERE name = %(name)s"
        row = db.execute(self._sql(shape), {"name": queue}).fetchone()
        qid, partitions = must_exist(queue, row)
        stored = db.execute(self._sql(DEPTH), {"qid": qid}, binary=True)
        counts = {part: counts for part, *counts in stored}
        heads = self._heads(db, {qid: partitions}, now)[qid]
        return depths_of(partitions, counts, heads.due, heads.oldest())

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        if not rows:
            return 0
        unique = list(first_of_each(rows))
        bind = {**write_finished(unique, now), "queue": queue, "day_ms": DAY_MS}
        qid, new = self._run(RESTORE, bind)[0]
        must_exist(queue, qid)
        return new

    def trim(self, cuts: Sequence[Cut]) -> list[int]:
        if not cuts:
            return []
        bind = {
            "names": [cut.queue for cut in cuts],
            "befores": [cut.before for cut in cuts],
            "keeps": [cut.keep for cut in cuts],
        }
        dropped = [0] * len(cuts)
        n: int
        for n, qid, over in self._run(TO_TRIM, bind):
            dropped[n - 1] = self._trim(cuts[n - 1], qid, over)
        return dropped

    def _trim(self, cut: Cut, qid: int, over: int) -> int:
        oldest = self._run(OLDEST, {"qid": qid, "limit": cut.limit})
        drop = [row for n, row in enumerate(oldest) if n < over or (cut.before or 0) > row[0]]
        if not drop:
            return 0
        finished_at, seq = drop[-1]

        def delete(db: Connection) -> int:
            bind = {"qid": qid, "finished_at": finished_at, "seq": seq}
            gone = db.execute(self._sql(TRIM), bind).fetchall()
            counts = Counts()
            for part, at in gone:
                counts.forget(qid, part, at // DAY_MS)
            counts.write(db, self._sql(settle.COUNT))
            return len(gone)

        return self._db.run(delete)

    def purge(self, queue: str, limit: int) -> int:
        qid = self._qid(queue)

        def drop(db: Connection) -> int:
            counts, n = Counts(), 0
            for state in (READY, DELAYED):
                statement = self._sql(PURGE.format(state=state))
                for (part,) in db.execute(statement, {"qid": qid, "limit": limit - n}).fetchall():
                    counts.move(qid, part, state, -1)
                    n += 1
            counts.write(db, self._sql(settle.COUNT))
            return n

        return self._db.run(drop)

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        rows = self._run(CLAIM, {"name": name, "owner": owner, "ttl": ttl_ms, "now": now})
        return Claim(name, owner, rows[0][0], now + ttl_ms) if rows and ttl_ms else None

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        rows = self._run(CLAIMS, {"names": arrays.texts(names)})
        found = {row[0]: Claim(*row) for row in rows}
        return [found.get(name) for name in names]

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        statement, bind = records.put(kind, name, value, revision, now)
        return bool(self._run(statement, bind)) or (value is None and revision is None)

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        bind = {"kind": kind, "prefix": prefix, "after": after, "limit": limit}
        return [Record(*row) for row in self._run(records.READ, bind)]

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        before = 2**62 if before is None else before
        bind = {"kind": kind, "prefix": prefix, "after": "", "before": before, "limit": limit}
        return len(self._run(records.DROP, bind))

    def publish(self, events: Sequence[Event]) -> None:
        def write(db: Connection) -> None:
            # One after the other: a number that is seen has all smaller ones before it.
            db.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", (f"{self._where.schema}.event",)
            )
            for event in events:
                bind = (event.type, event.timestamp, msgspec.json.encode(event.payload).decode())
                db.execute(
                    self._sql(
                        "INSERT INTO holdfast.event (type, timestamp, payload) VALUES (%s, %s, %s)"
                    ),
                    bind,
                )
            newest = "(SELECT max(seq) FROM holdfast.event)"
            db.execute(
                self._sql(f"DELETE FROM holdfast.event WHERE seq <= {newest} - %s"), (EVENTS_KEPT,)
            )

        self._db.run(write)
        self._wake.tell([EVENTS])

    def subscribe(self, after: int | None = None) -> Subscription:
        if after is None:
            after = self._run("SELECT coalesce(max(seq), 0) FROM holdfast.event", {})[0][0]
        return Subscription(self._events, lambda: self._wake.watch([EVENTS]), after or 0)

    def _events(self, after: int) -> list[Event]:
        rows = self._run(
            "SELECT type, timestamp, payload, seq FROM holdfast.event WHERE seq > %(after)s "
            "ORDER BY seq LIMIT 1000",
            {"after": after},
        )
        return [Event(type, at, msgspec.json.decode(body), seq) for type, at, body, seq in rows]

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        def look(now: int, left: float) -> tuple[bool, bool]:
            return self._wait(queues, partitions, now, left)

        again = partitions is not None
        return wait_for_messages(look, now, timeout, again=again, rest_s=LOOK_AGAIN_S)

    def _wait(
        self, queues: Sequence[str], partitions: Sequence[int] | None, now: int, timeout: float
    ) -> tuple[bool, bool]:
        """Whether there is something to lease, else whether there may be after a wait for news."""
        seen = self._wake.watch(queues)
        found = self._run(ANYTHING, {"names": list(queues)})
        all_exist(queues, [row[0] for row in found])
        ahead = [timeout]
        for _, qid, paused, of, ready, due in found:
            if paused:
                continue
            if due is not None and due <= now:  # whoever leases makes them ready, wherever they are
                return True, True
            if ready and (partitions is None or self._ready_in(qid, of, partitions)):
                return True, True
            if due is not None:
                ahead.append((due - now) / 1000)
        return False, seen.wait(min(ahead)) or min(ahead) < timeout

    def _ready_in(self, qid: int, of: int, partitions: Sequence[int]) -> bool:
        """Whether some of these `partitions` of a queue that has `of` has anything ready."""
        if of == 1:
            return 0 in partitions
        bind = {"qid": qid, "partitions": arrays.ints(partitions)}
        return bool(self._run(READY_IN, bind))

    def tidy(self, now: int, *, log_before: int | None) -> None:
        """Vacuum what is written most, fold the counts, make and drop the log's days."""
        self._upkeep.tidy(now, log_before)

    def read_arrow(self, view: View, after: str | None, now: int, walk: int) -> Iterator[Any]:
        """A part of a view (there are `arrow.walks` of them) as Arrow; see spark/arrow.py."""
        qid = self._qid(view.queue)
        return self._arrow.read(arrow.view_statement(view, qid, now, walk, after))

    def leased_arrow(self, queue: str, batch: str, after: str | None) -> Iterator[Any]:
        """What a batch name holds, by id, as Arrow."""
        qid = self._qid(queue)
        return self._arrow.read(arrow.batch_statement(qid, batch, after))

    def look(self) -> dict[str, Any]:
        """What an operator wants to know of the server; see `holdfast doctor`."""
        return dict(zip(FACTS, self._run(LOOK, {})[0], strict=True))

    def _run(self, statement: str, bind: dict[str, Any]) -> list[tuple[Any, ...]]:
        return self._db.execute(self._sql(statement), bind)

    def _snapshot(self, read: Callable[[Connection], Any]) -> Any:
        """Several reads of one moment."""

        def at_one_moment(db: Connection) -> Any:
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return read(db)

        return self._db.run(at_one_moment)

    def _look_up(self, name: str) -> _Known | None:
        known = self._known.get(name)
        if known is not None:
            return known
        rows = self._run(SPEC + " WHERE name = %(name)s", {"name": name})
        return self._known.put(name, (_spec(rows[0]), rows[0][0]) if rows else None)

    def _must_exist(self, name: str) -> _Known:
        return must_exist(name, self._look_up(name))

    def _qid(self, name: str) -> int:
        return self._must_exist(name)[1]

    def _forget_unless(self, name: str, partitions: int) -> None:
        """Nobody who has seen a queue's new partitions is shown its old settings after that."""
        known = self._known.last(name)
        if known is not None and known[0].partitions != partitions:
            self._known.forget(name)

    def _fold(self, queues: int = 1) -> None:
        """Counts must not pile up where no sweeper runs. A write adds one for each queue."""
        self._unfolded += queues
        if self._unfolded >= FOLD_EVERY:
            self._unfolded = 0
            with suppress(HoldfastError):  # the call that it follows has succeeded, and must say so
                self._run(upkeep.FOLD, {"limit": FOLD_EVERY * 4})


_RANKS = arrays.ints(range(LANES))
# By whether it is fenced by claims, and whether it is of some partitions among several.
_LEASES = {
    (False, False): LEASE,
    (False, True): LEASE_PARTS,
    (True, False): LEASE_OWNED,
    (True, True): LEASE_OWNED_PARTS,
}
_HOLDS = {
    (False, False): HOLD,
    (False, True): HOLD_PARTS,
    (True, False): HOLD_OWNED,
    (True, True): HOLD_OWNED_PARTS,
}
_in_line = itemgetter(0, 1)
_in_turn = itemgetter(0, 1, 2)


def migrations(url: str = "", *, schema: str = "holdfast") -> list[str]:
    """The scripts, in order: forward only, numbered by their names, each a whole transaction."""
    folder = files("holdfast.stores.postgres") / "sql"
    scripts = sorted(folder.iterdir(), key=lambda script: script.name)
    schema = where(url).schema if url else schema
    return [in_schema(s.read_text(), schema) for s in scripts if s.name.endswith(".sql")]


def in_schema(statement: str, schema: str) -> LiteralString:
    """Statements are written for the schema `holdfast`."""
    name = quoted(schema)
    named = statement.replace("holdfast.", f"{name}.").replace(
        "SCHEMA IF NOT EXISTS holdfast", f"SCHEMA IF NOT EXISTS {name}"
    )
    return cast(LiteralString, named)


def _spec(row: tuple[Any, ...]) -> QueueSpec:
    _, name, partitions, policy, paused, created_at, revision, ordered, starts = row
    plain = (name, partitions, read_policy(policy), paused, created_at, revision)
    return QueueSpec(*plain, ordered, tuple(starts))


def _lease_bind(ask: LeaseAsk, now: int, split: bool) -> dict[str, Any]:
    bind: dict[str, Any] = {
        "queue": ask.queue,
        "limit": ask.limit,
        "owner": ask.owner,
        "base": token_base(ask.token),
        "timeout": ask.timeout_ms,
        "batch": ask.batch,
        "now": now,
        "any": split or ask.partitions is None,
    }
    if ask.partitions is not None:
        bind["partitions"] = arrays.ints(ask.partitions)
        if ask.epochs is not None:
            names = [partition_claim(ask.queue, part) for part in ask.partitions]
            bind |= {"claims": arrays.texts(names), "epochs": arrays.ints(ask.epochs)}
    return bind


def _lease_many_bind(ask: LeaseAsk, asks: Sequence[LeaseAsk], now: int) -> dict[str, Any]:
    return {
        "queues": arrays.texts([one.queue for one in asks]),
        "mosts": arrays.ints([one.limit for one in asks]),
        "timeouts": arrays.ints([one.timeout_ms for one in asks]),
        "limit": ask.limit,
        "owner": ask.owner,
        "base": token_base(ask.token),
        "now": now,
        "anyway": False,
        "most": PROMOTE_MAX,
    }


def _enqueued(messages: Sequence[Message], row: tuple[Any, ...]) -> list[Enqueued]:
    qid, n, ids = row
    must_exist(messages[0].queue, qid)
    if n == len(messages):
        return [Enqueued.STORED] * n
    stored: set[str] = set(ids or ())
    answers: list[Enqueued] = []
    for message in messages:  # of one id twice, the first was kept
        answers.append(Enqueued.STORED if message.id in stored else Enqueued.HELD)
        stored.discard(message.id)
    return answers
