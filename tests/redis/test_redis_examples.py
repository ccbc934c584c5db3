"""The examples that need a Redis, each as a program of its own, on a server of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from servers.redis import running

EXAMPLES = Path(__file__).parents[2] / "examples" / "redis"
SAYS = {
    "parcels": [
        "first: ['Nuuk', 'Bergen', 'Atlantis']",
        "held by van-7: 3",
        "again: Atlantis attempt 2",
        "2 delivered, 1 dead, in Redis 0 held",
    ]
}


@pytest.fixture
def url() -> Iterator[str]:
    with running() as server:
        yield server.url


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
def test_example_runs_twice_and_leaves_nothing(name: str, url: str) -> None:
    for done in (run(name, url), run(name, HOLDFAST_URL=url)):
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == SAYS[name]
    with Redis.from_url(url, decode_responses=True) as client:
        assert [key for key in client.scan_iter() if "{.}" not in key] == []
        assert client.smembers("holdfast:{.}:homes") == set()


@pytest.mark.parametrize("name", SAYS)
def test_without_a_server_it_asks_for_one(name: str) -> None:
    done = run(name)
    assert done.returncode == 1
    assert "which server?" in done.stderr
    assert "Traceback" not in done.stderr
