"""SQLite: the embedded store. One file, WAL, any number of processes.

SQLite has one writer at a time, so every write is one short BEGIN IMMEDIATE transaction over a
whole batch, and an empty queue is noticed by a reader, without asking for the write lock.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial, wraps
from importlib.resources import files
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import FailedPrecondition, InvalidArgument
from holdfast.model import clock
from holdfast.model.message import Finished, Lease, Message, Status, is_dlq
from holdfast.model.moves import Enqueued, Settled, Target, Transition
from holdfast.model.queues import Depth, QueueSpec, partition_claim
from holdfast.stores import damage, url_options
from holdfast.stores.contract import (
    NO_DEADLINE,
    Claim,
    Cut,
    Event,
    LeaseAsk,
    Page,
    QueueStats,
    Record,
    View,
)
from holdfast.stores.kit.claims import claimed, owns
from holdfast.stores.kit.figures import Heads, depths_of, queue_stats
from holdfast.stores.kit.pages import page_of, read_cursor
from holdfast.stores.kit.specs import (
    all_exist,
    check_version,
    must_exist,
    number_of,
    read_policy,
    read_starts,
    write_policy,
    write_starts,
)
from holdfast.stores.kit.waiting import Subscription, wait_for_messages
from holdfast.stores.rows import COLUMNS, WIDTH, read_message
from holdfast.stores.sqlite import browse, records, settle
from holdfast.stores.sqlite.connections import Connections, Undecodable
from holdfast.stores.sqlite.rows import (
    COLUMNS_SO_FAR,
    LEASED_COLUMNS,
    PLAIN_COLUMNS,
    PLAIN_WIDTH,
    read_lease,
    take_lease,
    write_waiting,
)
from holdfast.stores.sqlite.settle import DELAYED, LEASED, LOGGED, READY, Counts, next_number

PROMOTE_MAX = 10_000
"""Delayed messages that one lease call makes ready; more come due in the next calls."""
EVENTS_KEPT = 1000
NEWS_REST_S = 0.01
"""Every commit may bring an event, and hardly one does: no more than a hundred looks a second."""

# Index holdfast_message_id. A held id is skipped; which ones is found out only if any was.
ENQUEUE = """
INSERT INTO holdfast_message (seq, place, lease, home, qid, state, lane, deadline, {columns})
VALUES {rows} ON CONFLICT DO NOTHING
"""
TOGETHER = 50
"""Rows of one INSERT: a statement each would take twice as long."""


def _enqueue_sql(columns: str, width: int, rows: int) -> str:
    values = (
        f"(?{n}, ?{n}, ?{n}, ?{n + 1} / 2, {', '.join(f'?{i}' for i in range(n + 1, n + width))})"
        for n in range(1, 1 + rows * width, width)
    )
    return ENQUEUE.format(columns=columns, rows=", ".join(values))


ENQUEUE_BY_WIDTH = {
    width: {rows: _enqueue_sql(columns, width, rows) for rows in (1, TOGETHER)}
    for columns, width in ((COLUMNS, WIDTH + 5), (PLAIN_COLUMNS, PLAIN_WIDTH + 5))
}

# Index holdfast_log_id, for the queue and for its dead-letter queue.
FINISHED = """
SELECT 1 FROM holdfast_log WHERE qid IN (?, ?) AND id = ? AND finished_at >= ? LIMIT 1
"""

# Index holdfast_delayed.
PROMOTE = """
UPDATE holdfast_message SET state = 0
WHERE seq IN (SELECT seq FROM holdfast_message WHERE state = 1 AND qid = :qid
              AND available_at <= :now ORDER BY available_at LIMIT :limit)
RETURNING part
"""

# Index holdfast_ready, one ordered walk per partition.
PICK = f"""
SELECT seq, {COLUMNS} FROM holdfast_message WHERE qid = :qid AND state = 0 AND part = :part
ORDER BY lane DESC, place LIMIT :limit
"""
PICK_MANY = f"SELECT seq, {COLUMNS} FROM (%s) ORDER BY lane DESC, place LIMIT :limit"
PICK_PART = """
SELECT * FROM (SELECT * FROM holdfast_message WHERE qid = :qid AND state = 0 AND part = %d
ORDER BY lane DESC, place LIMIT :limit)
"""
# By primary key. Picked and taken under one write lock, so no two consumers get one message.
# Two statements: RETURNING would make SQLite keep every row twice, which costs a third more.
TAKE = """
UPDATE holdfast_message SET
  state = 2, attempts = attempts + 1, lease = :lease, batch = :batch,
  deadline = :now + coalesce(cast(round(ack_timeout * 1000) AS INTEGER), :timeout)
WHERE seq IN (SELECT value FROM json_each(:seqs))
"""
TAKE_HELD = TAKE.replace(
    ":now + coalesce(cast(round(ack_timeout * 1000) AS INTEGER), :timeout)", str(NO_DEADLINE)
)
HOLD = "INSERT INTO holdfast_lease VALUES (?, ?, ?, ?, ?)"
PART = 1  # where `part` stands in what PICK returns

ANYTHING = """
SELECT qid, partitions, paused,
  EXISTS (SELECT 1 FROM holdfast_message m WHERE m.qid = q.qid AND m.state = 0),
  EXISTS (SELECT 1 FROM holdfast_message m
          WHERE m.qid = q.qid AND m.state = 1 AND m.available_at <= ?)
FROM holdfast_queue q WHERE name = ?
"""
# Indexes holdfast_ready and holdfast_delayed, one look into each for every queue that is named.
# The CROSS JOIN keeps to the order of the names.
ANYTHING_IN = """
SELECT names.key, q.qid, q.paused,
  EXISTS (SELECT 1 FROM holdfast_message m WHERE m.qid = q.qid AND m.state = 0),
  (SELECT min(available_at) FROM holdfast_message m WHERE m.qid = q.qid AND m.state = 1)
FROM json_each(?) names CROSS JOIN holdfast_queue q ON q.name = names.value
"""

# Index holdfast_message_id.
GET = f"""
SELECT name, {COLUMNS_SO_FAR}
FROM holdfast_message m JOIN (SELECT qid, name FROM holdfast_queue) USING (qid)
LEFT JOIN holdfast_lease l ON l.lease = m.lease AND m.state = 2
WHERE home = ? AND id IN (SELECT value FROM json_each(?))
"""

# The head of each lane, by holdfast_ready.
HEADS = """
WITH lanes(lane) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)),
     parts(part) AS (SELECT part FROM holdfast_depth WHERE qid = :qid)
SELECT part, lane, place, enqueued_at FROM holdfast_message WHERE seq IN (
  SELECT (SELECT seq FROM holdfast_message m WHERE m.qid = :qid AND m.state = 0
          AND m.part = parts.part AND m.lane = lanes.lane ORDER BY place LIMIT 1)
  FROM parts, lanes)
"""
# Index holdfast_delayed: due, but no lease has come by to make them ready.
DUE = """
SELECT part, lane, min(place), enqueued_at, count(*) FROM holdfast_message
WHERE qid = :qid AND state = 1 AND available_at <= :now GROUP BY part, lane
"""


# Rows that no lease, page or sweep can find: a full scan, for `holdfast doctor`.
MISPLACED = """
SELECT id FROM holdfast_message WHERE state IS NOT 0 AND state IS NOT 1 AND state IS NOT 2
  OR qid NOT IN (SELECT qid FROM holdfast_queue) OR typeof(place) <> 'integer'
  OR typeof(available_at) <> 'integer' OR typeof(deadline) <> 'integer'
  OR part NOT BETWEEN 0 AND (SELECT partitions - 1 FROM holdfast_queue q
                             WHERE q.qid = holdfast_message.qid)
LIMIT ?
"""


def open_url(url: str) -> SQLiteStore:
    if sqlite3.sqlite_version_info < (3, 35):
        raise FailedPrecondition(
            f"this Python has SQLite {sqlite3.sqlite_version}; Holdfast needs 3.35 or newer"
        )
    parts = urlsplit(url)
    options = url_options(url, {"synchronous", "busy_timeout"})
    path = unquote(parts.path)[1:]
    if parts.netloc or not path:
        raise InvalidArgument(
            "url", f"{url!r}: write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db"
        )
    synchronous = options.get("synchronous", "normal").upper()
    if synchronous not in ("NORMAL", "FULL"):
        raise InvalidArgument("url option synchronous", "must be normal or full")
    try:
        busy_s = float(options.get("busy_timeout", "30"))
    except ValueError:
        raise InvalidArgument("url option busy_timeout", "must be a number of seconds") from None
    return SQLiteStore(Path(path), synchronous=synchronous, busy_timeout=busy_s)


logger = logging.getLogger("holdfast.stores.sqlite")
P = ParamSpec("P")
R = TypeVar("R")


def rereads(
    method: Callable[Concatenate[SQLiteStore, P], R],
) -> Callable[Concatenate[SQLiteStore, P], R]:
    """Run a method again, in a new transaction, once it has met text that is no UTF-8."""

    @wraps(method)
    def run(self: SQLiteStore, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except Undecodable:
            self.read_leniently()
            return method(self, *args, **kwargs)

    return run


class SQLiteStore:
    def __init__(self, path: Path, *, synchronous: str, busy_timeout: float) -> None:
        self.path = path.absolute()
        self._db = Connections(self.path, synchronous=synchronous, busy_timeout=busy_timeout)

    def migrate(self) -> None:
        steps = migrations()
        with self._db.read() as db:
            version = _version(db)
        check_version(str(self.path), version, len(steps))
        if version < len(steps):
            with self._writing() as db:
                for script in steps[_version(db) :]:  # again: another process may have been here
                    for statement in _statements(script):
                        db.execute(statement)
                db.execute("REPLACE INTO holdfast_meta VALUES ('version', ?)", (len(steps),))
        if self._db.lost is not None:  # for those who ask later: the next write hides it
            with self._writing() as db:
                lost_at = "REPLACE INTO holdfast_meta VALUES ('log_lost_at', ?)"
                db.execute(lost_at, (clock.wall_ms(),))

    def log_lost_at(self) -> int | None:
        """When a write-ahead log was last found that could not be read in full; see wal.py."""
        found = "SELECT value FROM holdfast_meta WHERE name = 'log_lost_at'"
        with self._db.read() as db:
            row = db.execute(found).fetchone()
        return row[0] if row else None

    def read_leniently(self) -> None:
        if self._db.read_leniently():
            logger.warning("%s: a text in it is no UTF-8; see holdfast doctor", self.path)

    @rereads
    def misplaced(self, limit: int) -> list[str]:
        """The ids of messages whose row was damaged so that nothing finds them any more."""
        with self._db.read() as db:
            return [damage.text(id) for (id,) in db.execute(MISPLACED, (limit,))]

    def close(self) -> None:
        self._db.close()

    def time(self) -> int:
        return clock.wall_ms()

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        with self._writing() as db:
            stored = dict(db.execute(_REVISIONS).fetchall())
            if any(stored.get(spec.name, 0) != spec.revision for spec in specs):
                return False
            for spec in specs:
                policy = write_policy(spec.policy)
                row = (spec.name, spec.partitions, spec.paused, policy, spec.created_at)
                shape = (spec.ordered, write_starts(spec.starts))
                db.execute(_PUT_QUEUE, (_new_qid(db, spec.name), *row, spec.revision + 1, *shape))
            return True

    def get_queue(self, name: str) -> QueueSpec | None:
        with self._db.peek() as db:
            row = db.execute(_SPECS + " WHERE name = ?", (name,)).fetchone()
        return _spec(row) if row else None

    def queues(self, *, overdue: int | None = None) -> list[QueueSpec]:
        with self._db.read() as db:
            if overdue is not None:
                return [_spec(row) for row in db.execute(LATE_QUEUES, (overdue,))]
            return [_spec(row) for row in db.execute(_SPECS + " ORDER BY name")]

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        with self._writing() as db:
            qids = [qid for name in names if (qid := _qid(db, name)) is not None]
            for qid in qids:
                held = "SELECT sum(ready + delayed + leased) FROM holdfast_depth WHERE qid = ?"
                if only_empty and db.execute(held, (qid,)).fetchone()[0]:
                    return False
            for qid in qids:
                for table in ("message", "log", "depth", "queue"):
                    db.execute(f"DELETE FROM holdfast_{table} WHERE qid = ?", (qid,))
            db.execute(
                "DELETE FROM holdfast_lease WHERE lease NOT IN "
                "(SELECT lease FROM holdfast_message WHERE state = 2)"
            )
            return True

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
        counts = Counts()
        with self._writing(within) as db:
            qids = {name: _must_exist(db, name) for name in {m.queue for m in messages}}
            if receipt is not None and not records.put(db, "receipt", receipt, b"", 0, now):
                return [Enqueued.HELD] * len(messages)
            first = next_number(db, "seq", len(messages)) - len(messages) + 1
            done = _finished(db, messages, qids, finished_since, first) if finished_since else ()
            rows: list[tuple[Any, ...]] = []
            for seq, message in enumerate(messages, first):
                if seq in done:
                    continue
                qid = qids[message.queue]
                state = READY if message.available_at <= now else DELAYED
                lane = 0 if qid % 2 else message.priority
                rows.append(write_waiting(message, seq, qid, state, lane))
            kept, answers = rows, [Enqueued.STORED] * len(messages)
            if _insert(db, rows, together=within is None) < len(messages):
                seqs = _kept(db, first, first + len(messages) - 1)
                kept = [row for row in rows if row[0] in seqs]
                answers = [
                    Enqueued.STORED if seq in seqs else Enqueued.HELD
                    for seq in range(first, first + len(messages))
                ]
            for (qid, part, state), n in Counter(map(_COUNTED, kept)).items():
                counts.add(qid, part, state, n)
            counts.write(db)
        return answers

    @rereads
    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]:
        if ask.others:
            return self._lease_many(ask, now)
        lease, rows = self._take(ask, now, TAKE)
        return [take_lease(row, ask, lease, now) for row in rows]

    def _lease_many(self, ask: LeaseAsk, now: int) -> list[Lease]:
        """In one transaction. A reader finds the queues that have something beforehand."""
        asks = list(ask.each())
        with self._db.peek() as db:
            found = [
                asks[n]
                for n, _, paused, ready, next_at in _anything_in(db, [one.queue for one in asks])
                if not paused and (ready or (next_at is not None and next_at <= now))
            ]
        if not found:
            return []
        leases: list[Lease] = []
        with self._writing(quiet=True) as db:
            lease, counts = next_number(db, "lease", 1), Counts()
            for one in found:
                limit = min(one.limit, ask.limit - len(leases))
                if not limit:
                    break
                rows = _take_from(db, one, limit, lease, now, counts)
                leases += [take_lease(row, one, lease, now) for row in rows]
            if leases:
                db.execute(HOLD, (lease, ask.token, ask.owner, now, len(leases)))
            counts.write(db)
        return leases

    @rereads
    def hold(self, ask: LeaseAsk, now: int) -> int:
        return len(self._take(ask, now, TAKE_HELD)[1])

    def _take(self, ask: LeaseAsk, now: int, take: str) -> tuple[int, list[tuple[Any, ...]]]:
        with self._db.peek() as db:
            if not _anything(db, ask.queue, now):
                return 0, []
        with self._writing(quiet=True) as db:
            found = _anything(db, ask.queue, now)
            if not found:
                return 0, []
            qid, partitions, due = found
            parts = tuple(range(partitions)) if ask.partitions is None else ask.partitions
            if ask.epochs is not None:
                parts = _owned(db, ask, now)
                if not parts:
                    return 0, []
            counts = Counts()
            if due:
                limit = PROMOTE_MAX if ask.epochs is None else -1
                _promote(db, qid, now, limit, counts)
            rows = _pick(db, qid, parts, ask.limit)
            lease = next_number(db, "lease", 1)
            db.execute(HOLD, (lease, ask.token, ask.owner, now, len(rows)))
            _mark_taken(db, take, rows, qid, ask, lease, now, counts)
            counts.write(db)
        return lease, rows

    @rereads
    def finish(self, queue: str, batch: str, limit: int, now: int, status: Status | None) -> int:
        with self._writing(quiet=True) as db:
            return settle.finish(db, _must_exist(db, queue), batch, limit, now, status)

    @rereads
    def settle(self, moves: Sequence[Transition], now: int, *, within: Any = None) -> list[Settled]:
        if not moves:
            return []
        quiet = all(move.target is not Target.WAITING for move in moves)
        with self._writing(within, quiet=quiet) as db:
            return settle.settle(db, moves, now)

    @rereads
    def overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        with self._db.read() as db:
            rows = db.execute(
                f"SELECT {LEASED_COLUMNS} FROM holdfast_message LEFT JOIN holdfast_lease "
                "USING (lease) WHERE qid = ? AND state = 2 "
                "AND deadline <= ? ORDER BY deadline, seq LIMIT ?",
                (_must_exist(db, queue), now, limit),
            ).fetchall()
        return [read_lease(row, queue, 0) for row in rows]

    @rereads
    def leased(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        with self._db.read() as db:
            rows = db.execute(
                f"SELECT {LEASED_COLUMNS} FROM holdfast_message LEFT JOIN holdfast_lease "
                "USING (lease) WHERE batch = ? AND qid = ? AND id > ? ORDER BY id LIMIT ?",
                (batch, _must_exist(db, queue), after or "", limit),
            ).fetchall()
        return [read_lease(row, queue, 0) for row in rows]

    @rereads
    def browse(self, view: View, after: str | None, limit: int, now: int) -> Page:
        with self._db.snapshot() as db:
            qid = _must_exist(db, view.queue)
            rows = browse.page(db, view, qid, read_cursor(after), limit + 1, now)
            (end,) = db.execute("SELECT value FROM holdfast_meta WHERE name = 'seq'").fetchone()
        return page_of(rows, view, limit, end)

    def split(self, view: View, parts: int, now: int) -> list[str]:
        with self._db.snapshot() as db:
            return browse.split(db, view, _must_exist(db, view.queue), parts, now)

    @rereads
    def get(self, queue: str, ids: Sequence[str]) -> list[Message]:
        with self._db.read() as db:
            rows = db.execute(
                GET, (_must_exist(db, queue) // 2, msgspec.json.encode(list(ids)).decode())
            ).fetchall()
        return [read_message(row, row[0], 1) for row in rows]

    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        with self._db.snapshot() as db:
            return [_stats(db, queue, now) for queue in queues]

    def depths(self, queue: str, now: int) -> list[Depth]:
        with self._db.snapshot() as db:
            return _depths(db, queue, now)

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        if not rows:
            return 0
        with self._writing(quiet=True) as db:
            return settle.restore(db, _must_exist(db, queue), rows)

    def trim(self, cuts: Sequence[Cut]) -> list[int]:
        with self._db.read() as db:  # to write costs more, and keeps others waiting
            wanted = [_has_too_much(db, cut) for cut in cuts]
        return [
            self._trim(cut) if too_much else 0 for cut, too_much in zip(cuts, wanted, strict=True)
        ]

    def _trim(self, cut: Cut) -> int:
        with self._writing(quiet=True) as db:
            found = db.execute(LOGGED_OF, (cut.queue,)).fetchone()
            if found is None:
                return 0
            qid, _, held = found
            over = 0 if cut.keep is None else max(0, held - cut.keep)
            dropped = db.execute(
                "DELETE FROM holdfast_log WHERE seq IN (SELECT seq FROM ("
                "SELECT seq, finished_at, row_number() OVER (ORDER BY finished_at, seq) AS n "
                "FROM (SELECT seq, finished_at FROM holdfast_log WHERE qid = :qid "
                "ORDER BY finished_at, seq LIMIT :limit)) WHERE n <= :over OR finished_at < :before"
                ") RETURNING part",
                {"qid": qid, "limit": cut.limit, "over": over, "before": cut.before or 0},
            ).fetchall()
            counts = Counts()
            for (part,) in dropped:
                counts.add(qid, part, LOGGED, -1)
            counts.write(db)
            return len(dropped)

    def tidy(self, now: int, *, log_before: int | None) -> None: ...

    def purge(self, queue: str, limit: int) -> int:
        with self._writing(quiet=True) as db:
            qid = _must_exist(db, queue)
            dropped = db.execute(
                "DELETE FROM holdfast_message WHERE seq IN (SELECT seq FROM holdfast_message "
                "WHERE qid = ? AND state IN (0, 1) LIMIT ?) RETURNING part, state",
                (qid, limit),
            ).fetchall()
            counts = Counts()
            for part, state in dropped:
                counts.add(qid, part, state, -1)
            counts.write(db)
            return len(dropped)

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        with self._writing(quiet=True) as db:
            claim = claimed(_claim(db, name), name, owner, ttl_ms, now)
            if claim is not None:
                row = (name, owner, claim.epoch, claim.expires_at)
                db.execute("REPLACE INTO holdfast_claim VALUES (?, ?, ?, ?)", row)
            return claim if ttl_ms else None

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        with self._db.read() as db:
            return [_claim(db, name) for name in names]

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        with self._writing(quiet=True) as db:
            return records.put(db, kind, name, value, revision, now)

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        with self._db.read() as db:
            return records.read(db, kind, prefix, after, limit)

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        with self._writing(quiet=True) as db:
            return records.drop(db, kind, prefix, before, limit)

    def publish(self, events: Sequence[Event]) -> None:
        with self._writing() as db:
            db.executemany(
                "INSERT INTO holdfast_event (type, timestamp, payload) VALUES (?, ?, ?)",
                [(e.type, e.timestamp, msgspec.json.encode(e.payload).decode()) for e in events],
            )
            db.execute(
                "DELETE FROM holdfast_event WHERE seq <= (SELECT max(seq) FROM holdfast_event) - ?",
                (EVENTS_KEPT,),
            )

    def subscribe(self, after: int | None = None) -> Subscription:
        if after is None:
            with self._db.read() as db:
                newest = "SELECT coalesce(max(seq), 0) FROM holdfast_event"
                (after,) = db.execute(newest).fetchone()
        return Subscription(self._events, self._db.watching, after or 0, rest_s=NEWS_REST_S)

    def _events(self, after: int) -> list[Event]:
        with self._db.read() as db:
            rows = db.execute(
                "SELECT type, timestamp, payload, seq FROM holdfast_event WHERE seq > ? "
                "ORDER BY seq LIMIT 1000",
                (after,),
            ).fetchall()
        return [Event(type, at, msgspec.json.decode(body), seq) for type, at, body, seq in rows]

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        def look(now: int, left: float) -> tuple[bool, bool]:
            with self._db.watching() as watch:
                ahead = self._look_ahead(queues, now, partitions)
                if ahead is None:
                    return True, True
                return False, watch.wait(min(left, ahead)) or ahead <= left

        return wait_for_messages(look, now, timeout, again=partitions is not None)

    def _look_ahead(
        self, queues: Sequence[str], now: int, partitions: Sequence[int] | None
    ) -> float | None:
        """None when there is something to lease; else the seconds until the next is due."""
        ahead = float("inf")
        with self._db.read() as db:
            found = _anything_in(db, queues)
            all_exist(queues, [queues[n] for n, *_ in found])
            for _, qid, paused, ready, next_at in found:
                if paused:
                    continue
                if next_at is not None and next_at <= now:
                    return None
                if ready and (partitions is None or _in_parts(db, qid, partitions)):
                    return None
                if next_at is not None:
                    ahead = min(ahead, (next_at - now) / 1000)
        return ahead

    def _writing(
        self, within: Any = None, *, quiet: bool = False
    ) -> AbstractContextManager[sqlite3.Cursor]:
        """One write transaction, ours or the caller's. `quiet`: nobody waits for its outcome."""
        return self._db.write(quiet=quiet) if within is None else self._db.joined(within)


def migrations(url: str = "") -> list[str]:
    """The scripts, in order: forward only, numbered by their names."""
    folder = files("holdfast.stores.sqlite") / "sql"
    scripts = sorted(folder.iterdir(), key=lambda script: script.name)
    return [script.read_text() for script in scripts if script.name.endswith(".sql")]


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(db: sqlite3.Cursor) -> int:
    made = "SELECT 1 FROM sqlite_master WHERE name = 'holdfast_meta'"
    if db.execute(made).fetchone() is None:
        return 0
    return db.execute("SELECT value FROM holdfast_meta WHERE name = 'version'").fetchone()[0]


_SPECS = """
SELECT name, partitions, policy, paused, created_at, revision, ordered, starts FROM holdfast_queue
"""
# Index holdfast_leased, one step for each queue that has leases.
LATE_QUEUES = f"""
WITH RECURSIVE held (qid) AS (
  SELECT min(qid) FROM holdfast_message WHERE state = 2
  UNION ALL
  SELECT (SELECT min(qid) FROM holdfast_message m WHERE m.state = 2 AND m.qid > held.qid)
  FROM held WHERE qid IS NOT NULL
)
{_SPECS} WHERE qid IN (
  SELECT qid FROM held
  WHERE (SELECT min(deadline) FROM holdfast_message m WHERE m.state = 2 AND m.qid = held.qid) <= ?
) ORDER BY name
"""
# Index holdfast_log_finished. When the oldest row of a log finished, and how many rows there are.
LOGGED_OF = """
SELECT qid,
  (SELECT min(finished_at) FROM holdfast_log l WHERE l.qid = q.qid),
  (SELECT coalesce(sum(logged), 0) FROM holdfast_depth d WHERE d.qid = q.qid)
FROM holdfast_queue q WHERE name = ?
"""
_REVISIONS = "SELECT name, revision FROM holdfast_queue"
_PUT_QUEUE = "REPLACE INTO holdfast_queue VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def _spec(row: tuple[Any, ...]) -> QueueSpec:
    name, partitions, policy, paused, created_at, revision, ordered, starts = row
    plain = (name, partitions, read_policy(policy), bool(paused), created_at, revision)
    return QueueSpec(*plain, bool(ordered), read_starts(starts))


def _qid(db: sqlite3.Cursor, name: str) -> int | None:
    row = db.execute("SELECT qid FROM holdfast_queue WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def _new_qid(db: sqlite3.Cursor, name: str) -> int:
    return number_of(name, partial(_qid, db), lambda: next_number(db, "home", 1))


def _has_too_much(db: sqlite3.Cursor, cut: Cut) -> bool:
    found = db.execute(LOGGED_OF, (cut.queue,)).fetchone()
    if found is None:
        return False
    _, oldest, held = found
    old = cut.before is not None and oldest is not None and oldest < cut.before
    return old or (cut.keep is not None and held > cut.keep)


def _must_exist(db: sqlite3.Cursor, queue: str) -> int:
    return must_exist(queue, _qid(db, queue))


_COUNTED = itemgetter(1, 5, 2)
"""The qid, the partition and the state of a row."""


def _insert(db: sqlite3.Cursor, rows: list[tuple[Any, ...]], *, together: bool) -> int:
    """How many were stored: an id that is held is left out.

    In a caller's transaction one by one: a full disk then rolls back all of it, also what the
    caller wrote before, and nobody can commit half. Of an INSERT of many rows SQLite takes back
    only that.
    """
    stored = 0
    for width, alike in groupby(rows, len):  # in order: of one id twice, the first is kept
        run, sql = list(alike), ENQUEUE_BY_WIDTH[width]
        whole = len(run) - len(run) % TOGETHER if together else 0
        for start in range(0, whole, TOGETHER):
            bind = list(chain.from_iterable(run[start : start + TOGETHER]))
            stored += db.execute(sql[TOGETHER], bind).rowcount
        if whole < len(run):
            stored += db.executemany(sql[1], run[whole:]).rowcount
    return stored


def _finished(
    db: sqlite3.Cursor,
    messages: Sequence[Message],
    qids: Mapping[str, int],
    since: Mapping[int, int],
    first: int,
) -> Container[int]:
    """The seqs of those that the log holds already."""
    found: set[int] = set()
    for n, at in since.items():
        home = qids[messages[n].queue] // 2
        if db.execute(FINISHED, (2 * home, 2 * home + 1, messages[n].id, at)).fetchone():
            found.add(first + n)
    return found


def _kept(db: sqlite3.Cursor, first: int, last: int) -> Container[int]:
    """The seqs that were stored: the ids of the others were held, or finished lately."""
    found = "SELECT seq FROM holdfast_message WHERE seq BETWEEN ? AND ?"
    return {seq for (seq,) in db.execute(found, (first, last))}


def _anything(db: sqlite3.Cursor, queue: str, now: int) -> tuple[int, int, bool] | None:
    """The qid, its partitions and whether some are due; None when there is nothing to lease."""
    row = db.execute(ANYTHING, (now, queue)).fetchone()
    qid, partitions, paused, ready, due = must_exist(queue, row)
    return None if paused or not (ready or due) else (qid, partitions, bool(due))


def _anything_in(
    db: sqlite3.Cursor, queues: Sequence[str]
) -> list[tuple[int, int, bool, bool, int | None]]:
    """Of each queue that exists: its index in `queues`, its qid, whether it is paused, whether
    anything is ready, and when the first of its delayed messages is due."""
    return db.execute(ANYTHING_IN, (msgspec.json.encode(list(queues)).decode(),)).fetchall()


def _take_from(
    db: sqlite3.Cursor, ask: LeaseAsk, limit: int, lease: int, now: int, counts: Counts
) -> list[tuple[Any, ...]]:
    """Of one of several queues, as it is now: it may have changed, or gone, since it was found."""
    row = db.execute(ANYTHING, (now, ask.queue)).fetchone()
    if row is None:
        return []
    qid, partitions, paused, _, due = row
    if paused:
        return []
    if due:
        _promote(db, qid, now, PROMOTE_MAX, counts)
    rows = _pick(db, qid, tuple(range(partitions)), limit)
    if rows:
        _mark_taken(db, TAKE, rows, qid, ask, lease, now, counts)
    return rows


def _promote(db: sqlite3.Cursor, qid: int, now: int, limit: int, counts: Counts) -> None:
    for (part,) in db.execute(PROMOTE, {"qid": qid, "now": now, "limit": limit}):
        counts.add(qid, part, DELAYED, -1)
        counts.add(qid, part, READY)


def _mark_taken(
    db: sqlite3.Cursor,
    take: str,
    rows: list[tuple[Any, ...]],
    qid: int,
    ask: LeaseAsk,
    lease: int,
    now: int,
    counts: Counts,
) -> None:
    bind: dict[str, Any] = {
        "lease": lease,
        "batch": ask.batch,
        "now": now,
        "timeout": ask.timeout_ms,
        "seqs": msgspec.json.encode([row[0] for row in rows]).decode(),
    }
    db.execute(take, bind)
    for part, n in Counter(row[PART] for row in rows).items():
        counts.add(qid, part, READY, -n)
        counts.add(qid, part, LEASED, n)


def _in_parts(db: sqlite3.Cursor, qid: int, partitions: Sequence[int]) -> bool:
    """Whether something is ready in these."""
    ready = "SELECT 1 FROM holdfast_message WHERE qid = ? AND state = 0 AND part = ? LIMIT 1"
    return any(db.execute(ready, (qid, part)).fetchone() for part in partitions)


def _owned(db: sqlite3.Cursor, ask: LeaseAsk, now: int) -> tuple[int, ...]:
    """Those of the partitions whose claim is the asker's, at the epoch that it names."""
    owned: list[int] = []
    for part, epoch in zip(ask.partitions or (), ask.epochs or (), strict=True):
        if owns(_claim(db, partition_claim(ask.queue, part)), ask.owner, epoch, now):
            owned.append(part)
    return tuple(owned)


def _claim(db: sqlite3.Cursor, name: str) -> Claim | None:
    row = db.execute(
        "SELECT name, owner, epoch, expires_at FROM holdfast_claim WHERE name = ?", (name,)
    ).fetchone()
    return Claim(*row) if row else None


def _pick(
    db: sqlite3.Cursor, qid: int, partitions: tuple[int, ...], limit: int
) -> list[tuple[Any, ...]]:
    bind = {"qid": qid, "limit": limit, "part": partitions[0]}
    statement = PICK if len(partitions) == 1 else _pick_many(partitions)
    return db.execute(statement, bind).fetchall()


@lru_cache(maxsize=256)
def _pick_many(partitions: tuple[int, ...]) -> str:
    return PICK_MANY % " UNION ALL ".join(PICK_PART % part for part in partitions)


def _stats(db: sqlite3.Cursor, queue: str, now: int) -> QueueStats:
    shape = "SELECT qid, paused FROM holdfast_queue WHERE name = ?"
    qid, paused = must_exist(queue, db.execute(shape, (queue,)).fetchone())
    heads = _heads(db, qid, now)
    return queue_stats(
        queue,
        _depth(db, qid),
        due=heads.due.total(),
        dead=0 if is_dlq(queue) else sum(_depth(db, qid + 1)[:3]),
        oldest_at=min(heads.oldest().values(), default=None),
        paused=bool(paused),
        now=now,
    )


def _heads(db: sqlite3.Cursor, qid: int, now: int) -> Heads:
    heads = Heads()
    for head in db.execute(HEADS, {"qid": qid}):
        heads.add(*head)
    for *head, n in db.execute(DUE, {"qid": qid, "now": now}):
        heads.add(*head, due=n)
    return heads


def _depths(db: sqlite3.Cursor, queue: str, now: int) -> list[Depth]:
    shape = "SELECT qid, partitions FROM holdfast_queue WHERE name = ?"
    qid, partitions = must_exist(queue, db.execute(shape, (queue,)).fetchone())
    stored = "SELECT part, ready, delayed, leased FROM holdfast_depth WHERE qid = ?"
    counts = {part: counts for part, *counts in db.execute(stored, (qid,))}
    heads = _heads(db, qid, now)
    return depths_of(partitions, counts, heads.due, heads.oldest())


def _depth(db: sqlite3.Cursor, qid: int) -> tuple[int, int, int, int]:
    return db.execute(
        "SELECT coalesce(sum(ready), 0), coalesce(sum(delayed), 0), coalesce(sum(leased), 0), "
        "coalesce(sum(done), 0) FROM holdfast_depth WHERE qid = ?",
        (qid,),
    ).fetchone()
