"""Places for one store each on a shared server: a schema, a database, a prefix.

Making a schema or a database takes longer than most tests. So each is made once and emptied before
it is lent again, not after use: what a dying process still writes has ended by then. One in which
a test changed more than rows is dropped.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from holdfast.stores import open_store
from servers import mongo, redis

REST = 2
"""Places that rest while another one is used."""


class Spaces(Protocol):
    def lend(self) -> str:
        """The URL of an empty store, which is nobody else's until it is given back."""
        ...

    def give_back(self, url: str) -> None: ...

    def close(self, *, drop: bool) -> None:
        """`drop`: leave nothing behind on a server that goes on."""
        ...


def spaces_of(kind: str, server: str) -> Spaces:
    match kind:
        case "postgres":
            return Schemas(server)
        case "redis" | "redis-cluster":
            return Prefixes(server)
        case _:
            return Databases(server)


@contextmanager
def lent(spaces: Spaces) -> Iterator[str]:
    url = spaces.lend()
    try:
        yield url
    finally:
        spaces.give_back(url)


def new_name() -> str:
    return f"test_{secrets.token_hex(6)}"


class _Reused:
    """What schemas and databases have in common."""

    def __init__(self, server: str, admin: Any) -> None:
        self._server = server
        self._admin = admin
        self._shapes: dict[str, Any] = {}
        self._spare: deque[str] = deque()
        self._names: dict[str, str] = {}

    def lend(self) -> str:
        while len(self._spare) >= REST:
            name = self._spare.popleft()
            if self._empty(name):
                return self._url(name)
            self._drop(name)
        name = new_name()
        url = self._url(name)
        store = open_store(url)
        store.migrate()
        store.close()
        self._shapes[name] = self._shape(name)
        return url

    def give_back(self, url: str) -> None:
        self._spare.append(self._names[url])

    def _url(self, name: str) -> str:
        url = self._url_of(name)
        self._names[url] = name
        return url

    def close(self, *, drop: bool) -> None:
        if drop:
            for name in self._names.values():
                self._drop(name)
        self._admin.close()

    def _url_of(self, name: str) -> str:
        raise NotImplementedError

    def _shape(self, name: str) -> Any:
        raise NotImplementedError

    def _empty(self, name: str) -> bool:
        raise NotImplementedError

    def _drop(self, name: str) -> None:
        raise NotImplementedError


# Tables, indexes and sequences, with their columns' number, owners and rights; but not the days of
# the log, which come and go.
SHAPE = """
SELECT coalesce(string_agg(concat_ws(' ', relname, relkind, relnatts, relowner, relacl, reloptions,
  relhastriggers), ',' ORDER BY relname), '') || (
    SELECT concat_ws(' ', nspowner, nspacl) FROM pg_namespace WHERE nspname = %(schema)s)
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = %(schema)s AND NOT relispartition AND relkind <> 't'
"""
DAYS = """
SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = %(schema)s AND relispartition AND relkind = 'r' AND relname <> 'log_other'
ORDER BY relname
"""
SIZE = """
SELECT coalesce(sum(pg_relation_size(c.oid)), 0) FROM pg_class c
JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %(schema)s AND relkind IN ('r', 'i')
"""
TABLES = ("message", "log", "delta", "queue", "claim", "event", "record")
LARGE_BYTES = 2_000_000
"""Dead rows would cost the next tests more than new files do."""


class Schemas(_Reused):
    def __init__(self, server: str) -> None:
        import psycopg

        super().__init__(server, psycopg.connect(server.partition("?")[0], autocommit=True))
        self._admin.execute("SET lock_timeout = '10s'")

    def _url_of(self, name: str) -> str:
        mark = "&" if "?" in self._server else "?"
        return f"{self._server}{mark}schema={name}"

    def _shape(self, name: str) -> Any:
        shape = self._select(SHAPE, name)
        return shape, self._select(DAYS, name), self._meta(name)

    def _meta(self, name: str) -> Any:
        return self._admin.execute(f"SELECT * FROM {name}.meta ORDER BY name").fetchall()

    def _empty(self, name: str) -> bool:
        shape, days, meta = self._shapes[name]
        if self._select(SHAPE, name) != shape or self._meta(name) != meta:
            return False
        there = self._select(DAYS, name)
        if not set(days) <= set(there):
            return False
        for (day,) in set(there) - set(days):
            self._admin.execute(f"DROP TABLE {name}.{day}")
        tables = [f"{name}.{table}" for table in TABLES]
        if self._select(SIZE, name)[0][0] > LARGE_BYTES:
            self._admin.execute(f"TRUNCATE {', '.join(tables)}")
        else:
            self._admin.execute("; ".join(f"DELETE FROM {table}" for table in tables))
        return True

    def _select(self, sql: str, name: str) -> Any:
        return self._admin.execute(sql, {"schema": name}).fetchall()

    def _drop(self, name: str) -> None:
        self._admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


class Databases(_Reused):
    def __init__(self, server: str) -> None:
        from pymongo import MongoClient

        super().__init__(server, MongoClient(server))

    def _url_of(self, name: str) -> str:
        return mongo.with_database(self._server, name)

    def _shape(self, name: str) -> Any:
        db = self._admin[name]
        views = [one["name"] for one in db.list_collections() if one["type"] == "view"]
        tables = [one for one in db.list_collection_names() if one not in views]
        tables = [one for one in tables if not one.startswith("system.")]
        meta = db["holdfast.meta"].find_one({"_id": "schema"})
        return views, {one: self._indexes(name, one) for one in sorted(tables)}, meta

    def _indexes(self, name: str, table: str) -> dict[str, Any]:
        return {one["name"]: one for one in self._admin[name][table].list_indexes()}

    def _empty(self, name: str) -> bool:
        views, tables, meta = self._shape(name)
        wanted_views, wanted, wanted_meta = self._shapes[name]
        if (views, sorted(tables), meta) != (wanted_views, sorted(wanted), wanted_meta):
            return False
        db = self._admin[name]
        for table, indexes in tables.items():
            for index in indexes.keys() - wanted[table].keys():
                db[table].drop_index(index)
            if any(indexes.get(index) != as_made for index, as_made in wanted[table].items()):
                return False
            kept = {"_id": {"$ne": "schema"}} if table == "holdfast.meta" else {}
            db[table].delete_many(kept)
        return True

    def _drop(self, name: str) -> None:
        self._admin.drop_database(name)


class Prefixes:
    """Of Redis: a new one each time, as there is nothing to make."""

    def __init__(self, server: str) -> None:
        self._server = server

    def lend(self) -> str:
        mark = "&" if "?" in self._server else "?"
        return f"{self._server}{mark}prefix={new_name()}"

    def give_back(self, url: str) -> None:
        redis.drop_prefix(self._server, url.rpartition("prefix=")[2])

    def close(self, *, drop: bool) -> None:
        """Each was dropped when it was given back."""
