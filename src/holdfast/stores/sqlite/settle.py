"""Apply a batch of transitions: compare every token first, then write by kind."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.message import Finished
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.model.payload import JSON
from holdfast.stores import damage
from holdfast.stores.kit.batches import ends_alike, fits, lost, waves
from holdfast.stores.rows import encode_json, write_history
from holdfast.stores.sqlite.rows import write_message

SEQ_MAX = 2**62
READY, DELAYED, LEASED, DONE, LOGGED = range(5)
"""States of a message, and the columns of holdfast_depth that count them."""

# By primary key: a token ends in the seq of its message.
FENCE = """
SELECT seq, state, deadline, place, qid, part, id, m.lease, call, leased_at FROM holdfast_message m
LEFT JOIN holdfast_lease l ON l.lease = m.lease
WHERE seq IN (SELECT value FROM json_each(?))
"""
# Index holdfast_message_id: a transition without a token names a waiting message.
FIND = "SELECT seq FROM holdfast_message WHERE home = ? AND id = ?"

# The same for a whole batch of one lease call: how many of it, by queue and partition, still hold.
STILL_HELD = """
SELECT qid, part, count(*) FROM holdfast_message m JOIN holdfast_lease l USING (lease)
WHERE seq IN (SELECT value FROM json_each(?)) AND id IN (SELECT value FROM json_each(?))
  AND m.state = 2 AND m.lease = cast(? AS INTEGER) AND call = ?
GROUP BY qid, part
"""


def _finish(which: str, history: str, result: str) -> str:
    return f"""
INSERT INTO holdfast_log
  (seq, qid, finished_at, status, id, part, priority, key, type, content_type, headers,
   enqueued_at, available_at, attempts, ack_timeout, max_attempts, backoff, history,
   first_leased_at, leased_at, owner, lease, verb, result, body)
SELECT seq, qid, ?, ?, id, part, priority, key, type, content_type, headers,
   enqueued_at, available_at, attempts, ack_timeout, max_attempts, backoff, {history},
   coalesce(first_leased_at, leased_at), leased_at, owner, lease, ?, {result}, body
FROM holdfast_message LEFT JOIN holdfast_lease USING (lease) WHERE {which}
"""


FINISH = _finish("seq = ?", "coalesce(?, history)", "?")
# For many that end alike, with no result and no new history: an ack of a whole batch.
FINISH_ALIKE = _finish("seq IN (SELECT value FROM json_each(?))", "history", "NULL")
# A row that finished elsewhere, unless it is there; index holdfast_log_id.
RESTORE = """
INSERT INTO holdfast_log
  (seq, qid, finished_at, status, leased_at, owner, verb, result,
   part, id, priority, key, type, content_type, headers, enqueued_at, available_at, attempts,
   ack_timeout, max_attempts, backoff, history, first_leased_at, body)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
  ?21, ?22, ?23, ?24
WHERE NOT EXISTS (SELECT 1 FROM holdfast_log WHERE qid = ?2 AND id = ?10 AND finished_at = ?3)
"""
FORGET = "DELETE FROM holdfast_message WHERE seq IN (SELECT value FROM json_each(?))"
EXTEND = "UPDATE holdfast_message SET deadline = ? WHERE seq = ?"
PUT_BACK = """
UPDATE holdfast_message SET home = ?, qid = ?, state = ?, lane = ?, place = ?,
  available_at = ?, attempts = ?, history = coalesce(?, history), token = ?, verb = ?,
  first_leased_at = coalesce(first_leased_at, ?), batch = NULL
WHERE seq = ?
"""
# After PUT_BACK, for the few that come back with another partition or payload. NULL keeps what it
# has; a content type of '' is JSON, which is stored as NULL.
EDIT = """
UPDATE holdfast_message SET part = coalesce(?1, part), body = coalesce(?2, body),
  content_type = CASE WHEN ?3 IS NULL THEN content_type ELSE nullif(?3, '') END
WHERE seq = ?4
"""
HELD_BY = """
SELECT seq, part, lease FROM holdfast_message WHERE batch = ? AND qid = ? AND state = 2
ORDER BY id LIMIT ?
"""
LAST = "SELECT token, verb, state FROM holdfast_message WHERE home = ? AND id = ?"
LAST_LOGGED = "SELECT lease, seq, verb FROM holdfast_log WHERE seq = ? AND qid = ? AND id = ?"
LET_GO = "UPDATE holdfast_lease SET open = open - ? WHERE lease = ?"
FORGET_LEASE = "DELETE FROM holdfast_lease WHERE lease = ? AND open <= 0"

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
    batch = _Batch(db, now)
    if not batch.finish_alike(moves):
        for wave in waves(moves, lambda move: (move.queue, move.id)):
            batch.apply([move for _, move in wave])
    batch.counts.write(db)
    _let_go(db, batch.let_go)
    return batch.answers


def restore(db: sqlite3.Cursor, qid: int, rows: Sequence[Finished]) -> int:
    first = next_number(db, "seq", len(rows)) - len(rows) + 1
    counts, new = Counts(), 0
    for seq, row in enumerate(rows, first):
        result = None if row.result is None else encode_json(row.result).encode()
        ended = (row.finished_at, row.status, row.last_leased_at, row.consumer, Verb.ACK.value)
        columns = write_message(row.message)
        if db.execute(RESTORE, (seq, qid, *ended, result, *columns)).rowcount:
            new += 1
            counts.add(qid, row.message.partition, DONE)
            counts.add(qid, row.message.partition, LOGGED)
    counts.write(db)
    return new


def finish(
    db: sqlite3.Cursor, qid: int, batch: str, limit: int, now: int, status: str | None
) -> int:
    """Ack what a batch name holds; index holdfast_batch."""
    held = db.execute(HELD_BY, (batch, qid, limit)).fetchall()
    if not held:
        return 0
    seqs = _list([seq for seq, _, _ in held])
    if status is not None:
        db.execute(FINISH_ALIKE, (now, status, Verb.ACK.value, seqs))
    db.execute(FORGET, (seqs,))
    counts = Counts()
    for part, n in Counter(part for _, part, _ in held).items():
        counts.add(qid, part, LEASED, -n)
        counts.add(qid, part, DONE, n)
        counts.add(qid, part, LOGGED, 0 if status is None else n)
    counts.write(db)
    _let_go(db, Counter(lease for _, _, lease in held))
    return len(held)


def _let_go(db: sqlite3.Cursor, leases: Counter[int]) -> None:
    db.executemany(LET_GO, [(n, lease) for lease, n in leases.items()])
    db.executemany(FORGET_LEASE, [(lease,) for lease in leases])


def next_number(db: sqlite3.Cursor, name: str, n: int) -> int:
    """The last of `n` numbers that were never given before."""
    step = "UPDATE holdfast_meta SET value = value + ? WHERE name = ? RETURNING value"
    return db.execute(step, (n, name)).fetchone()[0]


# A message as FENCE reads it; the last two are those of its last lease. A plain tuple:
# this is read for every ack.
_Row = tuple[Any, ...]
_SEQ, _STATE, _DEADLINE, _PLACE, _QID, _PART, _ID, _LEASE, _CALL, _LEASED_AT = range(10)


class _Batch:
    """The transitions of one call: answers in their order, and what they do to the counts."""

    def __init__(self, db: sqlite3.Cursor, now: int) -> None:
        self._db = db
        self._now = now
        self.counts = Counts()
        self.answers: list[Settled] = []
        self.let_go: Counter[int] = Counter()
        self._calls: dict[str, tuple[str, int]] = {}

    def finish_alike(self, moves: Sequence[Transition]) -> bool:
        """The common batch, and the hot path: acks of one lease call, all of them still good.

        False when it is anything else: then nothing was done.
        """
        first = moves[0]
        held = (first.token or "").rpartition(".")[0]
        seqs = _alike(moves, f"{held}.")
        if seqs is None:
            return False
        call, _, lease = held.rpartition(".")
        seqs_list, ids = _list(seqs), msgspec.json.encode([move.id for move in moves]).decode()
        held_here = self._db.execute(STILL_HELD, (seqs_list, ids, lease, call)).fetchall()
        if sum(n for _, _, n in held_here) != len(moves):
            return False
        if first.status is not None:
            end = (self._now, first.status, first.verb.value, seqs_list)
            self._db.execute(FINISH_ALIKE, end)
        self._db.execute(FORGET, (seqs_list,))
        for qid, part, n in held_here:
            self.counts.add(qid, part, LEASED, -n)
            self.counts.add(qid, part, DONE, n)
            self.counts.add(qid, part, LOGGED, 0 if first.status is None else n)
        self.let_go[int(lease)] = len(moves)
        self.answers = [Settled.APPLIED] * len(moves)
        return True

    def apply(self, moves: list[Transition]) -> None:
        """Moves of different messages."""
        keys = [self._key(move) for move in moves]
        rows = self._read([seq for _, _, seq in keys])
        done: list[tuple[Transition, _Row]] = []
        extended: list[tuple[int, int]] = []
        for move, (call, lease, seq) in zip(moves, keys, strict=True):
            row = rows.get(seq)
            if row is None or not _fits(row, move, call, lease):
                self.answers.append(self._lost(move, lease, seq))
                continue
            if move.target is Target.DONE:
                done.append((move, row))
            elif move.target is Target.LEASED:
                extended.append((move.deadline, seq))
            elif not self._put_back(move, row):
                self.answers.append(Settled.STALE)
                continue
            self.answers.append(Settled.APPLIED)
        self._finish(done)
        self._db.executemany(EXTEND, extended)

    def _key(self, move: Transition) -> tuple[str, int, int]:
        """What a token says: call, lease and seq. Without a token: the seq of a waiting message."""
        if move.token is not None:
            held, _, seq = move.token.rpartition(".")
            try:
                call, lease = self._calls.get(held) or self._call(held)
                return call, lease, int(seq)
            except ValueError:
                return "", 0, 0
        found = self._db.execute(FIND, (self._qid(move.queue) // 2, move.id)).fetchone()
        return "", 0, found[0] if found else 0

    def _call(self, held: str) -> tuple[str, int]:
        """The first two parts of a token, remembered: a batch mostly comes from one lease call."""
        call, _, lease = held.rpartition(".")
        self._calls[held] = call, int(lease)
        return self._calls[held]

    def _read(self, seqs: list[int]) -> dict[int, _Row]:
        known = [seq for seq in seqs if 0 < seq < SEQ_MAX]
        return {row[0]: row for row in self._db.execute(FENCE, (_list(known),))}

    def _lost(self, move: Transition, lease: int, seq: int) -> Settled:
        """Stale, unless the last thing that happened to the message was this very move."""
        qid = self._qid(move.queue)
        if move.token is None or qid == 0:
            return Settled.STALE
        held = self._db.execute(LAST, (qid // 2, move.id)).fetchone()
        if held is not None:
            return lost(move, move.token, [held[:2]] if held[2] != LEASED else [])
        at = seq if 0 < seq < SEQ_MAX else 0
        logged = self._db.execute(LAST_LOGGED, (at, qid, move.id)).fetchall()
        return lost(move, (lease, seq), [((by, seq), verb) for by, seq, verb in logged])

    def _finish(self, done: list[tuple[Transition, _Row]]) -> None:
        if not done:
            return
        alike: dict[tuple[str, str], list[int]] = defaultdict(list)
        apart: list[tuple[object, ...]] = []
        for move, row in done:
            if move.status is None:
                continue
            if move.result is None and move.history is None:
                alike[move.status, move.verb.value].append(row[_SEQ])
            else:
                history = write_history(move.history)
                end = (self._now, move.status, history, move.verb.value, move.result, row[_SEQ])
                apart.append(end)
        for (status, verb), seqs in alike.items():
            self._db.execute(FINISH_ALIKE, (self._now, status, verb, _list(seqs)))
        self._db.executemany(FINISH, apart)
        self._db.execute(FORGET, (_list([row[_SEQ] for _, row in done]),))
        self._count_finished(done)

    def _count_finished(self, done: list[tuple[Transition, _Row]]) -> None:
        self.let_go.update([row[_LEASE] for _, row in done if row[_STATE] == LEASED])
        ended = Counter(
            [(row[_QID], row[_PART], row[_STATE], move.status is not None) for move, row in done]
        )
        for (qid, part, was, logged), n in ended.items():
            self.counts.add(qid, part, was, -n)
            self.counts.add(qid, part, DONE, n)
            self.counts.add(qid, part, LOGGED, n if logged else 0)

    def _put_back(self, move: Transition, row: _Row) -> bool:
        seq, was, _, place, qid, part, id, lease, _, leased_at = row
        to = qid if move.to_queue == move.queue else self._qid(move.to_queue)
        moves_home = to // 2 != qid // 2
        if to == 0 or (moves_home and self._db.execute(FIND, (to // 2, id)).fetchone()):
            return False
        if move.tail:
            place = next_number(self._db, "seq", 1)
        elif to != qid:
            place = seq
        state = READY if move.available_at <= self._now else DELAYED
        self._db.execute(
            PUT_BACK,
            (
                to // 2,
                to,
                state,
                move.lane,
                place,
                move.available_at,
                move.attempts,
                write_history(move.history),
                move.token,
                move.verb.value,
                leased_at,
                seq,
            ),
        )
        if move.partition is not None or move.body is not None or move.content_type is not None:
            kind = "" if move.content_type == JSON else move.content_type
            self._db.execute(EDIT, (move.partition, move.body, kind, seq))
        self.counts.add(qid, part, was, -1)
        self.counts.add(to, part if move.partition is None else move.partition, state)
        if was == LEASED:
            self.let_go[lease] += 1
        return True

    def _qid(self, queue: str) -> int:
        """0 for a queue that is gone."""
        named = "SELECT qid FROM holdfast_queue WHERE name = ?"
        row = self._db.execute(named, (queue,)).fetchone()
        return row[0] if row else 0


def _alike(moves: Sequence[Transition], held: str) -> list[int] | None:
    """The seqs, if all of them are acks that end alike, of messages of one lease call; else None.
    The token of each begins with `held`, and ends in its seq."""
    if not ends_alike(moves):
        return None
    tokens, begin = [move.token or "" for move in moves], len(held)
    ends = [token[begin:] for token in tokens if token.startswith(held)]
    if len(ends) < len(moves):
        return None
    digits, lengths = "".join(ends), set(map(len, ends))
    if 0 in lengths or max(lengths) > 18 or not (digits.isascii() and digits.isdigit()):
        return None
    return list(map(int, ends))


def _fits(row: _Row, move: Transition, call: str, lease: int) -> bool:
    same = row[_CALL] == call and row[_LEASE] == lease and row[_ID] == move.id
    if not same:
        # A message whose lease lost its row has no call.
        told = damage.text(row[_CALL] or ""), row[_LEASE], damage.text(row[_ID])
        same = told == (call, lease, move.id)
    return fits(
        move,
        leased=row[_STATE] == LEASED,
        place=row[_PLACE],
        same_token=same,
        deadline=row[_DEADLINE],
    )


def _list(seqs: list[int]) -> str:
    return msgspec.json.encode(seqs).decode()
