"""Leasing: how messages are picked and taken, and when what is delayed becomes ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from holdfast.model import clock
from holdfast.model.backoff import SECONDS_MAX
from holdfast.model.message import Lease
from holdfast.model.queues import partition_claim
from holdfast.stores import rows as shared
from holdfast.stores.contract import NO_DEADLINE, LeaseAsk
from holdfast.stores.kit.specs import must_exist
from holdfast.stores.postgres import arrays
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.lowmark import LANES, LowMark
from holdfast.stores.postgres.queues import Queues
from holdfast.stores.postgres.rows import COLUMNS, take_lease, take_lease_of, token_base
from holdfast.stores.postgres.statements import ANYTHING
from holdfast.stores.sql.store import Row

PROMOTE_MAX = 10_000
"""Delayed messages that one lease call makes ready; more come due in the next calls."""
PROMOTE_EVERY = 8
"""Leases from many queues that were full in a row, after which it looks for what is due."""

T = TypeVar("T")

OWN_MS = (
    f"round(CASE WHEN ack_timeout BETWEEN 0 AND {SECONDS_MAX} THEN ack_timeout END * 1000)::bigint"
)
"""A message's own time-out; none if it was damaged, which would end the lease of its neighbours
with an error. NaN and infinity are greater than any other number."""

# Index message_delayed. Nothing is taken while delayed messages are due: they come first in line.
IN_LINE = """CASE WHEN EXISTS (
  SELECT 1 FROM holdfast.message
  WHERE qid = (SELECT qid FROM q) AND state = 1 AND available_at <= %(now)s
) THEN 0 ELSE %(limit)s END"""
# When another consumer is at what is due: the rest does not wait for that.
ANYHOW = "%(limit)s"


def _pick(limit: str = IN_LINE) -> str:
    """Index message_ready."""
    return f"""
SELECT ctid FROM holdfast.message
WHERE qid = (SELECT qid FROM q) AND state = 0
ORDER BY rank, place
LIMIT {limit}
FOR UPDATE SKIP LOCKED
"""


def _pick_parts(limit: str = IN_LINE) -> str:
    """Index message_ready_split, one ordered walk for each partition."""
    return f"""
SELECT ctid FROM (
  SELECT m.ctid, m.rank, m.place FROM unnest(%(partitions)s) AS p (part) CROSS JOIN LATERAL (
    SELECT ctid, rank, place FROM holdfast.message
    WHERE qid = (SELECT qid FROM q) AND state = 0 AND split AND part = p.part
    ORDER BY rank, place
    LIMIT {limit}
    FOR UPDATE SKIP LOCKED
  ) m ORDER BY rank, place LIMIT %(limit)s
) best
"""


def _pick_owned(part: str) -> str:
    """The same of the partitions that are owned, by id. Locked messages are waited for."""
    return f"""
SELECT id FROM (
  SELECT m.id, m.rank, m.place FROM owned p CROSS JOIN LATERAL (
    SELECT id, rank, place FROM holdfast.message
    WHERE qid = (SELECT qid FROM q) AND state = 0 AND {part}
    ORDER BY rank, place
    LIMIT {IN_LINE}
    FOR UPDATE
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
    LIMIT {IN_LINE}
    FOR UPDATE SKIP LOCKED
  ) m LIMIT %(limit)s
) best
"""
# By row address: the rows were just locked, and no plan is faster or steadier.
BY_ADDRESS = "ctid = ANY"
# Of partitions by their claims: index claim_pkey. The claims stay locked until the lease is there:
# whoever takes one over waits for that, or was first and is seen.
OWNED = """
owned AS (
  SELECT a.part FROM unnest(%(partitions)s, %(claims)s, %(epochs)s) AS a (part, claim, epoch)
  CROSS JOIN LATERAL (
    SELECT 1 FROM holdfast.claim WHERE name = a.claim AND owner = %(owner)s
      AND claim.epoch = a.epoch AND expires_at > %(now)s FOR SHARE) held
),"""
# What was waited for has moved to another address.
BY_ID = "home = (SELECT qid / 2 FROM q) AND id = ANY"

LEASE_UNTIL = f"%(now)s + coalesce({OWN_MS}, %(timeout)s)"
LEASE_ANSWER = f"SELECT rank, place, token, deadline, {shared.COLUMNS} FROM leased"
HOLD_UNTIL = str(NO_DEADLINE)
HOLD_ANSWER = "SELECT count(*) FROM leased"


def _take(pick: str, by: str = BY_ADDRESS, *, owned: str = "", hold: bool = False) -> str:
    """`hold`: without a deadline, and the answer is only how many.

    "state + 0", because "state = 0" would invite the index of all that is ready. Whoever asks for
    some partitions by an index that knows none (`any` is false) gets nothing once the queue has
    more than one.
    """
    return f"""
WITH q AS (SELECT qid, partitions FROM holdfast.queue WHERE name = %(queue)s AND NOT paused),{owned}
leased AS (
  UPDATE holdfast.message SET
    state = 2, token = %(base)s + seq, attempts = attempts + 1, owner = %(owner)s,
    leased_at = %(now)s, first_leased_at = coalesce(first_leased_at, %(now)s), batch = %(batch)s,
    verb = NULL, deadline = {HOLD_UNTIL if hold else LEASE_UNTIL}
  WHERE {by} (ARRAY({pick})) AND state + 0 = 0
    AND (%(any)s OR (SELECT partitions FROM q) = 1)
  RETURNING rank, place, qid, token, deadline, {COLUMNS}
), counted AS (
  INSERT INTO holdfast.delta (qid, part, ready, leased)
  SELECT qid, part, -count(*), count(*) FROM leased GROUP BY qid, part
)
{HOLD_ANSWER if hold else LEASE_ANSWER}
"""


# Of a queue that has one partition, by index message_ready; and of one that has several.
_OF_ONE = _pick_owned("p.part = 0")
_OF_PARTS = _pick_owned("split AND part = p.part")

LEASE, HOLD = _take(_pick()), _take(_pick(), hold=True)
LEASE_PARTS, HOLD_PARTS = _take(_pick_parts()), _take(_pick_parts(), hold=True)
LEASE_OWNED = _take(_OF_ONE, BY_ID, owned=OWNED)
HOLD_OWNED = _take(_OF_ONE, BY_ID, owned=OWNED, hold=True)
LEASE_OWNED_PARTS = _take(_OF_PARTS, BY_ID, owned=OWNED)
HOLD_OWNED_PARTS = _take(_OF_PARTS, BY_ID, owned=OWNED, hold=True)
LEASE_ABOVE = _take(PICK_ABOVE)
ANYWAY = {
    LEASE: _take(_pick(ANYHOW)),
    LEASE_PARTS: _take(_pick_parts(ANYHOW)),
    HOLD: _take(_pick(ANYHOW), hold=True),
    HOLD_PARTS: _take(_pick_parts(ANYHOW), hold=True),
}
# By whether it is fenced by claims, and whether it is of some partitions among several.
LEASES = {
    (False, False): LEASE,
    (False, True): LEASE_PARTS,
    (True, False): LEASE_OWNED,
    (True, True): LEASE_OWNED_PARTS,
}
HOLDS = {
    (False, False): HOLD,
    (False, True): HOLD_PARTS,
    (True, False): HOLD_OWNED,
    (True, True): HOLD_OWNED_PARTS,
}

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
SELECT n, rank, place, token, deadline, {shared.COLUMNS} FROM leased
"""


def _promote(locked: str) -> str:
    """Index message_delayed."""
    return f"""
WITH due AS (
  UPDATE holdfast.message SET state = 0
  WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.message
    WHERE qid = %(qid)s AND state = 1 AND available_at <= %(now)s
    ORDER BY available_at, seq LIMIT %(limit)s {locked})) AND state + 0 = 1
  RETURNING qid, part
), counted AS (
  INSERT INTO holdfast.delta (qid, part, ready, delayed)
  SELECT qid, part, count(*), -count(*) FROM due GROUP BY qid, part
)
SELECT count(*) FROM due
"""


PROMOTE = _promote("FOR UPDATE SKIP LOCKED")
# For who must have all that is due: what another consumer is at is waited for.
PROMOTE_ALL = _promote("FOR UPDATE")
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

_RANKS = arrays.ints(range(LANES))
_in_line = itemgetter(0, 1)
_in_turn = itemgetter(0, 1, 2)


class Leasing:
    def __init__(self, db: Connections, queues: Queues) -> None:
        self._db = db
        self._queues = queues
        self.low_marks: dict[str, LowMark] = {}
        self._full_leases = 0

    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]:
        if ask.others:
            return self._lease_many(ask, now)
        take = self._take if ask.epochs is None else self._take_exactly
        rows = self._lease(ask, now, LEASES, take)
        return [take_lease(row, ask, now) for row in rows or ()]

    def reserve(self, ask: LeaseAsk, now: int) -> int:
        def count(statement: str, bind: dict[str, Any]) -> int:
            return self._db.rows(statement, bind)[0][0]

        return self._lease(ask, now, HOLDS, count) or 0

    def _lease_many(self, ask: LeaseAsk, now: int) -> list[Lease]:
        """One statement. Delayed messages that are due are looked for, in a second one, when there
        is room left, and now and then when there is none."""
        asks = list(ask.each())
        bind = lease_many_bind(ask, asks, now)
        rows = self._db.rows(LEASE_MANY, bind)
        self._full_leases = 0 if len(rows) < ask.limit else self._full_leases + 1
        if self._full_leases % PROMOTE_EVERY == 0 and self._db.rows(PROMOTE_MANY, bind)[0][0]:
            left, given = ask.limit - len(rows), Counter(row[0] for row in rows)
            if left:
                mosts = [one.limit - given[n] for n, one in enumerate(asks, 1)]
                more = {"mosts": arrays.ints(mosts), "limit": left, "anyway": True}
                rows += self._db.rows(LEASE_MANY, {**bind, **more})
        if rows:
            self._queues.fold(len({row[0] for row in rows}))
        rows.sort(key=_in_turn)
        return [take_lease_of(row, asks, now) for row in rows]

    def _lease(
        self,
        ask: LeaseAsk,
        now: int,
        statements: dict[tuple[bool, bool], str],
        take: Callable[[str, dict[str, Any]], T],
    ) -> T | None:
        split, owned = self._is_split(ask), ask.epochs is not None
        if ask.partitions is not None and not split and 0 not in ask.partitions:
            return None
        statement, bind = statements[owned, split], lease_bind(ask, now, split)
        taken = take(statement, bind)
        if not taken and self._promote(ask.queue, now, every=owned):
            taken = take(statement, bind)
            if not taken and not owned:
                taken = take(ANYWAY[statement], bind)
        if taken:
            self._queues.fold()
        elif self._is_split(ask) != split:
            return self._lease(ask, now, statements, take)
        return taken

    def _is_split(self, ask: LeaseAsk) -> bool:
        """Whether it asks for some partitions of a queue that has several."""
        if ask.partitions is None:
            return False
        if max(ask.partitions, default=0) >= self._queues.spec(ask.queue).partitions:
            self._queues.forget(ask.queue)  # somebody knows better
        return self._queues.spec(ask.queue).partitions > 1

    def _take(self, statement: str, bind: dict[str, Any]) -> list[Row]:
        """In the order of the line. Looks from the bottom, or from where it was worked off to."""
        mark = self.low_marks.setdefault(bind["queue"], LowMark())
        start = clock.monotonic()
        lows = mark.lows(start) if statement is LEASE else None
        rows: list[Row] = []
        if lows is not None:
            rows = self._db.rows(LEASE_ABOVE, {**bind, "ranks": _RANKS, "lows": arrays.ints(lows)})
        if not rows:
            lows, start = None, clock.monotonic()
            rows = self._db.rows(statement, bind)
        rows.sort(key=_in_line)
        end = clock.monotonic()
        mark.note(rows, seconds=end - start, now=end, bounded=lows is not None)
        return rows

    def _take_exactly(self, statement: str, bind: dict[str, Any]) -> list[Row]:
        return sorted(self._db.rows(statement, bind), key=_in_line)

    def _promote(self, queue: str, now: int, *, every: bool) -> bool:
        """Make ready what is due. Whether there is, or was a moment ago, anything to lease."""
        found = next(iter(self._db.rows(ANYTHING, {"names": arrays.texts([queue])})), None)
        _, qid, paused, partitions, ready, due = must_exist(queue, found)
        self._queues.forget_unless(queue, partitions)
        if paused or due is None or due > now:
            return ready and not paused
        bind = {"qid": qid, "now": now, "limit": PROMOTE_MAX}
        if not every:
            self._db.rows(PROMOTE, bind)
        while every and self._db.rows(PROMOTE_ALL, bind)[0][0]:
            pass
        return True


def lease_bind(ask: LeaseAsk, now: int, split: bool) -> dict[str, Any]:
    bind: dict[str, Any] = {
        "queue": ask.queue,
        "limit": ask.limit,
        "owner": ask.owner,
        "base": token_base(ask.token),
        "timeout": ask.timeout_ms,
        "batch": ask.batch,
        "now": now,
        "any": split or ask.partitions is None,
    }
    if ask.partitions is not None:
        bind["partitions"] = arrays.ints(ask.partitions)
        if ask.epochs is not None:
            names = [partition_claim(ask.queue, part) for part in ask.partitions]
            bind |= {"claims": arrays.texts(names), "epochs": arrays.ints(ask.epochs)}
    return bind


def lease_many_bind(ask: LeaseAsk, asks: Sequence[LeaseAsk], now: int) -> dict[str, Any]:
    return {
        "queues": arrays.texts([one.queue for one in asks]),
        "mosts": arrays.ints([one.limit for one in asks]),
        "timeouts": arrays.ints([one.timeout_ms for one in asks]),
        "limit": ask.limit,
        "owner": ask.owner,
        "base": token_base(ask.token),
        "now": now,
        "anyway": False,
        "most": PROMOTE_MAX,
    }
