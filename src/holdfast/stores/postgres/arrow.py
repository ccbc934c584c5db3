"""Whole views as Arrow, straight from the wire: for readers that want columns, not messages.

Needs adbc-driver-postgresql, which reads PostgreSQL's binary COPY and makes no Python object per
value. Where it is not installed, messages are read as rows.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.model.moves import State
from holdfast.stores.contract import View
from holdfast.stores.kit.forks import PerProcess
from holdfast.stores.kit.pages import read_cursor
from holdfast.stores.postgres.connections import Sql, Where

_MESSAGE = (
    "id::text AS id, part, priority::int AS priority, key, type, content_type, headers, "
    "enqueued_at, available_at, attempts, ack_timeout, max_attempts, history, body"
)
_WAITING = f"{_MESSAGE}, place"
_LEASE = "owner, leased_at, deadline"
_LOG = "finished_at, status, leased_at, owner, result, first_leased_at"
_WALK = """
SELECT {first}::bigint AS k1, {second}::bigint AS k2, {columns} FROM holdfast.{table}
WHERE qid = {qid} AND {where} AND ({first}, {second}) > ({k1}, {k2})
  AND ({first}, {second}) <= ({l1}, {l2}) AND {time} >= {since} AND {time} < {until} {upto}
ORDER BY {first}, {second}
"""
# As in statements.py: the index of each is the one named there.
_WALKS = {
    State.READY: (("rank", "place", "state = 0"), ("rank", "place", "state = 1 AND {due}")),
    State.DELAYED: (("available_at", "seq", "state = 1 AND NOT {due}"),),
    State.LEASED: (("deadline", "seq", "state = 2"),),
    State.LOG: (("finished_at", "seq", "true"),),
}
# Index message_batch.
_BATCH = """
SELECT {columns} FROM holdfast.message
WHERE batch = '{batch}' AND qid = {qid} AND state = 2 AND id > '{after}'::uuid ORDER BY message.id
"""
_FIRST = "00000000-0000-0000-0000-000000000000"
_SESSION = ("enable_seqscan", "enable_bitmapscan", "jit")
_FAR = 2**62


def is_there() -> bool:
    return find_spec("adbc_driver_postgresql") is not None and find_spec("pyarrow") is not None


def walks(state: State) -> int:
    """How many statements make a view."""
    return len(_WALKS[state])


def view_statement(sql: Sql, view: View, qid: int, now: int, walk: int, after: str | None) -> str:
    """All numbers: nothing in it is the caller's text."""
    first, second, where = _WALKS[view.state][walk]
    k1, k2 = read_cursor(after)
    l1, l2 = (_FAR, _FAR) if view.to is None else read_cursor(view.to)
    is_log = view.state is State.LOG
    columns = {State.LOG: f"{_MESSAGE}, {_LOG}", State.LEASED: f"{_WAITING}, {_LEASE}"}
    return sql(_WALK).format(
        first=first,
        second=second,
        where=where.format(due=f"(available_at <= {int(now)})"),
        table="log" if is_log else "message",
        columns=columns.get(view.state, _WAITING),
        qid=qid,
        k1=k1,
        k2=k2,
        l1=l1,
        l2=l2,
        time="finished_at" if is_log else "enqueued_at",
        since=int(view.since or 0),
        until=_FAR if view.until is None else int(view.until),
        upto="" if is_log or view.upto is None else f"AND place <= {int(view.upto)}",
    )


def batch_statement(sql: Sql, qid: int, batch: str, after: str | None) -> str:
    quoted = batch.replace("'", "''")
    return sql(_BATCH).format(columns=_MESSAGE, qid=qid, batch=quoted, after=after or _FIRST)


class Reader:
    """Connections of its own: a read may take longer than any call of the pool's."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._connections: PerProcess[list[Any]] = PerProcess(list)
        """Those that are idle."""

    def read(self, statement: str) -> Iterator[Any]:
        """Record batches as they come."""
        import adbc_driver_manager

        db = None
        try:
            db = self._connection()
            with closing(db.cursor()) as cursor:
                cursor.execute(statement)
                yield from cursor.fetch_record_batch()
            db.rollback()  # nothing was written; no snapshot stays open
            self._connections.get().append(db)
            db = None
        except (adbc_driver_manager.OperationalError, OSError) as error:
            raise StoreUnavailable(f"{self._where.shown}: {error}") from error
        except adbc_driver_manager.Error as error:
            raise StoreError(f"{self._where.shown}: {error}") from error
        finally:
            if db is not None:
                _close(db)

    def _connection(self) -> Any:
        import adbc_driver_postgresql.dbapi as dbapi

        try:
            return self._connections.get().pop()
        except IndexError:
            db = dbapi.connect(self._where.conninfo)
        if not self._where.pooler:
            with closing(db.cursor()) as cursor:
                for name in _SESSION:
                    cursor.execute(f"SET {name} = off")
            db.commit()
        return db

    def close(self) -> None:
        idle = self._connections.get()
        while idle:
            _close(idle.pop())


def _close(db: Any) -> None:
    with suppress(Exception):  # it is broken, or its server is gone
        db.close()
