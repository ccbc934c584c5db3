"""What the store runs, each headed by the index that it keeps to; for the schema `holdfast`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.model.moves import State
from holdfast.stores.postgres.rows import COLUMNS, LEASED_COLUMNS

# Indexes message_ready and message_delayed.
ANYTHING: str = """
SELECT name, qid, paused, partitions,
  EXISTS (SELECT 1 FROM holdfast.message m WHERE m.qid = q.qid AND m.state = 0),
  (SELECT available_at FROM holdfast.message m WHERE m.qid = q.qid AND m.state = 1
   ORDER BY available_at LIMIT 1)
FROM holdfast.queue q WHERE name = ANY(%(names)s)
"""
# Index message_ready_split.
READY_IN = """
SELECT 1 FROM unnest(%(partitions)s) AS p (part) CROSS JOIN LATERAL (
  SELECT 1 FROM holdfast.message
  WHERE qid = %(qid)s AND state = 0 AND split AND part = p.part LIMIT 1) r LIMIT 1
"""

# Index message_leased. What somebody is settling at this moment is passed over.
OVERDUE: str = f"""
SELECT {LEASED_COLUMNS} FROM holdfast.message
WHERE qid = %(qid)s AND state = 2 AND deadline <= %(now)s
ORDER BY deadline, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
# Index message_batch.
BATCH: str = f"""
SELECT {LEASED_COLUMNS} FROM holdfast.message
WHERE batch = %(batch)s AND qid = %(qid)s AND state = 2
  AND id > coalesce(%(after)s, '00000000-0000-0000-0000-000000000000')::uuid
ORDER BY message.id LIMIT %(limit)s
"""
# Primary key.
HELD: str = f"""
SELECT (SELECT name FROM holdfast.queue q WHERE q.qid = m.qid), state = 2, {LEASED_COLUMNS}
FROM holdfast.message m WHERE home = %(home)s AND id = ANY(%(ids)s)
"""
# Index log_id, of every day.
LOGGED: str = f"""
SELECT (SELECT name FROM holdfast.queue q WHERE q.qid = l.qid), seq, finished_at, status, leased_at,
  owner, result, {COLUMNS}
FROM holdfast.log l WHERE id = ANY(%(ids)s) AND qid + 0 IN (%(source)s, %(dlq)s)
"""

_SPEC = """
SELECT qid, name, partitions, policy, paused, created_at, revision, ordered, starts
FROM holdfast.queue"""
SPECS: str = f"{_SPEC} ORDER BY name"
SPECS_OF = f"{_SPEC} WHERE name = ANY(%(names)s)"
# Waits for everybody who is enqueueing, and lets nobody begin to.
QUEUES_TO_DELETE: str = """
SELECT qid FROM holdfast.queue WHERE name = ANY(%(names)s) ORDER BY qid FOR UPDATE
"""
LOCK = "SELECT pg_advisory_xact_lock(hashtext(%(name)s))"
NEW_HOME: str = "SELECT nextval('holdfast.home')"
SHAPE: str = "SELECT qid, partitions FROM holdfast.queue WHERE name = %(name)s"
QIDS = "SELECT name, qid FROM holdfast.queue WHERE name = ANY(%(names)s)"
# Index message_leased, one step for each queue that has leases.
LATE_QUEUES: str = f"""
WITH RECURSIVE held AS (
  (SELECT qid, deadline FROM holdfast.message WHERE state = 2
   ORDER BY qid, deadline, seq LIMIT 1)
  UNION ALL
  SELECT next.qid, next.deadline FROM held CROSS JOIN LATERAL (
    SELECT m.qid, m.deadline FROM holdfast.message m WHERE m.state = 2 AND m.qid > held.qid
    ORDER BY m.qid, m.deadline, m.seq LIMIT 1) next
)
{_SPEC} WHERE qid = ANY (ARRAY(SELECT qid FROM held WHERE deadline <= %(now)s)) ORDER BY name
"""
END: str = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM holdfast.seq"

DEPTHS: str = """
SELECT q.name, q.qid, q.paused, q.partitions, coalesce(d.ready, 0)::bigint,
  coalesce(d.delayed, 0)::bigint, coalesce(d.leased, 0)::bigint, coalesce(d.done, 0)::bigint,
  coalesce(x.dead, 0)::bigint
FROM holdfast.queue q
LEFT JOIN LATERAL (SELECT sum(ready) AS ready, sum(delayed) AS delayed, sum(leased) AS leased,
  sum(done) AS done FROM holdfast.delta WHERE qid = q.qid) d ON true
LEFT JOIN LATERAL (SELECT sum(ready + delayed + leased) AS dead FROM holdfast.delta
  WHERE qid = q.qid + 1 AND q.qid %% 2 = 0) x ON true
WHERE q.name = ANY(%(names)s)
"""
# Of each partition.
DEPTH: str = """
SELECT part, sum(ready)::bigint, sum(delayed)::bigint, sum(leased)::bigint
FROM holdfast.delta WHERE qid = %(qid)s GROUP BY part
"""
# The head of each lane: index message_ready, or message_ready_split where there are partitions.
HEADS = """
SELECT q.qid, 0, r.rank, h.place, h.enqueued_at
FROM unnest(%(whole)s) AS q (qid) CROSS JOIN generate_series(0, 9) AS r (rank) CROSS JOIN LATERAL (
  SELECT place, enqueued_at FROM holdfast.message m
  WHERE m.qid = q.qid AND state = 0 AND m.rank = r.rank ORDER BY place LIMIT 1) h
UNION ALL
SELECT q.qid, p.part, r.rank, h.place, h.enqueued_at
FROM unnest(%(split)s, %(partitions)s) AS q (qid, partitions)
CROSS JOIN generate_series(0, q.partitions - 1) AS p (part)
CROSS JOIN generate_series(0, 9) AS r (rank) CROSS JOIN LATERAL (
  SELECT place, enqueued_at FROM holdfast.message m
  WHERE m.qid = q.qid AND state = 0 AND split AND m.part = p.part AND m.rank = r.rank
  ORDER BY place LIMIT 1) h
"""
# Index message_delayed: due, but no lease has come by to make them ready.
DUE = """
SELECT qid, part, rank, min(place), (array_agg(enqueued_at ORDER BY place))[1], count(*)
FROM holdfast.message WHERE qid = ANY(%(qids)s) AND state = 1 AND available_at <= %(now)s
GROUP BY qid, part, rank
"""

PUT_QUEUE: str = """
INSERT INTO holdfast.queue (qid, name, partitions, paused, policy, created_at, revision, ordered,
  starts)
VALUES (%(qid)s, %(name)s, %(partitions)s, %(paused)s, %(policy)s, %(created_at)s, %(revision)s,
  %(ordered)s, %(starts)s)
ON CONFLICT (name) DO UPDATE SET partitions = excluded.partitions, paused = excluded.paused,
  policy = excluded.policy, created_at = excluded.created_at, revision = excluded.revision,
  ordered = excluded.ordered, starts = excluded.starts
"""
# Waits for everybody who is enqueueing; whoever comes later marks what they store.
SPLIT_NEW = """
WITH q AS (SELECT qid FROM holdfast.queue WHERE name = %(name)s AND partitions = 1 FOR UPDATE)
UPDATE holdfast.queue SET split = true WHERE qid = (SELECT qid FROM q) RETURNING qid
"""
# Indexes message_delayed and message_ready. Repeated until there is none.
SPLIT = {
    state: f"""
WITH whole AS (
  SELECT ctid FROM holdfast.message
  WHERE qid = %(qid)s AND state = {state} AND NOT split LIMIT %(limit)s FOR UPDATE
), done AS (
  UPDATE holdfast.message SET split = true WHERE ctid = ANY (ARRAY(SELECT ctid FROM whole))
)
SELECT count(*) FROM whole
"""
    for state in (1, 0)
}
CLAIM = """
INSERT INTO holdfast.claim AS c (name, owner, epoch, expires_at)
VALUES (%(name)s, %(owner)s, 1, %(now)s + %(ttl)s)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at,
  epoch = c.epoch + CASE WHEN c.owner = excluded.owner AND c.expires_at > %(now)s THEN 0 ELSE 1 END
WHERE c.owner = excluded.owner OR c.expires_at <= %(now)s
RETURNING epoch
"""
CLAIMS: str = (
    "SELECT name, owner, epoch, expires_at FROM holdfast.claim WHERE name = ANY(%(names)s)"
)
# Index log_finished, in the days up to `before` only. Which of the queues have rows that may go,
# and how many of them because there are too many.
TO_TRIM = """
SELECT n, qid, over FROM (
  SELECT a.n, q.qid, a.before, CASE WHEN a.keep IS NULL THEN 0 ELSE greatest(0, (
      SELECT coalesce(sum(logged), 0) FROM holdfast.delta d WHERE d.qid = q.qid
    )::bigint - a.keep) END AS over
  FROM unnest(%(names)s::text[], %(befores)s::bigint[], %(keeps)s::bigint[])
    WITH ORDINALITY AS a (name, before, keep, n)
  JOIN holdfast.queue q ON q.name = a.name
) asked
WHERE over > 0 OR EXISTS (
  SELECT 1 FROM holdfast.log l WHERE l.qid = asked.qid AND l.finished_at < asked.before)
"""
# Index log_finished.
OLDEST = """
SELECT finished_at, seq FROM holdfast.log WHERE qid = %(qid)s
ORDER BY finished_at, seq LIMIT %(limit)s
"""
TRIM = """
DELETE FROM holdfast.log WHERE qid = %(qid)s AND (finished_at, seq) <= (%(finished_at)s, %(seq)s)
RETURNING part, finished_at
"""
# Indexes message_ready and message_delayed.
PURGE = {
    state: f"""
DELETE FROM holdfast.message WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM holdfast.message WHERE qid = %(qid)s AND state = {state}
  LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) AND state + 0 = {state}
RETURNING part
"""
    for state in (0, 1)
}
DELETE_QUEUE: Sequence[str] = [
    f"DELETE FROM holdfast.{table} WHERE qid = ANY(%(qids)s)"
    for table in ("message", "log", "delta", "queue")
]

FACTS = ("version", "fsync", "synchronous_commit", "oldest_transaction_s")
LOOK = """
SELECT current_setting('server_version'), current_setting('fsync'),
  current_setting('synchronous_commit'),
  coalesce(extract(epoch FROM max(clock_timestamp() - xact_start))::int, 0)
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

MAKE = "CREATE SCHEMA IF NOT EXISTS holdfast;"
THERE = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s"
MADE = """
SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = 'meta'
"""

# Indexes message_ready, message_delayed and message_leased.
NOT_EMPTY: str = """
SELECT 1 FROM unnest(%(qids)s) AS q (qid) WHERE EXISTS (
  SELECT 1 FROM holdfast.message m WHERE m.qid = q.qid AND m.state = 0)
OR EXISTS (SELECT 1 FROM holdfast.message m WHERE m.qid = q.qid AND m.state = 1)
OR EXISTS (SELECT 1 FROM holdfast.message m WHERE m.qid = q.qid AND m.state = 2)
"""


def _page(first: str, second: str, where: str, columns: str = COLUMNS) -> str:
    return f"""
SELECT {first}, {second}, place, {columns} FROM holdfast.message
WHERE qid = %(qid)s AND {where} AND ({first}, {second}) > (%(first)s, %(second)s)
  AND enqueued_at >= %(since)s AND enqueued_at < %(until)s AND place <= %(upto)s
ORDER BY {first}, {second} LIMIT %(limit)s
"""


def _page_of_log(where: str) -> str:
    return f"""
SELECT finished_at, seq, seq, finished_at, status, leased_at, owner, result, {COLUMNS}
FROM holdfast.log
WHERE {where} AND (finished_at, seq) > (%(first)s, %(second)s)
  AND finished_at >= %(since)s AND finished_at < %(until)s
ORDER BY finished_at, seq LIMIT %(limit)s
"""


_BETWEEN = "finished_at >= %(since)s AND finished_at < %(until)s"
# By keyset cursor, each an index walk of the page's own length.
# Index message_ready.
READY = _page("rank", "place", "state = 0")
# Index message_delayed: due, but no lease has come by to make them ready.
READY_SOON = _page("rank", "place", "state = 1 AND available_at <= %(now)s")
# Index message_delayed.
DELAYED = _page("available_at", "seq", "state = 1 AND available_at > %(now)s")
# Index message_leased.
LEASED = _page("deadline", "seq", "state = 2", LEASED_COLUMNS)
# Index log_finished, of every day.
LOG = _page_of_log("qid = %(qid)s")
# Index log_id.
LOG_ONE = _page_of_log("id = %(id)s::uuid AND qid + 0 = %(qid)s")
PAGES = {
    State.READY: (READY, READY_SOON),
    State.DELAYED: (DELAYED,),
    State.LEASED: (LEASED,),
    State.LOG: (LOG,),
}

_WALKS = {
    State.READY: ("message", "rank", "place", "state = 0"),
    State.DELAYED: ("message", "available_at", "seq", "state = 1"),
    State.LEASED: ("message", "deadline", "seq", "state = 2"),
    State.LOG: ("log", "finished_at", "seq", _BETWEEN),
}
COUNTS: Mapping[State, str] = {
    state: f"SELECT count(*) FROM holdfast.{table} WHERE qid = %(qid)s AND {where}"
    for state, (table, _, _, where) in _WALKS.items()
}
# Every so many rows of an index walk: where one piece of a view ends.
CUTS: Mapping[State, str] = {
    state: f"""
SELECT a, b FROM (
  SELECT {first} AS a, {second} AS b, row_number() OVER (ORDER BY {first}, {second}) AS n
  FROM holdfast.{table} WHERE qid = %(qid)s AND {where}
) walk WHERE n %% %(step)s = 0 ORDER BY a, b
"""
    for state, (table, first, second, where) in _WALKS.items()
}

# Records and events, by primary key.
NEW = """
INSERT INTO holdfast.record (kind, name, value, revision, updated_at)
VALUES (%(kind)s, %(name)s, %(value)s, 1, %(now)s) ON CONFLICT (kind, name) DO NOTHING RETURNING 1
"""
CHANGE = """
UPDATE holdfast.record SET value = %(value)s, revision = revision + 1, updated_at = %(now)s
WHERE kind = %(kind)s AND name = %(name)s AND revision = %(revision)s RETURNING 1
"""
EITHER = """
INSERT INTO holdfast.record AS r (kind, name, value, revision, updated_at)
VALUES (%(kind)s, %(name)s, %(value)s, 1, %(now)s) ON CONFLICT (kind, name)
DO UPDATE SET value = excluded.value, revision = r.revision + 1, updated_at = excluded.updated_at
RETURNING 1
"""
ABSENT = """
SELECT 1 WHERE NOT EXISTS (
  SELECT 1 FROM holdfast.record WHERE kind = %(kind)s AND name = %(name)s)
"""
DELETE = """
DELETE FROM holdfast.record WHERE kind = %(kind)s AND name = %(name)s
  AND revision = coalesce(%(revision)s, revision) RETURNING 1
"""
# A name that begins with a prefix lies between it and the prefix with the last character after it.
_RANGE = (
    "kind = %(kind)s AND name >= %(prefix)s AND name < %(prefix)s || chr(1114111) "
    "AND name > %(after)s"
)
RECORDS: str = f"""
SELECT name, value, revision, updated_at FROM holdfast.record WHERE {_RANGE}
ORDER BY name LIMIT %(limit)s
"""
DROP_RECORDS: str = f"""
DELETE FROM holdfast.record WHERE kind = %(kind)s AND name = ANY (ARRAY(
  SELECT name FROM holdfast.record WHERE {_RANGE} AND updated_at < %(before)s
  ORDER BY name LIMIT %(limit)s)) RETURNING 1
"""
NEW_EVENT = """
INSERT INTO holdfast.event (type, timestamp, payload) VALUES (%(type)s, %(at)s, %(payload)s)
"""
FORGET_EVENTS = """
DELETE FROM holdfast.event WHERE seq <= (SELECT max(seq) FROM holdfast.event) - %(kept)s
"""
LAST_EVENT: str = "SELECT coalesce(max(seq), 0) FROM holdfast.event"
EVENTS: str = """
SELECT type, timestamp, payload, seq FROM holdfast.event WHERE seq > %(after)s
ORDER BY seq LIMIT %(limit)s
"""
