"""Pages of what the store holds, by keyset cursor, each an index walk of the page's own length."""

from __future__ import annotations

from typing import Any

from holdfast.model.moves import State
from holdfast.stores.contract import Entry, View
from holdfast.stores.postgres.connections import Connection, Sql
from holdfast.stores.postgres.rows import COLUMNS, LEASED_COLUMNS, read_lease
from holdfast.stores.rows import read_finished, read_message

_WAITING = f"""
SELECT {{first}}, {{second}}, place, {COLUMNS} FROM holdfast.message
WHERE qid = %(qid)s AND {{where}} AND ({{first}}, {{second}}) > (%(first)s, %(second)s)
  AND enqueued_at >= %(since)s AND enqueued_at < %(until)s AND place <= %(upto)s
ORDER BY {{first}}, {{second}} LIMIT %(limit)s
"""
# Index message_ready.
READY = _WAITING.format(first="rank", second="place", where="state = 0")
# Index message_delayed: due, but no lease has come by to make them ready.
DUE = _WAITING.format(first="rank", second="place", where="state = 1 AND available_at <= %(now)s")
# Index message_delayed.
DELAYED = _WAITING.format(
    first="available_at", second="seq", where="state = 1 AND available_at > %(now)s"
)
# Index message_leased.
LEASED = _WAITING.format(first="deadline", second="seq", where="state = 2").replace(
    COLUMNS, LEASED_COLUMNS
)
# Index log_finished, of every day.
LOG = f"""
SELECT finished_at, seq, seq, finished_at, status, leased_at, owner, result, {COLUMNS}
FROM holdfast.log
WHERE qid = %(qid)s AND (finished_at, seq) > (%(first)s, %(second)s)
  AND finished_at >= %(since)s AND finished_at < %(until)s
ORDER BY finished_at, seq LIMIT %(limit)s
"""
# Index log_id.
LOG_ONE = LOG.replace("WHERE qid = %(qid)s", "WHERE id = %(id)s::uuid AND qid + 0 = %(qid)s")

# Primary key.
HELD = f"""
SELECT (SELECT name FROM holdfast.queue q WHERE q.qid = m.qid), state = 2, {LEASED_COLUMNS}
FROM holdfast.message m WHERE home = %(home)s AND id = ANY(%(ids)s)
"""
# Index log_id, of every day.
LOGGED = f"""
SELECT (SELECT name FROM holdfast.queue q WHERE q.qid = l.qid), seq, finished_at, status, leased_at,
  owner, result, {COLUMNS}
FROM holdfast.log l WHERE id = ANY(%(ids)s) AND qid + 0 = ANY(%(qids)s)
"""

_STATEMENTS = {
    State.READY: (READY, DUE),
    State.DELAYED: (DELAYED,),
    State.LEASED: (LEASED,),
    State.LOG: (LOG,),
}


def page(
    db: Connection,
    sql: Sql,
    view: View,
    qid: int,
    after: tuple[int, int],
    limit: int,
    now: int,
) -> list[tuple[tuple[int, int], Entry]]:
    """Rows after a cursor with the cursor of each."""
    bind: dict[str, Any] = {
        "qid": qid,
        "now": now,
        "first": after[0],
        "second": after[1],
        "since": view.since or 0,
        "until": 2**62 if view.until is None else view.until,
        "upto": 2**62 if view.upto is None else int(view.upto),
        "limit": limit,
        "id": view.id,
    }
    by_id = view.state is State.LOG and view.id is not None
    statements = (LOG_ONE,) if by_id else _STATEMENTS[view.state]
    rows: list[tuple[Any, ...]] = []
    for statement in statements:
        rows += db.execute(sql(statement), bind, binary=True).fetchall()
    rows.sort(key=lambda row: row[:2])
    return [((row[0], row[1]), _entry(row, view)) for row in rows[:limit]]


def read_held(row: tuple[Any, ...]) -> Entry:
    """A row of HELD."""
    queue, leased = row[:2]
    if not leased:
        return Entry(read_message(row, queue, 6), 0)
    lease = read_lease(row, queue, 2)
    return Entry(lease.message, 0, lease)


def read_logged(row: tuple[Any, ...]) -> Entry:
    """A row of LOGGED."""
    finished = read_finished(row, row[0], 2)
    return Entry(finished.message, row[1], finished=finished)


# Every so many rows of an index walk: where one piece of a view ends.
_CUTS = """
SELECT a, b FROM (
  SELECT {first} AS a, {second} AS b, row_number() OVER (ORDER BY {first}, {second}) AS n
  FROM holdfast.{table} WHERE qid = %(qid)s AND {where}
) walk WHERE n %% %(step)s = 0 ORDER BY a, b
"""
_COUNT = "SELECT count(*) FROM holdfast.{table} WHERE qid = %(qid)s AND {where}"
_SPLITS = {
    State.READY: ("message", "rank", "place", "state = 0"),
    State.DELAYED: ("message", "available_at", "seq", "state = 1"),
    State.LEASED: ("message", "deadline", "seq", "state = 2"),
    State.LOG: (
        "log",
        "finished_at",
        "seq",
        "finished_at >= %(since)s AND finished_at < %(until)s",
    ),
}


def split(db: Connection, sql: Sql, view: View, qid: int, parts: int) -> list[str]:
    table, first, second, where = _SPLITS[view.state]
    bind: dict[str, Any] = {
        "qid": qid,
        "since": view.since or 0,
        "until": 2**62 if view.until is None else view.until,
    }
    (count,) = db.execute(sql(_COUNT.format(table=table, where=where)), bind).fetchone() or (0,)
    step = max(1, -(-count // parts))
    cuts = sql(_CUTS.format(table=table, first=first, second=second, where=where))
    rows = db.execute(cuts, {**bind, "step": step}).fetchall()
    return [f"{a}.{b}" for a, b in rows[: max(0, count - 1) // step]]


def _entry(row: tuple[Any, ...], view: View) -> Entry:
    if view.state is State.LOG:
        finished = read_finished(row, view.queue, 3)
        return Entry(finished.message, row[2], finished=finished)
    if view.state is State.LEASED:
        lease = read_lease(row, view.queue, 3)
        return Entry(lease.message, row[2], lease)
    return Entry(read_message(row, view.queue, 3), row[2])
