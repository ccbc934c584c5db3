"""The limit: SQLite by hand, with nothing a queue needs beyond taking turns.

One table, one partial index on what is ready; a lease has a deadline and a token, an ack compares
the token. No ids, no log, no counts, no retries, bodies encoded beforehand.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from secrets import token_hex

from bench.results import Who
from bench.timing import BATCH, batches, bodies, timed

WHO = Who(
    name="by hand",
    kind="limit",
    version=f"sqlite3 {sqlite3.sqlite_version}",
    settings="WAL, synchronous=NORMAL; INSERT, UPDATE ... RETURNING, DELETE",
    durability="a process may crash; a power cut may take the last commits",
    delivery="leased by token, deleted when acked; no log, no retries",
    acks=True,
)

LEASE_MS = 30_000
SCHEMA = """
CREATE TABLE message (
  seq INTEGER PRIMARY KEY, state INTEGER NOT NULL, deadline INTEGER, token TEXT,
  body BLOB NOT NULL);
CREATE INDEX ready ON message (seq) WHERE state = 0;
"""
ENQUEUE = "INSERT INTO message (state, body) VALUES (0, ?)"
LEASE = """
UPDATE message SET state = 1, deadline = ?, token = ? WHERE seq IN (
  SELECT seq FROM message WHERE state = 0 ORDER BY seq LIMIT ?) RETURNING seq, body
"""
ACK = "DELETE FROM message WHERE seq = ? AND token = ?"


def enqueue_bulk(folder: Path, n: int) -> float:
    return _enqueue(folder, n, BATCH)


def enqueue_one(folder: Path, n: int) -> float:
    return _enqueue(folder, n, 1)


def lease_ack_bulk(folder: Path, n: int) -> float:
    return _lease_ack(folder, n, BATCH)


def lease_ack_one(folder: Path, n: int) -> float:
    return _lease_ack(folder, n, 1)


def _enqueue(folder: Path, n: int, size: int) -> float:
    db = _open(folder)
    parts = batches([(body,) for body in bodies(n)], size)
    with timed() as watch:
        for part in parts:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(ENQUEUE, part)
            db.execute("COMMIT")
    db.close()
    return watch.seconds


def _lease_ack(folder: Path, n: int, size: int) -> float:
    db = _open(folder)
    db.execute("BEGIN")
    db.executemany(ENQUEUE, [(body,) for body in bodies(n)])
    db.execute("COMMIT")
    acked = 0
    with timed() as watch:
        while leased := _lease(db, token := token_hex(8), size):
            db.execute("BEGIN IMMEDIATE")
            db.executemany(ACK, [(seq, token) for seq, _ in leased])
            db.execute("COMMIT")
            acked += len(leased)
    db.close()
    assert acked == n, f"{acked} of {n}"
    return watch.seconds


def _lease(db: sqlite3.Connection, token: str, size: int) -> list[tuple[int, bytes]]:
    deadline = int(time.time() * 1000) + LEASE_MS
    return db.execute(LEASE, (deadline, token, size)).fetchall()


def _open(folder: Path) -> sqlite3.Connection:
    db = sqlite3.connect(folder / "limit.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA cache_size = -32000")
    db.executescript(SCHEMA)
    return db
