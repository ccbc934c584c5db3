"""Finds out whether a call waits for a transaction that its own thread has open on the same file.

SQLite has one writer at a time and does not say who it is. A thread that has written by its own
connection and then asks the store for a write without `within=` would wait for itself until the
time-out, and blame somebody else.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any, Literal, cast

LEGACY = -1
"""sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 does not have."""


class StoreConnection(sqlite3.Connection):
    """A connection of a store: no caller has a transaction open on it."""


def open_here(path: Path, joined: int | None) -> Literal["writes", "open"] | None:
    """What this thread's own connections to the file are at, as far as that can be told.

    `joined` is the id of the connection that this thread last gave as `within`. "open": it is in a
    transaction that may only read. Looks at every object of the process: for when a call waits.
    """
    found = [c for c in _all() if _is_open(c) and _is_ours(c, joined) and _is_at(c, path)]
    if not found:
        return None
    return "writes" if any(id(c) == joined or _has_written(c) for c in found) else "open"


def _all() -> list[sqlite3.Connection]:
    found: list[sqlite3.Connection] = []
    for each in gc.get_objects():
        kind = cast("type[object]", type(each))  # isinstance would ask proxies what they stand for
        if issubclass(kind, sqlite3.Connection) and not issubclass(kind, StoreConnection):
            found.append(each)
    return found


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.Error:  # it was closed
        return False


def _is_ours(connection: sqlite3.Connection, joined: int | None) -> bool:
    """Python binds a connection to its thread unless told otherwise. One that is bound to none may
    be another thread's, which will commit: it counts only if this thread gave it to us."""
    if id(connection) == joined:
        return True
    if _is_refused(connection):
        return False
    refused: list[bool] = []
    other = threading.Thread(target=lambda: refused.append(_is_refused(connection)))
    other.start()
    other.join()
    return refused == [True]


def _is_refused(connection: sqlite3.Connection) -> bool:
    try:
        sqlite3.Connection.cursor(connection).close()
    except sqlite3.Error:
        return True
    return False


def _is_at(connection: sqlite3.Connection, path: Path) -> bool:
    try:
        cursor = sqlite3.Connection.cursor(connection)
        cursor.row_factory = None
        rows: list[Any] = cursor.execute("PRAGMA database_list").fetchall()
        return any(file and os.path.samefile(file, path) for _, _, file in rows)
    except (sqlite3.Error, OSError):
        return False


def _has_written(connection: sqlite3.Connection) -> bool:
    """By default Python begins a transaction when the first row is written."""
    begins_by_itself = connection.isolation_level is not None
    legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
    return begins_by_itself and legacy and connection.total_changes > 0
