"""The caller's own transaction, whatever they hold it by: its libpq connection is what we use."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors, pq
from psycopg.rows import tuple_row

from holdfast.errors import InvalidArgument
from holdfast.stores.postgres.connections import Connection, Where, translated
from holdfast.stores.postgres.schema import quoted

TAKEN = (
    "a psycopg connection (sync or async), a SQLAlchemy session or connection on psycopg, "
    "or a Django connection"
)


@contextmanager
def joined(within: Any, where: Where, store: str) -> Generator[Connection, None, None]:
    """A cursor's worth of the caller's transaction: commits and rolls back with it."""
    driver = _driver(within)
    status = driver.pgconn.transaction_status
    _must_be_free(driver, status)
    if status == pq.TransactionStatus.IDLE and driver.autocommit:
        raise InvalidArgument(
            "within",
            "the connection is in autocommit mode: begin a transaction first "
            "(psycopg: conn.transaction(), Django: transaction.atomic())",
        )
    # The same libpq connection, without the caller's row factories, adapters and settings.
    handlers = driver.pgconn.notice_handler, driver.pgconn.notify_handler
    db = _Borrowed(driver.pgconn, tuple_row)
    driver.pgconn.notice_handler, driver.pgconn.notify_handler = handlers  # the caller's, again
    db.prepare_threshold = None
    with translated(where):
        if status == pq.TransactionStatus.IDLE:
            _begin(within, driver, db)
        try:
            # A savepoint, so that an error in the middle leaves nothing of ours behind.
            with db.transaction():
                _must_be_same_store(db, where, store)
                yield db
        except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
            raise _elsewhere(where) from error


def _must_be_free(driver: Any, status: pq.TransactionStatus) -> None:
    problem = ""
    if driver.closed:
        problem = "the connection is closed"
    elif driver.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        problem = "the connection is in pipeline mode: leave it first"
    elif status == pq.TransactionStatus.ACTIVE:
        problem = "the connection is busy with another statement: end that first"
    elif status == pq.TransactionStatus.INERROR:
        problem = "the transaction has failed: roll it back first"
    elif driver.info.encoding != "utf-8":
        problem = "the connection's client_encoding must be UTF8"
    if problem:
        raise InvalidArgument("within", problem)


def _begin(within: Any, driver: Any, db: Connection) -> None:
    """As the caller's own first statement would have begun it."""
    held = getattr(within, "sync_connection", within)
    if hasattr(held, "exec_driver_sql") and not held.in_transaction():
        held.begin()  # else SQLAlchemy knows of no transaction, and its commit does nothing
    words = ["BEGIN"]
    if driver.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {driver.isolation_level.name.replace('_', ' ')}")
    if driver.read_only is not None:
        words.append("READ ONLY" if driver.read_only else "READ WRITE")
    if driver.deferrable is not None:
        words.append("DEFERRABLE" if driver.deferrable else "NOT DEFERRABLE")
    db.autocommit = True  # of this handle: it must not begin by itself as well
    db.execute(" ".join(words).encode())


class _Borrowed(psycopg.Connection[tuple[Any, ...]]):
    def __del__(self, *_: Any) -> None:
        """Not ours to close, and no reason to warn."""


def _must_be_same_store(db: Connection, where: Where, store: str) -> None:
    look = f"SELECT value FROM {quoted(where.schema)}.meta WHERE name = 'store'"
    row = db.execute(look.encode()).fetchone()
    if row is None or row[0] != store:
        raise _elsewhere(where)


def _elsewhere(where: Where) -> InvalidArgument:
    return InvalidArgument("within", f"the connection must be to {where.shown}")


def _driver(within: Any) -> Any:
    """The psycopg connection in there."""
    found = within
    if hasattr(found, "ensure_connection"):  # Django
        found.ensure_connection()
        found = found.connection
    if hasattr(found, "sync_session"):  # SQLAlchemy, asyncio
        found = found.sync_session
    if hasattr(found, "sync_connection"):
        found = found.sync_connection
    if hasattr(found, "get_bind") and callable(getattr(found, "connection", None)):  # a session
        found = found.connection()
    for name in ("connection", "driver_connection"):  # a SQLAlchemy connection, then its DBAPI's
        if not isinstance(found, psycopg.BaseConnection) and hasattr(found, name):
            found = getattr(found, name)
    if isinstance(found, psycopg.BaseConnection):
        return found  # pyright: ignore[reportUnknownVariableType]
    raise InvalidArgument("within", f"must be {TAKEN}, not {within!r}")
