"""What the store runs, each headed by the index that it keeps to; for the schema `holdfast`."""

from __future__ import annotations

from holdfast.model.backoff import SECONDS_MAX
from holdfast.stores.contract import NO_DEADLINE
from holdfast.stores.postgres.rows import COLUMNS, LEASED_COLUMNS

OWN_MS = (
    f"round(CASE WHEN ack_timeout BETWEEN 0 AND {SECONDS_MAX} THEN ack_timeout END * 1000)::bigint"
)
"""A message's own time-out; none if it was damaged, which would end the lease of its neighbours
with an error. NaN and infinity are greater than any other number."""

# Primary keys, in order of the ids: two batches that name the same messages never deadlock. The row
# of the queue is locked so that nobody deletes it meanwhile, before the first
# number is drawn. A held id is skipped; which ones were is told only if any was.
ENQUEUE = """
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
  ON CONFLICT DO NOTHING
  RETURNING id, qid, part, state
), counted AS (
  INSERT INTO holdfast.delta (qid, part, ready, delayed)
  SELECT qid, part, count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1)
  FROM stored GROUP BY qid, part
)
SELECT (SELECT qid FROM q), count(*),
  CASE WHEN count(*) < %(n)s THEN array_agg(id::text) END FROM stored
"""

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

# The hopeful way, tried first: new ids are not held. If one is, the statement fails as a whole. To
# be ready to skip a row costs PostgreSQL half as much again.
ENQUEUE_NEW = ENQUEUE.replace("  ON CONFLICT DO NOTHING\n", "")

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

# Index message_ready. Nothing is taken while delayed messages are due: they come first in line.
_DUE = """
EXISTS (SELECT 1 FROM holdfast.message
        WHERE qid = (SELECT qid FROM q) AND state = 1 AND available_at <= %(now)s)
"""
_LIMIT = f"CASE WHEN {_DUE} THEN 0 ELSE %(limit)s END"
PICK = f"""
SELECT ctid FROM holdfast.message
WHERE qid = (SELECT qid FROM q) AND state = 0
ORDER BY rank, place
LIMIT {_LIMIT}
FOR UPDATE SKIP LOCKED
"""
# Index message_ready_split, one ordered walk for each partition.
PICK_PARTS = f"""
SELECT ctid FROM (
  SELECT m.ctid, m.rank, m.place FROM unnest(%(partitions)s) AS p (part) CROSS JOIN LATERAL (
    SELECT ctid, rank, place FROM holdfast.message
    WHERE qid = (SELECT qid FROM q) AND state = 0 AND split AND part = p.part
    ORDER BY rank, place
    LIMIT {_LIMIT}
    FOR UPDATE SKIP LOCKED
  ) m ORDER BY rank, place LIMIT %(limit)s
) best
"""
# Index message_ready, one walk for each rank from where it was worked off to (lowmark.py), until
# there are enough.
PICK_ABOVE = f"""
SELECT ctid FROM (
  SELECT m.ctid FROM unnest(%(ranks)s, %(lows)s) AS l (rank, low) CROSS JOIN LATERAL (
    SELECT ctid FROM holdfast.message
    WHERE qid = (SELECT qid FROM q) AND state = 0 AND rank = l.rank AND place >= l.low
    ORDER BY place
    LIMIT {_LIMIT}
    FOR UPDATE SKIP LOCKED
  ) m LIMIT %(limit)s
) best
"""
# By row address: the rows were just locked, and no plan is faster or steadier. "state + 0", because
# "state = 0" would invite the index of all that is ready. Who asks for some partitions by an index
# that knows none (`any` is false) gets nothing once the queue has more than one.
_TAKE = f"""
WITH q AS (SELECT qid, partitions FROM holdfast.queue WHERE name = %(queue)s AND NOT paused),
leased AS (
  UPDATE holdfast.message SET
    state = 2, token = %(base)s + seq, attempts = attempts + 1, owner = %(owner)s,
    leased_at = %(now)s, first_leased_at = coalesce(first_leased_at, %(now)s), batch = %(batch)s,
    verb = NULL, deadline = %(now)s + coalesce({OWN_MS}, %(timeout)s)
  WHERE ctid = ANY (ARRAY({{pick}})) AND state + 0 = 0
    AND (%(any)s OR (SELECT partitions FROM q) = 1)
  RETURNING rank, place, qid, token, deadline, {COLUMNS}
), counted AS (
  INSERT INTO holdfast.delta (qid, part, ready, leased)
  SELECT qid, part, -count(*), count(*) FROM leased GROUP BY qid, part
)
SELECT rank, place, token, deadline, {COLUMNS.replace("id::text", "id")} FROM leased
"""
LEASE = _TAKE.format(pick=PICK)
LEASE_PARTS = _TAKE.format(pick=PICK_PARTS)
LEASE_ABOVE = _TAKE.format(pick=PICK_ABOVE)

# Of partitions by their claims: index claim_pkey. The claims stay locked until the lease is there:
# whoever takes one over waits for that, or was first and is seen. Locked messages are waited for,
# and found by their ids: what was waited for has moved to another address.
_OWNED = """
owned AS (
  SELECT a.part FROM unnest(%(partitions)s, %(claims)s, %(epochs)s) AS a (part, claim, epoch)
  CROSS JOIN LATERAL (
    SELECT 1 FROM holdfast.claim WHERE name = a.claim AND owner = %(owner)s
      AND claim.epoch = a.epoch AND expires_at > %(now)s FOR SHARE) held
),
leased AS ("""
_TAKE_OWNED = _TAKE.replace("\nleased AS (", _OWNED).replace(
    "WHERE ctid = ANY", "WHERE home = (SELECT qid / 2 FROM q) AND id = ANY"
)
PICK_OWNED_PARTS = (
    PICK_PARTS.replace("unnest(%(partitions)s) AS p (part)", "owned p")
    .replace("ctid", "id")
    .replace(" SKIP LOCKED", "")
)
# Index message_ready: of a queue that has one partition.
PICK_OWNED = PICK_OWNED_PARTS.replace("split AND part = p.part", "p.part = 0")
LEASE_OWNED = _TAKE_OWNED.format(pick=PICK_OWNED)
LEASE_OWNED_PARTS = _TAKE_OWNED.format(pick=PICK_OWNED_PARTS)

# The same to reserve: no deadline, and the answer is only a count.
HOLD, HOLD_PARTS, HOLD_OWNED, HOLD_OWNED_PARTS = (
    statement[: statement.rindex("SELECT rank")].replace(
        f"%(now)s + coalesce({OWN_MS}, %(timeout)s)", str(NO_DEADLINE)
    )
    + "SELECT count(*) FROM leased"
    for statement in (LEASE, LEASE_PARTS, LEASE_OWNED, LEASE_OWNED_PARTS)
)
# When another consumer is at what is due: the rest does not wait for that.
ANYWAY = {
    lease: lease.replace(_LIMIT, "%(limit)s") for lease in (LEASE, LEASE_PARTS, HOLD, HOLD_PARTS)
}

# Index message_delayed.
PROMOTE = """
WITH due AS (
  UPDATE holdfast.message SET state = 0
  WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.message
    WHERE qid = %(qid)s AND state = 1 AND available_at <= %(now)s
    ORDER BY available_at, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) AND state + 0 = 1
  RETURNING qid, part
), counted AS (
  INSERT INTO holdfast.delta (qid, part, ready, delayed)
  SELECT qid, part, count(*), -count(*) FROM due GROUP BY qid, part
)
SELECT count(*) FROM due
"""
# Index message_ready, one walk for each queue in the order of the names, until there are enough. A
# queue gives nothing while delayed messages of its own are due, unless `anyway`. The rows are then
# read by their addresses, one by one.
LEASE_MANY = f"""
WITH asked AS (
  SELECT a.n, q.qid, a.most, a.timeout
  FROM unnest(%(queues)s, %(mosts)s, %(timeouts)s) WITH ORDINALITY AS a (name, most, timeout, n)
  JOIN holdfast.queue q ON q.name = a.name AND NOT q.paused
  ORDER BY a.n
), picked AS MATERIALIZED (
  SELECT found.address, asked.n, asked.timeout FROM asked CROSS JOIN LATERAL (
    SELECT ctid AS address FROM holdfast.message m
    WHERE m.qid = asked.qid AND m.state = 0
    ORDER BY rank, place
    LIMIT CASE WHEN NOT %(anyway)s AND EXISTS (
        SELECT 1 FROM holdfast.message d
        WHERE d.qid = asked.qid AND d.state = 1 AND d.available_at <= %(now)s)
      THEN 0 ELSE asked.most END
    FOR UPDATE SKIP LOCKED
  ) found LIMIT %(limit)s
), leased AS (
  UPDATE holdfast.message SET
    state = 2, token = %(base)s + seq, attempts = attempts + 1, owner = %(owner)s,
    leased_at = %(now)s, first_leased_at = coalesce(first_leased_at, %(now)s), batch = NULL,
    verb = NULL,
    deadline = %(now)s + coalesce({OWN_MS}, picked.timeout)
  FROM picked
  WHERE message.ctid = picked.address AND message.state + 0 = 0
  RETURNING picked.n, rank, place, qid, token, deadline, {COLUMNS}
), counted AS (
  INSERT INTO holdfast.delta (qid, part, ready, leased)
  SELECT qid, part, -count(*), count(*) FROM leased GROUP BY qid, part
)
SELECT n, rank, place, token, deadline, {COLUMNS.replace("id::text", "id")} FROM leased
"""
# Index message_delayed. How many of the queues had something that is due.
PROMOTE_MANY = """
WITH late AS (
  SELECT qid FROM holdfast.queue q
  WHERE name = ANY (%(queues)s) AND NOT paused AND EXISTS (
    SELECT 1 FROM holdfast.message m
    WHERE m.qid = q.qid AND m.state = 1 AND m.available_at <= %(now)s)
), due AS (
  UPDATE holdfast.message SET state = 0
  WHERE ctid = ANY (ARRAY(
    SELECT found.ctid FROM late CROSS JOIN LATERAL (
      SELECT ctid FROM holdfast.message m
      WHERE m.qid = late.qid AND m.state = 1 AND m.available_at <= %(now)s
      ORDER BY available_at, seq LIMIT %(most)s FOR UPDATE SKIP LOCKED
    ) found)) AND state + 0 = 1
  RETURNING qid, part
), counted AS (
  INSERT INTO holdfast.delta (qid, part, ready, delayed)
  SELECT qid, part, count(*), -count(*) FROM due GROUP BY qid, part
)
SELECT count(*) FROM late
"""
# For who must have all that is due: what another consumer is at is waited for.
PROMOTE_ALL = PROMOTE.replace(" SKIP LOCKED", "")
# Indexes message_ready and message_delayed.
ANYTHING = """
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
OVERDUE = f"""
SELECT {LEASED_COLUMNS} FROM holdfast.message
WHERE qid = %(qid)s AND state = 2 AND deadline <= %(now)s
ORDER BY deadline, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
# Index message_batch.
BATCH = f"""
SELECT {LEASED_COLUMNS} FROM holdfast.message
WHERE batch = %(batch)s AND qid = %(qid)s AND state = 2
  AND id > coalesce(%(after)s, '00000000-0000-0000-0000-000000000000')::uuid
ORDER BY message.id LIMIT %(limit)s
"""
SPEC = """
SELECT qid, name, partitions, policy, paused, created_at, revision, ordered, starts
FROM holdfast.queue
"""
# Index message_leased, one step for each queue that has leases.
LATE_QUEUES = f"""
WITH RECURSIVE held AS (
  (SELECT qid, deadline FROM holdfast.message WHERE state = 2
   ORDER BY qid, deadline, seq LIMIT 1)
  UNION ALL
  SELECT next.qid, next.deadline FROM held CROSS JOIN LATERAL (
    SELECT m.qid, m.deadline FROM holdfast.message m WHERE m.state = 2 AND m.qid > held.qid
    ORDER BY m.qid, m.deadline, m.seq LIMIT 1) next
)
{SPEC} WHERE qid = ANY (ARRAY(SELECT qid FROM held WHERE deadline <= %(now)s)) ORDER BY name
"""
END = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM holdfast.seq"

DEPTHS = """
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
DEPTH = """
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

PUT_QUEUE = """
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
SPLIT = """
WITH whole AS (
  SELECT ctid FROM holdfast.message
  WHERE qid = %(qid)s AND state = {state} AND NOT split LIMIT %(limit)s FOR UPDATE
), done AS (
  UPDATE holdfast.message SET split = true WHERE ctid = ANY (ARRAY(SELECT ctid FROM whole))
)
SELECT count(*) FROM whole
"""
CLAIM = """
INSERT INTO holdfast.claim AS c (name, owner, epoch, expires_at)
VALUES (%(name)s, %(owner)s, 1, %(now)s + %(ttl)s)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at,
  epoch = c.epoch + CASE WHEN c.owner = excluded.owner AND c.expires_at > %(now)s THEN 0 ELSE 1 END
WHERE c.owner = excluded.owner OR c.expires_at <= %(now)s
RETURNING epoch
"""
CLAIMS = "SELECT name, owner, epoch, expires_at FROM holdfast.claim WHERE name = ANY(%(names)s)"
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
PURGE = """
DELETE FROM holdfast.message WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM holdfast.message WHERE qid = %(qid)s AND state = {state}
  LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) AND state + 0 = {state}
RETURNING part
"""

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
HOLDS = """
SELECT 1 FROM unnest(%(qids)s) AS q (qid) WHERE EXISTS (
  SELECT 1 FROM holdfast.message m WHERE m.qid = q.qid AND m.state = 0)
OR EXISTS (SELECT 1 FROM holdfast.message m WHERE m.qid = q.qid AND m.state = 1)
OR EXISTS (SELECT 1 FROM holdfast.message m WHERE m.qid = q.qid AND m.state = 2)
"""
