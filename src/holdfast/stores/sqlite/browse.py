"""Pages of what the store holds, by keyset cursor, each an index walk of the page's own length."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.moves import State
from holdfast.stores.contract import Entry, View
from holdfast.stores.rows import COLUMNS, read_finished, read_message
from holdfast.stores.sqlite.rows import LEASED_COLUMNS, read_lease

# Each page is read in two walks of one index: the rest of the row's own first column, then what
# lies beyond it. One comparison of both columns would walk the index from its start every time.
_WALKS = ("{first} = :first AND {second} > :second", "{first} {beyond} :first")
# A row whose place in line was replaced with a text or a fraction has no cursor: it is left out,
# and does not hide what stands behind it. `holdfast doctor` lists it (see MISPLACED in store.py).
_IN_LINE = "typeof({first}) = 'integer' AND typeof({second}) = 'integer'"
_BROWSE = f"""
SELECT {{cursor}}, {{second}}, place, {COLUMNS} FROM holdfast_message
WHERE qid = :qid AND {{where}} AND {{walk}} AND {_IN_LINE}
  AND (:any OR (enqueued_at >= :since AND enqueued_at < :until)) AND place <= :upto
ORDER BY {{first}} {{order}}, {{second}} LIMIT :limit
"""
_BROWSE_LEASED = _BROWSE.replace(COLUMNS, LEASED_COLUMNS).replace(
    "FROM holdfast_message", "FROM holdfast_message LEFT JOIN holdfast_lease USING (lease)"
)
_BROWSE_LOG = f"""
SELECT {{cursor}}, {{second}}, seq, finished_at, status, leased_at, owner, result, {COLUMNS}
FROM holdfast_log
WHERE qid = :qid AND {{walk}} AND finished_at >= :since AND finished_at < :until AND {_IN_LINE}
ORDER BY {{first}} {{order}}, {{second}} LIMIT :limit
"""


def _walks(statement: str, first: str, second: str, where: str = "") -> list[str]:
    down = first == "lane"
    names = {
        "first": first,
        "second": second,
        "cursor": "9 - lane" if down else first,
        "order": "DESC" if down else "ASC",
        "beyond": "<" if down else ">",
        "where": where,
    }
    return [statement.format(walk=walk.format(**names), **names) for walk in _WALKS]


_IS_DUE = "(available_at <= :now)"
_READY = _walks(_BROWSE, "lane", "place", "state = 0 AND part = :part")
_DUE = _walks(_BROWSE, "lane", "place", f"state = 1 AND {_IS_DUE}")
_OTHERS = {
    State.DELAYED: _walks(_BROWSE, "available_at", "seq", f"state = 1 AND NOT {_IS_DUE}"),
    State.LEASED: _walks(_BROWSE_LEASED, "deadline", "seq", "state = 2"),
    State.LOG: _walks(_BROWSE_LOG, "finished_at", "seq"),
}


def page(
    db: sqlite3.Cursor, view: View, qid: int, after: tuple[int, int], limit: int, now: int
) -> list[tuple[tuple[int, int], Entry]]:
    """Rows after a cursor with the cursor of each."""
    if view.id is not None:
        return _find(db, view, qid, after, limit)
    bind: dict[str, Any] = {
        "qid": qid,
        "now": now,
        "first": 9 - after[0] if view.state is State.READY else after[0],
        "second": after[1],
        "any": view.since is None and view.until is None,
        "since": view.since or 0,
        "until": 2**62 if view.until is None else view.until,
        "upto": 2**62 if view.upto is None else int(view.upto),
        "limit": limit,
    }
    rows: list[tuple[Any, ...]] = []
    if view.state is State.READY:
        parts = db.execute("SELECT partitions FROM holdfast_queue WHERE qid = ?", (qid,)).fetchone()
        for part in range(parts[0]):
            rows += _read(db, _READY, {**bind, "part": part})
        rows += _read(db, _DUE, bind)
    else:
        rows += _read(db, _OTHERS[view.state], bind)
    rows.sort(key=lambda row: row[:2])
    return [((row[0], row[1]), _entry(row, view)) for row in rows[:limit]]


_ONE = _BROWSE_LOG.format(
    cursor="finished_at", second="seq", walk="id = :id", first="finished_at", order="ASC"
)


def _find(
    db: sqlite3.Cursor, view: View, qid: int, after: tuple[int, int], limit: int
) -> list[tuple[tuple[int, int], Entry]]:
    """One id of the log, by holdfast_log_id: a row for each time it finished."""
    until = 2**62 if view.until is None else view.until
    bind = {"qid": qid, "id": view.id, "since": view.since or 0, "until": until, "limit": -1}
    rows = db.execute(_ONE, bind).fetchall()
    found = [((row[0], row[1]), _entry(row, view)) for row in rows if (row[0], row[1]) > after]
    return found[:limit]


# Index holdfast_message_id.
_HELD = f"""
SELECT name, state = 2, {LEASED_COLUMNS.replace("lease ||", "m.lease ||")}
FROM holdfast_message m JOIN (SELECT qid, name FROM holdfast_queue) USING (qid)
LEFT JOIN holdfast_lease l ON l.lease = m.lease AND m.state = 2
WHERE home = ? AND id IN (SELECT value FROM json_each(?))
"""
# Index holdfast_log_id, for the queue and for its dead-letter queue.
_LOGGED = f"""
SELECT name, seq, finished_at, status, leased_at, owner, result, {COLUMNS}
FROM holdfast_log JOIN (SELECT qid, name FROM holdfast_queue) USING (qid)
WHERE qid IN (?, ?) AND id IN (SELECT value FROM json_each(?))
  AND typeof(finished_at) = 'integer'
"""


def find_held(db: sqlite3.Cursor, home: int, ids: Sequence[str]) -> list[Entry]:
    """What a queue and its dead-letter queue hold of these ids."""
    found: list[Entry] = []
    for row in db.execute(_HELD, (home, _array(ids))).fetchall():
        name, leased = row[:2]
        lease = read_lease(row, name, 2) if leased else None
        message = lease.message if lease else read_message(row, name, 6)
        found.append(Entry(message, 0, lease))
    return found


def find_logged(db: sqlite3.Cursor, home: int, ids: Sequence[str]) -> list[Entry]:
    """Every row that these ids have in the logs of a queue and its dead-letter queue."""
    rows = db.execute(_LOGGED, (2 * home, 2 * home + 1, _array(ids))).fetchall()
    done = [(read_finished(row, row[0], 2), row[1]) for row in rows]
    return [Entry(finished.message, seq, finished=finished) for finished, seq in done]


def _array(ids: Sequence[str]) -> str:
    return msgspec.json.encode(list(ids)).decode()


# Every so many rows of an index walk: where one piece of a view ends.
_CUTS = """
SELECT a, b FROM (
  SELECT {first} AS a, {second} AS b, row_number() OVER (ORDER BY {first}, {second}) AS n
  FROM holdfast_{table} WHERE qid = :qid AND {where}
) WHERE n % :step = 0
"""
_COUNT = "SELECT count(*) FROM holdfast_{table} WHERE qid = :qid AND {where}"
_SPLITS = {
    State.READY: ("message", "9 - lane", "place", "state = 0"),
    State.DELAYED: ("message", "available_at", "seq", "state = 1"),
    State.LEASED: ("message", "deadline", "seq", "state = 2"),
    State.LOG: ("log", "finished_at", "seq", "finished_at >= :since AND finished_at < :until"),
}


def split(db: sqlite3.Cursor, view: View, qid: int, parts: int, now: int) -> list[str]:
    table, first, second, where = _SPLITS[view.state]
    bind = {
        "qid": qid,
        "since": view.since or 0,
        "until": 2**62 if view.until is None else view.until,
    }
    (count,) = db.execute(_COUNT.format(table=table, where=where), bind).fetchone()
    step = max(1, -(-count // parts))
    cuts = _CUTS.format(table=table, first=first, second=second, where=where)
    rows = db.execute(cuts, {**bind, "step": step}).fetchall()
    return [f"{a}.{b}" for a, b in rows[: max(0, count - 1) // step]]


def _read(db: sqlite3.Cursor, walks: list[str], bind: dict[str, Any]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for walk in walks:
        if len(rows) < bind["limit"]:
            rows += db.execute(walk, bind).fetchall()
    return rows


def _entry(row: tuple[Any, ...], view: View) -> Entry:
    if view.state is State.LOG:
        finished = read_finished(row, view.queue, 3)
        return Entry(finished.message, row[2], finished=finished)
    if view.state is State.LEASED:
        lease = read_lease(row, view.queue, 3)
        return Entry(lease.message, row[2], lease)
    return Entry(read_message(row, view.queue, 3), row[2])
