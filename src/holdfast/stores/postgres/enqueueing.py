"""Enqueueing: messages into their queues, and rows of a log that finished elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.model.message import Finished, Message
from holdfast.model.moves import Enqueued
from holdfast.stores.kit.specs import must_exist
from holdfast.stores.postgres import arrays
from holdfast.stores.postgres.connections import Connection, Connections
from holdfast.stores.postgres.rows import write_finished, write_messages
from holdfast.stores.postgres.settle import DAY_MS
from holdfast.stores.postgres.statements import NEW
from holdfast.stores.rows import first_of_each
from holdfast.stores.sql.store import Row


# Primary keys, in order of the ids: two batches that name the same messages never deadlock. The row
# of the queue is locked so that nobody deletes it meanwhile, before the first
# number is drawn. A held id is skipped; which ones were is told only if any was.
def _enqueue(conflict: str) -> str:
    return f"""
WITH q AS (
  SELECT qid, partitions > 1 OR split AS split
  FROM holdfast.queue WHERE name = %(queue)s FOR KEY SHARE
), numbered AS (
  SELECT nextval('holdfast.seq') AS seq, q.qid, q.split, s.*
  FROM q CROSS JOIN unnest(
    %(ids)s, %(parts)s, %(priorities)s, %(keys)s, %(types)s, %(content_types)s, %(headers)s,
    %(enqueued_ats)s, %(available_ats)s, %(attempts)s, %(ack_timeouts)s, %(max_attempts)s,
    %(backoffs)s, %(histories)s, %(first_leased_ats)s, %(bodies)s
  ) WITH ORDINALITY AS s (id, part, priority, key, type, content_type, headers, enqueued_at,
    available_at, attempts, ack_timeout, max_attempts, backoff, history, first_leased_at, body, n)
  ORDER BY n
), stored AS (
  INSERT INTO holdfast.message (seq, place, home, qid, split, state, rank, part, id, priority, key,
    type, content_type, headers, enqueued_at, available_at, attempts, ack_timeout, max_attempts,
    backoff, history, first_leased_at, body)
  SELECT seq, seq, qid / 2, qid, split,
    CASE WHEN coalesce(available_at, %(now)s) <= %(now)s THEN 0 ELSE 1 END,
    CASE WHEN qid %% 2 = 1 THEN 9 ELSE 9 - coalesce(priority, 0) END,
    coalesce(part, 0), id, coalesce(priority, 0), key, type, content_type, headers,
    coalesce(enqueued_at, %(now)s), coalesce(available_at, %(now)s), coalesce(attempts, 0),
    ack_timeout, max_attempts, backoff, history, first_leased_at, body
  FROM numbered ORDER BY id, n
  {conflict}
  RETURNING id, qid, part, state
), counted AS (
  INSERT INTO holdfast.delta (qid, part, ready, delayed)
  SELECT qid, part, count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1)
  FROM stored GROUP BY qid, part
)
SELECT (SELECT qid FROM q), count(*),
  CASE WHEN count(*) < %(n)s THEN array_agg(id::text) END FROM stored
"""


ENQUEUE = _enqueue("ON CONFLICT DO NOTHING")
# The hopeful way, tried first: new ids are not held. If one is, the statement fails as a whole. To
# be ready to skip a row costs PostgreSQL half as much again.
ENQUEUE_NEW = _enqueue("")

# Index log_id: a row that the log holds stays as it is. The queue's row is locked, so that nobody
# deletes it meanwhile, or restores the same.
RESTORE = """
WITH q AS (
  SELECT qid FROM holdfast.queue WHERE name = %(queue)s FOR UPDATE
), gone AS (
  SELECT nextval('holdfast.seq') AS seq, q.qid, s.*
  FROM q CROSS JOIN unnest(
    %(ids)s, %(parts)s, %(priorities)s, %(keys)s, %(types)s, %(content_types)s, %(headers)s,
    %(enqueued_ats)s, %(available_ats)s, %(attempts)s, %(ack_timeouts)s, %(max_attempts)s,
    %(backoffs)s, %(histories)s, %(first_leased_ats)s, %(bodies)s,
    %(finished_ats)s, %(statuses)s, %(leased_ats)s, %(owners)s, %(results)s
  ) WITH ORDINALITY AS s (id, part, priority, key, type, content_type, headers, enqueued_at,
    available_at, attempts, ack_timeout, max_attempts, backoff, history, first_leased_at, body,
    finished_at, status, leased_at, owner, result, n)
  ORDER BY n
), logged AS (
  INSERT INTO holdfast.log (seq, qid, part, id, priority, key, type, content_type, headers,
    enqueued_at, available_at, attempts, ack_timeout, max_attempts, backoff, history,
    first_leased_at, body, finished_at, status, leased_at, owner, result, verb)
  SELECT seq, qid, coalesce(part, 0), id, coalesce(priority, 0), key, type, content_type, headers,
    coalesce(enqueued_at, %(now)s), coalesce(available_at, %(now)s), coalesce(attempts, 0),
    ack_timeout, max_attempts, backoff, history, first_leased_at, body, finished_at, status,
    leased_at, owner, result, 'ack'
  FROM gone WHERE (
    SELECT 1 FROM holdfast.log l
    WHERE l.id = gone.id AND l.qid + 0 = gone.qid AND l.finished_at = gone.finished_at
    LIMIT 1) IS NULL
  RETURNING qid, part, finished_at / %(day_ms)s AS day
), counted AS (
  INSERT INTO holdfast.delta (qid, part, day, done, logged)
  SELECT qid, part, day, count(*), count(*) FROM logged GROUP BY qid, part, day
)
SELECT (SELECT qid FROM q), (SELECT count(*) FROM logged)
"""

# Index log_id, in the days since the first of these times. A subquery with a limit is never turned
# into a join, and "qid / 2" (the queue, or its dead letters) keeps to the index of ids.
FINISHED = """
SELECT a.n FROM unnest(%(ids)s, %(sinces)s) WITH ORDINALITY AS a (id, since, n)
WHERE (
  SELECT 1 FROM holdfast.log l
  WHERE l.id = a.id AND l.finished_at >= a.since AND l.finished_at >= %(first)s
    AND l.qid / 2 = (SELECT qid / 2 FROM holdfast.queue WHERE name = %(queue)s)
  LIMIT 1) IS NOT NULL
"""
# Primary key.
TAKE_BACK = """
WITH gone AS (
  DELETE FROM holdfast.message
  WHERE home = (SELECT qid / 2 FROM holdfast.queue WHERE name = %(queue)s) AND id = ANY(%(ids)s)
  RETURNING qid, part, state
)
INSERT INTO holdfast.delta (qid, part, ready, delayed)
SELECT qid, part, -count(*) FILTER (WHERE state = 0), -count(*) FILTER (WHERE state = 1)
FROM gone GROUP BY qid, part
"""


class Enqueueing:
    def __init__(self, db: Connections) -> None:
        self._db = db

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        receipt: str | None,
        finished_since: Mapping[int, int] | None,
    ) -> list[Enqueued]:
        """In a transaction of its own."""
        at_once = receipt is None and not finished_since
        if at_once and all(message.queue == messages[0].queue for message in messages):
            return self._insert(messages, now)
        return self._db.run(
            lambda db: self.within(db, messages, now, receipt, finished_since), at_once=at_once
        )

    def _insert(self, messages: Sequence[Message], now: int) -> list[Enqueued]:
        bind = {**write_messages(messages, now), "queue": messages[0].queue, "n": len(messages)}
        rows = self._db.rows_unless_held(ENQUEUE_NEW, bind)
        if rows is None:
            rows = self._db.rows(ENQUEUE, bind)
        return _answers(messages, rows[0])

    def within(
        self,
        db: Connection,
        messages: Sequence[Message],
        now: int,
        receipt: str | None,
        finished_since: Mapping[int, int] | None,
    ) -> list[Enqueued]:
        """In the transaction that is open on `db`."""
        if receipt is not None and not self._note(db, receipt, now):
            return [Enqueued.HELD] * len(messages)
        answers: dict[int, Enqueued] = {}
        sent: list[tuple[list[int], Any]] = []
        # All are sent, in a pipeline at once, before the first answer is read.
        for name in sorted({message.queue for message in messages}):
            mine = [n for n, message in enumerate(messages) if message.queue == name]
            part = [messages[n] for n in mine]
            bind = {**write_messages(part, now), "queue": name, "n": len(part)}
            sent.append((mine, db.execute(self._db.sql(ENQUEUE), bind, binary=True)))
        for mine, cursor in sent:
            told = _answers([messages[n] for n in mine], cursor.fetchone())
            answers |= zip(mine, told, strict=True)
        if finished_since:
            new = [n for n in finished_since if answers[n] is Enqueued.STORED]
            answers |= self._take_back(db, messages, new, finished_since)
        return [answers[n] for n in range(len(messages))]

    def _note(self, db: Connection, receipt: str, now: int) -> bool:
        """Keep a receipt; False if it is there already."""
        bind = {"kind": "receipt", "name": receipt, "value": b"", "now": now}
        return bool(self._db.within(db)(NEW, bind))

    def _take_back(
        self, db: Connection, messages: Sequence[Message], new: list[int], since: Mapping[int, int]
    ) -> dict[int, Enqueued]:
        """Of what was just stored, what had finished before. No other connection can enqueue or
        finish these ids until this transaction ends, so a look after the insert misses no row."""
        rows = self._db.within(db)
        finished: dict[int, Enqueued] = {}
        by_queue: dict[str, list[int]] = {}
        for n in new:
            by_queue.setdefault(messages[n].queue, []).append(n)
        for queue, mine in sorted(by_queue.items()):
            bind: dict[str, Any] = {
                "queue": queue,
                "ids": arrays.uuids([messages[n].id for n in mine]),
                "sinces": arrays.ints([since[n] for n in mine]),
                "first": min(since[n] for n in mine),
            }
            again: list[int] = [mine[number - 1] for (number,) in rows(FINISHED, bind)]
            if again:
                bind = {"queue": queue, "ids": arrays.uuids([messages[n].id for n in again])}
                rows(TAKE_BACK, bind)
                finished |= dict.fromkeys(again, Enqueued.HELD)
        return finished

    def restore(self, queue: str, finished: Sequence[Finished], now: int) -> int:
        unique = list(first_of_each(finished))
        bind = {**write_finished(unique, now), "queue": queue, "day_ms": DAY_MS}
        qid, new = self._db.rows(RESTORE, bind)[0]
        must_exist(queue, qid)
        return new


def _answers(messages: Sequence[Message], row: Row | None) -> list[Enqueued]:
    assert row is not None
    qid, n, ids = row
    must_exist(messages[0].queue, qid)
    if n == len(messages):
        return [Enqueued.STORED] * n
    stored: set[str] = set(ids or ())
    answers: list[Enqueued] = []
    for message in messages:  # of one id twice, the first was kept
        answers.append(Enqueued.STORED if message.id in stored else Enqueued.HELD)
        stored.discard(message.id)
    return answers
