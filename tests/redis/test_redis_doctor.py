"""holdfast doctor on a Redis: what it may lose, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis

from holdfast.cli import root
from servers.redis import RedisServer, running


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running() as made:
        yield made


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(server.url, decode_responses=True) as made:
        before: Any = made.config_get("*")
        yield made
        for name in ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy"):
            made.config_set(name, before[name])


def doctor(server: RedisServer, code: int = 0) -> dict[str, tuple[str, str]]:
    result = CliRunner().invoke(root, ["--url", server.url, "doctor", "--json"])
    assert result.exit_code == code
    docs = [json.loads(line) for line in result.stdout.splitlines()]
    return {doc["check"]: (doc["status"], doc["text"]) for doc in docs}


def test_a_server_that_is_well(server: RedisServer, client: Redis) -> None:
    said = doctor(server)
    assert {status for status, _ in said.values()} == {"ok"}
    assert said["durability"][1] == (
        "appendonly yes, appendfsync everysec: "
        "a crash of the server or a power cut may lose the last second"
    )
    assert said["server"][1] == f"Redis {server.version}"
    assert said["memory"][1] == "maxmemory-policy noeviction"


@pytest.mark.parametrize(("fsync", "status"), [("always", "ok"), ("no", "warn")])
def test_what_a_power_cut_would_lose(
    server: RedisServer, client: Redis, fsync: str, status: str
) -> None:
    client.config_set("appendfsync", fsync)
    assert doctor(server)["durability"][0] == status


def test_no_append_only_file_is_a_warning(server: RedisServer, client: Redis) -> None:
    client.config_set("appendonly", "no")
    status, text = doctor(server)["durability"]
    assert status == "warn"
    assert "set appendonly yes" in text


def test_a_memory_that_is_nearly_full_is_a_warning(server: RedisServer, client: Redis) -> None:
    used: Any = client.info("memory")
    client.config_set("maxmemory", int(used["used_memory"] * 1.15))
    assert doctor(server)["memory"][0] == "warn"


def test_a_policy_that_evicts_is_refused(server: RedisServer, client: Redis) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    status, text = doctor(server, 1)["store"]
    assert status == "FAIL"
    assert "allkeys-lru" in text
    assert "noeviction" in text
