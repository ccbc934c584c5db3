"""The servers that tests run on restart, end with their starter, are shared and emptied."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from pymongo import MongoClient

import holdfast
from holdfast.testing import wait_until
from servers import base, postgres, shared
from servers.base import PORTS, Missing, free_port
from servers.spaces import REST, Databases, Schemas
from tests.setup.test_setup_mongo_server import is_alive

ROOT = Path(__file__).parents[2]


def test_a_postgres_starts_again_right_after_it_was_killed() -> None:
    """Its backends may outlive it for a moment, and hold the memory that it had."""
    with postgres.running(settings=postgres.FAST) as server:
        for _ in range(3):
            clients = [psycopg.connect(server.url) for _ in range(20)]
            server.kill()
            server.start()
            for client in clients:
                client.close()
        with psycopg.connect(server.url) as client:
            assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_postgres_whose_backends_still_end_is_started_again() -> None:
    with postgres.running(settings=postgres.FAST) as server:
        assert server._process is not None
        with psycopg.connect(server.url) as client:
            backend = client.info.backend_pid
            os.kill(backend, signal.SIGSTOP)  # it will not end by itself
            server._dismiss_guard()
            server._process.kill()
            server._process.wait()

            def end_it_when_it_was_in_the_way() -> None:
                log = server.folder / "log"
                wait_until(lambda: postgres.STILL_IN_USE in log.read_text(), timeout=60)
                os.kill(backend, signal.SIGKILL)

            ending = threading.Thread(target=end_it_when_it_was_in_the_way)
            ending.start()
            server.start()
            ending.join()
        with psycopg.connect(server.url) as client:
            assert client.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "made", ["postgres import PostgresServer as Server", "redis import RedisServer as Server"]
)
def test_a_server_does_not_outlive_its_starter(made: str) -> None:
    with TemporaryDirectory(prefix="holdfast-starter-") as folder:
        # PostgreSQL's user has to reach it, and each pytest that starts closes its own folder.
        Path(folder).chmod(0o755)
        starter = _start_and_die(made, folder)
        assert starter.returncode == -signal.SIGKILL, starter.stderr
        pid = int(starter.stdout)
        wait_until(lambda: not is_alive(pid), timeout=60)
        wait_until(lambda: not any(Path(folder).iterdir()), timeout=60)


def _start_and_die(made: str, folder: str) -> subprocess.CompletedProcess[str]:
    code = f"""
import os, pathlib, signal
from servers.{made}
server = Server(folder=pathlib.Path({folder!r}))
server.start()
print(server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_ports_are_not_those_of_outgoing_connections() -> None:
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert not set(PORTS) & set(range(int(first), int(last) + 1))
    assert free_port() in PORTS


def test_a_shared_server_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Server:
        url = "redis://somewhere"

        def start(self) -> None:
            made.append("started")

        def close(self) -> None:
            made.append("closed")

    monkeypatch.delenv(shared.YOURS["redis"], raising=False)
    monkeypatch.setitem(shared.KINDS, "redis", Server)
    servers = shared.Servers()
    threads = [threading.Thread(target=servers.url, args=("redis",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert servers.url("redis") == "redis://somewhere"
    servers.close()
    assert made == ["started", "closed"]


def test_a_missing_server_fails_in_ci_and_is_skipped_at_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for ci, outcome in (("1", pytest.fail.Exception), (None, pytest.skip.Exception)):
        if ci:
            monkeypatch.setenv("CI", ci)
        else:
            monkeypatch.delenv("CI")
        with pytest.raises(outcome, match="no such server"), base.skipping():
            raise Missing("no such server")


def used(url: str) -> None:
    with holdfast.connect(url) as hf:
        queue = hf.queue("orders", partitions=2)
        queue.enqueue_many(range(20))
        queue.settle(queue.lease(5))
        hf.topic("news").bind("mail")
        hf.sweep()
        hf.store.tidy(hf.context.clock.now(), log_before=None)
        hf.store.put_record("kind", "name", b"value", None, 1)


def is_empty(url: str) -> bool:
    with holdfast.connect(url) as hf:
        return not hf.queues() and not hf.topics() and not hf.store.records("kind")


def add_a_table(url: str) -> None:
    with psycopg.connect(url.partition("?")[0]) as db:
        db.execute(f"CREATE TABLE {url.rpartition('=')[2]}.mine (x int)")


def drop_an_index(url: str) -> None:
    with MongoClient(url) as client:
        client.get_default_database()["holdfast.messages"].drop_index("ready")


@pytest.mark.parametrize(
    ("server", "make", "change"),
    [
        ("postgres_server", Schemas, add_a_table),
        ("mongo_server", Databases, drop_an_index),
    ],
)
def test_a_store_is_emptied_before_it_is_lent_again(
    server: str, make: Callable[[str], Any], change: Callable[[str], None], request: Any
) -> None:
    spaces = make(request.getfixturevalue(server))
    try:
        lent = [spaces.lend() for _ in range(REST + 1)]
        for url in lent:
            used(url)
            spaces.give_back(url)
        again = spaces.lend()
        assert again == lent[0] and is_empty(again)
        change(lent[1])
        third = spaces.lend()
        assert third not in lent and is_empty(third), "one that was changed must not come back"
    finally:
        spaces.close(drop=True)
