"""What the sweeper does for PostgreSQL: dead rows, counts, and the days of the log."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from psycopg import errors

from holdfast.model import clock
from holdfast.stores.contract import Cut
from holdfast.stores.postgres import statements as texts
from holdfast.stores.postgres.connections import Connection, Connections, Sql
from holdfast.stores.postgres.schema import quoted
from holdfast.stores.postgres.settle import DAY_MS, Counts
from holdfast.stores.sql.store import Rows

DAYS_AHEAD = 3
VACUUM_SHARE = 30
"""A vacuum is followed by a rest of this many times its length."""
FOLD_MAX = 100_000

logger = logging.getLogger("holdfast.postgres")

# By row address; rows that another one is folding are passed over.
FOLD = """
WITH taken AS (
  DELETE FROM holdfast.delta WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.delta LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
  RETURNING *
), folded AS (
  INSERT INTO holdfast.delta (qid, part, day, ready, delayed, leased, done, logged)
  SELECT qid, part, day, sum(ready), sum(delayed), sum(leased), sum(done), sum(logged)
  FROM taken GROUP BY qid, part, day
  HAVING sum(ready) <> 0 OR sum(delayed) <> 0 OR sum(leased) <> 0 OR sum(done) <> 0
    OR sum(logged) <> 0
)
SELECT count(*) FROM taken
"""
# What was counted for a day is counted back: a sum stays right while others fold.
FORGET_DAY = """
INSERT INTO holdfast.delta (qid, part, day, logged)
SELECT qid, part, day, -sum(logged) FROM holdfast.delta WHERE day = %(day)s GROUP BY qid, part, day
"""
# Skips a table that somebody else is vacuuming. Not truncated: that would lock out everybody.
VACUUM = "VACUUM (SKIP_LOCKED, TRUNCATE off, INDEX_CLEANUP on) {table}"
HOT = ("message", "delta", "claim")
DAYS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%(log)s)
"""


class Upkeep:
    """Of one store, in one process."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = connections.sql
        self._vacuum_due = 0.0
        self._without: set[int] = set()
        """Days whose rows are in log_other: each try would be an error in the server's log."""

    def tidy(self, now: int, log_before: int | None) -> None:
        self._connections.rows(FOLD, {"limit": FOLD_MAX})
        schema = self._connections.where.schema
        with self._connections.upkeep() as db, _tolerant():
            self._vacuum(db, schema)
            self._days(db, schema, now, log_before)

    def trim(self, cuts: Sequence[Cut]) -> list[int]:
        if not cuts:
            return []
        bind = {
            "names": [cut.queue for cut in cuts],
            "befores": [cut.before for cut in cuts],
            "keeps": [cut.keep for cut in cuts],
        }
        dropped = [0] * len(cuts)
        n: int
        for n, qid, over in self._connections.rows(texts.TO_TRIM, bind):
            dropped[n - 1] = self._trim(cuts[n - 1], qid, over)
        return dropped

    def _trim(self, cut: Cut, qid: int, over: int) -> int:
        oldest = self._connections.rows(texts.OLDEST, {"qid": qid, "limit": cut.limit})
        drop = [row for n, row in enumerate(oldest) if n < over or (cut.before or 0) > row[0]]
        if not drop:
            return 0
        finished_at, seq = drop[-1]

        def delete(rows: Rows) -> int:
            bind = {"qid": qid, "finished_at": finished_at, "seq": seq}
            gone, counts = rows(texts.TRIM, bind), Counts()
            for part, at in gone:
                counts.forget(qid, part, at // DAY_MS)
            counts.write(rows)
            return len(gone)

        return self._connections.transact(delete)

    def purge(self, qid: int, limit: int) -> int:
        def drop(rows: Rows) -> int:
            counts, n = Counts(), 0
            for state, statement in texts.PURGE.items():
                for (part,) in rows(statement, {"qid": qid, "limit": limit - n}):
                    counts.move(qid, part, state, -1)
                    n += 1
            counts.write(rows)
            return n

        return self._connections.transact(drop)

    def _vacuum(self, db: Connection, schema: str) -> None:
        """In a small share of the time: beside an old snapshot it clears nothing, and takes longer
        and longer to find that out."""
        start = clock.monotonic()
        if start < self._vacuum_due:
            return
        for table in HOT:
            db.execute(VACUUM.format(table=f"{quoted(schema)}.{table}").encode())
        end = clock.monotonic()
        self._vacuum_due = end + (end - start) * VACUUM_SHARE

    def _days(self, db: Connection, schema: str, now: int, log_before: int | None) -> None:
        """Those to come are made before they are needed; those that nobody wants are dropped."""
        names = {row[0] for row in db.execute(DAYS, {"log": f"{quoted(schema)}.log"}).fetchall()}
        today = now // DAY_MS
        for day in range(today, today + DAYS_AHEAD):
            if _name(day) not in names and day not in self._without:
                try:
                    make_day(db, self._sql, day)
                except errors.CheckViolation:
                    self._without.add(day)
                    logger.debug("log_other holds rows of day %d already: they stay there", day)
        if log_before is None:
            return
        for name in names - {"log_other"}:
            day = int(name.removeprefix("log_"))
            if (day + 1) * DAY_MS <= log_before:
                with db.transaction():
                    db.execute(self._sql(f"DROP TABLE holdfast.{name}").encode())
                    db.execute(self._sql(FORGET_DAY), {"day": day})
                logger.info("dropped a day of the log: %s", name)


@contextmanager
def _tolerant() -> Generator[None, None, None]:
    try:
        yield
    except (errors.LockNotAvailable, errors.QueryCanceled) as error:
        logger.info("upkeep goes on at the next tick: %s", str(error).strip())
    except errors.InsufficientPrivilege as error:
        logger.warning("no upkeep: the tables belong to another user: %s", str(error).strip())


def make_day(db: Connection, sql: Sql, day: int) -> None:
    """Refused (CheckViolation) if rows of that day are in log_other."""
    low, high = day * DAY_MS, (day + 1) * DAY_MS
    with suppress(errors.DuplicateTable), db.transaction():
        # Made apart and then attached: that waits for nobody who reads or writes the log.
        name = _name(day)
        db.execute(
            sql(
                f"CREATE TABLE holdfast.{name} (LIKE holdfast.log INCLUDING DEFAULTS, "
                f"CHECK (finished_at >= {low} AND finished_at < {high}))"
            ).encode()
        )
        db.execute(
            sql(
                f"ALTER TABLE holdfast.log ATTACH PARTITION holdfast.{name} "
                f"FOR VALUES FROM ({low}) TO ({high})"
            ).encode()
        )


def _name(day: int) -> str:
    return f"log_{day}"
