"""Enqueueing: messages into their queues."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from holdfast.model.message import Message
from holdfast.model.moves import Enqueued
from holdfast.stores.rows import COLUMNS, WIDTH
from holdfast.stores.sqlite import board
from holdfast.stores.sqlite.queues import existing
from holdfast.stores.sqlite.rows import PLAIN_COLUMNS, PLAIN_WIDTH, write_waiting
from holdfast.stores.sqlite.settle import DELAYED, READY, Counts, next_number

TOGETHER = 50
"""Rows of one INSERT: a statement each would take twice as long."""


def _enqueue(columns: str, width: int, rows: int) -> str:
    """Index holdfast_message_id. A held id is skipped; which ones is found out only if any was."""
    values = (
        f"(?{n}, ?{n}, ?{n}, ?{n + 1} / 2, {', '.join(f'?{i}' for i in range(n + 1, n + width))})"
        for n in range(1, 1 + rows * width, width)
    )
    return f"""
INSERT INTO holdfast_message (seq, place, lease, home, qid, state, lane, deadline, {columns})
VALUES {", ".join(values)} ON CONFLICT DO NOTHING
"""


ENQUEUE_BY_WIDTH = {
    width: {rows: _enqueue(columns, width, rows) for rows in (1, TOGETHER)}
    for columns, width in ((COLUMNS, WIDTH + 5), (PLAIN_COLUMNS, PLAIN_WIDTH + 5))
}

# Index holdfast_log_id, for the queue and for its dead-letter queue.
FINISHED = """
SELECT 1 FROM holdfast_log WHERE qid IN (?, ?) AND id = ? AND finished_at >= ? LIMIT 1
"""


def enqueue(
    db: sqlite3.Cursor,
    messages: Sequence[Message],
    now: int,
    receipt: str | None,
    finished_since: Mapping[int, int] | None,
    *,
    together: bool,
) -> list[Enqueued]:
    counts = Counts()
    qids = {name: existing(db, name) for name in {m.queue for m in messages}}
    if receipt is not None and not board.put(db, "receipt", receipt, b"", 0, now):
        return [Enqueued.HELD] * len(messages)
    first = next_number(db, "seq", len(messages)) - len(messages) + 1
    done = _finished(db, messages, qids, finished_since, first) if finished_since else ()
    rows: list[tuple[Any, ...]] = []
    for seq, message in enumerate(messages, first):
        if seq in done:
            continue
        qid = qids[message.queue]
        state = READY if message.available_at <= now else DELAYED
        lane = 0 if qid % 2 else message.priority
        rows.append(write_waiting(message, seq, qid, state, lane))
    kept, answers = rows, [Enqueued.STORED] * len(messages)
    if _insert(db, rows, together=together) < len(messages):
        seqs = _kept(db, first, first + len(messages) - 1)
        kept = [row for row in rows if row[0] in seqs]
        answers = [
            Enqueued.STORED if seq in seqs else Enqueued.HELD
            for seq in range(first, first + len(messages))
        ]
    for (qid, part, state), n in Counter(map(_COUNTED, kept)).items():
        counts.add(qid, part, state, n)
    counts.write(db)
    return answers


_COUNTED = itemgetter(1, 5, 2)
"""The qid, the partition and the state of a row."""


def _insert(db: sqlite3.Cursor, rows: list[tuple[Any, ...]], *, together: bool) -> int:
    """How many were stored: an id that is held is left out.

    In a caller's transaction one by one: a full disk then rolls back all of it, also what the
    caller wrote before, and nobody can commit half. Of an INSERT of many rows SQLite takes back
    only that.
    """
    stored = 0
    for width, alike in groupby(rows, len):  # in order: of one id twice, the first is kept
        run, sql = list(alike), ENQUEUE_BY_WIDTH[width]
        whole = len(run) - len(run) % TOGETHER if together else 0
        for start in range(0, whole, TOGETHER):
            bind = list(chain.from_iterable(run[start : start + TOGETHER]))
            stored += db.execute(sql[TOGETHER], bind).rowcount
        if whole < len(run):
            stored += db.executemany(sql[1], run[whole:]).rowcount
    return stored


def _finished(
    db: sqlite3.Cursor,
    messages: Sequence[Message],
    qids: Mapping[str, int],
    since: Mapping[int, int],
    first: int,
) -> Container[int]:
    """The seqs of those that the log holds already."""
    found: set[int] = set()
    for n, at in since.items():
        home = qids[messages[n].queue] // 2
        if db.execute(FINISHED, (2 * home, 2 * home + 1, messages[n].id, at)).fetchone():
            found.add(first + n)
    return found


def _kept(db: sqlite3.Cursor, first: int, last: int) -> Container[int]:
    """The seqs that were stored: the ids of the others were held, or finished lately."""
    found = "SELECT seq FROM holdfast_message WHERE seq BETWEEN ? AND ?"
    return {seq for (seq,) in db.execute(found, (first, last))}
