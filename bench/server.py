"""The PostgreSQL that is measured on: durable, with a fresh database for every sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.measures.throughput import Fresh
from servers.postgres import PostgresServer

SERVER = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
}


@contextmanager
def stage(folder: Path) -> Iterator[tuple[Fresh, dict[str, str]]]:
    """One durable server for the whole run; a database of its own for every sample.

    To drop a database is to wait for a checkpoint: everybody starts right after one.
    """
    server = PostgresServer(SERVER, folder=folder)
    try:
        server.start()
        with psycopg.connect(server.url, autocommit=True) as db:
            yield _databases(db, server.url), _facts(db)
    finally:
        server.close()


def _databases(db: psycopg.Connection, url: str) -> Fresh:
    names = (f"bench_{n}" for n in itertools.count())

    @contextmanager
    def fresh() -> Iterator[str]:
        name = next(names)
        db.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield f"{url.rpartition('/')[0]}/{name}"
        finally:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    return fresh


def _facts(db: psycopg.Connection) -> dict[str, str]:
    """As the server itself says, not as it was told."""
    rows = db.execute(
        "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)"
        " ORDER BY array_position(%s, name)",
        (list(SERVER), list(SERVER)),
    )
    settings = ", ".join(f"{name}={value}" for name, value in rows)
    return {
        "PostgreSQL": f"{db.info.parameter_status('server_version')} on the loopback: {settings}"
    }
