"""The examples that need a MongoDB, each as a program of its own, on a database of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pymongo import MongoClient

EXAMPLES = Path(__file__).parents[2] / "examples" / "mongo"
SAYS = {
    "bookings": [
        "not booked: no such row",
        "1 booking, 1 mail to send",
        "pending after 1 attempt: the mail server is away",
        "again within a minute: True",
    ]
}


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
def test_example_runs_twice_and_leaves_nothing(name: str, mongo_url: str) -> None:
    for done in (run(name, mongo_url), run(name, HOLDFAST_URL=mongo_url)):
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == SAYS[name]
    with MongoClient(mongo_url) as client:
        database = client.get_default_database()
        assert "example_bookings" not in database.list_collection_names()
        for kind in ("messages", "log", "queues"):
            assert database[f"holdfast.{kind}"].count_documents({}) == 0


@pytest.mark.parametrize("name", SAYS)
def test_without_a_server_it_asks_for_one(name: str) -> None:
    done = run(name)
    assert done.returncode == 1
    assert "which server?" in done.stderr
    assert "Traceback" not in done.stderr
