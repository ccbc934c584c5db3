"""The examples that need a PostgreSQL, each as a program of its own, on a database of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "postgres"
SAYS = {
    "orders": [
        "psycopg: placed lantern",
        "psycopg: not placed: there is no unicorn",
        "sqlalchemy: placed compass",
        "sqlalchemy: not placed: there is no dragon",
        "sent: thank you for the lantern",
        "sent: thank you for the compass",
        "2 orders, 2 sent, 2 done",
    ]
}


@pytest.fixture
def database(postgres_server: str) -> Iterator[str]:
    name = f"example_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
        yield urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def run(name: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", *args],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_each_example_is_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example_runs_twice_and_leaves_nothing(name: str, database: str) -> None:
    for done in (run(name, database), run(name, HOLDFAST_URL=database)):
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == SAYS[name]
    with psycopg.connect(database) as db:
        tables = db.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        queues = db.execute("SELECT count(*) FROM holdfast.queue").fetchone()
    assert (tables, queues) == ((0,), (0,))


@pytest.mark.parametrize("name", SAYS)
def test_without_a_database_it_asks_for_one(name: str) -> None:
    done = run(name)
    assert done.returncode == 1
    assert "which database?" in done.stderr
    assert "Traceback" not in done.stderr
