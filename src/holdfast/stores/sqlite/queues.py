"""The number of a queue, which is what its messages are found by."""

from __future__ import annotations

import sqlite3

from holdfast.stores.kit.specs import must_exist
from holdfast.stores.sqlite import statements as texts


def find(db: sqlite3.Cursor, name: str) -> int | None:
    row = db.execute(texts.QID, (name,)).fetchone()
    return row[0] if row else None


def existing(db: sqlite3.Cursor, name: str) -> int:
    return must_exist(name, find(db, name))
