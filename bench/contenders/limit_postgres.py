"""The limit: PostgreSQL by hand, with nothing a queue needs beyond taking turns.

One table, one partial index on what is ready; a lease has a deadline and a token, an ack compares
the token. No ids of its own, no log, no counts, no retries, bodies encoded beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import token_bytes
from typing import Any

import psycopg

from bench.results import Who
from bench.timing import BATCH, batches, bodies, timed

DURABLE = "every commit is synced (synchronous_commit=on): survives a power cut"

WHO = Who(
    name="by hand",
    kind="limit",
    version=f"psycopg {psycopg.__version__}",
    settings="binary COPY; INSERT; UPDATE ... SKIP LOCKED ... RETURNING, DELETE; prepared, binary",
    durability=DURABLE,
    delivery="leased by token, deleted when acked; no log, no retries",
    acks=True,
)

LEASE_MS = 30_000
SCHEMA = """
CREATE TABLE message (
  id bigserial PRIMARY KEY, state smallint NOT NULL DEFAULT 0, deadline bigint, token bytea,
  payload bytea NOT NULL);
CREATE INDEX ready ON message (id) WHERE state = 0;
"""
COPY = "COPY message (payload) FROM STDIN (FORMAT BINARY)"
INSERT = "INSERT INTO message (payload) VALUES (%b)"
LEASE = """
UPDATE message SET state = 1, deadline = %b, token = %b WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM message WHERE state = 0 ORDER BY id LIMIT %b FOR UPDATE SKIP LOCKED))
RETURNING id, payload
"""
"""By ctid of an array: a join with the subquery may be planned to run it once for every row."""
ACK = "DELETE FROM message WHERE id = ANY(%b) AND token = %b"

Connection = psycopg.Connection[tuple[Any, ...]]


def enqueue_bulk(size: int) -> Callable[[str, int], float]:
    def run(url: str, n: int) -> float:
        parts = batches(bodies(n), size)
        with _opened(url) as db:
            with timed() as watch:
                for part in parts:
                    _copy(db, part)
            _holds(db, n)
        return watch.seconds

    return run


def enqueue_one(url: str, n: int) -> float:
    items = bodies(n)
    with _opened(url) as db:
        with timed() as watch:
            for item in items:
                db.execute(INSERT, (item,), prepare=True)
        _holds(db, n)
    return watch.seconds


def lease_ack_bulk(url: str, n: int) -> float:
    acked = 0
    with _opened(url) as db:
        _copy(db, bodies(n))
        with timed() as watch:
            while leased := _lease(db, token := token_bytes(8), BATCH):
                db.execute(ACK, ([id for id, _ in leased], token), prepare=True)
                acked += len(leased)
        _holds(db, 0)
    assert acked == n, f"{acked} of {n}"
    return watch.seconds


def _copy(db: Connection, items: list[bytes]) -> None:
    with db.cursor().copy(COPY) as copy:
        copy.set_types(["bytea"])
        for item in items:
            copy.write_row((item,))


def _lease(db: Connection, token: bytes, size: int) -> list[tuple[Any, ...]]:
    deadline = int(time.time() * 1000) + LEASE_MS
    return db.execute(LEASE, (deadline, token, size), prepare=True, binary=True).fetchall()


def _holds(db: Connection, n: int) -> None:
    row = db.execute("SELECT count(*) FROM message").fetchone()
    assert row == (n,), row


def _opened(url: str) -> Connection:
    db = psycopg.connect(url, autocommit=True)
    db.execute(SCHEMA)
    return db
