"""What is given wrongly is named, with what would be right, before anything is read or written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import Holdfast, InvalidArgument, QueueNotFound, StoreError, StoreUnavailable
from servers.base import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def url(tmp_path: Path) -> str:
    """What does not depend on the store: one is enough."""
    return f"sqlite:///{tmp_path}/test.db"


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as made:
        made.queue("orders")
        yield made


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)


class Asked:
    """The source as Spark asks it, in this process."""

    def __init__(self, url: str) -> None:
        self._given = {"url": url, "queue": "orders"}

    def source(self, given: dict[str, Any]) -> Any:
        from holdfast.spark.source import HoldfastSource

        both = {**self._given, **given}
        return HoldfastSource({name: text for name, text in both.items() if text is not None})

    def read(self, schema: str | None = None, /, **given: Any) -> Any:
        source = self.source(given)
        return source.reader(_parsed(schema) if schema else source.schema())

    def stream(self, schema: str | None = None, /, **given: Any) -> Any:
        source = self.source(given)
        return source.streamReader(_parsed(schema) if schema else source.schema())

    def write(self, schema: str | None = None, /, *, overwrite: bool = False, **given: Any) -> Any:
        return self.source(given).writer(_parsed(schema or "payload string"), overwrite)


def _parsed(schema: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(schema)


@pytest.fixture
def asked(spark: SparkSession, hf: Holdfast, url: str) -> Asked:
    return Asked(url)


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("read", {"slises": "3"}, "option slises: no such option; did you mean 'slices'"),
    ("read", {"maxMessagesPerTrigger": "3"}, "option maxMessagesPerTrigger: no such option"),
    ("stream", {"maxMessagePerTrigger": "3"}, "did you mean 'maxMessagesPerTrigger'"),
    ("stream", {"view": "log"}, "option view: no such option"),
    ("write", {"writeid_": "x"}, "did you mean 'writeId'"),
    ("write", {"slices": "3"}, "option slices: no such option"),
    ("read", {"queue": None}, "option queue: is needed"),
    ("read", {"queue": "no spaces"}, "option queue: 'no spaces'"),
    ("stream", {"url": None}, "option url: is needed, or HOLDFAST_URL"),
    ("read", {"url": "memory://"}, "option url: a memory store lives in one process"),
    ("write", {"url": "memory://"}, "option url: a memory store lives in one process"),
    ("read", {"view": "lok"}, "option view: 'lok': did you mean 'log'"),
    ("read", {"slices": "0"}, "option slices: must be 1 to 10000, not '0'"),
    ("read", {"slices": "many"}, "option slices: must be 1 to 10000, not 'many'"),
    ("stream", {"maxMessagesPerTrigger": "-1"}, "option maxMessagesPerTrigger: must be 1 to"),
    ("stream", {"maxMessagesPerTrigger": "1.5"}, "option maxMessagesPerTrigger: must be 1 to"),
    ("stream", {"storeTimeout": "soon"}, "option storeTimeout: must be 0 to 86400 seconds"),
    ("stream", {"storeTimeout": "nan"}, "option storeTimeout: must be 0 to 86400 seconds"),
    ("stream", {"onLost": "redelivr"}, "option onLost: 'redelivr': did you mean 'redeliver'"),
    ("write", {"payloadFormat": "xml"}, "option payloadFormat: 'xml'"),
    ("read", {"since": "yesterday"}, "option since: must be a time like 2026-"),
    ("read", {"id": "42", "view": "log"}, "option id: must be a UUID, not '42'"),
    ("read", {"id": "0190a6e0-0000-7000-8000-000000000001"}, "option id: is for"),
    ("read", {"path": "/tmp/x"}, 'path: there is none: use .option("queue", ...)'),
    ("write", {"path": "/tmp/x"}, 'path: there is none: use .option("queue", ...)'),
]


@pytest.mark.parametrize(("verb", "given", "text"), OPTIONS)
def test_an_option_that_is_wrong_is_named(
    asked: Asked, verb: str, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        getattr(asked, verb)(**given)
    assert text in str(refused.value)


def test_options_are_taken_in_any_case_and_the_url_from_the_environment(
    asked: Asked, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    assert asked.read(url=None, SLICES="1_0", VIEW="LOG").partitions() != []


def test_a_queue_that_is_not_there_is_named_with_a_near_one(asked: Asked) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    acts: list[Callable[[], Any]] = [
        asked.read(queue="order").partitions,
        lambda: asked.stream(queue="order").latestOffset(
            asked.stream().initialOffset(), ReadAllAvailable()
        ),
        lambda: asked.write(queue="order"),
    ]
    for act in acts:
        with pytest.raises(QueueNotFound, match="no queue 'order'; did you mean 'orders'"):
            act()


COLUMNS = [
    ("n int", 'column payload: is needed: .select(to_json(struct("*"))'),
    (
        "payload string, prio int",
        "column prio: a message has no such field; did you mean 'priority'",
    ),
    ("payload int", "column payload: must be string or binary, not int"),
    ("payload string, delay string", "column delay: must be smallint or int or bigint or float"),
    ("payload string, headers string", "column headers: must be map<string,string>, not string"),
    ("payload string, available_at long", "column available_at: must be timestamp"),
]


@pytest.mark.parametrize(("schema", "text"), COLUMNS)
def test_a_column_that_is_no_field_is_named(asked: Asked, schema: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        asked.write(schema)
    assert text in str(refused.value)


def test_a_queue_is_not_overwritten_and_its_columns_are_its_own(asked: Asked) -> None:
    with pytest.raises(InvalidArgument, match="a queue is only added to"):
        asked.write(overwrite=True)
    for act in (asked.read, asked.stream):
        with pytest.raises(InvalidArgument, match=r"take \.schema\(\.\.\.\) away"):
            act("n int")


ROWS: list[tuple[str, list[Any], str]] = [
    ("payload string", ["1", "{x}"], "column payload: row 1 of its partition: not JSON"),
    ("payload string", ["1", "2", None], "column payload: row 2 of its partition: is null"),
    ("id string", ["x"], "column id: row 0 of its partition: must be a UUID"),
    ("priority int", [0, 10], "column priority: row 1 of its partition: must be"),
    ("delay double", [-1.0], "column delay: row 0 of its partition: "),
    ("ack_timeout double", [1.0, 0.0], "column ack_timeout: row 1 of its partition: must be"),
    ("max_attempts int", [0], "column max_attempts: row 0 of its partition: must be"),
    (
        "headers map<string,string>",
        [[("a", None)]],
        "column headers.a: row 0 of its partition: must be text",
    ),
]


@pytest.mark.parametrize(("column", "values", "text"), ROWS)
def test_a_row_that_is_wrong_is_named_by_its_column_and_number(
    asked: Asked, hf: Holdfast, column: str, values: list[Any], text: str
) -> None:
    import pyarrow as pa

    from holdfast.spark.columns import arrow_schema

    whole = column if column.startswith("payload") else f"payload string, {column}"
    schema = arrow_schema(_parsed(whole))
    arrays = [pa.array(values, schema.field(column.split()[0]).type)]
    if whole != column:
        arrays.insert(0, pa.array(["1"] * len(values), pa.string()))
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with pytest.raises(InvalidArgument) as refused:
        asked.write(whole).write(iter([rows]))
    assert text in str(refused.value)
    assert hf.queue("orders").stats().ready == 0


@pytest.mark.extended
def test_spark_shows_the_texts(spark: SparkSession, hf: Holdfast, url: str, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    def source(reader: Any, **options: Any) -> Any:
        return reader.format("holdfast").option("url", url).options(**options)

    def sink(frame: Any, mode: str = "append", **options: Any) -> None:
        source(frame.write, queue="orders", **options).mode(mode).save()

    def stream(**options: Any) -> None:
        query = source(spark.readStream, **options).load().writeStream.format("noop").start()
        query.awaitTermination(60)

    one = spark.range(1).selectExpr("'1' AS payload")
    bad = spark.range(0, 3, 1, 1).selectExpr("IF(id = 2, '{', '1') AS payload")
    acts: list[tuple[Callable[[], Any], str]] = [
        (lambda: source(spark.read, queue="orders", slises=1).load().count(), "'slices'"),
        (lambda: source(spark.read, queue="order").load().count(), "did you mean 'orders'"),
        (lambda: source(spark.read, queue="orders").schema("a int").load().count(), "own columns"),
        (lambda: source(spark.read, queue="orders").load("/x").count(), "path: there is none"),
        (lambda: stream(queue="orders", view="log"), "option view: no such option"),
        (lambda: sink(one, writeIdd="x"), "did you mean 'writeId'"),
        (lambda: sink(one, "overwrite"), "a queue is only added to"),
        (lambda: sink(bad), "column payload: row 2 of its partition: not JSON"),
    ]
    for act, text in acts:
        with pytest.raises(PySparkException) as refused:
            act()
        assert text in str(refused.value)
    assert hf.queue("orders").stats().ready == 0


def test_run_refuses_what_it_cannot_do(spark: SparkSession, hf: Holdfast, tmp_path: Path) -> None:
    from holdfast import spark as hs

    def handle(order: Any) -> None: ...

    hf.handler("orders")(handle)
    good = {"checkpoint": str(tmp_path / "c"), "spark": spark, "until_empty": True}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"queue": "order"}, "queue: no handler for 'order'; did you mean 'orders'"),
        ({"checkpoint": ""}, "checkpoint: must be a folder"),
        ({"sink": 3}, "sink: must be a folder or a function, not 3"),
        ({"executor": "fork"}, 'executor: must be "thread" or "process"'),
        ({"executor": "process"}, "must be a function at the top of a module"),
        ({"time_limit": 1.0}, "time_limit: a thread cannot be ended"),
        ({"time_limit": -1.0}, "time_limit: "),
        ({"concurrency": 0}, "concurrency: "),
        ({"max_messages": 0}, "max_messages: "),
        ({"slices": 0}, "slices: "),
        ({"on_lost": "redelivr"}, "redeliver"),
    ]
    for given, text in cases:
        options = {"queue": "orders", **good, **given}
        with pytest.raises(InvalidArgument) as refused:
            hs.run(hf, options.pop("queue"), **options)
        assert text in str(refused.value)
    with holdfast.connect("memory://") as nowhere:
        nowhere.handler("orders")(handle)
        with pytest.raises(InvalidArgument, match="by its URL"):
            hs.run(nowhere, "orders", **good)


def test_a_checkpoint_stays_with_its_queue(
    spark: SparkSession, hf: Holdfast, url: str, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    def run(queue: str) -> None:
        source = spark.readStream.format("holdfast").option("url", url).option("queue", queue)
        writer = source.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
        assert query.awaitTermination(60)

    for name in ("orders", "others"):
        hf.queue(name).enqueue(1)
    run("orders")
    with pytest.raises(StreamingQueryException, match="a checkpoint cannot change its queue"):
        run("others")
    assert hf.queue("others").stats().ready == 1


def test_a_store_that_is_away_is_waited_for_as_long_as_the_option_says(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.spark import connections

    away = f"postgresql://nobody@127.0.0.1:{free_port()}/postgres"
    acts: list[Callable[[], Any]] = [
        asked.read(url=away, storeTimeout="0").partitions,
        lambda: asked.write(url=away, storeTimeout="0"),
        lambda: asked.stream(url=away, storeTimeout="0").prepareForTriggerAvailableNow(),
    ]
    for act in acts:
        with pytest.raises(StoreError, match=r"the store was away for 0 s \(option storeTimeout\)"):
            act()

    tries: list[str] = []
    connect = connections.connect

    def away_twice(url: str) -> Holdfast:
        tries.append(url)
        if len(tries) < 3:
            raise StoreUnavailable("starting up")
        return connect(url)

    monkeypatch.setattr(connections, "connect", away_twice)
    monkeypatch.setattr(connections, "PAUSE_S", (0.001, 0.001))
    monkeypatch.setattr(connections, "_open", {})
    reader = asked.read(storeTimeout="60")
    assert [list(reader.read(part)) for part in reader.partitions()] == [[]]
    assert len(tries) == 3
    next(iter(connections._open.values())).close()
