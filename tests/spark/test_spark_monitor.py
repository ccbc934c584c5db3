"""Queues are watched by a stream, and what is wrong with them is said once, as messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast import InvalidArgument, QueueNotFound
from holdfast.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_alerts_come_as_messages(spark: SparkSession, store_url: str, tmp_path: Path) -> None:
    from holdfast import spark as hs

    with holdfast.connect(store_url) as hf:
        hf.queue("alerts")
        bad = hf.queue("bad", max_attempts=1)
        stuck = hf.queue("stuck")
        stuck.enqueue("nobody comes")
        query = hs.monitor(
            hf, "alerts", checkpoint=str(tmp_path / "c"), window=4.0, every=0.5, spark=spark
        )
        try:

            def alerts() -> set[tuple[str, str]]:
                assert query.exception() is None
                for lease in (bad.enqueue_many(range(40)) and bad.lease(40)) or ():
                    bad.fail(lease, "no")
                found = [entry.message for entry in hf.queue("alerts").browse()]
                return {(m.payload["queue"], m.payload["kind"]) for m in found}

            wait_until(lambda: {("bad", "error budget"), ("stuck", "stuck")} <= alerts(), 180.0)
        finally:
            query.stop()
        said = [entry.message.payload for entry in hf.queue("alerts").browse()]
        once = [(one["queue"], one["kind"], one["start"]) for one in said]
        assert len(once) == len(set(once))
        assert not [one for one in said if (one["queue"], one["kind"]) == ("stuck", "storm")]


def test_the_rules_of_a_window() -> None:
    from holdfast.spark.monitoring import Rules, Window, judged

    def kinds(**fields: int | bool) -> list[str]:
        plain = {"samples": 9, "done": 0, "dead": 0, "delayed": 0, "growth": 0, "waiting": 0}
        window = Window("q", 0, 60_000, **{**plain, "paused": False, **fields})  # pyright: ignore
        return [alert.kind for alert in judged(window, Rules())]

    assert kinds(done=1000, dead=10) == []
    assert kinds(done=1000, dead=11) == ["error budget"]
    assert kinds(done=10, dead=5) == []
    assert kinds(done=10, delayed=20) == ["storm"]
    assert kinds(done=30, delayed=20) == []
    assert kinds(waiting=1) == ["stuck"]
    assert kinds(waiting=1, paused=True) == kinds(waiting=1, done=1) == kinds() == []
    assert kinds(waiting=1, samples=1) == []


def test_what_cannot_be_watched_is_said(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast import spark as hs

    with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf:
        with pytest.raises(QueueNotFound, match="alerts"):
            hs.monitor(hf, "alerts", checkpoint="c", spark=spark)
        hf.queue("alerts")
        for wrong in ({"every": 50.0}, {"error_budget": 2.0}, {"window": -1.0}):
            (field,) = wrong
            with pytest.raises(InvalidArgument, match=field):
                hs.monitor(hf, "alerts", checkpoint="c", spark=spark, **wrong)  # pyright: ignore
