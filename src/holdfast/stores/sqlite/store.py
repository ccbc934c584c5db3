"""SQLite: the embedded store. One file, WAL, any number of processes.

SQLite has one writer at a time, so every write is one short BEGIN IMMEDIATE transaction over a
whole batch, and an empty queue is noticed by a reader, without asking for the write lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import FailedPrecondition, InvalidArgument
from holdfast.model import clock
from holdfast.model.message import Finished, Lease, Message
from holdfast.model.moves import Enqueued, Settled, State, Target, Transition
from holdfast.model.queues import QueueSpec
from holdfast.stores import damage, url_options
from holdfast.stores.contract import BatchEnd, Claim, Cut, Event, LeaseAsk, View
from holdfast.stores.kit.figures import Heads
from holdfast.stores.kit.specs import check_version, write_starts
from holdfast.stores.kit.waiting import Watch
from holdfast.stores.sql.queues import delete, put
from holdfast.stores.sql.store import EVENTS_KEPT, Row, Rows, SqlStore, between, read_spec, scripts
from holdfast.stores.sqlite import board, enqueueing, leasing, queues, settle
from holdfast.stores.sqlite import statements as texts
from holdfast.stores.sqlite.connections import Connections
from holdfast.stores.sqlite.rows import read_lease
from holdfast.stores.sqlite.settle import LOGGED, Counts


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


class SQLiteStore(SqlStore[Connections]):
    statements = texts
    events_rest_s = 0.01
    """Every commit may bring an event, and hardly one does: at most a hundred looks a second."""

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

    def misplaced(self, limit: int) -> list[str]:
        """The ids of messages whose row was damaged so that nothing finds them any more."""
        rows = self._db.rows(texts.MISPLACED, {"limit": limit})
        return [damage.text(id) for (id,) in rows]

    def close(self) -> None:
        self._db.close()

    def time(self) -> int:
        return clock.wall_ms()

    # What SqlStore asks for

    def _qid(self, queue: str) -> int:
        with self._db.read() as db:
            return queues.existing(db, queue)

    def _lease_of(self, row: Row, queue: str, at: int) -> Lease:
        return read_lease(row, queue, at)

    def _page(
        self, rows: Rows, view: View, qid: int, after: tuple[int, int], limit: int, now: int
    ) -> list[Row]:
        bind: dict[str, Any] = {
            "qid": qid,
            "id": view.id,
            "now": now,
            "first": 9 - after[0] if view.state is State.READY else after[0],
            "second": after[1],
            "any": view.since is None and view.until is None,
            **between(view),
            "limit": limit,
        }
        if view.id is not None:
            found = [row for row in rows(texts.LOG_ONE, bind) if row[:2] > after]
        elif view.state is State.READY:
            ((partitions,),) = rows(texts.PARTITIONS, {"qid": qid})
            found = _walk(rows, texts.READY_SOON, bind)
            for part in range(partitions):
                found += _walk(rows, texts.READY, {**bind, "part": part})
        else:
            found = _walk(rows, texts.PAGES[view.state], bind)
        return sorted(found, key=lambda row: row[:2])[:limit]

    def _heads(self, rows: Rows, queues: Mapping[int, int], now: int) -> dict[int, Heads]:
        found: dict[int, Heads] = {}
        for qid in queues:
            found[qid] = Heads()
            for head in rows(texts.HEADS, {"qid": qid}):
                found[qid].add(*head)
            for *head, n in rows(texts.DUE, {"qid": qid, "now": now}):
                found[qid].add(*head, due=n)
        return found

    def _watch(self, topics: Sequence[str]) -> Watch:
        return self._db.watching()

    def _ready_in(self, qid: int, partitions: Sequence[int], of: int) -> bool:
        binds = ({"qid": qid, "part": part} for part in partitions)
        return any(self._db.rows(texts.READY_IN, bind) for bind in binds)

    # Queues

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        return self._db.transact(lambda rows: put(rows, texts, specs, write_starts))

    def _named(self, names: Sequence[str]) -> list[QueueSpec]:
        with self._db.peek() as db:
            rows = [db.execute(texts.SPEC_OF, {"name": name}).fetchone() for name in names]
        return [read_spec(row) for row in rows if row]

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        listed = self._db.listed
        return self._db.transact(
            lambda rows: delete(rows, texts, names, listed, only_empty=only_empty)
        )

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
        with self._writing(within) as db:
            return enqueueing.enqueue(
                db, messages, now, receipt, finished_since, together=within is None
            )

    def _take_leases(self, ask: LeaseAsk, now: int) -> list[Lease]:
        return self._db.leniently(lambda: leasing.lease(self._db, ask, now))

    def _reserve(self, ask: LeaseAsk, now: int) -> int:
        return self._db.leniently(lambda: leasing.reserve(self._db, ask, now))

    def _end_batch(self, end: BatchEnd, now: int) -> int:
        def finish() -> int:
            with self._db.write(quiet=True) as db:
                qid = queues.existing(db, end.queue)
                return settle.finish(db, qid, end.batch, end.limit, now, end.status)

        return self._db.leniently(finish)

    def _apply(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]:
        if not moves:
            return []
        quiet = all(move.target is not Target.WAITING for move in moves)

        def apply() -> list[Settled]:
            with self._writing(within, quiet=quiet) as db:
                return settle.settle(db, moves, now)

        return self._db.leniently(apply)

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        if not rows:
            return 0
        with self._db.write(quiet=True) as db:
            return settle.restore(db, queues.existing(db, queue), rows)

    def _drop_logged(self, cuts: Sequence[Cut]) -> list[int]:
        with self._db.read() as db:  # to write costs more, and keeps others waiting
            wanted = [_has_too_much(db, cut) for cut in cuts]
        return [
            self._trim(cut) if too_much else 0 for cut, too_much in zip(cuts, wanted, strict=True)
        ]

    def _trim(self, cut: Cut) -> int:
        with self._db.write(quiet=True) as db:
            found = db.execute(texts.LOGGED_OF, (cut.queue,)).fetchone()
            if found is None:
                return 0
            qid, _, held = found
            over = 0 if cut.keep is None else max(0, held - cut.keep)
            bind = {"qid": qid, "limit": cut.limit, "over": over, "before": cut.before or 0}
            dropped = db.execute(texts.TRIM, bind).fetchall()
            counts = Counts()
            for (part,) in dropped:
                counts.add(qid, part, LOGGED, -1)
            counts.write(db)
            return len(dropped)

    def tidy(self, now: int, *, log_before: int | None) -> None: ...

    def _drop_waiting(self, queue: str, limit: int) -> int:
        with self._db.write(quiet=True) as db:
            qid = queues.existing(db, queue)
            dropped = db.execute(texts.PURGE, (qid, limit)).fetchall()
            counts = Counts()
            for part, state in dropped:
                counts.add(qid, part, state, -1)
            counts.write(db)
            return len(dropped)

    # Claims, records, events

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        with self._db.write(quiet=True) as db:
            return board.claim(db, name, owner, ttl_ms, now)

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        with self._db.write(quiet=True) as db:
            return board.put(db, kind, name, value, revision, now)

    def publish(self, events: Sequence[Event]) -> None:
        rows = [(e.type, e.timestamp, msgspec.json.encode(e.payload).decode()) for e in events]
        with self._db.write() as db:
            db.executemany(texts.NEW_EVENT, rows)
            db.execute(texts.FORGET_EVENTS, (EVENTS_KEPT,))

    def _writing(
        self, within: Any = None, *, quiet: bool = False
    ) -> AbstractContextManager[sqlite3.Cursor]:
        """One write transaction, ours or the caller's. `quiet`: nobody waits for its outcome."""
        return self._db.write(quiet=quiet) if within is None else self._db.joined(within)


def _walk(rows: Rows, walks: Sequence[str], bind: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    for walk in walks:
        if len(found) < bind["limit"]:
            found += rows(walk, bind)
    return found


def migrations(url: str = "") -> list[str]:
    """The scripts, in order: forward only, numbered by their names."""
    return scripts("holdfast.stores.sqlite")


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


def _has_too_much(db: sqlite3.Cursor, cut: Cut) -> bool:
    found = db.execute(texts.LOGGED_OF, (cut.queue,)).fetchone()
    if found is None:
        return False
    _, oldest, held = found
    old = cut.before is not None and oldest is not None and oldest < cut.before
    return old or (cut.keep is not None and held > cut.keep)
