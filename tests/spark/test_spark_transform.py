"""Rows made of messages: what does not fit is a verdict on its message, and on no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

import holdfast
from holdfast import Backoff, Fail, Holdfast, Message, Outgoing, Retry
from holdfast.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "n int, name string"
PATIENCE_S = 120.0


class Order(msgspec.Struct):
    n: int
    what: str = ""


@dataclass
class Line:
    n: int
    name: str | None = None


class Pair(NamedTuple):
    n: int
    name: str


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(store_url, max_attempts=2, backoff=Backoff(base=0, max=0)) as made:
        made.queue("orders")
        yield made


@pytest.fixture
def into(hf: Holdfast, spark: SparkSession, tmp_path: Path) -> Callable[..., list[tuple[Any, ...]]]:
    """Run a transformation until nothing waits; the rows of its sink, without ids."""

    def is_done() -> bool:
        stats = hf.queue("orders").stats()
        return not (stats.ready or stats.delayed or stats.leased)

    def run(transform: Any, **options: Any) -> list[tuple[Any, ...]]:
        import pyarrow.parquet as pq

        sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "c")
        query = transform.run(sink=sink, checkpoint=checkpoint, spark=spark, wait=False, **options)
        wait_until(lambda: query.exception() or is_done(), PATIENCE_S)
        query.stop()
        assert query.exception() is None
        rows = pq.read_table(sink).to_pylist()
        ids = [row["id"] for row in rows]
        assert len(set(ids)) == len(ids)
        return sorted((tuple(row.values())[1:-1] for row in rows), key=str)

    return run


def dead(hf: Holdfast) -> dict[str, list[tuple[str, str]]]:
    return {
        entry.message.key or "": [(error.code, error.message) for error in entry.message.errors]
        for entry in hf.queue("orders.dlq").browse()
    }


def done(hf: Holdfast) -> dict[str, tuple[int, Any]]:
    return {
        finished.message.key or "": (finished.message.attempts, finished.result)
        for finished in hf.queue("orders").log()
    }


def make(order: dict[str, Any], attempt: int, message: Message) -> Any:
    n = order.get("n", 0)
    match message.key:
        case "dict":
            return {"n": n, "name": "d"}
        case "partial":
            return {"n": n}
        case "tuple":
            return n, "t"
        case "named tuple":
            return Pair(n, "p")
        case "dataclass":
            return Line(n, "l")
        case "struct":
            return Order(n)
        case "nothing":
            return None
        case "text for a number":
            return {"n": "many"}
        case "too large":
            return {"n": 2**40}
        case "unknown":
            return {"n": n, "nam": "x"}
        case "too long":
            return n, "t", "more"
        case "no row":
            return 42
        case "raises":
            raise ValueError("bad ž")
        case "never":
            raise Fail("never", code="E9")
        case "at last":
            if attempt == 1:
                raise Retry("once", delay=0)
            return {"n": attempt}
        case _:
            raise AssertionError


NAMES = (
    *("dict", "partial", "tuple", "named tuple", "dataclass", "nothing", "at last"),
    *("text for a number", "too large", "unknown", "too long", "no row", "struct"),
    *("raises", "never"),
)


@pytest.mark.promise("SPARK-2", "SPARK-9")
def test_a_row_from_each_message_or_a_verdict_on_it(
    hf: Holdfast, into: Callable[..., list[tuple[Any, ...]]]
) -> None:
    from holdfast import spark as hs

    hf.queue("orders").enqueue_many(Outgoing({"n": n}, key=name) for n, name in enumerate(NAMES, 1))
    rows = into(hs.transform(hf, "orders", schema=SCHEMA)(make))
    assert rows == sorted([(1, "d"), (2, None), (3, "t"), (4, "p"), (5, "l"), (2, None)], key=str)
    good = ("dict", "partial", "tuple", "named tuple", "dataclass", "nothing")
    assert done(hf) == {**dict.fromkeys(good, (1, None)), "at last": (2, None)}

    found = dead(hf)
    assert found.keys() == {*NAMES} - {*good, "at last"}
    assert found["raises"] == [("ValueError", "bad ž")] * 2
    assert found["never"] == [("E9", "never")]
    misfits = {
        "text for a number": "many",
        "too large": "1099511627776",
        "unknown": "'nam' is not in the schema (n, name)",
        "too long": "3 values for the columns n, name",
        "no row": "must be a row (a dict, a tuple, a dataclass), not 42",
        "struct": "'what' is not in the schema (n, name)",
    }
    for name, text in misfits.items():
        assert [code for code, _ in found[name]] == ["SchemaMismatch"] * 2, name
        assert all(text in message for _, message in found[name]), (name, found[name])


@pytest.mark.promise("SPARK-2", "SPARK-5")
def test_a_payload_that_does_not_fit_its_type_is_a_verdict(
    hf: Holdfast, into: Callable[..., list[tuple[Any, ...]]]
) -> None:
    from holdfast import spark as hs

    # Not to be found by name in another process: it travels by value, with its types.
    @hs.transform(hf, "orders", schema=SCHEMA)
    async def typed(order: Order) -> Line:
        return Line(order.n, order.what)

    queue = hf.queue("orders")
    queue.enqueue({"n": 1, "what": "a"}, key="good")
    queue.enqueue({"n": "one"}, key="misfit")
    assert into(typed, concurrency=2) == [(1, "a")]
    assert done(hf) == {"good": (1, None)}
    assert {name: {code for code, _ in said} for name, said in dead(hf).items()} == {
        "misfit": {"MISFIT"}
    }


@pytest.mark.promise("SPARK-2")
def test_a_whole_frame_with_errors_by_row(
    hf: Holdfast, into: Callable[..., list[tuple[Any, ...]]]
) -> None:
    from holdfast import spark as hs

    @hs.transform(hf, "orders", schema="n long, name string", frame=True)
    def parsed(messages: DataFrame) -> DataFrame:
        rows = messages.selectExpr(
            "id", "key AS name", "try_cast(get_json_object(payload, '$.n') AS int) AS n"
        )
        rows = rows.selectExpr("*", "CASE WHEN n IS NULL THEN concat('no n: ', name) END AS error")
        return rows.where("n IS NULL OR n > 0")

    queue = hf.queue("orders")
    for name, n in (("a", 1), ("b", 2), ("left out", 0), ("bad", "x"), ("empty", None)):
        queue.enqueue({"n": n}, key=name)
    assert into(parsed) == [(1, "a"), (2, "b")]
    assert done(hf) == dict.fromkeys(("a", "b", "left out"), (1, None))
    assert dead(hf) == {
        name: [("TransformFailed", f"no n: {name}")] * 2 for name in ("bad", "empty")
    }


@pytest.fixture
def one_store(tmp_path: Path) -> Iterator[Holdfast]:
    """What does not depend on the store."""
    with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as made:
        made.queue("orders").enqueue({"n": 1})
        yield made


def test_a_frame_without_a_column_fails_the_query_and_loses_nothing(
    one_store: Holdfast, spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    from holdfast import spark as hs

    def halved(messages: DataFrame) -> DataFrame:
        return messages.selectExpr("id", "1 AS n")

    made = hs.transform(one_store, "orders", schema=SCHEMA, frame=True)(halved)
    with pytest.raises(StreamingQueryException, match="has no column 'name'"):
        made.run(sink=None, checkpoint=str(tmp_path / "c"), spark=spark, until_empty=True)
    assert one_store.queue("orders").stats().leased == 1


@pytest.mark.parametrize("schema", ["n itn", "n int, id string", "error string"])
def test_a_schema_that_cannot_be_is_refused(
    one_store: Holdfast, spark: SparkSession, tmp_path: Path, schema: str
) -> None:
    from holdfast import spark as hs

    made = hs.transform(one_store, "orders", schema=schema)(make)
    with pytest.raises(holdfast.InvalidArgument, match=r"^schema: "):
        made.run(sink=None, checkpoint=str(tmp_path / "c"), spark=spark)


def test_it_is_still_the_function_that_it_was(one_store: Holdfast) -> None:
    from holdfast import spark as hs

    double = hs.transform(one_store, "orders", schema="n int")(lambda n: {"n": n * 2})
    assert double(3) == {"n": 6}
