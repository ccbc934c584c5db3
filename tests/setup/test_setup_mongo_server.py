"""The MongoDB that the tests run on is a real one: it is primary, and a killed one has its data."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from servers import mongo

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[mongo.MongoServer]:
    with mongo.running() as server:
        yield server


def ids_in(url: str) -> list[int]:
    with MongoClient(url) as client:
        return sorted(found["_id"] for found in client.test.things.find())


def write(url: str, id: int) -> None:
    with MongoClient(url, journal=True) as client:  # or a kill takes what it wrote last
        client.test.things.insert_one({"_id": id})


def is_alive(pid: int) -> bool:
    """A zombie that nobody reaps is not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_it_is_the_primary_of_a_set_and_has_transactions(server: mongo.MongoServer) -> None:
    with MongoClient(server.url) as client:
        hello = client.admin.command("hello")
        with client.start_session() as session, session.start_transaction():
            client.test.things.insert_one({"_id": 1}, session=session)
    assert (hello["setName"], hello["isWritablePrimary"]) == (mongo.SET_NAME, True)
    assert hello["me"] == f"{mongo.HOST}:{server.port}"
    assert ids_in(server.url) == [1]


def test_killed_or_stopped_and_started_again_it_has_its_data(server: mongo.MongoServer) -> None:
    write(server.url, 1)
    server.kill()
    server.start()
    write(server.url, 2)
    server.stop()
    server.start()
    assert ids_in(server.url) == [1, 2]


def test_a_standalone_has_no_set() -> None:
    with mongo.running(set_name=None) as server:
        with MongoClient(server.url) as client:
            assert "setName" not in client.admin.command("hello")
        write(server.url, 1)
        assert ids_in(server.url) == [1]


@pytest.mark.parametrize("set_name", [mongo.SET_NAME, None])
def test_with_a_password_only_users_get_in(set_name: str | None) -> None:
    with mongo.running(set_name=set_name, password="p@ss/word") as server:
        reader = server.add_user("reader", "secret", [{"role": "read", "db": "test"}])
        write(server.url, 1)
        assert ids_in(reader) == [1]
        for stranger in (reader, server.url_for()):
            with pytest.raises(OperationFailure):
                write(stranger, 2)
        server.kill()
        server.start()
        assert ids_in(mongo.with_database(reader, "other")) == [1]


def test_a_database_in_the_url_leaves_the_user_where_it_is() -> None:
    assert mongo.with_database("mongodb://a:b@h/?w=1", "new") == (
        "mongodb://a:b@h/new?w=1&authSource=admin"
    )
    assert mongo.with_database("mongodb://a:b@h/users", "new") == (
        "mongodb://a:b@h/new?authSource=users"
    )
    assert mongo.with_database("mongodb://h,i:1", "new") == "mongodb://h,i:1/new"


def test_it_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal
from servers.mongo import MongoServer
server = MongoServer(folder=pathlib.Path({str(tmp_path)!r}))
server.start()
print(server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    starter = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert starter.returncode == -signal.SIGKILL, starter.stderr
    until = time.monotonic() + 30
    while is_alive(int(starter.stdout)) or list(tmp_path.iterdir()):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_program_that_does_not_run_is_missing_with_the_reason(tmp_path: Path) -> None:
    program = tmp_path / "mongod"
    program.write_text("#!/bin/sh\necho no libcurl.so.4 >&2; exit 127\n")
    program.chmod(0o755)
    with pytest.raises(mongo.Missing, match=r"no libcurl\.so\.4.*apt-get install libcurl4"):
        mongo.MongoServer(program=program)
