"""Apply a batch of transitions: compare every token first, then write by kind."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.store import Settled, Target, Transition
from holdfast.stores.sqlite.rows import write_history

READY, DELAYED, LEASED, DONE, LOGGED = range(5)
"""States of a message, and the columns of holdfast_depth that count them."""

# By primary key: a token ends in the seq of its message.
FENCE = """
SELECT seq, token, state, deadline, place, qid, part, id FROM holdfast_message
WHERE seq IN (SELECT value FROM json_each(?))
"""
# Index holdfast_message_id: a transition without a token names a waiting message.
FIND = "SELECT seq FROM holdfast_message WHERE home = ? AND id = ?"

FINISH = """
INSERT OR IGNORE INTO holdfast_log
  (seq, qid, finished_at, status, id, part, priority, key, type, content_type, headers,
   enqueued_at, available_at, attempts, ack_timeout, max_attempts, backoff, history,
   first_leased_at, leased_at, owner, token, verb, result, body)
SELECT seq, qid, ?, ?, id, part, priority, key, type, content_type, headers,
   enqueued_at, available_at, attempts, ack_timeout, max_attempts, backoff, coalesce(?, history),
   first_leased_at, leased_at, owner, token, ?, ?, body
FROM holdfast_message WHERE seq = ?
"""
# The same for many that end alike, with no result and no new history: an ack of a whole batch.
FINISH_ALIKE = (
    FINISH.replace("coalesce(?, history)", "history")
    .replace("token, ?, ?, body", "token, ?, NULL, body")
    .replace("seq = ?", "seq IN (SELECT value FROM json_each(?))")
)
FORGET = "DELETE FROM holdfast_message WHERE seq IN (SELECT value FROM json_each(?))"
EXTEND = "UPDATE holdfast_message SET deadline = ? WHERE seq = ?"
PUT_BACK = """
UPDATE holdfast_message SET home = ?, qid = ?, state = ?, lane = ?, place = ?,
  available_at = ?, attempts = ?, history = coalesce(?, history), token = ?, verb = ?,
  deadline = NULL, owner = NULL, batch = NULL
WHERE seq = ?
"""
LAST = "SELECT token, verb FROM holdfast_message WHERE home = ? AND id = ?"
LAST_LOGGED = "SELECT token, verb FROM holdfast_log WHERE qid = ? AND id = ?"

COUNT = """
INSERT INTO holdfast_depth VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET ready = ready + excluded.ready, delayed = delayed + excluded.delayed,
  leased = leased + excluded.leased, done = done + excluded.done, logged = logged + excluded.logged
"""


class Counts:
    """What one transaction adds to holdfast_depth, by queue and partition."""

    def __init__(self) -> None:
        self._deltas: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * 5)

    def add(self, qid: int, part: int, column: int, n: int = 1) -> None:
        self._deltas[qid, part][column] += n

    def write(self, db: sqlite3.Cursor) -> None:
        db.executemany(COUNT, [(*key, *delta) for key, delta in self._deltas.items() if any(delta)])


def settle(db: sqlite3.Cursor, moves: Sequence[Transition], now: int) -> list[Settled]:
    counts = Counts()
    answers: list[Settled] = []
    for wave in _waves(moves):
        answers += _apply(db, wave, now, counts)
    counts.write(db)
    return answers


def next_number(db: sqlite3.Cursor, name: str, n: int) -> int:
    """The last of `n` numbers that were never given before."""
    step = "UPDATE holdfast_meta SET value = value + ? WHERE name = ? RETURNING value"
    return db.execute(step, (n, name)).fetchone()[0]


def _waves(moves: Sequence[Transition]) -> Iterator[list[Transition]]:
    """Cut where a message comes up again: the second move must see what the first one did."""
    wave: dict[tuple[str, str], Transition] = {}
    for move in moves:
        key = (move.queue, move.id)
        if key in wave:
            yield list(wave.values())
            wave = {}
        wave[key] = move
    yield list(wave.values())


def _apply(db: sqlite3.Cursor, moves: list[Transition], now: int, counts: Counts) -> list[Settled]:
    seqs = [_seq(db, move) for move in moves]
    rows = _read(db, seqs)
    answers = [Settled.APPLIED] * len(moves)
    done: list[_Fitting] = []
    extended: list[tuple[int, int]] = []
    for n, (move, seq) in enumerate(zip(moves, seqs, strict=True)):
        row = rows.get(seq)
        if row is None or not _fits(row, move):
            answers[n] = _lost(db, move)
        elif move.target is Target.DONE:
            done.append((move, row))
        elif move.target is Target.LEASED:
            extended.append((move.deadline, seq))
        elif not _put_back(db, move, row, now, counts):
            answers[n] = Settled.STALE
    _finish(db, done, now, counts)
    db.executemany(EXTEND, extended)
    return answers


_Row = tuple[int, str | None, int, int | None, int, int, int, str]
_Fitting = tuple[Transition, _Row]


def _seq(db: sqlite3.Cursor, move: Transition) -> int:
    if move.token is not None:
        tail = move.token.rpartition(".")[2]
        return int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 19 else 0
    home = _qid(db, move.queue) // 2
    found = db.execute(FIND, (home, move.id)).fetchone()
    return found[0] if found else 0


def _read(db: sqlite3.Cursor, seqs: list[int]) -> dict[int, _Row]:
    rows = db.execute(FENCE, (_list(seqs),))
    return {row[0]: row for row in rows}


def _list(seqs: list[int]) -> str:
    return msgspec.json.encode(seqs).decode()


def _fits(row: _Row, move: Transition) -> bool:
    _, token, state, deadline, place, _, _, id = row
    if move.token is None:
        return state != LEASED and place == move.place
    if state != LEASED or token != move.token or id != move.id:
        return False
    return move.overdue_at is None or (deadline or 0) <= move.overdue_at


def _lost(db: sqlite3.Cursor, move: Transition) -> Settled:
    """Stale, unless the last thing that happened to the message was this very move."""
    qid = _qid(db, move.queue)
    if move.token is None or qid == 0:
        return Settled.STALE
    held = db.execute(LAST, (qid // 2, move.id)).fetchone()
    if held is not None:
        return Settled.ALREADY if held == (move.token, move.verb) else Settled.STALE
    logged = db.execute(LAST_LOGGED, (qid, move.id)).fetchone()
    return Settled.ALREADY if logged == (move.token, move.verb) else Settled.STALE


def _finish(db: sqlite3.Cursor, done: list[_Fitting], now: int, counts: Counts) -> None:
    if not done:
        return
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    apart: list[tuple[object, ...]] = []
    for move, row in done:
        if move.status is None:
            continue
        if move.result is None and move.history is None:
            alike[move.status, move.verb.value].append(row[0])
        else:
            history = write_history(move.history)
            apart.append((now, move.status, history, move.verb.value, move.result, row[0]))
    before = db.connection.total_changes
    for (status, verb), seqs in alike.items():
        db.execute(FINISH_ALIKE, (now, status, verb, _list(seqs)))
    db.executemany(FINISH, apart)
    written = db.connection.total_changes - before
    db.execute(FORGET, (_list([row[0] for _, row in done]),))
    _count_finished(done, written, counts)


def _count_finished(done: list[_Fitting], written: int, counts: Counts) -> None:
    ended = Counter((row[5], row[6], row[2], move.status is not None) for move, row in done)
    for (qid, part, state, logged), n in ended.items():
        counts.add(qid, part, state, -n)
        counts.add(qid, part, DONE, n)
        counts.add(qid, part, LOGGED, n if logged else 0)
        written -= n if logged else 0
    if written:  # an id that was finished before, enqueued again and finished again: rare
        qid, part = done[0][1][5:7]
        counts.add(qid, part, LOGGED, written)


def _put_back(db: sqlite3.Cursor, move: Transition, row: _Row, now: int, counts: Counts) -> bool:
    seq, _, state, _, place, qid, part, id = row
    to = qid if move.to_queue == move.queue else _qid(db, move.to_queue)
    moved_home = to // 2 != qid // 2
    if to == 0 or (moved_home and db.execute(FIND, (to // 2, id)).fetchone()):
        return False
    if move.tail:
        place = next_number(db, "seq", 1)
    elif to != qid:
        place = seq
    new_state = READY if move.available_at <= now else DELAYED
    db.execute(
        PUT_BACK,
        (
            to // 2,
            to,
            new_state,
            move.lane,
            place,
            move.available_at,
            move.attempts,
            write_history(move.history),
            move.token,
            move.verb,
            seq,
        ),
    )
    counts.add(qid, part, state, -1)
    counts.add(to, part, new_state)
    return True


def _qid(db: sqlite3.Cursor, queue: str) -> int:
    """0 for a queue that is gone."""
    row = db.execute("SELECT qid FROM holdfast_queue WHERE name = ?", (queue,)).fetchone()
    return row[0] if row else 0
