"""Leasing: how messages are picked and taken, and when what is delayed becomes ready."""

from __future__ import annotations

import sqlite3
from collections import Counter
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.model.message import Lease
from holdfast.model.queues import partition_claim
from holdfast.stores.contract import NO_DEADLINE, LeaseAsk
from holdfast.stores.kit.claims import owns
from holdfast.stores.kit.specs import must_exist
from holdfast.stores.rows import COLUMNS
from holdfast.stores.sql.store import Row
from holdfast.stores.sqlite import board
from holdfast.stores.sqlite import statements as texts
from holdfast.stores.sqlite.connections import Connections
from holdfast.stores.sqlite.rows import take_lease
from holdfast.stores.sqlite.settle import DELAYED, LEASED, READY, Counts, next_number

PROMOTE_MAX = 10_000
"""Delayed messages that one lease call makes ready; more come due in the next calls."""

# Index holdfast_delayed.
PROMOTE = """
UPDATE holdfast_message SET state = 0
WHERE seq IN (SELECT seq FROM holdfast_message WHERE state = 1 AND qid = :qid
              AND available_at <= :now ORDER BY available_at LIMIT :limit)
RETURNING part
"""

_LINE = "ORDER BY lane DESC, place LIMIT :limit"
# Index holdfast_ready, one ordered walk per partition.
PICK = f"""
SELECT seq, {COLUMNS} FROM holdfast_message WHERE qid = :qid AND state = 0 AND part = :part
{_LINE}
"""


@lru_cache(maxsize=256)
def _pick_many(partitions: tuple[int, ...]) -> str:
    walks = " UNION ALL ".join(
        "SELECT * FROM (SELECT * FROM holdfast_message "
        f"WHERE qid = :qid AND state = 0 AND part = {part:d} {_LINE})"
        for part in partitions
    )
    return f"SELECT seq, {COLUMNS} FROM ({walks}) {_LINE}"


def _take(deadline: str) -> str:
    """By primary key. Picked and taken under one write lock, so no two consumers get one message.
    Two statements: RETURNING would make SQLite keep every row twice, which costs a third more."""
    return f"""
UPDATE holdfast_message SET
  state = 2, attempts = attempts + 1, lease = :lease, batch = :batch, deadline = {deadline}
WHERE seq IN (SELECT value FROM json_each(:seqs))
"""


TAKE = _take(":now + coalesce(cast(round(ack_timeout * 1000) AS INTEGER), :timeout)")
TAKE_HELD = _take(str(NO_DEADLINE))
HOLD = "INSERT INTO holdfast_lease VALUES (?, ?, ?, ?, ?)"
PART = 1  # where `part` stands in what PICK returns

ANYTHING_DUE = """
SELECT qid, partitions, paused,
  EXISTS (SELECT 1 FROM holdfast_message m WHERE m.qid = q.qid AND m.state = 0),
  EXISTS (SELECT 1 FROM holdfast_message m
          WHERE m.qid = q.qid AND m.state = 1 AND m.available_at <= ?)
FROM holdfast_queue q WHERE name = ?
"""


def lease(connections: Connections, ask: LeaseAsk, now: int) -> list[Lease]:
    if ask.others:
        return _lease_many(connections, ask, now)
    number, rows = take(connections, ask, now, TAKE)
    return [take_lease(row, ask, number, now) for row in rows]


def reserve(connections: Connections, ask: LeaseAsk, now: int) -> int:
    return len(take(connections, ask, now, TAKE_HELD)[1])


def _lease_many(connections: Connections, ask: LeaseAsk, now: int) -> list[Lease]:
    """In one transaction. A reader finds the queues that have something beforehand."""
    asks = {one.queue: one for one in ask.each()}
    names = msgspec.json.encode(list(asks)).decode()
    with connections.peek() as db:
        found = [
            asks[name]
            for name, _, paused, _, ready, next_at in db.execute(texts.ANYTHING, {"names": names})
            if not paused and (ready or (next_at is not None and next_at <= now))
        ]
    if not found:
        return []
    leases: list[Lease] = []
    with connections.write(quiet=True) as db:
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


def take(
    connections: Connections, ask: LeaseAsk, now: int, statement: str
) -> tuple[int, list[Row]]:
    """The number of the lease, and the rows that were taken by TAKE or TAKE_HELD."""
    with connections.peek() as db:
        if not _anything(db, ask.queue, now):
            return 0, []
    with connections.write(quiet=True) as db:
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
        _mark_taken(db, statement, rows, qid, ask, lease, now, counts)
        counts.write(db)
    return lease, rows


def _anything(db: sqlite3.Cursor, queue: str, now: int) -> tuple[int, int, bool] | None:
    """The qid, its partitions and whether some are due; None when there is nothing to lease."""
    row = db.execute(ANYTHING_DUE, (now, queue)).fetchone()
    qid, partitions, paused, ready, due = must_exist(queue, row)
    return None if paused or not (ready or due) else (qid, partitions, bool(due))


def _take_from(
    db: sqlite3.Cursor, ask: LeaseAsk, limit: int, lease: int, now: int, counts: Counts
) -> list[Row]:
    """Of one of several queues, as it is now: it may have changed, or gone, since it was found."""
    row = db.execute(ANYTHING_DUE, (now, ask.queue)).fetchone()
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
    rows: list[Row],
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


def _owned(db: sqlite3.Cursor, ask: LeaseAsk, now: int) -> tuple[int, ...]:
    """Those of the partitions whose claim is the asker's, at the epoch that it names."""
    owned: list[int] = []
    for part, epoch in zip(ask.partitions or (), ask.epochs or (), strict=True):
        if owns(board.held(db, partition_claim(ask.queue, part)), ask.owner, epoch, now):
            owned.append(part)
    return tuple(owned)


def _pick(db: sqlite3.Cursor, qid: int, partitions: tuple[int, ...], limit: int) -> list[Row]:
    bind = {"qid": qid, "limit": limit, "part": partitions[0]}
    statement = PICK if len(partitions) == 1 else _pick_many(partitions)
    return db.execute(statement, bind).fetchall()
