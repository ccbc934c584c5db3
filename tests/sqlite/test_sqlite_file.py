"""What only a file can do wrong: URLs, rights, damage, space, versions, processes."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    Holdfast,
    HoldfastError,
    InvalidArgument,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.cli.checks import _sqlite
from holdfast.stores.sqlite import checkpoints
from holdfast.stores.sqlite.store import migrations
from holdfast.testing import wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.mark.parametrize(
    ("url", "field", "hint"),
    [
        ("", "url", "try sqlite:///jobs.db"),
        ("jobs.db", "url", "try sqlite:///jobs.db"),
        ("sqlite:jobs.db", "url", "try sqlite:///jobs.db"),
        ("sqlite://jobs.db", "url", "write sqlite:///jobs.db"),
        ("sqlite:///", "url", "write sqlite:///jobs.db"),
        ("sqllite:///jobs.db", "url", "did you mean 'sqlite'"),
        ("ftp://x", "url", "known: memory, mongodb"),
        ("sqlite:///x.db?synchronus=full", "url option synchronus", "did you mean 'synchronous'"),
        ("sqlite:///x.db?synchronous=off", "url option synchronous", "normal or full"),
        ("sqlite:///x.db?busy_timeout=soon", "url option busy_timeout", "seconds"),
        ("memory://?x=1", "url option x", "none is known"),
    ],
)
def test_a_bad_url_says_what_to_write(url: str, field: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        holdfast.connect(url)
    assert caught.value.field == field
    assert hint in str(caught.value)


def test_relative_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    holdfast.connect("sqlite:///here.db").close()
    holdfast.connect(f"sqlite:///{tmp_path}/with%20space.db").close()
    assert {p.name for p in tmp_path.iterdir()} >= {"here.db", "with space.db"}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"the folder .*/nowhere does not exist"):
        holdfast.connect(f"sqlite:///{tmp_path}/nowhere/jobs.db")
    with pytest.raises(StoreUnavailable, match="this is a folder"):
        holdfast.connect(f"sqlite:///{tmp_path}")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("these are my notes, and they are long enough to be read as a header" * 20)
    before = file.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a database"):
        holdfast.connect(f"sqlite:///{file}")
    assert file.read_bytes() == before


def test_a_damaged_database(tmp_path: Path, url: str) -> None:
    with holdfast.connect(url) as hf:
        hf.queue("orders").enqueue_many(range(2000))
    file = tmp_path / "jobs.db"
    pages = bytearray(file.read_bytes())
    pages[8192 : len(pages) - 4096] = b"\x07" * (len(pages) - 12288)
    file.write_bytes(pages)
    with pytest.raises(StoreCorrupt):
        holdfast.connect(url).queue("orders").lease(10)


def _refused(url: str, answer: Any) -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        holdfast.connect(url).queue("orders").enqueue(1)
        answer.send("it was stored")
    except HoldfastError as error:
        answer.send((type(error), str(error)))


def test_a_file_without_the_right_to_write() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, url = folder / "jobs.db", f"sqlite:///{name}/jobs.db"
        with holdfast.connect(url) as hf:
            hf.queue("orders")
        before = file.read_bytes()
        file.chmod(0o444)
        folder.chmod(0o555)
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_refused, args=(url, theirs))
        child.start()
        kind, text = ours.recv()
        child.join()
        folder.chmod(0o755)
        assert kind in (StoreReadOnly, StoreUnavailable)
        assert "check the rights" in text or "writable" in text
        assert file.read_bytes() == before


def test_a_database_that_refuses_writes(url: str) -> None:
    with holdfast.connect(url) as hf:
        queue = hf.queue("orders")
        writer = hf.store._db._writer
        writer.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreReadOnly, match="make the file and its folder writable"):
            queue.enqueue(1)
        writer.execute("PRAGMA query_only = OFF")
        queue.enqueue(2)
        assert [entry.message.payload for entry in queue.browse()] == [2]


def test_a_full_disk_stores_nothing_and_comes_back(url: str) -> None:
    with holdfast.connect(url) as hf:
        queue = hf.queue("orders")
        queue.enqueue_many([b"x" * 1000] * 100)
        writer = hf.store._db._writer
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFull, match="nothing was written"):
            queue.enqueue_many([b"x" * 1000] * 100)
        assert queue.stats().ready == 100 == len(list(queue.browse()))
        writer.execute(f"PRAGMA max_page_count = {pages * 10}")
        queue.enqueue_many([b"x" * 1000] * 100)
        assert queue.stats().ready == 200


def test_a_schema_from_a_newer_version(tmp_path: Path, url: str) -> None:
    holdfast.connect(url).close()
    database = sqlite3.connect(tmp_path / "jobs.db")
    database.execute("UPDATE holdfast_meta SET value = 99 WHERE name = 'version'")
    database.commit()
    with pytest.raises(SchemaTooNew, match=r"schema 99.*knows 4.*upgrade"):
        holdfast.connect(url)
    (version,) = database.execute(
        "SELECT value FROM holdfast_meta WHERE name = 'version'"
    ).fetchone()
    database.close()
    assert version == 99


def test_the_callers_own_tables_are_left_alone(tmp_path: Path, url: str) -> None:
    database = sqlite3.connect(tmp_path / "jobs.db")
    database.execute("CREATE TABLE message (id)")
    database.commit()
    with holdfast.connect(url) as hf:
        hf.queue("orders").enqueue(1)
    names = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
    database.close()
    assert all(name.startswith(("holdfast_", "sqlite_")) or name == "message" for name in names)


def test_two_processes_may_migrate_at_once(tmp_path: Path, url: str) -> None:
    code = f"import holdfast; holdfast.connect({url!r}).queue('orders').enqueue(1)"
    starting = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(6)]
    assert [process.wait() for process in starting] == [0] * 6
    with holdfast.connect(url) as hf:
        assert hf.queue("orders").stats().ready == 6


def test_a_busy_writer_is_waited_for_and_then_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?busy_timeout=0.05"
    with holdfast.connect(url) as hf:
        queue = hf.queue("orders")
        queue.enqueue(1)
        blocker = sqlite3.connect(
            tmp_path / "jobs.db", isolation_level=None, check_same_thread=False
        )
        blocker.execute("BEGIN IMMEDIATE")  # as another thread would
        with pytest.raises(StoreUnavailable, match="another connection of this one, holds"):
            queue.enqueue(2)
        assert queue.stats().ready == 1  # reading goes on
        assert hf.queue("orders.dlq").lease() == []  # and nothing to lease needs no lock
        blocker.execute("ROLLBACK")
        blocker.close()
        queue.enqueue(2)
        assert queue.stats().ready == 2


def test_a_closed_connection_says_so(url: str) -> None:
    hf = holdfast.connect(url)
    queue = hf.queue("orders")
    hf.close()
    hf.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        queue.enqueue(1)


def _in_child(hf: Holdfast, n: int) -> None:
    hf.queue("orders").enqueue(n)
    (lease,) = hf.queue("orders").lease(wait=5)
    hf.queue("orders").ack(lease)


def test_a_connection_survives_a_fork(url: str) -> None:
    hf = holdfast.connect(url)
    queue = hf.queue("orders")
    queue.enqueue("parent")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_in_child, args=(hf, n)) for n in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    queue.enqueue("parent again")
    assert (queue.stats().ready, queue.stats().done) == (2, 3)
    hf.close()


def test_many_threads_share_a_connection(url: str) -> None:
    with holdfast.connect(url) as hf:
        queue = hf.queue("orders")
        errors: list[HoldfastError] = []

        def produce(n: int) -> None:
            try:
                for i in range(50):
                    queue.enqueue((n, i))
                    queue.settle(queue.lease(1))
                    queue.stats()
            except StoreError as error:
                errors.append(error)

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert queue.stats().done == 400 == len(list(queue.log()))


@pytest.mark.parametrize(("option", "level"), [("", 1), ("?synchronous=full", 2)])
def test_the_durability_that_was_asked_for(tmp_path: Path, option: str, level: int) -> None:
    with holdfast.connect(f"sqlite:///{tmp_path}/jobs.db{option}") as hf:
        writer = hf.store._db._writer
        assert writer.execute("PRAGMA synchronous").fetchone() == (level,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_migrations_are_there_to_print() -> None:
    assert "CREATE TABLE holdfast_message" in migrations()[0]


def test_the_log_is_folded_in_beside_the_writers(url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with holdfast.connect(url) as hf:
        queue = hf.queue("orders")
        before = file.stat().st_size
        queue.enqueue_many(range(2 * checkpoints.ROWS))  # fewer pages than a commit folds in itself
        wait_until(lambda: file.stat().st_size > before)
    assert "holdfast-sqlite-checkpoint" not in [thread.name for thread in threading.enumerate()]
    with holdfast.connect(url) as hf:
        assert hf.queue("orders").stats().ready == 2 * checkpoints.ROWS


def test_a_new_file_is_its_owners_alone(tmp_path: Path, url: str) -> None:
    before = os.umask(0o022)
    try:
        with holdfast.connect(url) as hf:
            hf.queue("orders").enqueue(1)
            files = sorted(tmp_path.iterdir())
            assert [file.name for file in files] == ["jobs.db", "jobs.db-shm", "jobs.db-wal"]
            assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"] * 3
    finally:
        os.umask(before)


def test_the_rights_of_a_file_that_is_there_stay(tmp_path: Path, url: str) -> None:
    holdfast.connect(url).close()
    (tmp_path / "jobs.db").chmod(0o664)
    with holdfast.connect(url) as hf:
        hf.queue("orders").enqueue(1)
        assert (tmp_path / "jobs.db").stat().st_mode & 0o777 == 0o664


KILLED = """
import os, sys, holdfast
hf = holdfast.connect(sys.argv[1])
queue = hf.queue("orders")
for n in range(50):
    queue.enqueue({"n": n})
os._exit(0)  # nothing is folded into the file
"""


@pytest.fixture
def unfolded(tmp_path: Path, url: str) -> Path:
    """A store whose messages are in the write-ahead log alone, as a kill leaves it."""
    subprocess.run([sys.executable, "-c", KILLED, url], check=True)
    return tmp_path / "jobs.db-wal"


def edit(log: Path, at: int, value: bytes) -> None:
    with log.open("r+b") as file:
        file.seek(at)
        file.write(value)


@pytest.mark.parametrize(
    ("at", "ready"), [(0, 0), (10, 0), (32 + 24 + 100, 0), (-100_000, 49)], ids=str
)
def test_a_damaged_log_is_told(
    url: str, unfolded: Path, at: int, ready: int, caplog: pytest.LogCaptureFixture
) -> None:
    edit(unfolded, at if at >= 0 else unfolded.stat().st_size + at, b"\xff\xfe\xfd\xfc")
    with holdfast.connect(url) as hf:
        assert "the write-ahead log could not be read in full" in caplog.text
        assert hf.queue("orders").stats().ready <= ready
    with holdfast.connect(url) as hf:  # whoever looks later is told as well
        checks = {check.check: check for check in _sqlite(hf, url)}
        assert checks["log"].status == "warn"


@pytest.mark.parametrize("cut", [0, 1, 30, 5000])
def test_a_log_that_ends_early_is_no_damage(
    url: str, unfolded: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a writer that was killed: what was not committed is not missed."""
    os.truncate(unfolded, unfolded.stat().st_size - cut)
    with holdfast.connect(url) as hf:
        assert hf.queue("orders").stats().ready >= 48
        assert "write-ahead log" not in caplog.text
        assert "log" not in {check.check for check in _sqlite(hf, url)}


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_log_that_is_gone_is_told(
    url: str, unfolded: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "deleted":
        unfolded.unlink()
    else:
        os.truncate(unfolded, 0)
    with holdfast.connect(url) as hf:
        assert "the write-ahead log could not be read in full: it is gone" in caplog.text
        assert hf.queue("orders").stats().ready == 0
    with holdfast.connect(url) as hf:
        checks = {check.check: check for check in _sqlite(hf, url)}
        assert checks["log"].status == "warn"


FOLDED = KILLED.replace(
    "os._exit", "hf.store._db._writer.execute('PRAGMA wal_checkpoint').fetchall(); os._exit"
)


def test_a_log_that_was_folded_in_is_not_missed(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    subprocess.run([sys.executable, "-c", FOLDED, url], check=True)
    (tmp_path / "jobs.db-wal").unlink()
    with holdfast.connect(url) as hf:
        assert "write-ahead log" not in caplog.text
        assert hf.queue("orders").stats().ready == 50


def test_a_store_that_is_open_elsewhere_has_its_log(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast.connect(url) as hf:
        for n in range(20):
            hf.queue("orders").enqueue(n)
            with holdfast.connect(url) as other:
                assert other.queue("orders").stats().ready == n + 1
    assert "write-ahead log" not in caplog.text
