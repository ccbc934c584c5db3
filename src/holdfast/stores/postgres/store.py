"""PostgreSQL: the store that many processes on many machines share.

Every statement finds its rows by an index that no statistics can talk it out of, takes whole
batches, and waits for no lock that another consumer holds. See docs/adr/0007.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib.resources import files
from operator import itemgetter
from typing import Any, LiteralString, TypeVar, cast

import msgspec
from psycopg import errors

from holdfast import clock
from holdfast.errors import (
    HoldfastError,
    QueueNotFound,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)
from holdfast.message import DLQ_SUFFIX, Lease, Message, Status, home_of, is_dlq
from holdfast.policy import Policy
from holdfast.store import (
    Claim,
    Enqueued,
    Event,
    LeaseAsk,
    Page,
    QueueSpec,
    QueueStats,
    Record,
    Settled,
    Target,
    Transition,
    Verb,
    View,
)
from holdfast.stores import page_of, read_cursor
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
    token_base,
    write_messages,
)
from holdfast.stores.postgres.settle import DAY_MS, DELAYED, READY, Counts
from holdfast.stores.postgres.statements import (
    ANYTHING,
    ANYWAY,
    BATCH,
    CLAIM,
    DEPTHS,
    DUE,
    END,
    ENQUEUE,
    ENQUEUE_NEW,
    FACTS,
    GET,
    HEADS,
    HOLD,
    HOLD_PARTS,
    HOLDS,
    LEASE,
    LEASE_ABOVE,
    LEASE_PARTS,
    LOOK,
    MADE,
    MAKE,
    OLDEST,
    OVERDUE,
    PROMOTE,
    PURGE,
    PUT_QUEUE,
    SPEC,
    THERE,
    TRIM,
)
from holdfast.stores.postgres.url import where
from holdfast.stores.postgres.wake import Wake
from holdfast.stores.rows import read_message

PROMOTE_MAX = 10_000
"""Delayed messages that one lease call makes ready; more come due in the next calls."""
EVENTS_KEPT = 1000
SPEC_S = 0.25
"""How long a queue's settings are remembered: another process's change arrives that late. Whether
it is paused, and whether it exists, is read anew by every lease and every enqueue."""
FOLD_EVERY = 256
"""Writes of one process after which it folds the counts."""
EVENTS = "event"

T = TypeVar("T")


def open_url(url: str) -> PostgresStore:
    return PostgresStore(where(url))


class _Known(msgspec.Struct, frozen=True):
    spec: QueueSpec
    qid: int
    until: float


class PostgresStore:
    def __init__(self, where: Where) -> None:
        self._where = where
        self._db = Connections(where)
        self._waking = (os.getpid(), Wake(self._db, where.schema))
        self._sql: Sql = lru_cache(maxsize=None)(partial(in_schema, schema=where.schema))
        self._upkeep = upkeep.Upkeep(self._db, self._sql)
        self._arrow = arrow.Reader(where, self._sql)
        self._known: dict[str, _Known] = {}
        self._low_marks: dict[str, LowMark] = {}
        self._unfolded = 0
        self._id = ""

    @property
    def _wake(self) -> Wake:
        """A process that was forked off has none of its parent's threads, and needs its own."""
        if self._waking[0] != os.getpid():
            self._waking = (os.getpid(), Wake(self._db, self._where.schema))
        return self._waking[1]

    def migrate(self) -> None:
        """Make or upgrade the schema, in one transaction, under a lock: others wait, then look."""
        steps = migrations(schema=self._where.schema)
        with self._db.use() as db:
            version = self._version(db)
            self._must_know(version, steps)
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

    def _must_know(self, version: int, steps: list[str]) -> None:
        if version > len(steps):
            raise SchemaTooNew(
                f"{self._where.shown} has schema {version}, this Holdfast knows {len(steps)}: "
                "pip install --upgrade holdfast"
            )

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
        self._forget_specs()

        def put(db: Connection) -> bool:
            db.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", (f"{self._where.schema}.queue",)
            )
            stored = {row[1]: row for row in db.execute(self._sql(SPEC)).fetchall()}
            revisions = {name: row[-1] for name, row in stored.items()}
            if any(revisions.get(spec.name, 0) != spec.revision for spec in specs):
                return False
            qids = {name: row[0] for name, row in stored.items()}
            for spec in specs:
                qids[spec.name] = self._qid(db, spec.name, qids)
                bind: dict[str, Any] = {
                    "qid": qids[spec.name],
                    "name": spec.name,
                    "partitions": spec.partitions,
                    "paused": spec.paused,
                    "policy": msgspec.json.encode(spec.policy.to_dict()).decode(),
                    "created_at": spec.created_at,
                    "revision": spec.revision + 1,
                }
                db.execute(self._sql(PUT_QUEUE), bind)
            return True

        done = self._db.run(put)
        self._forget_specs()
        self._wake.tell([spec.name for spec in specs])
        return done

    def _qid(self, db: Connection, name: str, known: dict[str, int]) -> int:
        """The queue's number; a new one lies beside that of its source or its dead-letter queue."""
        sibling = home_of(name) if is_dlq(name) else name + DLQ_SUFFIX
        for other in (name, sibling):
            if other in known:
                return known[other] // 2 * 2 + is_dlq(name)
        row = db.execute(self._sql("SELECT nextval('holdfast.home')")).fetchone()
        assert row is not None
        return row[0] * 2 + is_dlq(name)

    def get_queue(self, name: str) -> QueueSpec | None:
        known = self._look_up(name)
        return known.spec if known else None

    def queues(self) -> list[QueueSpec]:
        return [_spec(row) for row in self._run(SPEC + " ORDER BY name", {})]

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        self._forget_specs()

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
        self._forget_specs()
        return deleted

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any = None,
        receipt: str | None = None,
    ) -> list[Enqueued]:
        if not messages:
            return []
        names = sorted({message.queue for message in messages})
        if within is not None:
            with joined(within, self._where, self._id) as db:
                answers = self._enqueue(db, messages, now, names, receipt)
                db.execute(*self._wake.notice(names))
            return answers
        if len(names) == 1 and receipt is None:
            answers = self._insert(messages, now)
        else:
            answers = self._db.run(lambda db: self._enqueue(db, messages, now, names, receipt))
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
    ) -> list[Enqueued]:
        if receipt is not None and not records.note(db, self._sql, receipt, now):
            return [Enqueued.HELD] * len(messages)
        answers: dict[int, Enqueued] = {}
        for name in names:
            mine = [(n, message) for n, message in enumerate(messages) if message.queue == name]
            part = [message for _, message in mine]
            bind = {**write_messages(part, now), "queue": name, "n": len(part)}
            row = db.execute(self._sql(ENQUEUE), bind, binary=True).fetchone()
            assert row is not None
            for (n, _), answer in zip(mine, _enqueued(part, row), strict=True):
                answers[n] = answer
        return [answers[n] for n in range(len(messages))]

    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]:
        rows = self._lease(ask, now, LEASE, LEASE_PARTS, self._take)
        return [take_lease(row, ask, now) for row in rows or ()]

    def hold(self, ask: LeaseAsk, now: int) -> int:
        def count(statement: str, bind: dict[str, Any]) -> int:
            return self._run(statement, bind)[0][0]

        return self._lease(ask, now, HOLD, HOLD_PARTS, count) or 0

    def _lease(
        self,
        ask: LeaseAsk,
        now: int,
        statement: str,
        of_partitions: str,
        take: Callable[[str, dict[str, Any]], T],
    ) -> T | None:
        bind: dict[str, Any] = {
            "queue": ask.queue,
            "limit": ask.limit,
            "owner": ask.owner,
            "base": token_base(ask.token),
            "timeout": ask.timeout_ms,
            "batch": ask.batch,
            "now": now,
        }
        if ask.partitions is not None and self._must_exist(ask.queue).spec.partitions > 1:
            statement = of_partitions
            bind["partitions"] = list(ask.partitions)
        elif ask.partitions is not None and 0 not in ask.partitions:
            return None
        taken = take(statement, bind)
        if not taken and self._promote(ask.queue, now):
            taken = take(statement, bind) or take(ANYWAY[statement], bind)
        if taken:
            self._fold()
        return taken

    def finish(self, queue: str, batch: str, limit: int, now: int, status: Status | None) -> int:
        bind: dict[str, Any] = {
            "qid": self._must_exist(queue).qid,
            "batch": batch,
            "limit": limit,
            "now": now,
            "day": 0 if status is None else now // DAY_MS,
            "status": status,
            "verb": Verb.ACK.value,
        }
        first = self._run(settle.FIRST_ID, bind)
        bind["since"] = settle.made_after(first[0][0], now) if first and first[0][0] else 0
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

    def _promote(self, queue: str, now: int) -> bool:
        """Make ready what is due. Whether there is, or was a moment ago, anything to lease."""
        found = self._run(ANYTHING, {"names": [queue]})
        if not found:
            raise QueueNotFound(f"no queue {queue!r}")
        _, qid, paused, _, ready, due = found[0]
        if paused or due is None or due > now:
            return ready and not paused
        self._run(PROMOTE, {"qid": qid, "now": now, "limit": PROMOTE_MAX})
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
        if settle.alike(moves):
            answers = self._finish(moves, now)
        else:
            answers = self._db.run(lambda db: self._settle(db, moves, now))
        if woken:
            self._wake.tell(woken)
        self._fold()
        return answers

    def _finish(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """Acks of one queue: a single statement, and a second look only at what was not held."""
        known = self._look_up(moves[0].queue)
        if known is None:
            return [Settled.STALE] * len(moves)
        bind = settle.finish_bind(moves, now, known.qid)
        n, ids = self._run(settle.FINISH_ALIKE, bind)[0]
        if n == len(moves):
            return [Settled.APPLIED] * n
        acked: set[str] = set(ids or ())
        rest = [move for move in moves if move.id not in acked]
        self._forget_specs()
        found = iter(self._db.run(lambda db: self._settle(db, rest, now)))
        return [Settled.APPLIED if move.id in acked else next(found) for move in moves]

    def _settle(self, db: Connection, moves: Sequence[Transition], now: int) -> list[Settled]:
        return settle.settle(db, self._sql, moves, now, self._qids(db, moves))

    def _qids(self, db: Connection, moves: Sequence[Transition]) -> dict[str, int]:
        names = {"names": list({move.queue for move in moves})}
        found = "SELECT name, qid FROM holdfast.queue WHERE name = ANY(%(names)s)"
        return dict(db.execute(self._sql(found), names).fetchall())

    def overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        bind = {"qid": self._must_exist(queue).qid, "now": now, "limit": limit}
        return [read_lease(row, queue, 0) for row in self._run(OVERDUE, bind)]

    def leased(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        bind = {
            "qid": self._must_exist(queue).qid,
            "batch": batch,
            "after": after,
            "limit": limit,
        }
        return [read_lease(row, queue, 0) for row in self._run(BATCH, bind)]

    def browse(self, view: View, after: str | None, limit: int, now: int) -> Page:
        cursor, qid = read_cursor(after), self._must_exist(view.queue).qid

        def read(db: Connection) -> tuple[int, list[Any]]:
            (end,) = db.execute(self._sql(END)).fetchone() or (0,)
            return end, browse.page(db, self._sql, view, qid, cursor, limit + 1, now)

        end, rows = self._snapshot(read)
        return page_of(rows, view, limit, end)

    def split(self, view: View, parts: int, now: int) -> list[str]:
        qid = self._must_exist(view.queue).qid
        return self._snapshot(lambda db: browse.split(db, self._sql, view, qid, parts))

    def get(self, queue: str, ids: Sequence[str]) -> list[Message]:
        bind = {"home": self._must_exist(queue).qid // 2, "ids": arrays.uuids(ids)}
        return [read_message(row, row[0], 1) for row in self._run(GET, bind)]

    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        found = self._snapshot(lambda db: self._stats(db, queues, now))
        for name in queues:
            if name not in found:
                raise QueueNotFound(f"no queue {name!r}")
        return [found[name] for name in queues]

    def _stats(self, db: Connection, queues: Sequence[str], now: int) -> dict[str, QueueStats]:
        rows = db.execute(self._sql(DEPTHS), {"names": list(queues)}, binary=True).fetchall()
        whole = [row[1] for row in rows if row[3] == 1]
        split = [(row[1], row[3]) for row in rows if row[3] > 1]
        heads: dict[tuple[int, int, int], tuple[int, int]] = {}
        bind: dict[str, Any] = {
            "whole": arrays.ints(whole),
            "split": arrays.ints([qid for qid, _ in split]),
            "partitions": arrays.ints([n for _, n in split]),
        }
        for qid, part, rank, *head in db.execute(self._sql(HEADS), bind, binary=True):
            heads[qid, part, rank] = (head[0], head[1])
        due: Counter[int] = Counter()
        bind = {"qids": [row[1] for row in rows], "now": now}
        for qid, part, rank, *head, n in db.execute(self._sql(DUE), bind, binary=True):
            due[qid] += n
            first = (head[0], head[1])
            heads[qid, part, rank] = min(heads.get((qid, part, rank), first), first)
        return {row[0]: _one_stats(row, heads, due[row[1]], now) for row in rows}

    def trim(
        self, queue: str, *, before: int | None = None, keep: int | None = None, limit: int
    ) -> int:
        qid = self._must_exist(queue).qid
        over = 0
        if keep is not None:
            held = "SELECT coalesce(sum(logged), 0)::bigint FROM holdfast.delta WHERE qid = %(qid)s"
            over = max(0, self._run(held, {"qid": qid})[0][0] - keep)
        if not over and before is None:
            return 0
        oldest = self._run(OLDEST, {"qid": qid, "limit": limit})
        drop = [row for n, row in enumerate(oldest) if n < over or (before or 0) > row[0]]
        if not drop:
            return 0
        finished_at, seq = drop[-1]

        def cut(db: Connection) -> int:
            bind = {"qid": qid, "finished_at": finished_at, "seq": seq}
            gone = db.execute(self._sql(TRIM), bind).fetchall()
            counts = Counts()
            for part, at in gone:
                counts.forget(qid, part, at // DAY_MS)
            counts.write(db, self._sql(settle.COUNT))
            return len(gone)

        return self._db.run(cut)

    def purge(self, queue: str, limit: int) -> int:
        qid = self._must_exist(queue).qid

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

    def subscribe(self, after: int | None = None) -> _Subscription:
        if after is None:
            after = self._run("SELECT coalesce(max(seq), 0) FROM holdfast.event", {})[0][0]
        return _Subscription(self._events, self._wake, after or 0)

    def _events(self, after: int) -> list[Event]:
        rows = self._run(
            "SELECT type, timestamp, payload, seq FROM holdfast.event WHERE seq > %(after)s "
            "ORDER BY seq LIMIT 1000",
            {"after": after},
        )
        return [Event(type, at, msgspec.json.decode(body), seq) for type, at, body, seq in rows]

    def wait(self, queues: Sequence[str], now: int, timeout: float) -> None:
        seen = self._wake.watch(queues)
        found = self._run(ANYTHING, {"names": list(queues)})
        missing = set(queues) - {row[0] for row in found}
        if missing:
            raise QueueNotFound(f"no queue {min(missing)!r}")
        ahead = [timeout]
        for _, _, paused, _, ready, due in found:
            if paused:
                continue
            if ready or (due is not None and due <= now):
                return
            if due is not None:
                ahead.append((due - now) / 1000)
        self._wake.wait(seen, min(ahead))

    def tidy(self, now: int, *, log_before: int | None) -> None:
        """Vacuum what is written most, fold the counts, make and drop the log's days."""
        self._upkeep.tidy(now, log_before)

    def read_arrow(self, view: View, after: str | None, now: int, walk: int) -> Iterator[Any]:
        """A part of a view (there are `arrow.walks` of them) as Arrow; see spark/arrow.py."""
        qid = self._must_exist(view.queue).qid
        return self._arrow.read(arrow.view_statement(view, qid, now, walk, after))

    def leased_arrow(self, queue: str, batch: str, after: str | None) -> Iterator[Any]:
        """What a batch name holds, by id, as Arrow."""
        qid = self._must_exist(queue).qid
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
        if known is not None and known.until > clock.monotonic():
            return known
        rows = self._run(SPEC + " WHERE name = %(name)s", {"name": name})
        if not rows:
            self._known.pop(name, None)
            return None
        known = _Known(_spec(rows[0]), rows[0][0], clock.monotonic() + SPEC_S)
        self._known[name] = known
        return known

    def _must_exist(self, name: str) -> _Known:
        known = self._look_up(name)
        if known is None:
            raise QueueNotFound(f"no queue {name!r}")
        return known

    def _forget_specs(self) -> None:
        self._known.clear()

    def _fold(self) -> None:
        """Counts must not pile up where no sweeper runs."""
        self._unfolded += 1
        if self._unfolded >= FOLD_EVERY:
            self._unfolded = 0
            with suppress(HoldfastError):  # the call that it follows has succeeded, and must say so
                self._run(upkeep.FOLD, {"limit": FOLD_EVERY * 4})


_RANKS = arrays.ints(range(LANES))
_in_line = itemgetter(0, 1)


class _Subscription:
    def __init__(self, read: Callable[[int], list[Event]], wake: Wake, after: int) -> None:
        self._read = read
        self._wake = wake
        self._after = after

    def next(self, timeout: float) -> list[Event]:
        until = clock.monotonic() + timeout
        while True:
            seen = self._wake.watch([EVENTS])
            events = self._read(self._after)
            left = until - clock.monotonic()
            if events or left <= 0:
                self._after = events[-1].seq if events else self._after
                return events
            self._wake.wait(seen, left)

    def close(self) -> None: ...


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
    _, name, partitions, policy, paused, created_at, revision = row
    return QueueSpec(name, partitions, _policy(policy), paused, created_at, revision)


@lru_cache(maxsize=1000)
def _policy(stored: str) -> Policy:
    return Policy.from_dict(msgspec.json.decode(stored))


def _enqueued(messages: Sequence[Message], row: tuple[Any, ...]) -> list[Enqueued]:
    qid, n, ids = row
    if qid is None:
        raise QueueNotFound(f"no queue {messages[0].queue!r}")
    if n == len(messages):
        return [Enqueued.STORED] * n
    stored: set[str] = set(ids or ())
    answers: list[Enqueued] = []
    for message in messages:  # of one id twice, the first was kept
        answers.append(Enqueued.STORED if message.id in stored else Enqueued.HELD)
        stored.discard(message.id)
    return answers


def _one_stats(
    row: tuple[Any, ...], heads: dict[tuple[int, int, int], tuple[int, int]], due: int, now: int
) -> QueueStats:
    name, qid, paused, _, ready, delayed, leased, done, dead = row
    oldest = min((head[1] for key, head in heads.items() if key[0] == qid), default=None)
    return QueueStats(
        queue=name,
        ready=ready + due,
        delayed=delayed - due,
        leased=leased,
        dead=dead,
        done=done,
        oldest_age=None if oldest is None else max(0, now - oldest) / 1000,
        paused=paused,
    )
