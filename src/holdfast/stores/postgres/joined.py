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

TAKEN = (
    "a psycopg connection (sync or async), a SQLAlchemy session or connection on psycopg, "
    "or a Django connection"
)


@contextmanager
def joined(within: Any, where: Where, store: str) -> Generator[Connection, None, None]:
    """A cursor's worth of the caller's transaction: commits and rolls back with it."""
    driver = _driver(within)
    status = driver.pgconn.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise InvalidArgument("within", "the transaction has failed: roll it back first")
    if status == pq.TransactionStatus.IDLE and driver.autocommit:
        raise InvalidArgument(
            "within",
            "the connection is in autocommit mode: begin a transaction first "
            "(psycopg: conn.transaction(), Django: transaction.atomic())",
        )
    # The same libpq connection, without the caller's row factories, adapters and settings.
    db = _Borrowed(driver.pgconn, tuple_row)
    db.prepare_threshold = None
    if status == pq.TransactionStatus.IDLE:
        db.pgconn.exec_(b"BEGIN")
    with translated(where):
        try:
            # A savepoint, so that an error in the middle leaves nothing of ours behind.
            with db.transaction():
                _must_be_same_store(db, where, store)
                yield db
        except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
            raise _elsewhere(where) from error


class _Borrowed(psycopg.Connection[tuple[Any, ...]]):
    def __del__(self, *_: Any) -> None:
        """Not ours to close, and no reason to warn."""


def _must_be_same_store(db: Connection, where: Where, store: str) -> None:
    look = f"SELECT value FROM {where.schema}.meta WHERE name = 'store'"
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
