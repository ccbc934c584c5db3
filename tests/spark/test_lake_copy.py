"""A queue from store to store: nothing is lost, nothing is doubled, and it arrives equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import FailedPrecondition, Holdfast, InvalidArgument
from holdfast.model.moves import State
from holdfast.stores.contract import Purge, View, spec_of
from tests.spark.lakes import send, shop, work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def chain(redis_url: str, postgres_url: str, mongo_url: str, tmp_path: Path) -> Iterator[Any]:
    urls = [redis_url, postgres_url, mongo_url, f"sqlite:///{tmp_path}/last.db"]
    with ExitStack() as open_ones:
        yield [open_ones.enter_context(holdfast.connect(url)) for url in urls]


def contents(hf: Holdfast, now: int) -> dict[str, list[Any]]:
    """All that a queue holds, in its order."""
    found: dict[str, list[Any]] = {}
    for queue in ("orders", "orders.dlq"):
        for state in (State.READY, State.DELAYED, State.LOG):
            rows: list[Any] = []
            after = None
            while True:
                page = hf.store.browse(View(queue, state), after, 1000, now)
                rows += [entry.finished or entry.message for entry in page.entries]
                after = page.after
                if after is None:
                    break
            found[f"{queue} {state}"] = rows
    return found


def filled(hf: Holdfast, n: int) -> None:
    queue = shop(hf, partitions=2, retention=86_400.0)
    send(queue, n)
    work(queue, n // 2)
    for lease in queue.lease(20):
        queue.nack(lease, "later", delay=3600.0)
    queue.enqueue({"n": -1}, delay=7200.0, headers={"a": "b"}, max_attempts=9)


def _along(spark: SparkSession, chain: list[Holdfast], n: int) -> None:
    from holdfast import spark as hs

    filled(chain[0], n)
    now = chain[0].context.clock.now()
    before = contents(chain[0], now)
    assert all(
        before[name] for name in before if name not in ("orders.dlq delayed", "orders.dlq log")
    )
    for source, target in pairwise(chain):
        done = hs.copy(source, target, ["orders"], spark=spark)
        assert sum(one.count for one in done.sums) == sum(map(len, before.values()))
        assert contents(target, now) == before
        assert source.queue("orders").stats().paused
        assert not target.queue("orders").stats().paused
        spec, was = target.queue("orders").spec, source.queue("orders").spec
        assert (spec.partitions, spec.policy) == (was.partitions, was.policy)
    work(chain[-1].queue("orders"))
    assert chain[-1].queue("orders").stats().ready == 0


@pytest.mark.promise("SPARK-7", "SPARK-9")
def test_a_queue_goes_from_store_to_store(spark: SparkSession, chain: list[Holdfast]) -> None:
    _along(spark, chain, 1500)


@pytest.mark.soak
@pytest.mark.promise("SPARK-7")
def test_a_hundred_thousand_go_from_store_to_store(
    spark: SparkSession, chain: list[Holdfast]
) -> None:
    _along(spark, chain, 100_000)


@pytest.mark.promise("SPARK-7")
def test_a_copy_that_was_killed_goes_on_and_a_move_ends_the_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast import spark as hs
    from holdfast.spark.lake import copying

    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    with holdfast.connect(urls[0]) as one, holdfast.connect(urls[1]) as two:
        filled(one, 600)
        now = one.context.clock.now()
        before = contents(one, now)
        with monkeypatch.context() as patch:
            # Killed when half of it was there: what was read first is written.
            patch.setattr(copying._Copy, "_summed", _die)
            with pytest.raises(KeyboardInterrupt):
                hs.copy(urls[0], urls[1], ["orders"], spark=spark)
        assert two.queue("orders").stats().paused
        gone = before["orders ready"][-1].id
        assert two.store.drop(Purge("orders", 1)) == 1
        done = hs.copy(one, two, ["orders"], spark=spark, move=True)
        assert done.moved and spec_of(one.store, "orders") is None
        found = contents(two, now)
        assert {m.id for m in found["orders ready"]} == {m.id for m in before["orders ready"]}
        assert found["orders log"] == before["orders log"] and gone
        shop(one)
        with pytest.raises(FailedPrecondition, match="in the target already"):
            hs.copy(one, two, ["orders"], spark=spark)


@pytest.mark.extended
@pytest.mark.promise("SPARK-7")
def test_what_is_sent_while_a_queue_moves_is_not_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast import spark as hs
    from holdfast.spark.lake import copying

    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    with holdfast.connect(urls[0]) as one, holdfast.connect(urls[1]) as two:
        filled(one, 200)
        ids = {m.id for rows in contents(one, one.context.clock.now()).values() for m in rows
               if isinstance(m, holdfast.Message)}  # fmt: skip
        empty, release = copying._Copy._empty, copying._Copy._release

        def sent_before(self: Any, *args: Any) -> None:
            ids.add(one.queue("orders").enqueue("just now").id)
            empty(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(copying._Copy, "_empty", sent_before)
            with pytest.raises(FailedPrecondition, match="messages came in meanwhile"):
                hs.copy(one, two, spark=spark, move=True)
        assert [e.message.payload for e in one.queue("orders").browse()] == ["just now"]
        assert two.queue("orders").stats().paused
        with monkeypatch.context() as patch:  # the next run is killed when the source is gone
            patch.setattr(copying._Copy, "_release", _die)
            with pytest.raises(KeyboardInterrupt):
                hs.copy(one, two, spark=spark, move=True)
        assert spec_of(one.store, "orders") is None and release is copying._Copy._release
        done = hs.copy(one, two, ["orders"], spark=spark, move=True)
        assert done.queues == ["orders"] and not two.queue("orders").stats().paused
        found = contents(two, two.context.clock.now())
        there = [m.id for rows in found.values() for m in rows if isinstance(m, holdfast.Message)]
        assert len(there) == len(ids) and set(there) == ids


def test_what_cannot_be_copied_is_said(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast import spark as hs

    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    with holdfast.connect(urls[0]) as one, holdfast.connect(urls[1]) as two:
        queue = shop(one)
        send(queue, 5)
        (lease,) = queue.lease(1)
        with pytest.raises(FailedPrecondition, match="1 messages are leased"):
            hs.copy(one, two, spark=spark)
        assert not queue.stats().paused
        queue.release(lease)
        with pytest.raises(InvalidArgument, match=r"target.*the source itself"):
            hs.copy(one, urls[0], spark=spark)
        with pytest.raises(InvalidArgument, match="target"):
            hs.copy(one, "", spark=spark)
        with pytest.raises(InvalidArgument, match="move"):
            hs.copy(one, two, spark=spark, move="yes")  # pyright: ignore


def _die(*_: Any) -> Any:
    raise KeyboardInterrupt
