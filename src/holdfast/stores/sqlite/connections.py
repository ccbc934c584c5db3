"""The connections of one store: a writer, a reader, and an eye on what other processes commit."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.errors import (
    FailedPrecondition,
    HoldfastError,
    InvalidArgument,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.model import clock
from holdfast.stores.kit.forks import Opening
from holdfast.stores.sql.store import Row, Rows
from holdfast.stores.sqlite import own, wal
from holdfast.stores.sqlite.checkpoints import Checkpointer

logger = logging.getLogger("holdfast.stores.sqlite")
T = TypeVar("T")
CHECKPOINT_PAGES = 8000
"""A commit that finds the log file as long as this, some 32 MB, folds it into the database itself
(two fsyncs): the thread that does so beside the writers has fallen behind."""
THREADS_MAX = 1000
UNDECODABLE = "Could not decode to UTF-8"
ASK_MS = 1
"""How long SQLite itself waits for the write lock before `_begin` asks again."""
OWN_S = (0.05, 1.0)
"""When a call that waits for the write lock looks whether its own thread holds it: the second time
a transaction counts that may have written nothing."""
POLL_S, IDLE_POLL_S, IDLE_AFTER_S = 0.002, 0.03, 1.0
"""How often one thread per store asks SQLite whether another process has committed: at once after
somebody has, then less and less often."""


class Undecodable(StoreCorrupt):
    """A TEXT column holds bytes that are no UTF-8."""


class Connections:
    """Thread-safe. A process that was forked off opens connections of its own."""

    def __init__(self, path: Path, *, synchronous: str, busy_timeout: float) -> None:
        self._path = path
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._opening = Opening(str(path), self._open_all, self._close_all)
        self._joined: dict[int, int] = {}
        """By thread: the id of the connection that it gave last to be joined."""
        self._text: Callable[[bytes], Any] | None = None
        self.lost: str | None = None
        """What of the write-ahead log could not be read when it was opened."""

    @contextmanager
    def read(self) -> Generator[sqlite3.Cursor, None, None]:
        with translated(self._path):
            self._opening.ensure()
            with self._read_lock:
                cursor = self._reader.cursor()
                try:
                    yield cursor
                finally:
                    cursor.close()  # ends the read transaction also when rows were left

    @contextmanager
    def peek(self) -> Generator[sqlite3.Cursor, None, None]:
        """For a look at one row: the writer if it is idle, else the reader.

        Every commit of the writer empties the reader's cache; the writer's own stays warm, which
        saves some 40 us before each enqueue, lease and settle.
        """
        with translated(self._path):
            self._opening.ensure()
            if not self._write_lock.acquire(blocking=False):
                with self.read() as cursor:
                    yield cursor
                return
            try:
                cursor = self._writer.cursor()
                try:
                    yield cursor
                finally:
                    cursor.close()
            finally:
                self._write_lock.release()

    def snapshot(self, read: Callable[[Rows], T]) -> T:
        """Several reads of one moment."""

        def read_all() -> T:
            with self.read() as cursor:
                cursor.execute("BEGIN")
                try:
                    return read(lambda statement, bind: cursor.execute(statement, bind).fetchall())
                finally:
                    cursor.execute("COMMIT")

        return self.leniently(read_all)

    def rows(self, statement: str, bind: dict[str, Any]) -> list[Row]:
        def read() -> list[Row]:
            with self.read() as cursor:
                return cursor.execute(statement, bind).fetchall()

        return self.leniently(read)

    def change(self, statement: str, bind: dict[str, Any]) -> list[Row]:
        with self.write(quiet=True) as cursor:
            return cursor.execute(statement, bind).fetchall()

    def transact(self, act: Callable[[Rows], T]) -> T:
        """Wakes whoever waits here."""
        with self.write() as cursor:
            return act(lambda statement, bind: cursor.execute(statement, bind).fetchall())

    def listed(self, values: Sequence[Any]) -> str:
        return msgspec.json.encode(list(values)).decode()

    def ids(self, ids: Sequence[str]) -> str:
        return self.listed(ids)

    @contextmanager
    def write(self, *, quiet: bool = False) -> Generator[sqlite3.Cursor, None, None]:
        """One transaction; rolled back whole on any error. Not `quiet`: wakes who waits here."""
        with translated(self._path):
            self._opening.ensure()
            with self._write_lock:
                cursor = self._writer.cursor()
                self._begin(cursor)
                try:
                    yield cursor
                    cursor.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):  # a full disk has rolled back by itself
                        cursor.execute("ROLLBACK")
                    raise
                self._checkpointer.wrote(self._writer.total_changes)
        if not quiet:
            self._watcher.changed()

    def _begin(self, cursor: sqlite3.Cursor) -> None:
        """Ask for the write lock every millisecond. SQLite itself would ask after 1, 2, 5, ... 100
        ms, and who writes one batch after the other would hardly ever let anybody else in."""
        begun, looks = None, list(OWN_S)
        while True:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY"):
                    raise
                now = clock.monotonic()
                begun = begun or now
                is_over = now >= begun + self._busy_timeout
                if looks and (is_over or now >= begun + looks[0]):
                    looks.pop(0)
                    self._must_not_wait_for_itself(patient=bool(looks) and not is_over)
                if is_over:
                    raise

    def _must_not_wait_for_itself(self, patient: bool) -> None:
        at = own.open_here(self._path, self._joined.get(threading.get_ident()))
        if at == "writes" or (at == "open" and not patient):
            raise FailedPrecondition(
                f"{self._path}: this thread has a transaction of its own open on this file, for "
                "whose end the call would wait: pass the connection as within= (enqueue, publish, "
                "ack, settle), or commit first; create and change queues before the transaction"
            )

    @contextmanager
    def joined(self, within: Any) -> Generator[sqlite3.Cursor, None, None]:
        """The caller's own transaction on the same file: commits and rolls back with it."""
        if not isinstance(within, sqlite3.Connection):
            raise InvalidArgument("within", f"must be a sqlite3.Connection, not {within!r}")
        with translated(self._path):
            cursor = within.cursor()
            cursor.row_factory = None
            self._must_be_same_file(cursor)
            if not within.in_transaction:
                if within.isolation_level is None or getattr(within, "autocommit", -1) is True:
                    raise InvalidArgument(
                        "within", "the connection is in autocommit mode: execute BEGIN first"
                    )
                cursor.execute("BEGIN IMMEDIATE")
            if len(self._joined) >= THREADS_MAX:
                self._joined.clear()
            self._joined[threading.get_ident()] = id(within)
            # A savepoint, so that an error in the middle leaves nothing of ours behind.
            cursor.execute("SAVEPOINT holdfast")
            try:
                yield cursor
            except BaseException:
                if within.in_transaction:  # a full disk has rolled back all of it by itself
                    cursor.execute("ROLLBACK TO holdfast")
                    cursor.execute("RELEASE holdfast")
                raise
            cursor.execute("RELEASE holdfast")

    def _must_be_same_file(self, cursor: sqlite3.Cursor) -> None:
        for _, name, file in cursor.execute("PRAGMA database_list").fetchall():
            if name == "main" and file and os.path.samefile(file, self._path):
                return
        raise InvalidArgument("within", f"the connection must be to {self._path}")

    def leniently(self, act: Callable[[], T]) -> T:
        """Again, in a new transaction, once it has met text that is no UTF-8."""
        try:
            return act()
        except Undecodable:
            if self._read_leniently():
                logger.warning("%s: a text in it is no UTF-8; see holdfast doctor", self._path)
            return act()

    def _read_leniently(self) -> bool:
        """From now on, text that is no UTF-8 is read as the bytes it is; False if it was before.

        Only a file that holds such text is read so: a function that is called for every text costs
        a tenth of the speed of leasing.
        """
        self._opening.ensure()
        with self._opening.lock, self._write_lock, self._read_lock:
            if self._text is not None:
                return False
            self._text = _text_or_bytes
            self._writer.text_factory = self._reader.text_factory = self._text
            return True

    def watching(self) -> Watch:
        """Start to watch; what is committed from now on wakes the `wait` of the result."""
        with translated(self._path):
            self._opening.ensure()
            return self._watcher.watch()

    def close(self) -> None:
        self._opening.close()

    def _close_all(self) -> None:
        self._watcher.stop()
        self._checkpointer.stop()
        with self._write_lock, self._read_lock:
            self._writer.close()
            self._reader.close()

    def _open_all(self) -> None:
        """Connections of a parent process must be neither used nor closed here (SQLite's rule
        about fork): the old ones are only forgotten."""
        self._write_lock, self._read_lock = threading.RLock(), threading.RLock()
        gone = wal.gone(self._path)
        self._writer = self._open()
        self._look_at_log(gone)
        self._reader = self._open()
        if self._text is not None:
            self._writer.text_factory = self._reader.text_factory = self._text
        self._writer.execute(f"PRAGMA busy_timeout = {ASK_MS}")
        self._watcher = _Watcher(self._open)
        self._checkpointer = Checkpointer(self._open)

    def _look_at_log(self, gone: str | None) -> None:
        """Runs before the first write, which starts a damaged log over."""
        self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()
        problem = gone or wal.lost(self._path)
        if problem is not None:
            self.lost = problem
            logger.error(
                "%s: the write-ahead log could not be read in full: %s. The store goes on without "
                "these commits; restore a backup if it should not",
                self._path,
                problem,
            )

    def _open(self) -> sqlite3.Connection:
        _make(self._path)
        db = sqlite3.connect(
            self._path,
            timeout=self._busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=own.StoreConnection,
        )
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute("PRAGMA temp_store = MEMORY")
            db.execute("PRAGMA cache_size = -32000")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        except BaseException:
            db.close()
            raise
        return db


def _make(path: Path) -> None:
    """Create a new file that only its owner can read. SQLite gives the log and the index beside it
    the same permissions."""
    with suppress(OSError):  # it is there already, or SQLite says what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


class Watch:
    """Returns from `wait` when anything was committed since it was made."""

    def __init__(self, watcher: _Watcher, seen: int) -> None:
        self._watcher = watcher
        self._seen = seen

    def wait(self, timeout: float) -> bool:
        return self._watcher.wait(self._seen, timeout)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.leave()


class _Watcher:
    """One thread that polls PRAGMA data_version while somebody waits, and rests otherwise.

    Writes of this process are told to it, so they wake their waiters at once.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._news = threading.Condition()
        self._generation = 0
        self._waiting = 0
        self._stopped = False
        self._db: sqlite3.Connection | None = None
        self._version = -1
        self._thread: threading.Thread | None = None

    def changed(self) -> None:
        if self._waiting:
            with self._news:
                self._generation += 1
                self._news.notify_all()

    def watch(self) -> Watch:
        with self._news:
            self._waiting += 1
            if self._db is None:
                self._db = self._connect()
            if self._waiting == 1:
                self._version = self._data_version()
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(
                    target=self._poll, name="holdfast-sqlite-watch", daemon=True
                )
                self._thread.start()
            return Watch(self, self._generation)

    def leave(self) -> None:
        with self._news:
            self._waiting -= 1

    def wait(self, seen: int, timeout: float) -> bool:
        with self._news:
            return self._news.wait_for(lambda: self._generation != seen or self._stopped, timeout)

    def stop(self) -> None:
        with self._news:
            self._stopped = True
            self._news.notify_all()
            if self._db is not None:
                self._db.close()
                self._db = None

    def _poll(self) -> None:
        waited, pause = clock.monotonic(), POLL_S
        while True:
            now = clock.monotonic()
            with self._news:
                if self._stopped:
                    return
                if self._waiting:
                    waited = now
                elif now - waited > IDLE_AFTER_S:  # the next watch() starts a new thread
                    self._thread = None
                    return
                pause = min(pause * 1.1, IDLE_POLL_S)
                if self._waiting and self._moved():
                    pause = POLL_S
                    self._generation += 1
                    self._news.notify_all()
            clock.sleep(pause)

    def _moved(self) -> bool:
        version = self._data_version()
        moved, self._version = version != self._version, version
        return moved

    def _data_version(self) -> int:
        if self._db is None:
            return -1
        try:
            return self._db.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return -1  # looks like a change: the waiter goes and meets the error itself


@contextmanager
def translated(path: Path) -> Generator[None, None, None]:
    """SQLite's errors as ours, in one place, with the cause kept."""
    try:
        yield
    except HoldfastError:
        raise
    except sqlite3.Error as error:
        raise _translate(error, path) from error


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _translate(error: sqlite3.Error, path: Path) -> StoreError:
    name = getattr(error, "sqlite_errorname", "") or ""
    text = f"{path}: {error}"
    if UNDECODABLE in text:
        return Undecodable(text)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(
            f"{text}; another process, or another connection of this one, holds the write lock: "
            "try again"
        )
    if name.startswith("SQLITE_READONLY"):
        return StoreReadOnly(f"{text}; make the file and its folder writable")
    if name.startswith("SQLITE_FULL"):
        return StoreFull(f"{text}; free some space, nothing was written")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorrupt(f"{text}; restore a backup, or name another file")
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreUnavailable(f"{text}; {_why_not_open(path)}")
    if name.startswith("SQLITE_IOERR"):
        return StoreUnavailable(f"{text}; check the disk")
    return StoreError(text)


def _why_not_open(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    if path.is_dir():
        return "this is a folder, name a file in it"
    return "check the rights of the file and its folder"
