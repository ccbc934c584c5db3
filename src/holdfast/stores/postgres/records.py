"""Small values by kind and name, changed by compare-and-set. All by primary key."""

from __future__ import annotations

from typing import Any

from holdfast.stores.postgres.connections import Connection, Sql

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
READ = f"""
SELECT name, value, revision, updated_at FROM holdfast.record WHERE {_RANGE}
ORDER BY name LIMIT %(limit)s
"""
DROP = f"""
DELETE FROM holdfast.record WHERE kind = %(kind)s AND name = ANY (ARRAY(
  SELECT name FROM holdfast.record WHERE {_RANGE} AND updated_at < %(before)s
  ORDER BY name LIMIT %(limit)s)) RETURNING 1
"""


def put(
    kind: str, name: str, value: bytes | None, revision: int | None, now: int
) -> tuple[str, dict[str, Any]]:
    bind = {"kind": kind, "name": name, "value": value, "revision": revision, "now": now}
    if value is None:
        return (ABSENT if revision == 0 else DELETE), bind
    if revision is None:
        return EITHER, bind
    return (CHANGE if revision else NEW), bind


def note(db: Connection, sql: Sql, receipt: str, now: int) -> bool:
    """Keep a receipt in the transaction that is open; False if it is there already."""
    bind = {"kind": "receipt", "name": receipt, "value": b"", "now": now}
    return db.execute(sql(NEW), bind).fetchone() is not None
