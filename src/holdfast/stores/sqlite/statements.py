"""What the store runs outside of leasing, enqueueing and settling, each headed by its index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.model.moves import State
from holdfast.stores.rows import COLUMNS
from holdfast.stores.sqlite.rows import LEASED_COLUMNS, leased_columns

_SPEC = """
SELECT qid, name, partitions, policy, paused, created_at, revision, ordered, starts
FROM holdfast_queue"""
SPECS: str = f"{_SPEC} ORDER BY name"
SPEC_OF = f"{_SPEC} WHERE name = :name"
# Index holdfast_leased, one step for each queue that has leases.
LATE_QUEUES: str = f"""
WITH RECURSIVE held (qid) AS (
  SELECT min(qid) FROM holdfast_message WHERE state = 2
  UNION ALL
  SELECT (SELECT min(qid) FROM holdfast_message m WHERE m.state = 2 AND m.qid > held.qid)
  FROM held WHERE qid IS NOT NULL
)
{_SPEC} WHERE qid IN (
  SELECT qid FROM held WHERE (
    SELECT min(deadline) FROM holdfast_message m WHERE m.state = 2 AND m.qid = held.qid
  ) <= :now
) ORDER BY name
"""
QID = "SELECT qid FROM holdfast_queue WHERE name = ?"
SHAPE: str = "SELECT qid, partitions FROM holdfast_queue WHERE name = :name"
PARTITIONS = "SELECT partitions FROM holdfast_queue WHERE qid = :qid"
NEW_HOME: str = "UPDATE holdfast_meta SET value = value + 1 WHERE name = 'home' RETURNING value"
PUT_QUEUE: str = """
REPLACE INTO holdfast_queue (qid, name, partitions, paused, policy, created_at, revision, ordered,
  starts)
VALUES (:qid, :name, :partitions, :paused, :policy, :created_at, :revision, :ordered, :starts)
"""
QUEUES_TO_DELETE: str = """
SELECT qid FROM holdfast_queue WHERE name IN (SELECT value FROM json_each(:names))
"""
NOT_EMPTY: str = """
SELECT 1 FROM holdfast_depth WHERE qid IN (SELECT value FROM json_each(:qids))
GROUP BY qid HAVING sum(ready + delayed + leased) <> 0
"""
DELETE_QUEUE: Sequence[str] = [
    *(
        f"DELETE FROM holdfast_{table} WHERE qid IN (SELECT value FROM json_each(:qids))"
        for table in ("message", "log", "depth", "queue")
    ),
    "DELETE FROM holdfast_lease "
    "WHERE lease NOT IN (SELECT lease FROM holdfast_message WHERE state = 2)",
]

# Index holdfast_leased.
OVERDUE: str = f"""
SELECT {LEASED_COLUMNS} FROM holdfast_message LEFT JOIN holdfast_lease USING (lease)
WHERE qid = :qid AND state = 2 AND deadline <= :now ORDER BY deadline, seq LIMIT :limit
"""
# Index holdfast_batch.
BATCH: str = f"""
SELECT {LEASED_COLUMNS} FROM holdfast_message LEFT JOIN holdfast_lease USING (lease)
WHERE batch = :batch AND qid = :qid AND id > coalesce(:after, '') ORDER BY id LIMIT :limit
"""
# Index holdfast_message_id.
HELD: str = f"""
SELECT name, state = 2, {leased_columns("m.lease")}
FROM holdfast_message m JOIN (SELECT qid, name FROM holdfast_queue) USING (qid)
LEFT JOIN holdfast_lease l ON l.lease = m.lease AND m.state = 2
WHERE home = :home AND id IN (SELECT value FROM json_each(:ids))
"""
# Index holdfast_log_id, for the queue and for its dead-letter queue.
LOGGED: str = f"""
SELECT name, seq, finished_at, status, leased_at, owner, result, {COLUMNS}
FROM holdfast_log JOIN (SELECT qid, name FROM holdfast_queue) USING (qid)
WHERE qid IN (:source, :dlq) AND id IN (SELECT value FROM json_each(:ids))
  AND typeof(finished_at) = 'integer'
"""

# Indexes holdfast_ready and holdfast_delayed, one look into each for every queue that is named.
# The CROSS JOIN keeps to the order of the names.
ANYTHING: str = """
SELECT q.name, q.qid, q.paused, q.partitions,
  EXISTS (SELECT 1 FROM holdfast_message m WHERE m.qid = q.qid AND m.state = 0),
  (SELECT min(available_at) FROM holdfast_message m WHERE m.qid = q.qid AND m.state = 1)
FROM json_each(:names) names CROSS JOIN holdfast_queue q ON q.name = names.value
"""
# Index holdfast_ready.
READY_IN = """
SELECT 1 FROM holdfast_message WHERE qid = :qid AND state = 0 AND part = :part LIMIT 1
"""
END: str = "SELECT value FROM holdfast_meta WHERE name = 'seq'"

DEPTHS: str = """
SELECT q.name, q.qid, q.paused, q.partitions, coalesce(sum(d.ready), 0),
  coalesce(sum(d.delayed), 0), coalesce(sum(d.leased), 0), coalesce(sum(d.done), 0),
  coalesce((SELECT sum(ready + delayed + leased) FROM holdfast_depth x
            WHERE x.qid = q.qid + 1 AND q.qid % 2 = 0), 0)
FROM holdfast_queue q LEFT JOIN holdfast_depth d ON d.qid = q.qid
WHERE q.name IN (SELECT value FROM json_each(:names)) GROUP BY q.qid
"""
DEPTH: str = "SELECT part, ready, delayed, leased FROM holdfast_depth WHERE qid = :qid"
# The head of each lane, by holdfast_ready.
HEADS = """
WITH lanes(lane) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)),
     parts(part) AS (SELECT part FROM holdfast_depth WHERE qid = :qid)
SELECT part, lane, place, enqueued_at FROM holdfast_message WHERE seq IN (
  SELECT (SELECT seq FROM holdfast_message m WHERE m.qid = :qid AND m.state = 0
          AND m.part = parts.part AND m.lane = lanes.lane ORDER BY place LIMIT 1)
  FROM parts, lanes)
"""
# Index holdfast_delayed: due, but no lease has come by to make them ready.
DUE = """
SELECT part, lane, min(place), enqueued_at, count(*) FROM holdfast_message
WHERE qid = :qid AND state = 1 AND available_at <= :now GROUP BY part, lane
"""
# Rows that no lease, page or sweep can find: a full scan, for `holdfast doctor`.
MISPLACED = """
SELECT id FROM holdfast_message WHERE state IS NOT 0 AND state IS NOT 1 AND state IS NOT 2
  OR qid NOT IN (SELECT qid FROM holdfast_queue) OR typeof(place) <> 'integer'
  OR typeof(available_at) <> 'integer' OR typeof(deadline) <> 'integer'
  OR part NOT BETWEEN 0 AND (SELECT partitions - 1 FROM holdfast_queue q
                             WHERE q.qid = holdfast_message.qid)
LIMIT :limit
"""
# Index holdfast_log_finished. When the oldest row of a log finished, and how many rows there are.
LOGGED_OF = """
SELECT qid,
  (SELECT min(finished_at) FROM holdfast_log l WHERE l.qid = q.qid),
  (SELECT coalesce(sum(logged), 0) FROM holdfast_depth d WHERE d.qid = q.qid)
FROM holdfast_queue q WHERE name = ?
"""
# Index holdfast_log_finished.
TRIM = """
DELETE FROM holdfast_log WHERE seq IN (
  SELECT seq FROM (
    SELECT seq, finished_at, row_number() OVER (ORDER BY finished_at, seq) AS n FROM (
      SELECT seq, finished_at FROM holdfast_log WHERE qid = :qid
      ORDER BY finished_at, seq LIMIT :limit)
  ) WHERE n <= :over OR finished_at < :before
) RETURNING part
"""
PURGE = """
DELETE FROM holdfast_message WHERE seq IN (
  SELECT seq FROM holdfast_message WHERE qid = ? AND state IN (0, 1) LIMIT ?
) RETURNING part, state
"""


def _walks(first: str, second: str, read: str, table: str, where: str) -> tuple[str, str]:
    """A page by keyset cursor, in two walks of one index: the rest of the row's own first column,
    then what lies beyond it. One comparison of both would walk the index from its start every time.

    A row whose place in line was replaced with a text or a fraction has no cursor: it is left out,
    and does not hide what stands behind it. `holdfast doctor` lists it (see MISPLACED).
    """
    down = first == "lane"
    cursor, order, beyond = ("9 - lane", "DESC", "<") if down else (first, "ASC", ">")

    def walk(part: str) -> str:
        return f"""
SELECT {cursor}, {second}, {read} FROM {table}
WHERE qid = :qid AND {where} AND {part}
  AND typeof({first}) = 'integer' AND typeof({second}) = 'integer'
ORDER BY {first} {order}, {second} LIMIT :limit
"""

    return walk(f"{first} = :first AND {second} > :second"), walk(f"{first} {beyond} :first")


_WANTED = "(:any OR (enqueued_at >= :since AND enqueued_at < :until)) AND place <= :upto"
_ENDED = "finished_at >= :since AND finished_at < :until"
_ENDS = f"seq, finished_at, status, leased_at, owner, result, {COLUMNS}"
# Index holdfast_ready, for each partition; the others need only a part of theirs.
READY = _walks(
    "lane",
    "place",
    f"place, {COLUMNS}",
    "holdfast_message",
    f"state = 0 AND part = :part AND {_WANTED}",
)
# Index holdfast_delayed: due, but no lease has come by to make them ready.
READY_SOON = _walks(
    "lane",
    "place",
    f"place, {COLUMNS}",
    "holdfast_message",
    f"state = 1 AND (available_at <= :now) AND {_WANTED}",
)
PAGES = {
    # Index holdfast_delayed.
    State.DELAYED: _walks(
        "available_at",
        "seq",
        f"place, {COLUMNS}",
        "holdfast_message",
        f"state = 1 AND NOT (available_at <= :now) AND {_WANTED}",
    ),
    # Index holdfast_leased.
    State.LEASED: _walks(
        "deadline",
        "seq",
        f"place, {LEASED_COLUMNS}",
        "holdfast_message LEFT JOIN holdfast_lease USING (lease)",
        f"state = 2 AND {_WANTED}",
    ),
    # Index holdfast_log_finished.
    State.LOG: _walks("finished_at", "seq", _ENDS, "holdfast_log", _ENDED),
}
# Index holdfast_log_id: a row for each time an id finished.
LOG_ONE = f"""
SELECT finished_at, seq, {_ENDS} FROM holdfast_log
WHERE qid = :qid AND id = :id AND {_ENDED}
  AND typeof(finished_at) = 'integer' AND typeof(seq) = 'integer'
ORDER BY finished_at, seq
"""

_CUT = {
    State.READY: ("message", "9 - lane", "place", "state = 0"),
    State.DELAYED: ("message", "available_at", "seq", "state = 1"),
    State.LEASED: ("message", "deadline", "seq", "state = 2"),
    State.LOG: ("log", "finished_at", "seq", _ENDED),
}
COUNTS: Mapping[State, str] = {
    state: f"SELECT count(*) FROM holdfast_{table} WHERE qid = :qid AND {where}"
    for state, (table, _, _, where) in _CUT.items()
}
# Every so many rows of an index walk: where one piece of a view ends.
CUTS: Mapping[State, str] = {
    state: f"""
SELECT a, b FROM (
  SELECT {first} AS a, {second} AS b, row_number() OVER (ORDER BY {first}, {second}) AS n
  FROM holdfast_{table} WHERE qid = :qid AND {where}
) WHERE n % :step = 0
"""
    for state, (table, first, second, where) in _CUT.items()
}

# Claims, records and events, by primary key.
CLAIMS: str = """
SELECT name, owner, epoch, expires_at FROM holdfast_claim
WHERE name IN (SELECT value FROM json_each(:names))
"""
CLAIM = "SELECT name, owner, epoch, expires_at FROM holdfast_claim WHERE name = ?"
PUT_CLAIM = "REPLACE INTO holdfast_claim VALUES (?, ?, ?, ?)"
REVISION = "SELECT revision FROM holdfast_record WHERE kind = ? AND name = ?"
PUT = "REPLACE INTO holdfast_record VALUES (?, ?, ?, ?, ?)"
DELETE = "DELETE FROM holdfast_record WHERE kind = ? AND name = ?"
# A name that begins with a prefix lies between it and the prefix with the last character after it.
_RANGE = "kind = :kind AND name >= :prefix AND name < :prefix || char(1114111) AND name > :after"
RECORDS: str = f"""
SELECT name, value, revision, updated_at FROM holdfast_record WHERE {_RANGE}
ORDER BY name LIMIT :limit
"""
DROP_RECORDS: str = f"""
DELETE FROM holdfast_record WHERE kind = :kind AND name IN (
  SELECT name FROM holdfast_record WHERE {_RANGE} AND updated_at < :before
  ORDER BY name LIMIT :limit)
RETURNING 1
"""
NEW_EVENT = "INSERT INTO holdfast_event (type, timestamp, payload) VALUES (?, ?, ?)"
FORGET_EVENTS = """
DELETE FROM holdfast_event WHERE seq <= (SELECT max(seq) FROM holdfast_event) - ?
"""
LAST_EVENT: str = "SELECT coalesce(max(seq), 0) FROM holdfast_event"
EVENTS: str = """
SELECT type, timestamp, payload, seq FROM holdfast_event WHERE seq > :after
ORDER BY seq LIMIT :limit
"""
