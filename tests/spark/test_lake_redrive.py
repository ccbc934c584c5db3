"""Dead letters as a frame, and what a query selected of them back to work, each once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import Holdfast, InvalidArgument, Outgoing
from tests.spark.lakes import send, shop, work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def outcomes(spark: SparkSession, receipt: str) -> Counter[str]:
    from holdfast import spark as hs

    rows = hs.outcomes(spark, receipt).groupBy("outcome").count().collect()
    return Counter({row["outcome"]: row["count"] for row in rows})


def payloads(hf: Holdfast, queue: str = "orders") -> list[Any]:
    return [entry.message.payload for entry in hf.queue(queue).browse()]


@pytest.mark.promise("SPARK-7", "SPARK-9")
def test_what_sql_selects_is_edited_and_put_back(
    spark: SparkSession, store_url: str, tmp_path: Path
) -> None:
    from holdfast import spark as hs

    receipt = str(tmp_path / "receipt")
    with holdfast.connect(store_url) as hf:
        queue = shop(hf)
        send(queue, 200)
        queue.enqueue(b"\xff\x00", content_type="application/octet-stream", id=_id(1))
        queue.enqueue_many([Outgoing(b'{"n": ', content_type="text/plain", id=_id(2))])
        _work_all(hf)
        dead = hs.triage(hf, "orders.dlq", spark=spark)
        counted = {row["parses"]: row["count"] for row in dead.groupBy("parses").count().collect()}
        assert counted == {True: 20, False: 2}
        dead.createOrReplaceTempView("dead")
        chosen = spark.sql(
            "SELECT *, to_json(named_struct('n', 1, 'was', parsed:n::int)) AS fixed FROM dead "
            "WHERE parsed:customer.id::int < 3 AND cause LIKE 'no rate%'"
        )
        (held,) = hf.queue("orders.dlq").lease(1)  # somebody looks at it
        wanted = {row["id"] for row in chosen.select("id").collect()}
        done = hs.redrive(chosen, edit="fixed", receipt=receipt)
        out = held.id in wanted
        assert (done.redriven, done.held, done.total) == (len(wanted) - out, out, len(wanted))
        found = payloads(hf)
        assert all(one["n"] == 1 and one["was"] % 7 < 3 for one in found)
        assert len(found) == done.redriven
        entries = {e.message.id: e.message for e in hf.queue("orders").browse()}
        assert all((m.attempts, m.redriven) == (0, 1) for m in entries.values())
        # The same again changes nothing and says the same, also when consumers were at it.
        hf.queue("orders").settle(hf.queue("orders").lease(3))
        again = hs.redrive(chosen, edit="fixed", receipt=receipt)
        assert again == done
        # A receipt that was lost before it was written: each is found where it has gone.
        _forget(tmp_path / "receipt/outcomes")
        assert hs.redrive(chosen, edit="fixed", receipt=receipt) == done
        stats = hf.queue("orders").stats()
        assert stats.dead == 22 - done.redriven


def test_an_edit_that_fails_is_told_and_leaves_its_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    from holdfast import spark as hs

    with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf:
        queue = shop(hf)
        hf.queue("repairs")
        send(queue, 60)
        work(queue)

        def fix(message: Any) -> Any:
            if message.payload["n"] == 30:
                raise ValueError("who knows")
            return {**message.payload, "fixed": True}

        dead = hs.triage(hf, "orders.dlq", schema="n int, more string", spark=spark)
        assert {row["n"] for row in dead.select("parsed.n").collect()} == set(range(0, 60, 10))
        receipt = str(tmp_path / "r")
        done = hs.redrive(dead, edit=fix, to="repairs", rate=1000.0, receipt=receipt)
        assert (done.redriven, done.edit_failed, done.to) == (5, 1, "repairs")
        (failed,) = hs.outcomes(spark, receipt).where("error IS NOT NULL").collect()
        assert (failed["outcome"], failed["error"]) == ("edit failed", "ValueError('who knows')")
        assert all(one["fixed"] for one in payloads(hf, "repairs"))
        assert queue.stats().dead == 1


def test_what_cannot_be_redriven_is_said(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast import spark as hs

    receipt = str(tmp_path / "r")
    with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf:
        shop(hf)
        with pytest.raises(InvalidArgument, match=r"did you mean orders\.dlq"):
            hs.triage(hf, "orders", spark=spark)
        dead = hs.triage(hf, "orders.dlq", spark=spark)
        for frame, options, said in (
            (dead.drop("place"), {}, "frame.*place"),
            (spark.range(1).selectExpr("'a' id", "1L place", "0 redriven"), {}, "hs.triage"),
            (dead, {"edit": "none"}, "edit.*none"),
            (dead, {"edit": "attempts"}, "edit.*string"),
            (dead, {"rate": 0}, "rate"),
            (dead, {"tasks": 0}, "tasks"),
        ):
            with pytest.raises(InvalidArgument, match=said):
                hs.redrive(frame, receipt=receipt, **options)  # pyright: ignore
        empty = hs.redrive(dead, receipt=receipt)
        assert empty.total == 0


def _id(n: int) -> str:
    return f"01890000-0000-7000-8000-{n:012d}"


def _work_all(hf: Holdfast) -> None:
    queue = hf.queue("orders")
    for lease in queue.lease(500):
        if lease.id in (_id(1), _id(2)):
            queue.fail(lease, "what is this?")
        elif lease.message.payload["n"] % 10 == 0:
            queue.fail(lease, f"no rate for order {lease.message.payload['n']}")
        else:
            queue.ack(lease)


def _forget(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
