"""Bugs that the suite must catch: each a small change to the source, and where it must show.

When a line named here changes, mend the bug with it; a bug that no longer applies is an error.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    caught_by: str


LIFECYCLE, WORKER, SWEEPER = "lifecycle.py", "worker.py", "sweeper.py"
STORE, SETTLE = "stores/sqlite/store.py", "stores/sqlite/settle.py"
CONNECTIONS = "stores/sqlite/connections.py"
PG_STORE, PG_SETTLE = "stores/postgres/store.py", "stores/postgres/settle.py"
PG_SQL = "stores/postgres/statements.py"

BUGS = [
    Bug(
        "one attempt too many",
        LIFECYCLE,
        "    if lease.message.attempts >= (rules.max_attempts or 1):\n        reason",
        "    if lease.message.attempts > (rules.max_attempts or 1):\n        reason",
        "test_retrying.py",
    ),
    Bug(
        "overdue ones never die",
        LIFECYCLE,
        "        if message.attempts >= (rules.max_attempts or 1):\n            move",
        "        if False:\n            move",
        "test_overdue.py",
    ),
    Bug(
        "a sweep that does not see an extension",
        LIFECYCLE,
        "return msgspec.structs.replace(move, overdue_at=now)",
        "return move",
        "test_overdue.py",
    ),
    Bug(
        "a release counts as an attempt",
        LIFECYCLE,
        "return _back(Verb.RELEASE, lease, now, lease.message.attempts - 1, None)",
        "return _back(Verb.RELEASE, lease, now, lease.message.attempts, None)",
        "test_fencing.py",
    ),
    Bug(
        "a redrive keeps the attempts",
        LIFECYCLE,
        "        attempts=0,\n        history=history,",
        "        attempts=message.attempts,\n        history=history,",
        "test_dead.py",
    ),
    Bug(
        "dead letters in the order of enqueueing",
        LIFECYCLE,
        "        tail=True,\n",
        "",
        "test_dead.py",
    ),
    Bug(
        "the queue's policy wins over the message's",
        LIFECYCLE,
        "return own.over(policy)",
        "return policy.over(own)",
        "test_retrying.py",
    ),
    Bug(
        "an explicit delay is ignored",
        LIFECYCLE,
        "if delay is None and rules.backoff is not None:",
        "if rules.backoff is not None:",
        "test_retrying.py",
    ),
    Bug(
        "a lease that counts no attempt",
        STORE,
        "attempts = attempts + 1, lease",
        "attempts = attempts, lease",
        "test_leasing.py",
    ),
    Bug(
        "the first lease time is overwritten",
        SETTLE,
        "  first_leased_at = coalesce(first_leased_at, ?), batch",
        "  first_leased_at = ?, batch",
        "test_finishing.py",
    ),
    Bug(
        "priority is not looked at",
        STORE,
        "part = :part\nORDER BY lane DESC, place LIMIT :limit",
        "part = :part\nORDER BY place LIMIT :limit",
        "test_leasing.py",
    ),
    Bug(
        "due one millisecond late",
        STORE,
        "AND available_at <= :now ORDER BY available_at LIMIT",
        "AND available_at < :now ORDER BY available_at LIMIT",
        "test_leasing.py",
    ),
    Bug(
        "overdue one millisecond late",
        STORE,
        "AND deadline <= ? ORDER BY deadline",
        "AND deadline < ? ORDER BY deadline",
        "test_overdue.py",
    ),
    Bug(
        "a repeated enqueue replaces",
        STORE,
        "ON CONFLICT DO NOTHING",
        "ON CONFLICT (home, id) DO UPDATE SET body = excluded.body",
        "test_enqueueing.py",
    ),
    Bug(
        "a paused queue is leased from",
        STORE,
        "return None if paused or not (ready or due)",
        "return None if not (ready or due)",
        "test_leasing.py",
    ),
    Bug(
        "the message's own time-out is ignored",
        STORE,
        "coalesce(cast(round(ack_timeout * 1000) AS INTEGER), :timeout)",
        ":timeout",
        "test_overdue.py",
    ),
    Bug(
        "only one partition is leased from",
        STORE,
        "ask.partitions or tuple(range(partitions))",
        "ask.partitions or (0,)",
        "test_leasing.py",
    ),
    Bug(
        "a claim that anybody may take",
        STORE,
        "if held_by != owner and expires_at > now:",
        "if False:",
        "test_overdue.py",
    ),
    Bug(
        "a page that shows its last row again",
        "stores/sqlite/browse.py",
        "{second} > :second",
        "{second} >= :second",
        "test_keeping.py",
    ),
    Bug(
        "a spec is overwritten unseen",
        STORE,
        "if any(stored.get(spec.name, 0) != spec.revision for spec in specs):",
        "if False:",
        "test_keeping.py",
    ),
    Bug(
        "any token will do",
        SETTLE,
        "if row[_CALL] != call or row[_LEASE] != lease or row[_ID] != move.id:",
        "if row[_STATE] != LEASED or row[_ID] != move.id:",
        "test_fencing.py",
    ),
    Bug(
        "a token is good for any message",
        SETTLE,
        "if row[_CALL] != call or row[_LEASE] != lease or row[_ID] != move.id:",
        "if row[_CALL] != call or row[_LEASE] != lease:",
        "test_fencing.py",
    ),
    Bug(
        "a settled lease can be settled again",
        SETTLE,
        "l.lease = m.lease AND m.state = 2\nWHERE seq",
        "l.lease = m.lease\nWHERE seq",
        "test_fencing.py",
    ),
    Bug(
        "a repeated call looks like a lost lease",
        SETTLE,
        "same = logged == (lease, seq, move.verb.value)",
        "same = False",
        "test_fencing.py",
    ),
    Bug(
        "the log keeps the last finish",
        SETTLE,
        "INSERT OR IGNORE INTO holdfast_log",
        "INSERT OR REPLACE INTO holdfast_log",
        "test_finishing.py",
    ),
    Bug(
        "leased ones are counted twice",
        SETTLE,
        "        self.counts.add(qid, part, was, -1)\n",
        "",
        "test_counting.py",
    ),
    Bug(
        "a redrive by id wherever it stands",
        SETTLE,
        "return row[_STATE] != LEASED and row[_PLACE] == move.place",
        "return row[_STATE] != LEASED",
        "test_dead.py",
    ),
    Bug(
        "an error in the caller's transaction leaves half a batch",
        CONNECTIONS,
        'cursor.execute("ROLLBACK TO holdfast")',
        "pass",
        "../tx/test_tx_sqlite.py",
    ),
    Bug(
        "waiters are not told",
        CONNECTIONS,
        "if self._waiting and self._moved():",
        "if False:",
        "test_leasing.py",
    ),
    Bug(
        "a sweep stops after one batch",
        SWEEPER,
        "            swept += step\n",
        "            return swept + step\n",
        "test_overdue.py",
    ),
    Bug(
        "a failing tick ends the sweeper",
        SWEEPER,
        'logger.exception("sweep failed; trying again in %s ms", self._interval_ms)',
        "return",
        "test_overdue.py",
    ),
    Bug(
        "redrive chases what dies again",
        "redrive.py",
        "View(dlq, upto=end)",
        "View(dlq)",
        "test_dead.py",
    ),
    Bug(
        "acks are dropped when the store is away",
        WORKER,
        "                patience.wait(error)\n            if last:",
        "                group.clear()\n            if last:",
        "test_handling.py",
    ),
    Bug(
        "leases are not renewed",
        WORKER,
        "                self._renew(items)\n",
        "                pass\n",
        "test_handling.py",
    ),
    Bug(
        "what never started counts as failed",
        WORKER,
        "            return lifecycle.released(lease, now)\n",
        "            return lifecycle.nacked(lease, [], policy, now, self._at.rng)\n",
        "test_handling.py",
    ),
    Bug(
        "handlers that succeeded run again",
        "handlers.py",
        "if handler.name not in handled]",
        "]",
        "test_handling.py",
    ),
    Bug(
        "the backoff starts one step late",
        "backoff.py",
        "self.factor ** (attempt - 1)",
        "self.factor**attempt",
        "../unit/test_backoff.py",
    ),
    Bug(
        "jitter is forgotten",
        "backoff.py",
        "return rng.uniform(0.0, self.raw(attempt))",
        "return self.raw(attempt)",
        "test_retrying.py",
    ),
    Bug(
        "NaN goes in as null",
        "payload.py",
        "if back != payload:",
        "if False:",
        "test_enqueueing.py",
    ),
    Bug(
        "postgres: an ack needs no token",
        PG_SETTLE,
        "    AND token = ANY(%(tokens)s)\n  RETURNING",
        "  RETURNING",
        "test_fencing.py",
    ),
    Bug(
        "postgres: a nack needs no token",
        PG_SETTLE,
        "if row[_STATE] != LEASED or row[_TOKEN] != read_token(move.token):",
        "if row[_STATE] != LEASED:",
        "test_fencing.py",
    ),
    Bug(
        "postgres: a repeated settle is stale",
        PG_SETTLE,
        "return Settled.ALREADY if same else Settled.STALE",
        "return Settled.STALE",
        "test_fencing.py",
    ),
    Bug(
        "postgres: a sweep does not see an extension",
        PG_SETTLE,
        "return move.overdue_at is None or row[_DEADLINE] <= move.overdue_at",
        "return True",
        "test_overdue.py",
    ),
    Bug(
        "postgres: an id used again is logged again",
        PG_SETTLE,
        "  WHERE %(status)s::text IS NOT NULL AND {_NOT_LOGGED}\n",
        "  WHERE %(status)s::text IS NOT NULL\n",
        "test_finishing.py",
    ),
    Bug(
        "postgres: a dead letter keeps its place",
        PG_SETTLE,
        "            if move.tail:\n                places.append(next(fresh))",
        "            if move.tail:\n                places.append(row[_SEQ])",
        "test_dead.py",
    ),
    Bug(
        "postgres: acks are not counted",
        PG_SETTLE,
        "SELECT qid, part, 1 AS ended, 0 AS kept FROM gone",
        "SELECT qid, part, 0 AS ended, 0 AS kept FROM gone",
        "test_counting.py",
    ),
    Bug(
        "postgres: a paused queue is leased from",
        PG_SQL,
        "WHERE name = %(queue)s AND NOT paused)",
        "WHERE name = %(queue)s)",
        "test_leasing.py",
    ),
    Bug(
        "postgres: leases come in any order",
        PG_SQL,
        "ORDER BY rank, place\nLIMIT",
        "ORDER BY rank DESC, place DESC\nLIMIT",
        "test_leasing.py",
    ),
    Bug(
        "postgres: a due message comes a millisecond late",
        PG_STORE,
        "if paused or due is None or due > now:",
        "if paused or due is None or due >= now:",
        "test_leasing.py",
    ),
    Bug(
        "postgres: attempts are not counted at the lease",
        PG_SQL,
        "attempts = attempts + 1, owner",
        "attempts = attempts + 0, owner",
        "test_fencing.py",
    ),
    Bug(
        "postgres: stats forget what is due",
        PG_STORE,
        "        ready=ready + due,\n        delayed=delayed - due,",
        "        ready=ready,\n        delayed=delayed,",
        "test_counting.py",
    ),
    Bug(
        "postgres: a batch is turned round",
        PG_SQL,
        "history, body, n)\n  ORDER BY n\n",
        "history, body, n)\n  ORDER BY -n\n",
        "test_enqueueing.py",
    ),
]
