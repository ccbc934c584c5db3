"""Connections to one PostgreSQL: a pool, and a limit on how long any call may take."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache, partial
from typing import Any, LiteralString, TypeVar

import msgspec
import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

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
from holdfast.stores.postgres import arrays
from holdfast.stores.postgres.schema import in_schema
from holdfast.stores.sql.store import Rows

SERVER_MIN = 130000
RETRIES = 5
"""A deadlock or a lost race between two transactions of ours is nobody's fault: once more."""
WATCH_EVERY_S = 0.5
PATIENCE_S = 2.0
"""What a server gets, beyond the time-out it has been told, before its connection is cut."""
UPKEEP_S = 600.0

# Statements are shaped for these: whatever the statistics say, rows are found by an index, and a
# plan is made once per connection (docs/adr/0007).
SESSION = """
SET enable_seqscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan;
SET jit = off; SET synchronous_commit = {synchronous_commit}; SET statement_timeout = {timeout_ms};
SET lock_timeout = {lock_ms}; SET idle_in_transaction_session_timeout = {timeout_ms}
"""

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")
Sql = Callable[[str], LiteralString]
"""Puts a statement, which is always a constant of ours, into the schema of a store."""


class Where(msgspec.Struct, frozen=True):
    """How to reach a server, and how long any call may take."""

    conninfo: str
    shown: str
    """For messages: without a password."""
    schema: str
    timeout: float
    pool_size: int
    pooler: bool
    """A proxy hands out another server connection for each transaction: nothing may be left on
    one, so no prepared statements, no session settings and no LISTEN."""
    synchronous_commit: str


class Connections:
    """Thread-safe. A process that was forked off opens connections of its own."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.sql: Sql = lru_cache(maxsize=None)(partial(in_schema, schema=where.schema))
        self._opening = Opening(where.shown, self._open_all, self._close_all)

    @contextmanager
    def use(self, *, timeout: float | None = None) -> Generator[Connection, None, None]:
        """A connection in autocommit mode, for one call."""
        with translated(self.where):
            self._opening.ensure()
            limit = timeout or self.where.timeout
            with self._connection() as db, self._watchdog.watching(db, limit):
                yield db

    @contextmanager
    def _connection(self) -> Generator[Connection, None, None]:
        """One that is still there. The pool's own check would pause after every dead one."""
        db = self._pool.getconn()
        while not _still_open(db):
            db.close()
            self._pool.putconn(db)
            db = self._pool.getconn()
        try:
            yield db
        finally:
            self._pool.putconn(db)

    def run(
        self,
        act: Callable[[Connection], T],
        *,
        timeout: float | None = None,
        at_once: bool = False,
    ) -> T:
        """`act` in a transaction of its own; again if it lost a race with another one. `at_once`:
        what it executes is sent, with begin and commit, without waiting for each answer."""

        def run() -> T:
            with (
                self.use(timeout=timeout) as db,
                db.pipeline() if at_once else nullcontext(),
                db.transaction(),
            ):
                return act(db)

        return _again(run, _LOST)

    def execute(self, statement: LiteralString, bind: dict[str, Any]) -> list[tuple[Any, ...]]:
        """One statement, which is one transaction; again if it lost a race with another one."""

        def run() -> list[tuple[Any, ...]]:
            with self.use() as db:
                return db.execute(statement, bind, binary=True).fetchall()

        return _again(run, _RACES)

    def rows(self, statement: str, bind: dict[str, Any]) -> list[tuple[Any, ...]]:
        """The same for a statement that is written for the schema `holdfast`."""
        return self.execute(self.sql(statement), bind)

    def change(self, statement: str, bind: dict[str, Any]) -> list[tuple[Any, ...]]:
        return self.rows(statement, bind)

    def rows_unless_held(
        self, statement: str, bind: dict[str, Any]
    ) -> list[tuple[Any, ...]] | None:
        """None, and nothing is changed, if it would store a key that is there already."""
        named = self.sql(statement)

        def run() -> list[tuple[Any, ...]] | None:
            with self.use() as db:
                try:
                    return db.execute(named, bind, binary=True).fetchall()
                except errors.UniqueViolation:
                    return None

        return _again(run, _RACES)

    def transact(self, act: Callable[[Rows], T], *, timeout: float | None = None) -> T:
        """`act` in a transaction of its own; again if it lost a race with another one."""
        return self.run(lambda db: act(self.within(db)), timeout=timeout)

    def within(self, db: Connection) -> Rows:
        """Runs statements in the transaction that is open on `db`."""

        def rows(statement: str, bind: dict[str, Any]) -> list[tuple[Any, ...]]:
            cursor = db.execute(self.sql(statement), bind, binary=True)
            return cursor.fetchall() if cursor.description else []

        return rows

    def listed(self, values: Sequence[str]) -> arrays.Texts:
        return arrays.texts(values)

    def ids(self, ids: Sequence[str]) -> arrays.Uuids:
        return arrays.uuids(ids)

    def snapshot(self, read: Callable[[Rows], T]) -> T:
        """Several reads of one moment."""

        def at_one_moment(rows: Rows) -> T:
            rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY", {})
            return read(rows)

        return self.transact(at_one_moment)

    @contextmanager
    def upkeep(self) -> Generator[Connection, None, None]:
        """For long work of the sweeper: no lock is waited for, but the work may take its time."""
        with self.use(timeout=UPKEEP_S) as db:
            if self.where.pooler:  # a setting would stay behind on somebody else's connection
                yield db
                return
            limits = f"SET statement_timeout = {int(UPKEEP_S * 1000)}; SET lock_timeout = 200"
            db.execute(limits.encode(), prepare=False)
            try:
                yield db
            finally:
                with suppress(psycopg.Error):
                    self._configure(db)

    def dedicated(self) -> Connection:
        """A connection that does not come from the pool: to LISTEN on."""
        with translated(self.where):
            self._opening.ensure()
            return self._connect()

    def watched(self, db: Connection) -> AbstractContextManager[None]:
        return self._watchdog.watching(db, self.where.timeout)

    def close(self) -> None:
        self._opening.close()

    def _close_all(self) -> None:
        self._watchdog.stop()
        self._pool.close(timeout=2)

    def _open_all(self) -> None:
        self._watchdog = _Watchdog()
        self._connect().close()  # says at once, and plainly, what is wrong
        self._pool = ConnectionPool(
            self.where.conninfo,
            kwargs=self._options(),
            configure=self._configure,
            min_size=1,
            max_size=self.where.pool_size,
            timeout=self.where.timeout,
            reconnect_timeout=self.where.timeout,
            max_idle=60,
            open=True,
        )

    def _options(self) -> dict[str, Any]:
        return {"autocommit": True, "prepare_threshold": None if self.where.pooler else 0}

    def _connect(self) -> Connection:
        db = psycopg.connect(self.where.conninfo, **self._options())
        try:
            check_server(db.info.server_version)
            self._configure(db)
        except BaseException:
            db.close()
            raise
        return db

    def _configure(self, db: Connection) -> None:
        if not self.where.pooler:
            timeout_ms = int(self.where.timeout * 1000)
            settings = SESSION.format(
                timeout_ms=timeout_ms,
                lock_ms=timeout_ms // 2,
                synchronous_commit=self.where.synchronous_commit,
            )
            with self._watchdog.watching(db, self.where.timeout):
                db.execute(settings.encode(), prepare=False)


_RACES = (errors.DeadlockDetected, errors.SerializationFailure)
_LOST = (*_RACES, errors.UniqueViolation)


def _again(run: Callable[[], T], lost: tuple[type[psycopg.Error], ...]) -> T:
    for _ in range(RETRIES - 1):
        try:
            return run()
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, lost):
                raise
    return run()


def check_server(version: int) -> None:
    if version < SERVER_MIN:
        shown = f"{version // 10000}.{version % 10000}"
        raise FailedPrecondition(f"PostgreSQL 13 or newer is needed; this server is {shown}")


def _still_open(db: Connection) -> bool:
    """Whether a connection that lay idle is still there, at no round trip: a server says nothing
    unasked but its last words."""
    poll = select.poll()
    poll.register(db.pgconn.socket, select.POLLIN)
    return not poll.poll(0)


class _Watchdog:
    """Cuts connections whose call takes too long: the server is gone, or its answers do not arrive.

    A half-open socket gives no error by itself for many minutes.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[float, Connection]] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @contextmanager
    def watching(self, db: Connection, timeout: float) -> Generator[None, None, None]:
        if self._thread is None:
            self._start()
        call = id(db)
        self._calls[call] = (clock.monotonic() + timeout + PATIENCE_S, db)
        try:
            yield
        finally:
            self._calls.pop(call, None)

    def stop(self) -> None:
        self._stopped.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="holdfast-watchdog", daemon=True
                )
                self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.wait(WATCH_EVERY_S):
            now = clock.monotonic()
            for call, (until, db) in list(self._calls.items()):
                if now > until and self._calls.pop(call, None):
                    cut(db)


def cut(db: psycopg.Connection[Any]) -> None:
    """End a connection from another thread: whoever waits for its answer gets an error."""
    with suppress(OSError, psycopg.Error):
        other = socket.socket(fileno=os.dup(db.pgconn.socket))
        try:
            other.shutdown(socket.SHUT_RDWR)
        finally:
            other.close()


@contextmanager
def translated(where: Where) -> Generator[None, None, None]:
    """The driver's errors as ours, with their cause."""
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed) as error:
        raise _ours(error, where) from error


def _ours(error: Exception, where: Where) -> HoldfastError:
    text = f"{where.shown}: {str(error).strip()}"
    match error:
        case PoolTimeout():
            return StoreUnavailable(
                f"{where.shown}: no connection came free in {where.timeout:g} s "
                f"(pool_size={where.pool_size}), or the server cannot be reached: {error}"
            )
        case errors.InsufficientPrivilege():
            return StoreError(f"{text}. {grants(where)}")
        case errors.UndefinedTable() | errors.InvalidSchemaName() | errors.UndefinedColumn():
            return StoreCorrupt(f"{text}. Not a Holdfast schema: run `holdfast migrate`")
        case errors.DuplicateTable() | errors.DuplicateObject():
            return StoreCorrupt(f"{text}. Not a Holdfast schema: name another one by ?schema=")
        case psycopg.DataError() if "NUL" in str(error):  # said by the driver, not by the server
            return InvalidArgument("message", f"PostgreSQL keeps no such text: {error}")
        case errors.InvalidSqlStatementName() | errors.DuplicatePreparedStatement():
            return StoreError(
                f"{text}. Behind a proxy that pools by transaction, such as PgBouncer, "
                "add pooler=transaction to the URL"
            )
        case errors.ReadOnlySqlTransaction():
            return StoreReadOnly(f"{text}. A standby takes no messages: connect to the primary")
        case errors.DiskFull() | errors.OutOfMemory():
            return StoreFull(text)
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return StoreCorrupt(text)
        case errors.CharacterNotInRepertoire() | errors.UntranslatableCharacter():
            return InvalidArgument("message", f"PostgreSQL keeps no such text: {error}")
        case psycopg.OperationalError() if _is_refusal(str(error)):
            return StoreError(text)
        case psycopg.OperationalError() | psycopg.InterfaceError() | PoolClosed():
            return StoreUnavailable(text)
        case _ if isinstance(error, _LOST):
            return StoreUnavailable(text)
        case _:
            return StoreError(text)


def _is_refusal(text: str) -> bool:
    """The server is there and says no: trying again will not help."""
    words = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password")
    return any(word in text for word in words)


def grants(where: Where) -> str:
    return (
        "To make the schema, this user needs: GRANT CREATE ON DATABASE <database> TO <user>; or "
        "let somebody who may run what `holdfast migrate --sql` prints, then: "
        f"GRANT USAGE ON SCHEMA {where.schema} TO <user>; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {where.schema} TO <user>; "
        f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {where.schema} TO <user>"
    )
