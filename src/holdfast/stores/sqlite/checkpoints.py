"""Folds the write-ahead log into the database file beside the writers, so that no commit waits."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

ROWS = 2000
"""Changed rows after which it is worth the two fsyncs. SQLite counts pages, but tells nobody."""
REST_S = 0.1
"""Between two of them: a page that is written again and again is then folded in once."""


class Checkpointer:
    """One thread with a connection of its own; there is none before there is much to fold in.

    SQLite would do it within the commit that finds the log long: that one waits for all the
    others' pages, some ten milliseconds. It still does if this falls behind.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._folded = 0

    def wrote(self, rows: int) -> None:
        """`rows` were changed since the beginning. By one thread at a time, after each commit."""
        if rows - self._folded < ROWS:
            return
        self._folded = rows
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="holdfast-sqlite-checkpoint", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        try:
            while self._wanted.wait() and not self._stopped.is_set():
                self._wanted.clear()
                try:
                    db = db or self._connect()
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                except sqlite3.Error:
                    pass  # whatever is wrong with the file, the next write meets it and tells
                self._stopped.wait(REST_S)
        finally:
            if db is not None:
                db.close()
