"""Claims and records, changed by compare-and-set. All by primary key."""

from __future__ import annotations

import sqlite3

from holdfast.stores.contract import Claim
from holdfast.stores.kit.claims import claimed
from holdfast.stores.sqlite import statements as texts


def put(
    db: sqlite3.Cursor, kind: str, name: str, value: bytes | None, revision: int | None, now: int
) -> bool:
    """Write a record; see `Store.put_record`."""
    row = db.execute(texts.REVISION, (kind, name)).fetchone()
    known = row[0] if row else 0
    if revision is not None and revision != known:
        return False
    if value is None:
        db.execute(texts.DELETE, (kind, name))
    else:
        db.execute(texts.PUT, (kind, name, value, known + 1, now))
    return True


def held(db: sqlite3.Cursor, name: str) -> Claim | None:
    row = db.execute(texts.CLAIM, (name,)).fetchone()
    return Claim(*row) if row else None


def claim(db: sqlite3.Cursor, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
    taken = claimed(held(db, name), name, owner, ttl_ms, now)
    if taken is not None:
        db.execute(texts.PUT_CLAIM, (name, owner, taken.epoch, taken.expires_at))
    return taken if ttl_ms else None
