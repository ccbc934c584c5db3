"""Small values by kind and name, changed by compare-and-set. All by primary key."""

from __future__ import annotations

import sqlite3

from holdfast.stores.contract import Record

REVISION = "SELECT revision FROM holdfast_record WHERE kind = ? AND name = ?"
PUT = "REPLACE INTO holdfast_record VALUES (?, ?, ?, ?, ?)"
DELETE = "DELETE FROM holdfast_record WHERE kind = ? AND name = ?"
# A name that begins with a prefix lies between it and the prefix with the last character after it.
_RANGE = "kind = :kind AND name >= :prefix AND name < :prefix || char(1114111) AND name > :after"
READ = f"""
SELECT name, value, revision, updated_at FROM holdfast_record WHERE {_RANGE}
ORDER BY name LIMIT :limit
"""
DROP = f"""
DELETE FROM holdfast_record WHERE kind = :kind AND name IN (
  SELECT name FROM holdfast_record WHERE {_RANGE} AND updated_at < :before
  ORDER BY name LIMIT :limit)
"""


def put(
    db: sqlite3.Cursor, kind: str, name: str, value: bytes | None, revision: int | None, now: int
) -> bool:
    row = db.execute(REVISION, (kind, name)).fetchone()
    known = row[0] if row else 0
    if revision is not None and revision != known:
        return False
    if value is None:
        db.execute(DELETE, (kind, name))
    else:
        db.execute(PUT, (kind, name, value, known + 1, now))
    return True


def read(db: sqlite3.Cursor, kind: str, prefix: str, after: str, limit: int) -> list[Record]:
    bind = {"kind": kind, "prefix": prefix, "after": after, "limit": limit}
    return [Record(*row) for row in db.execute(READ, bind)]


def drop(db: sqlite3.Cursor, kind: str, prefix: str, before: int | None, limit: int) -> int:
    bind = {
        "kind": kind,
        "prefix": prefix,
        "after": "",
        "before": 2**62 if before is None else before,
        "limit": limit,
    }
    return db.execute(DROP, bind).rowcount
