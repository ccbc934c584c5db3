"""A queue as a table: every view with its columns, in slices, by pushed filters; nothing moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import Holdfast, Outgoing
from holdfast.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = 1_700_000_000_123
"""2023-11-14 22:13:20.123 in UTC."""
FAR = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def hf(store_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(store_url, clock=clock) as made:
        yield made


class Table:
    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self._url = url

    def __call__(self, view: str, **options: Any) -> DataFrame:
        source = self._spark.read.format("holdfast").option("url", self._url)
        return source.option("queue", "orders").option("view", view).options(**options).load()

    def reader(self, view: str, **options: str) -> Any:
        """What Spark makes of it, to be asked without Spark."""
        from holdfast.spark import source

        given = {"url": self._url, "queue": "orders", "view": view, **options}
        made = source.HoldfastSource(given)
        return made.reader(made.schema())


@pytest.fixture
def table(spark: SparkSession, store_url: str) -> Table:
    return Table(spark, store_url)


def rows_of(frame: DataFrame) -> dict[str, dict[str, Any]]:
    """By id, times as milliseconds since 1970."""
    found = [_plain(row.asDict(recursive=True)) for row in frame.collect()]
    by_id = {row.pop("id"): row for row in found}
    assert len(by_id) == len(found)
    return by_id


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case datetime():
            return round(value.timestamp() * 1000)
        case bytearray():
            return bytes(value)
        case _:
            return value


def everything(hf: Holdfast) -> list[Any]:
    """All that the store knows of the queue."""
    queue = hf.queue("orders", create=False)
    states = ("ready", "delayed", "leased", "log")
    places = [entry for q in (queue, queue.dlq) for state in states for entry in q.browse(state)]
    return [queue.stats(), queue.dlq.stats(), *places]


PLAIN = {
    "queue": "orders",
    "partition": 0,
    "key": None,
    "type": None,
    "payload": '"x"',
    "body": None,
    "content_type": "application/json",
    "headers": {},
    "priority": 0,
    "attempts": 0,
    "max_attempts": None,
    "ack_timeout": None,
    "enqueued_at": T0,
    "available_at": T0,
    "errors": [],
}


@pytest.mark.promise("SPARK-3", "SPARK-9")
def test_every_view_has_what_the_queue_knows_and_reading_changes_nothing(
    hf: Holdfast, clock: ManualClock, table: Table
) -> None:
    queue = hf.queue("orders", ack_timeout=30)

    def error(text: str, code: str, at: int, attempt: int = 1) -> dict[str, Any]:
        said = {"message": text, "code": code, "at": at, "attempt": attempt}
        return {**said, "consumer": "me", "handler": None}

    dead, dead_held, done, done_late = (queue.enqueue("x").id for _ in range(4))
    clock.advance(1)
    leases = {lease.id: lease for lease in queue.lease(4, owner="me")}
    clock.advance(1)
    queue.fail(leases[dead], "bad ž", code="E1")
    queue.fail(leases[dead_held], "worse", code="E2")
    queue.ack(leases[done], result={"n": [1, "ž"]})
    queue.nack(leases[done_late], "once", delay=0)
    clock.advance(1)
    for lease in queue.lease(1, owner="me"):
        queue.ack(lease)
    queue.dlq.lease(2, owner="undertaker")
    (other,) = (entry for entry in queue.dlq.browse("leased") if entry.message.id == dead)
    assert other.lease is not None
    queue.dlq.release(other.lease)
    held = queue.enqueue("x").id
    clock.advance(0.001)
    (lease,) = queue.lease(1, owner="me")
    text, rich, raw = queue.enqueue_many(
        [
            Outgoing("ž", content_type="text/csv"),
            Outgoing(
                {"n": 1},
                key="k",
                type="new",
                priority=7,
                headers={"a": "1", "b": ""},
                ack_timeout=2.5,
                max_attempts=9,
            ),
            Outgoing(b"\x00\xff"),
        ]
    )
    later = queue.enqueue("x", at=FAR).id
    before = everything(hf)

    now = T0 + 3001
    assert rows_of(table("ready")) == {
        text.id: {
            **PLAIN,
            "payload": "ž",
            "content_type": "text/csv",
            "enqueued_at": now,
            "available_at": now,
        },
        rich.id: {
            **PLAIN,
            "payload": '{"n":1}',
            "key": "k",
            "type": "new",
            "priority": 7,
            "headers": {"a": "1", "b": ""},
            "ack_timeout": 2.5,
            "max_attempts": 9,
            "enqueued_at": now,
            "available_at": now,
        },
        raw.id: {
            **PLAIN,
            "payload": None,
            "body": b"\x00\xff",
            "content_type": "application/octet-stream",
            "enqueued_at": now,
            "available_at": now,
        },
    }
    assert rows_of(table("delayed")) == {
        later: {**PLAIN, "enqueued_at": now, "available_at": round(FAR.timestamp() * 1000)}
    }
    assert rows_of(table("leased")) == {
        held: {
            **PLAIN,
            "attempts": 1,
            "enqueued_at": now - 1,
            "available_at": now - 1,
            "owner": "me",
            "leased_at": now,
            "deadline": lease.deadline,
        }
    }
    letter = {
        **PLAIN,
        "queue": "orders.dlq",
        "source": "orders",
        "dead_at": T0 + 2000,
        "redriven": 0,
    }
    del letter["available_at"], letter["attempts"]
    found = rows_of(table("dead"))
    for message in (dead, dead_held):
        letter_of = hf.queue("orders.dlq").get(message)
        assert found[message].pop("available_at") == letter_of.available_at
        assert found[message].pop("reason") == letter_of.reason is not None
        assert found[message].pop("attempts") == letter_of.attempts
    assert found == {
        dead: {
            **letter,
            "errors": [error("bad ž", "E1", T0 + 2000)],
            "error": "bad ž",
            "error_code": "E1",
        },
        dead_held: {
            **letter,
            "errors": [error("worse", "E2", T0 + 2000)],
            "error": "worse",
            "error_code": "E2",
        },
    }
    ended = {
        **PLAIN,
        "status": "COMPLETED",
        "first_leased_at": T0 + 1000,
        "consumer": "me",
        "reason": None,
    }
    assert rows_of(table("log")) == {
        done: {
            **ended,
            "attempts": 1,
            "result": '{"n":[1,"ž"]}',
            "last_leased_at": T0 + 1000,
            "finished_at": T0 + 2000,
        },
        done_late: {
            **ended,
            "attempts": 2,
            "available_at": T0 + 2000,
            "result": None,
            "errors": [error("once", "ERROR", T0 + 2000)],
            "last_leased_at": T0 + 3000,
            "finished_at": T0 + 3000,
        },
    }
    assert everything(hf) == before


@pytest.mark.promise("SPARK-3")
def test_slices_cover_everything_once(hf: Holdfast, table: Table) -> None:
    from pyspark.sql.functions import spark_partition_id

    queue = hf.queue("orders", partitions=3)
    waiting = queue.enqueue_many(Outgoing(n, priority=n % 3, key=f"k{n % 7}") for n in range(600))
    for lease in queue.lease(250):
        queue.ack(lease)
    done = {finished.message.id for finished in queue.log()}
    expected = {"ready": {m.id for m in waiting} - done, "log": done}
    for view, ids in expected.items():
        found = table(view, slices=4).select("id", spark_partition_id().alias("slice")).collect()
        assert Counter(row.id for row in found) == Counter(ids)
        assert len({row.slice for row in found}) > 1
    assert table("dead", slices=4).count() == 0


def finish(hf: Holdfast, clock: ManualClock, n: int) -> list[str]:
    """`n` messages that were enqueued and finished a millisecond apart, in order."""
    queue = hf.queue("orders")
    ids: list[str] = []
    for _ in range(n):
        ids.append(queue.enqueue("x").id)
        for lease in queue.lease(1):
            queue.ack(lease)
        clock.advance(0.001)
    return ids


def at(ms: int, us: int = 0) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms, microseconds=us)


@pytest.mark.promise("SPARK-3")
def test_filters_give_the_right_rows_to_the_millisecond(
    hf: Holdfast, clock: ManualClock, table: Table
) -> None:
    from pyspark.sql.functions import col

    ids = finish(hf, clock, 5)
    moment, own = col("finished_at"), col("id")
    later = T0 + 1
    cases = {
        "the second on": (moment >= at(later), ids[1:]),
        "before the second": (moment < at(later), ids[:1]),
        "a microsecond after the second": (moment >= at(later, 1), ids[2:]),
        "just before the third": (moment >= at(later, 999), ids[2:]),
        "before a microsecond after": (moment < at(later, 1), ids[:2]),
        "before nearly the third": (moment < at(later, 999), ids[:2]),
        "both ends": ((moment >= at(later)) & (moment < at(later + 2)), ids[1:3]),
        "both ends, twice": (
            (moment >= at(T0))
            & (moment >= at(later))
            & (moment < at(FAR_MS))
            & (moment < at(T0 + 4)),
            ids[1:4],
        ),
        "closed ends": (moment.between(at(later), at(later + 2)), ids[1:4]),
        "after": (moment > at(later), ids[2:]),
        "exactly": (moment == at(later), ids[1:2]),
        "in UTC": (moment == "2023-11-14 22:13:20.124", ids[1:2]),
        "an id": (own == ids[3], ids[3:4]),
        "an id that is none": (own == "42", []),
        "an id, too early": ((own == ids[3]) & (moment < at(later)), []),
        "something else": (col("status") != "COMPLETED", []),
    }
    # One job for all of them: every case is a branch of a union.
    union = None
    for name, (condition, _) in cases.items():
        part = table("log", slices=1).where(condition).selectExpr(f"'{name}' AS name", "id")
        union = part if union is None else union.unionAll(part)
    assert union is not None
    got: dict[str, list[str]] = {name: [] for name in cases}
    for row in union.collect():
        got[row.name].append(row.id)
    assert {name: sorted(found) for name, found in got.items()} == {
        name: sorted(wanted) for name, (_, wanted) in cases.items()
    }


FAR_MS = round(FAR.timestamp() * 1000)


@pytest.mark.promise("SPARK-3")
def test_one_frame_with_two_filters(hf: Holdfast, clock: ManualClock, table: Table) -> None:
    """Spark 4.3 keeps what a reader planned for every use of a frame: no filter may be in it."""
    ids = finish(hf, clock, 4)
    frame = table("log", slices=1)
    first, second = frame.where(frame.id == ids[0]), frame.where(frame.id == ids[1])
    both = first.unionAll(second).select("id").collect()
    assert sorted(row.id for row in both) == ids[:2]
    assert (first.count(), frame.count()) == (1, 4)


def _iso(ms: int) -> str:
    return at(ms).isoformat(timespec="milliseconds")


@pytest.mark.promise("SPARK-3")
def test_options_say_which_rows(hf: Holdfast, clock: ManualClock, table: Table) -> None:
    ids = finish(hf, clock, 4)

    def found(**options: Any) -> list[str]:
        return sorted(row.id for row in table("log", slices=1, **options).select("id").collect())

    assert found(since=_iso(T0 + 1), until=_iso(T0 + 3)) == sorted(ids[1:3])
    assert found(since="2023-11-14T22:13:20.125Z") == sorted(ids[2:])
    assert found(until="2023-11-14T23:13:20.124+01:00") == ids[:1]
    assert found(id=ids[2].upper()) == [ids[2]]
