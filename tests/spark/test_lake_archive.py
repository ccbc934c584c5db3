"""The archive: each row once, whatever is killed, and retention behind it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import holdfast
from holdfast import Holdfast, InvalidArgument, QueueNotFound
from holdfast.model.message import new_ids
from holdfast.queue import archives, failures
from holdfast.stores.memory import MemoryStore
from holdfast.testing import wait_until
from tests.spark.lakes import lake_ids, once, send, shop, work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
PATIENCE_S = 300.0


def logged(hf: Holdfast, queue: str = "orders") -> set[str]:
    return {row.message.id for row in hf.queue(queue).log()}


@pytest.mark.extended
@pytest.mark.promise("SPARK-7", "SPARK-9")
def test_each_row_is_archived_once(spark: SparkSession, store_url: str, tmp_path: Path) -> None:
    from holdfast import spark as hs

    lake = str(tmp_path / "lake")
    with holdfast.connect(store_url) as hf:
        queue = shop(hf, retention=3600.0)
        send(queue, 300)
        work(queue, 150)
        first = hs.archive(hf, lake, ["orders"], spark=spark)
        assert first.log == len(logged(hf)) > 0
        work(queue)
        # Committed now, and finished before the last run: its transaction was open for long.
        late = _finished_before(hf, first.upto - 5000)
        second = hs.archive(hf, lake, spark=spark)
        assert second.total == first.log + second.log
        assert lake_ids(spark, lake) == once(logged(hf))
        dead = {entry.message.id for entry in queue.dlq.browse()}
        assert len(dead) == 30
        assert lake_ids(spark, lake, "dead") == once(dead)
        assert (late is None) or late in logged(hf)
        rows = hs.archived(lake, "dead", spark).select("fingerprint", "cause", "source").distinct()
        (cause,) = rows.collect()
        assert (cause["cause"], cause["source"]) == ("no rate for order <n> of <text>", "orders")
        (group,) = failures.failure_groups(hf.context, "orders.dlq").groups
        assert cause["fingerprint"] == group.fingerprint
        # What a run that was killed has left is in nobody's way.
        junk = tmp_path / "lake/log/queue=orders/day=2020-01-01/dead-0.parquet"
        junk.parent.mkdir()
        junk.write_bytes(b"PAR1")
        third = hs.archive(hf, lake, spark=spark)
        assert (third.log, third.dead) == (0, 0)
        assert not junk.exists()


def _finished_before(hf: Holdfast, at: int) -> str | None:
    """As if a worker's transaction had taken five seconds. Redis writes its log in order."""
    if str(hf.url).startswith("redis"):
        return None
    (row, *_) = hf.queue("orders").log()
    (id,) = new_ids(1, at)
    message = msgspec.structs.replace(row.message, id=id)
    hf.store.restore("orders", [msgspec.structs.replace(row, message=message, finished_at=at)], at)
    return id


@pytest.mark.promise("SPARK-7")
def test_retention_waits_for_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast import spark as hs
    from holdfast.spark.lake.files import Lake

    lake = str(tmp_path / "lake")
    with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf:
        queue = shop(hf, retention=0.001)
        send(queue, 30)
        work(queue)
        where = Lake(spark, lake).where
        archives.note(hf.context, "orders", where, 0)
        hf.sweep()
        assert len(logged(hf)) == 27
        hs.archive(hf, lake, spark=spark, late=0)
        hf.sweep()
        assert logged(hf) == set()
        assert sum(lake_ids(spark, lake).values()) == 27
        send(queue, 10, 100)
        work(queue)
        hf.sweep()
        assert len(logged(hf)) == 9
        assert sorted(hs.forget(hf, lake, spark)) == ["orders", "orders.dlq"]
        hf.sweep()
        assert logged(hf) == set()


def test_what_cannot_be_archived_is_said(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast import spark as hs

    lake = str(tmp_path / "lake")
    with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf:
        shop(hf)
        with pytest.raises(QueueNotFound, match=r"no queue 'order'.*orders"):
            hs.archive(hf, lake, ["order"], spark=spark)
        for wrong in ({"late": -1.0}, {"slices": 0}, {"queues": "orders"}):
            (field,) = wrong
            with pytest.raises(InvalidArgument, match=field):
                hs.archive(hf, lake, spark=spark, **wrong)  # pyright: ignore
        with pytest.raises(InvalidArgument, match="lake"):
            hs.archive(hf, "", spark=spark)
        with pytest.raises(InvalidArgument, match="table"):
            hs.archived(lake, "logs", spark)
    with (
        holdfast.connect(MemoryStore()) as nowhere,
        pytest.raises(InvalidArgument, match="by its URL"),
    ):
        hs.archive(nowhere, lake, spark=spark)


@pytest.mark.promise("SPARK-7")
def test_an_older_run_cannot_publish(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast.spark.lake.files import Lake, LakeBusy

    lake = Lake(spark, str(tmp_path / "lake"))
    one = lake.begin("one", "store", 1)
    two = lake.begin("two", "store", 2)
    files = {"log": ["log/a.parquet"]}
    done = msgspec.structs.replace(two, number=two.number + 1, files=files, rows={"log": 1})
    lake.publish(done, files)
    stale = msgspec.structs.replace(one, number=one.number + 1, files={"log": ["log/b.parquet"]})
    with pytest.raises(LakeBusy):
        lake.publish(stale, {})
    assert lake.state().files == files
    with pytest.raises(InvalidArgument, match="archive of store"):
        lake.begin("three", "elsewhere", 3)
    # Many runs later: one manifest names all files, and the old ones are gone.
    for number in range(30):
        begun = lake.begin(f"r{number}", "store", 3)
        new = {"log": [f"log/{number}.parquet"]}
        every = {"log": [*begun.files["log"], *new["log"]]}
        lake.publish(msgspec.structs.replace(begun, number=begun.number + 1, files=new), every)
    state = lake.state()
    assert state.files["log"] == ["log/a.parquet", *(f"log/{n}.parquet" for n in range(30))]
    assert len(list((tmp_path / "lake/_holdfast").glob("*.json"))) < 50


@pytest.mark.extended
def test_where_there_is_no_disk_spark_writes_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast import spark as hs
    from holdfast.spark.lake.files import Lake

    def rows(name: str) -> list[dict[str, Any]]:
        lake = str(tmp_path / name)
        assert hs.archive(hf, lake, spark=spark).log == 92
        frame = hs.archived(lake, spark=spark).drop("archived_at")
        return [row.asDict(recursive=True) for row in frame.orderBy("id").collect()]

    with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf:
        queue = shop(hf)
        send(queue, 100)
        queue.enqueue("ä", key=b"\x00\xff", headers={"a": "b"}, type="odd")
        queue.enqueue(b"\x00\xff", delay=0, priority=3)
        for lease in queue.lease(200):
            payload = lease.message.payload
            if isinstance(payload, dict) and payload["n"] % 10 == 0:
                queue.fail(lease, "no rate")
            else:
                queue.ack(lease, result={"n": 1})
        straight = rows("straight")
        with monkeypatch.context() as patch:
            patch.setattr(Lake, "folder", None)
            assert rows("by Spark") == straight


POINTS = ("after-begin", "in-read", "after-write", "after-adopt", "after-publish")


def _driver(url: str, lake: str, die_at: str) -> subprocess.Popen[bytes]:
    told = json.dumps({"url": url, "lake": lake, "die_at": die_at})
    return subprocess.Popen(
        [sys.executable, str(HERE / "lake_driver.py"), told], start_new_session=True
    )


@pytest.mark.extended
@pytest.mark.promise("SPARK-7")
def test_an_archive_that_is_killed_is_taken_up(spark: SparkSession, tmp_path: Path) -> None:
    url, lake = f"sqlite:///{tmp_path}/test.db", str(tmp_path / "lake")
    _killed(spark, url, lake, ("after-adopt", "after-publish"), 400)


@pytest.mark.soak
@pytest.mark.promise("SPARK-7")
def test_ten_kills_while_a_hundred_thousand_flow(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    _killed(spark, postgres_url, str(tmp_path / "lake"), POINTS * 2, 100_000)


def _killed(
    spark: SparkSession, url: str, lake: str, points: tuple[str, ...], messages: int
) -> None:
    from holdfast import spark as hs

    with holdfast.connect(url) as hf:
        queue = shop(hf)
        stop = threading.Event()

        def flow() -> None:
            step = max(50, messages // 50)
            for first in range(0, messages, step):
                send(queue, step, first)
                work(queue)
                if stop.wait(max(0.1, messages / 25_000)):  # as long as its drivers
                    return

        flowing = threading.Thread(target=flow)
        flowing.start()
        try:
            for point in points:
                wait_until(lambda: queue.stats().done > 0, PATIENCE_S)
                driver = _driver(url, lake, point)
                assert driver.wait(PATIENCE_S) == -signal.SIGKILL
            flowing.join()
        finally:
            stop.set()
            flowing.join()
        hs.archive(hf, lake, spark=spark)
        assert lake_ids(spark, lake) == once(logged(hf))
        assert lake_ids(spark, lake, "dead") == once(e.message.id for e in queue.dlq.browse())
        assert sum(lake_ids(spark, lake).values()) == queue.stats().done
        assert queue.stats().done + queue.stats().dead == messages
