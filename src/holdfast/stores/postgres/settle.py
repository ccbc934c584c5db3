"""Apply a batch of transitions. Acks of what is still held are one statement; anything else locks
the messages first, compares, then writes by kind, in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.model.message import home_of
from holdfast.model.moves import Settled, Target, Transition
from holdfast.model.payload import JSON
from holdfast.stores.kit.batches import Wave, are_different, ends_alike, fits, lost, waves
from holdfast.stores.postgres import arrays
from holdfast.stores.postgres.rows import read_token
from holdfast.stores.postgres.statements import QIDS
from holdfast.stores.rows import write_history
from holdfast.stores.sql.store import Row, Rows

READY, DELAYED, LEASED = range(3)
DAY_MS = 86_400_000

# What every move to the log copies.
_KEPT = (
    "seq, available_at, enqueued_at, token, leased_at, first_leased_at, qid, part, attempts, "
    "priority, id, max_attempts, ack_timeout, owner, key, type, content_type, headers, backoff, "
    "body"
)


def _finish_alike(which: str, answer: str) -> str:
    return f"""
WITH gone AS (
  DELETE FROM holdfast.message
  WHERE {which}
  RETURNING {_KEPT}, history
), logged AS (
  INSERT INTO holdfast.log ({_KEPT}, history, finished_at, status, verb)
  SELECT {_KEPT}, history, %(now)s, %(status)s, %(verb)s FROM gone
  WHERE %(status)s::text IS NOT NULL
  RETURNING qid, part
), counted AS (
  INSERT INTO holdfast.delta (qid, part, day, leased, done, logged)
  SELECT qid, part, %(day)s, -sum(ended), sum(ended), sum(kept) FROM (
    SELECT qid, part, 1 AS ended, 0 AS kept FROM gone
    UNION ALL SELECT qid, part, 0, 1 FROM logged) x
  GROUP BY qid, part
)
SELECT {answer} FROM gone
"""


# Primary key. An array of ids, not a join: no statistics can turn this into a scan. "Leased" is
# said by the deadline, because "state = 2" would invite the index of all that is leased. Ids and
# tokens are compared as sets; a batch names a message once, and no two deliveries share a token.
HELD = """home = %(home)s AND id = ANY(%(ids)s) AND qid = %(qid)s AND deadline IS NOT NULL
    AND token = ANY(%(tokens)s)"""
FINISH_ALIKE = _finish_alike(
    HELD, "count(*), CASE WHEN count(*) < %(n)s THEN array_agg(id::text) END"
)
# Index message_batch, then row addresses: what a batch name holds. Repeated until there is none.
OF_BATCH = """ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.message WHERE batch = %(batch)s AND qid = %(qid)s AND state = 2
    ORDER BY message.id LIMIT %(limit)s FOR UPDATE)) AND batch || '' = %(batch)s"""
FINISH_BATCH = _finish_alike(OF_BATCH, "count(*)")
# The same for messages that are locked and compared already, each with its own end.
FINISH = f"""
WITH gone AS (
  DELETE FROM holdfast.message WHERE home = %(home)s AND id = ANY(%(ids)s)
  RETURNING {_KEPT}, history
)
INSERT INTO holdfast.log ({_KEPT}, history, finished_at, status, verb, result)
SELECT {", ".join(f"gone.{name}" for name in _KEPT.split(", "))}, coalesce(a.history, gone.history),
  %(now)s, a.status, a.verb, a.result
FROM gone JOIN unnest(%(ids)s, %(statuses)s, %(verbs)s, %(histories)s, %(results)s)
  AS a (id, status, verb, history, result) ON a.id = gone.id
WHERE a.status IS NOT NULL
RETURNING id::text
"""


def _fence(lock: str) -> str:
    """Primary key, in order of the ids: two batches that name the same messages never deadlock."""
    return f"""
SELECT id::text, state, token, deadline, place, part, seq FROM holdfast.message
WHERE home = %(home)s AND id = ANY(%(ids)s) AND qid = %(qid)s ORDER BY message.id {lock}
"""


FENCE = _fence("FOR UPDATE")
FENCE_FREE = _fence("FOR UPDATE SKIP LOCKED")
EXTEND = """
UPDATE holdfast.message m SET deadline = a.deadline
FROM unnest(%(ids)s, %(deadlines)s) AS a (id, deadline)
WHERE m.home = %(home)s AND m.id = ANY(%(ids)s) AND m.id = a.id
"""


def _put_back(edits: str = "", arrays: str = "", columns: str = "") -> str:
    """Primary key. `edits`: what else they change, from more `arrays` as `columns`."""
    return f"""
UPDATE holdfast.message m SET
  home = %(to_home)s, qid = %(to_qid)s, split = %(split)s, state = a.state, rank = a.rank,
  place = a.place, available_at = a.available_at, attempts = a.attempts,
  history = coalesce(a.history, m.history), token = a.token, verb = a.verb,{edits}
  deadline = NULL, leased_at = NULL, owner = NULL, batch = NULL
FROM unnest(%(ids)s, %(states)s, %(ranks)s, %(places)s, %(available_ats)s, %(attempts)s,
  %(histories)s, %(tokens)s, %(verbs)s{arrays})
  AS a (id, state, rank, place, available_at, attempts, history, token, verb{columns})
WHERE m.home = %(home)s AND m.id = ANY(%(ids)s) AND m.id = a.id
"""


PUT_BACK = _put_back()
# When some come back with another partition or payload. NULL keeps what they have; a content type
# of '' is JSON, which is stored as NULL.
PUT_BACK_EDITED = _put_back(
    """
  part = coalesce(a.part, m.part), body = coalesce(a.body, m.body),
  content_type = CASE WHEN a.content_type IS NULL THEN m.content_type
                 ELSE nullif(a.content_type, '') END,""",
    ", %(parts)s, %(bodies)s, %(content_types)s",
    ", part, body, content_type",
)
# Primary key. A queue that somebody is deleting is waited for; one that is gone has no row.
TARGET = """
SELECT qid, partitions > 1 OR split FROM holdfast.queue WHERE name = %(name)s FOR KEY SHARE
"""
HELD_THERE = """
SELECT id::text FROM holdfast.message WHERE home = %(home)s AND id = ANY(%(ids)s)
"""
LAST = """
SELECT id::text, token, verb, state FROM holdfast.message
WHERE home = %(home)s AND id = ANY(%(ids)s)
"""
LAST_LOGGED = """
SELECT id::text, token, verb FROM holdfast.log WHERE id = ANY(%(ids)s) AND qid + 0 = %(qid)s
  AND token = ANY(%(tokens)s)
"""
PLACES = "SELECT nextval('holdfast.seq') FROM generate_series(1, %(n)s)"
COUNT = """
INSERT INTO holdfast.delta (qid, part, day, ready, delayed, leased, done, logged)
SELECT * FROM unnest(%(qids)s, %(parts)s, %(days)s, %(ready)s, %(delayed)s, %(leased)s, %(done)s,
  %(logged)s)
"""

_ID, _STATE, _TOKEN, _DEADLINE, _PLACE, _PART, _SEQ = range(7)


class Counts:
    """What one transaction adds to holdfast.delta, by queue, partition and day of the log."""

    def __init__(self) -> None:
        self._deltas: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0] * 5)

    def move(self, qid: int, part: int, state: int, n: int) -> None:
        self._deltas[qid, part, 0][state] += n

    def finish(self, qid: int, part: int, day: int, *, logged: bool) -> None:
        delta = self._deltas[qid, part, day]
        delta[3] += 1
        delta[4] += logged

    def forget(self, qid: int, part: int, day: int) -> None:
        self._deltas[qid, part, day][4] -= 1

    def write(self, rows: Rows) -> None:
        changed = [(*key, *delta) for key, delta in self._deltas.items() if any(delta)]
        if changed:
            names = ("qids", "parts", "days", "ready", "delayed", "leased", "done", "logged")
            columns = map(list, zip(*changed, strict=True))
            rows(COUNT, dict(zip(names, columns, strict=True)))


def settle(rows: Rows, moves: Sequence[Transition], now: int) -> list[Settled]:
    """In the transaction in which `rows` runs statements."""
    batch = _Batch(rows, now, qids_of(rows, moves))
    answers: dict[int, Settled] = {}
    for wave in _waves(moves):
        answers.update(batch.apply(wave))
    batch.counts.write(rows)
    return [answers[n] for n in range(len(moves))]


def qids_of(rows: Rows, moves: Sequence[Transition]) -> dict[str, int]:
    """Of the queues that the moves start in."""
    return dict(rows(QIDS, {"names": list({move.queue for move in moves})}))


def alike_by_queue(moves: Sequence[Transition]) -> dict[str, list[int]]:
    """The indexes of each queue's moves, if all of them are acks of different messages, and alike
    within a queue; else empty. Sorted, so that two batches lock in one order."""
    groups: dict[str, list[int]] = {}
    for n, move in enumerate(moves):
        groups.setdefault(move.queue, []).append(n)
    for group in groups.values():
        mine = moves if len(groups) == 1 else [moves[n] for n in group]
        if not (ends_alike(mine) and are_different(mine)):
            return {}
    return dict(sorted(groups.items()))


def finish_bind(moves: Sequence[Transition], now: int, qid: int) -> dict[str, Any]:
    """What FINISH_ALIKE binds for a batch that is alike."""
    first = moves[0]
    return {
        "home": qid // 2,
        "qid": qid,
        "ids": arrays.uuids([move.id for move in moves]),
        "tokens": arrays.ints([read_token(move.token) for move in moves]),
        "now": now,
        "day": 0 if first.status is None else now // DAY_MS,
        "status": first.status,
        "verb": first.verb.value,
        "n": len(moves),
    }


def _lost(rows: Rows, moves: Sequence[Transition], qids: dict[str, int]) -> list[Settled]:
    """Stale, unless the last thing that happened to a message was this very move."""
    ends: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    """Of each message, by queue and id: if it is there its last lease, else all in the log."""
    for queue in {move.queue for move in moves if move.token is not None}:
        if queue not in qids:
            continue
        mine = [move for move in moves if move.queue == queue]
        ids = arrays.uuids([move.id for move in mine])
        tokens = arrays.ints([read_token(move.token) for move in mine])
        done = {"qid": qids[queue], "ids": ids, "tokens": tokens}
        for id, token, verb in rows(LAST_LOGGED, done):
            ends[queue, id].append((token, verb))
        held = {"home": qids[queue] // 2, "ids": ids}
        for id, token, verb, state in rows(LAST, held):
            ends[queue, id] = [] if state == LEASED else [(token, verb)]
    return [lost(move, read_token(move.token), ends[move.queue, move.id]) for move in moves]


def _waves(moves: Sequence[Transition]) -> Iterator[Wave]:
    """Different messages of one queue each."""
    for wave in waves(moves, lambda move: (home_of(move.queue), move.id)):
        parts: dict[str, Wave] = defaultdict(list)
        for n, move in wave:
            parts[move.queue].append((n, move))
        yield from parts.values()


class _Batch:
    def __init__(self, rows: Rows, now: int, qids: dict[str, int]) -> None:
        self._run = rows
        self._now = now
        self._qids = qids
        self.counts = Counts()

    def apply(self, wave: Wave) -> Iterator[tuple[int, Settled]]:
        """Moves of different messages of one queue."""
        queue = wave[0][1].queue
        qid = self._qids.get(queue)
        if qid is None:
            yield from ((n, Settled.STALE) for n, _ in wave)
            return
        rows = self._fence(qid, [move for _, move in wave])
        fit: list[tuple[int, Transition, Row]] = []
        unfit: Wave = []
        for n, move in wave:
            row = rows.get(move.id)
            if row is not None and _fits(row, move):
                fit.append((n, move, row))
            else:
                unfit.append((n, move))
        answers = _lost(self._run, [move for _, move in unfit], self._qids)
        yield from ((n, answer) for (n, _), answer in zip(unfit, answers, strict=True))
        self._finish(qid, [item for item in fit if item[1].target is Target.DONE])
        self._extend(qid, [item for item in fit if item[1].target is Target.LEASED])
        stayed = self._put_back(qid, [item for item in fit if item[1].target is Target.WAITING])
        for n, _, _ in fit:
            yield n, Settled.STALE if n in stayed else Settled.APPLIED

    def _fence(self, qid: int, moves: list[Transition]) -> dict[str, Row]:
        """Lock what the moves name. A sweep and a redrive take what is free: what somebody is just
        settling, perhaps in a long transaction of their own, is not theirs to wait for."""
        found: dict[str, Row] = {}
        patient = [move.token is not None and move.overdue_at is None for move in moves]
        for statement, part in (
            (FENCE_FREE, [move for move, waits in zip(moves, patient, strict=True) if not waits]),
            (FENCE, [move for move, waits in zip(moves, patient, strict=True) if waits]),
        ):
            if part:
                ids = arrays.uuids([move.id for move in part])
                for row in self._run(statement, {"home": qid // 2, "qid": qid, "ids": ids}):
                    found[row[_ID]] = row
        return found

    def _finish(self, qid: int, items: list[tuple[int, Transition, Row]]) -> None:
        if not items:
            return
        moves = [move for _, move, _ in items]
        rows = self._run(
            FINISH,
            {
                "home": qid // 2,
                "ids": arrays.uuids([move.id for move in moves]),
                "statuses": arrays.texts([move.status for move in moves]),
                "verbs": arrays.texts([move.verb.value for move in moves]),
                "histories": arrays.texts([write_history(move.history) for move in moves]),
                "results": arrays.blobs([move.result for move in moves]),
                "now": self._now,
            },
        )
        kept = {id for (id,) in rows}
        for _, move, row in items:
            logged = move.id in kept
            self.counts.move(qid, row[_PART], row[_STATE], -1)
            day = self._now // DAY_MS if logged else 0
            self.counts.finish(qid, row[_PART], day, logged=logged)

    def _extend(self, qid: int, items: list[tuple[int, Transition, Row]]) -> None:
        if items:
            bind = {
                "home": qid // 2,
                "ids": arrays.uuids([move.id for _, move, _ in items]),
                "deadlines": arrays.ints([move.deadline for _, move, _ in items]),
            }
            self._run(EXTEND, bind)

    def _put_back(self, qid: int, items: list[tuple[int, Transition, Row]]) -> set[int]:
        """Those that had to stay: their new queue is gone, or holds their id."""
        stayed: set[int] = set()
        by_target: dict[str, list[tuple[int, Transition, Row]]] = defaultdict(list)
        for item in items:
            by_target[item[1].to_queue].append(item)
        for name, part in sorted(by_target.items()):
            target = self._run(TARGET, {"name": name})
            if not target:
                stayed |= {n for n, _, _ in part}
                continue
            to_qid, split = target[0]
            if to_qid // 2 != qid // 2:
                taken = self._taken(to_qid, part)
                stayed |= {n for n, move, _ in part if move.id in taken}
                part = [item for item in part if item[1].id not in taken]
            if part:
                self._move(qid, to_qid, split, part)
        return stayed

    def _taken(self, to_qid: int, part: list[tuple[int, Transition, Row]]) -> set[str]:
        ids = arrays.uuids([move.id for _, move, _ in part])
        return {id for (id,) in self._run(HELD_THERE, {"home": to_qid // 2, "ids": ids})}

    def _move(
        self, qid: int, to_qid: int, split: bool, items: list[tuple[int, Transition, Row]]
    ) -> None:
        moves = [move for _, move, _ in items]
        states = [READY if move.available_at <= self._now else DELAYED for move in moves]
        edits = _edits(moves)
        self._run(
            PUT_BACK_EDITED if edits else PUT_BACK,
            {
                "home": qid // 2,
                "to_home": to_qid // 2,
                "to_qid": to_qid,
                "split": split,
                "ids": arrays.uuids([move.id for move in moves]),
                "states": arrays.ints(states),
                "ranks": arrays.ints([9 - move.lane for move in moves]),
                "places": arrays.ints(self._places(items)),
                "available_ats": arrays.ints([move.available_at for move in moves]),
                "attempts": arrays.ints([move.attempts for move in moves]),
                "histories": arrays.texts([write_history(move.history) for move in moves]),
                "tokens": arrays.ints([read_token(move.token) or None for move in moves]),
                "verbs": arrays.texts([move.verb.value for move in moves]),
                **edits,
            },
        )
        for (_, move, row), state in zip(items, states, strict=True):
            part = row[_PART] if move.partition is None else move.partition
            self.counts.move(qid, row[_PART], row[_STATE], -1)
            self.counts.move(to_qid, part, state, 1)

    def _places(self, items: list[tuple[int, Transition, Row]]) -> list[int]:
        tails = sum(move.tail for _, move, _ in items)
        fresh = iter([place for (place,) in self._run(PLACES, {"n": tails})] if tails else [])
        places: list[int] = []
        for _, move, row in items:
            if move.tail:
                places.append(next(fresh))
            else:
                places.append(row[_PLACE] if move.to_queue == move.queue else row[_SEQ])
        return places


def _edits(moves: list[Transition]) -> dict[str, Any]:
    """What PUT_BACK_EDITED binds more; nothing if no move has a new partition or payload."""
    if all(m.partition is None and m.body is None and m.content_type is None for m in moves):
        return {}
    kinds = ["" if move.content_type == JSON else move.content_type for move in moves]
    return {
        "parts": arrays.ints([move.partition for move in moves]),
        "bodies": arrays.blobs([move.body for move in moves]),
        "content_types": arrays.texts(kinds),
    }


def _fits(row: Row, move: Transition) -> bool:
    return fits(
        move,
        leased=row[_STATE] == LEASED,
        place=row[_PLACE],
        same_token=row[_TOKEN] == read_token(move.token),
        deadline=row[_DEADLINE],
    )
