"""holdfast doctor and holdfast migrate."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.cli import checks
from holdfast.stores.sqlite.store import migrations
from holdfast.testing import MemoryStore, wait_until


def found(cli, *args: str) -> dict[str, tuple[str, str]]:
    """The last line of each check."""
    return {doc["check"]: (doc["status"], doc["text"]) for doc in cli.docs("doctor", *args)}


def test_a_store_that_is_well(cli, hf: Holdfast, url: str) -> None:
    hf.queue("orders")
    lines = cli.ok("doctor").splitlines()
    assert [line[:4] for line in lines] == ["ok  "] * len(lines)
    docs = cli.docs("doctor")
    assert [doc["check"] for doc in docs] == [
        *("versions", *["setting"] * 7, "store", "read", "write"),
        *("schema", "clock", "durability", "disk", "file", "overdue"),
    ]
    assert docs[1]["text"] == "HOLDFAST_OVERDUE_CHECK_INTERVAL_MS=5000 (default)"
    assert docs[3]["text"] == "HOLDFAST_ACK_TIMEOUT_SECONDS=30.0 (default)"
    by_name = {doc["check"]: doc for doc in docs}
    assert by_name["store"]["text"].startswith(f"{url} (from HOLDFAST_URL), opened in ")
    assert by_name["read"]["data"]["round_trip_ms"] > 0
    assert by_name["schema"]["text"] == f"version {len(migrations())}"
    assert by_name["overdue"]["text"] == "nothing in 2 queues"


def test_it_leaves_nothing_behind(cli, hf: Holdfast) -> None:
    hf.queue("orders").enqueue(1)
    before = hf.store.queues(), hf.stats()[0].ready
    cli.ok("doctor")
    assert (hf.store.queues(), hf.stats()[0].ready) == before


def test_settings_in_force(cli, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_ATTEMPTS", "9")
    told = [doc["text"] for doc in cli.docs("doctor") if doc["check"] == "setting"]
    assert "HOLDFAST_MAX_ATTEMPTS=9 (environment)" in told
    assert "HOLDFAST_PARTITION_LEASE_MS=15000 (default)" in told


def test_a_wrong_setting(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_ATEMPTS", "9")
    result = cli("doctor")
    assert result.exit_code == 1
    hint = "HOLDFAST_MAX_ATEMPTS: no such setting; did you mean 'HOLDFAST_MAX_ATTEMPTS'?"
    assert f"FAIL  setting     {hint}\n" in result.stdout


def test_a_file_that_was_not_there(cli, tmp_path: Path) -> None:
    status, text = found(cli, "--url", f"sqlite:///{tmp_path}/tpyo.db")["store"]
    assert status == "warn"
    assert text.endswith("; it was not there, and is made now")


def test_a_file_that_is_no_store(cli, tmp_path: Path) -> None:
    (tmp_path / "test.db").write_text("not a database, however long it may be " * 100)
    result = cli("doctor")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.splitlines()[-1] == (
        f"FAIL  store       {tmp_path}/test.db: file is not a database; "
        "restore a backup, or name another file"
    )


def test_a_schema_from_the_future(cli, hf: Holdfast, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "test.db") as db:
        db.execute("UPDATE holdfast_meta SET value = 99 WHERE name = 'version'")
    db.close()
    result = cli("doctor")
    assert result.exit_code == 1
    assert "has schema 99, this Holdfast knows" in result.stdout.splitlines()[-1]
    assert cli.fails(5, "stats").startswith(f"error: {tmp_path}/test.db has schema 99")


def test_durability(cli, hf: Holdfast, url: str) -> None:
    assert found(cli)["durability"] == (
        *("ok", "synchronous=normal: a power cut may lose the last commits, a crash none"),
    )
    assert found(cli, "--url", f"{url}?synchronous=full")["durability"] == (
        *("ok", "synchronous=full: neither a power cut nor a crash loses a commit"),
    )


def test_a_disk_that_runs_full(cli, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DISK_WARN", 2**70)
    assert found(cli)["disk"][0] == "warn"
    monkeypatch.setattr(checks, "DISK_FAIL", 2**70)
    assert cli("doctor").exit_code == 1


def test_a_wal_that_grows(cli, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.queue("orders").enqueue(1)
    monkeypatch.setattr(checks, "WAL_WARN", 0)
    status, text = found(cli)["file"]
    assert (status, text.endswith("somebody keeps an old read open")) == ("warn", True)


@pytest.mark.parametrize(("ahead_s", "way"), [(5, "ahead of"), (-5, "behind")])
def test_a_clock_that_is_wrong(ahead_s: int, way: str) -> None:
    class Elsewhere(MemoryStore):
        def time(self) -> int:
            return super().time() + ahead_s * 1000

    with holdfast.connect(Elsewhere()) as hf:
        [check] = checks._clock(hf, "memory://")
    assert check.status == "warn"
    assert check.text.endswith(f"{way} this machine's; the store's counts")
    assert abs(check.data["skew_ms"] - ahead_s * 1000) < 1000


def test_overdue_leases(cli, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = hf.queue("orders", ack_timeout=0.001)
    queue.enqueue_many([1, 2])
    queue.lease(2)
    wait_until(lambda: "2 leases" in found(cli)["overdue"][1])
    assert found(cli)["overdue"] == (
        *("ok", "orders: 2 leases overdue, by up to 0 s; the next sweep takes them"),
    )
    monkeypatch.setenv("HOLDFAST_OVERDUE_CHECK_INTERVAL_MS", "10")
    wait_until(lambda: found(cli)["overdue"][0] == "warn")
    assert "nobody sweeps; start a worker, or run holdfast sweep" in found(cli)["overdue"][1]
    cli.ok("sweep")
    assert found(cli)["overdue"] == ("ok", "nothing in 2 queues")


def test_queues_that_stand_still(cli, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "UNWORKED_S", 0.0)
    queue = hf.queue("orders")
    queue.enqueue(1)
    wait_until(lambda: "waiting" in found(cli))
    status, text = found(cli)["waiting"]
    assert status == "warn"
    assert text.startswith("orders: the oldest message waits ")
    assert text.endswith(" and nothing is leased; no worker?")
    queue.pause()
    assert found(cli)["paused"] == ("warn", "orders is paused and holds 1 message")
    assert "waiting" not in found(cli)


def test_a_password_is_not_shown() -> None:
    assert checks.without_password("postgresql://me:s3cret@host:5432/db?x=1") == (
        "postgresql://me:***@host:5432/db?x=1"
    )
    assert checks.without_password("sqlite:///jobs.db") == "sqlite:///jobs.db"


def test_memory_is_well_too(cli) -> None:
    checked = found(cli, "--url", "memory://")
    assert "durability" not in checked
    assert {status for status, _ in checked.values()} == {"ok"}


def test_migrate(cli, url: str, tmp_path: Path) -> None:
    version = len(migrations())
    assert not (tmp_path / "test.db").exists()
    assert cli.ok("migrate") == f"{url}: schema {version}\n"
    assert (tmp_path / "test.db").exists()
    assert cli.docs("migrate") == [{"url": url, "schema": version}]
    assert cli.ok("migrate", "--url", "memory://") == "memory://: schema as it must be\n"


def test_the_scripts_make_the_schema(cli, hf: Holdfast, tmp_path: Path) -> None:
    def tables(path: Path) -> list[tuple[str, str]]:
        db = sqlite3.connect(path)
        rows = db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        db.close()
        return rows

    by_hand = sqlite3.connect(tmp_path / "by-hand.db")
    by_hand.executescript(cli.ok("migrate", "--sql"))
    by_hand.close()
    assert tables(tmp_path / "by-hand.db") == tables(tmp_path / "test.db")


def test_a_store_without_scripts(cli) -> None:
    error = "error: --sql: memory:// has no scripts\n"
    assert cli.fails(2, "migrate", "--sql", "--url", "memory://") == error
