"""The report: its figures are those of the log, its page is whole, and odd lakes are no trouble."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import Holdfast, InvalidArgument
from holdfast.model.message import ErrorInfo, Finished, History, Message, new_ids
from holdfast.queue import failures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE = 60_000


def past(hf: Holdfast, rows: int = 3000) -> None:
    """Two queues with a log of an hour, some dead letters, a storm of retries in minute 20."""
    dice = Random(11)
    start = hf.context.clock.now() // MINUTE * MINUTE - 90 * MINUTE
    for name in ("orders", "emails"):
        hf.queue(name)
        ids = list(new_ids(rows + 50, start))
        done: list[Finished] = []
        for n, id in enumerate(ids[:rows]):
            enqueued = start + n * 60 * MINUTE // rows
            first = enqueued + int(dice.expovariate(1 / 80))
            attempts = 2 if n % 9 == 0 else 1
            last = first + (int(dice.expovariate(1 / 3000)) if attempts == 2 else 0)
            if attempts == 2 and 1000 <= n < 1500 and name == "orders":
                last = max(last, start + 31 * MINUTE)  # all at once
            end = last + int(dice.lognormvariate(3.5, 1.2))
            errors = ()
            if attempts == 2:
                code = "ACK_TIMEOUT" if n % 36 == 0 else "ConnectionError"
                text = f"connection to 10.0.0.{n % 250} refused"
                errors = (ErrorInfo(text, code, first + 5, 1, f"w{n % 3}", "ship"),)
            message = Message(
                id, name, 0, 0, f"customer-{n % 40}" if n % 5 else None, None, b"{}",
                "application/json", {}, enqueued, enqueued, attempts, None, None, None, first,
                History(errors=errors),
            )  # fmt: skip
            status = "COMPLETED" if n % 50 else "COMPLETED_WITH_ERRORS"
            done.append(Finished(message, status, end, first, last, f"w{n % 4}"))
        hf.store.restore(name, sorted(done, key=lambda row: row.finished_at), start)
        letters = []
        for n, id in enumerate(ids[rows:]):
            died = start + n * MINUTE
            error = ErrorInfo(f"no rate for {n}", "ValueError", died, 2, "w1", "ship")
            history = History(errors=(error,), source=name, dead_at=died, reason="failed")
            letter = Message(
                id, f"{name}.dlq", 0, 0, None, None, b"{", "application/json", {}, start,
                start, 2, None, None, None, None, history,
            )  # fmt: skip
            letters.append(letter)
        hf.store.enqueue(letters, hf.context.clock.now())


def logged(hf: Holdfast, queue: str) -> list[Finished]:
    return list(hf.queue(queue).log())


def dead(hf: Holdfast, queue: str) -> list[Message]:
    return [entry.message for entry in hf.queue(f"{queue}.dlq").browse()]


def exactly(times: list[int], share: float) -> int:
    return sorted(times)[max(1, math.ceil(share * len(times))) - 1]


@pytest.mark.promise("SPARK-8", "SPARK-9")
def test_its_figures_are_those_of_the_log(
    spark: SparkSession, store_url: str, tmp_path: Path
) -> None:
    from holdfast import spark as hs

    lake = str(tmp_path / "lake")
    with holdfast.connect(store_url) as hf:
        past(hf)
        hs.archive(hf, lake, spark=spark)
        made = hs.report(lake, hf=hf, spark=spark, title="A <b>day</b>")
        for queue in ("orders", "emails"):
            _same(made.tables, hf, queue)
        assert made.rows == 6100 and made.summary["dead"] == 100
        _published(hf, made)
        # Beside the page, the tables.
        folder = Path(made.page.removeprefix("file:")).parent
        for name, rows in made.tables.items():
            assert spark.read.parquet(str(folder / f"{name}.parquet")).count() == len(rows)
        # A part of it: one queue, half an hour.
        since = datetime.fromtimestamp(made.tables["throughput"][0]["at"] / 1000, UTC)
        until = datetime.fromtimestamp(since.timestamp() + 1800, UTC)
        part = hs.report(
            lake, queues=["emails"], since=since, until=until, spark=spark, out=str(tmp_path / "o")
        )
        low, high = since.timestamp() * 1000, until.timestamp() * 1000
        wanted = sum(low <= row.finished_at < high for row in logged(hf, "emails"))
        assert [row["done"] for row in part.tables["summary"]] == [wanted]
        assert (tmp_path / "o/report.html").exists()


def _same(tables: dict[str, list[dict[str, Any]]], hf: Holdfast, queue: str) -> None:
    log, letters = logged(hf, queue), dead(hf, queue)
    (summary,) = [row for row in tables["summary"] if row["queue"] == queue]
    deliveries = sum(row.message.attempts for row in log) + sum(m.attempts for m in letters)
    assert summary == {
        "queue": queue,
        "done": len(log),
        "with_errors": sum(row.status != "COMPLETED" for row in log),
        "dead": len(letters),
        "deliveries": deliveries,
        "amplification": deliveries / len(log),
    }
    measures = {
        "wait": [row.first_leased_at - row.message.enqueued_at for row in log],  # pyright: ignore
        "between": [row.last_leased_at - row.first_leased_at for row in log],  # pyright: ignore
        "run": [row.finished_at - row.last_leased_at for row in log],  # pyright: ignore
        "total": [row.finished_at - row.message.enqueued_at for row in log],
    }
    for row in tables["times"]:
        if row["queue"] == queue:
            times = measures[row["measure"]]
            assert (row["n"], row["max_ms"]) == (len(times), max(times))
            assert row["mean_ms"] == pytest.approx(sum(times) / len(times))
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
                wanted = exactly(times, share)
                assert row[f"{name}_ms"] == pytest.approx(wanted, rel=0.0079)
                assert wanted >= 128 or row[f"{name}_ms"] == wanted
    (states,) = [row for row in tables["states"] if row["queue"] == queue]
    assert states["waiting_ms"] == pytest.approx(sum(measures["wait"]) / len(log))
    _same_keys(tables, log, queue)
    _same_failures(tables, log, letters, queue)
    _same_consumers(tables, log, letters, queue)
    done = Counter[int]()
    step = tables["throughput"][1]["at"] - tables["throughput"][0]["at"]
    for row in log:
        done[row.finished_at // step * step] += 1
    found = {r["at"]: r["done"] for r in tables["throughput"] if r["queue"] == queue and r["done"]}
    assert found == done
    storms = [row for row in tables["storms"] if row["queue"] == queue]
    assert (len(storms) > 0) == (queue == "orders")
    assert all(row["peak"] > 10 * row["expected"] for row in storms)


def _same_keys(tables: Any, log: list[Finished], queue: str) -> None:
    times: dict[str, list[int]] = defaultdict(list)
    for row in log:
        if row.message.key is not None:
            times[row.message.key].append(row.finished_at - (row.last_leased_at or 0))
    found = {row["key"]: row for row in tables["keys"] if row["queue"] == queue}
    slowest = sorted(times, key=lambda key: (-sum(times[key]) / len(times[key]), key))[:15]
    assert set(slowest) <= set(found)
    for key, row in found.items():
        own = times[key]
        assert (row["n"], row["max_ms"], row["total_ms"]) == (len(own), max(own), sum(own))


def _same_failures(tables: Any, log: list[Finished], letters: list[Message], queue: str) -> None:
    wanted: dict[str, list[int]] = defaultdict(list)
    for message, at in (
        *((row.message, row.finished_at) for row in log),
        *((letter, letter.dead_at or 0) for letter in letters),
    ):
        if message.errors:
            last = message.errors[-1]
            print_ = failures.fingerprint(message.reason, last.code, last.handler, last.message)
            wanted[print_].append(at)
    found = {row["fingerprint"]: row for row in tables["failures"] if row["queue"] == queue}
    assert {p: (row["n"], row["first"], row["last"]) for p, row in found.items()} == {
        p: (len(times), min(times), max(times)) for p, times in wanted.items()
    }
    assert sum(row["dead"] for row in found.values()) == len(letters)


def _same_consumers(tables: Any, log: list[Finished], letters: list[Message], queue: str) -> None:
    deliveries, overdue = Counter[str](), Counter[str]()
    for row in log:
        deliveries[row.consumer or ""] += 1
    for message in (*(row.message for row in log), *letters):
        for error in message.errors:
            deliveries[error.consumer or ""] += 1
            overdue[error.consumer or ""] += error.code == "ACK_TIMEOUT"
    found = {row["consumer"]: row for row in tables["consumers"] if row["queue"] == queue}
    assert {name: row["deliveries"] for name, row in found.items()} == deliveries
    assert (
        Counter({name: row["overdue"] for name, row in found.items() if row["overdue"]}) == +overdue
    )


def _published(hf: Holdfast, made: Any) -> None:
    (head,) = hf.store.records("report")
    (page,) = hf.store.records("report-page")
    assert head.name == page.name == f"{made.made_at:015d}"
    said = json.loads(head.value)
    assert set(said) == {"made_at", "title", "lake", "rows", "summary"}
    text = gzip.decompress(page.value).decode()
    assert text == Path(made.page.removeprefix("file:")).read_text()
    assert "A &lt;b&gt;day" in text and "<b>day" not in text
    reader = _Reader()
    reader.feed(text)
    assert reader.outside == []  # nothing is fetched from anywhere
    assert reader.plots >= 7 and reader.open == 0


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.plots = self.open = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe"):
            self.outside.append(tag)
        self.outside += [f"{k}={v}" for k, v in attrs if k in ("src", "href")]
        self.plots += tag == "svg" and dict(attrs).get("role") == "img"
        self.open += tag in ("section", "table", "div", "svg")

    def handle_endtag(self, tag: str) -> None:
        self.open -= tag in ("section", "table", "div", "svg")


@pytest.mark.extended
@pytest.mark.promise("SPARK-8")
def test_an_empty_lake_and_files_of_an_older_release(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast import spark as hs
    from holdfast.spark.lake.files import Lake

    lake = str(tmp_path / "a lake%20")
    with pytest.raises(InvalidArgument, match="holds no archive"):
        hs.report(lake, spark=spark)
    with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf:
        hf.queue("orders")
        hs.archive(hf, lake, spark=spark)
        empty = hs.report(lake, spark=spark)
        assert (empty.rows, empty.summary["done"]) == (0, 0)
        assert "is empty" in Path(empty.page.removeprefix("file:")).read_text()
        past(hf, rows=200)
        hs.archive(hf, lake, spark=spark, late=86_400.0)  # what comes so late is looked for
    # As if a release had written them that knew neither consumers nor causes.
    for file in Path(lake, "log").glob("queue=orders/*/*.parquet"):
        import pyarrow.parquet as pq

        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.drop_columns(["consumer", "cause", "fingerprint"]), file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    made = hs.report(lake, spark=spark)
    assert made.summary["done"] == 400
    assert {row["queue"] for row in made.tables["consumers"]} == {"orders", "emails"}
    with monkeypatch.context() as patch:  # no disk: Spark reads it
        patch.setattr(Lake, "folder", None)
        assert hs.report(lake, spark=spark, out=str(tmp_path / "o")).tables == made.tables
    for wrong in ({"queues": "orders"}, {"since": 5}, {"title": ""}):
        (field,) = wrong
        with pytest.raises(InvalidArgument, match=field):
            hs.report(lake, spark=spark, **wrong)  # pyright: ignore


@pytest.mark.extended
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Honolulu"])
def test_folders_may_be_named_by_the_days_of_another_zone(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    from holdfast import spark as hs

    lake = str(tmp_path / "lake")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        with holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf:
            past(hf, rows=50)
            hs.archive(hf, lake, spark=spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    made = hs.report(lake, spark=spark)
    ends = (made.tables["throughput"][0]["at"], made.tables["throughput"][-1]["at"] + 3_600_000)
    since, until = (datetime.fromtimestamp(ms / 1000, UTC) for ms in ends)
    part = hs.report(lake, since=since, until=until, spark=spark, out=str(tmp_path / "o"))
    assert part.summary["dead"] == made.summary["dead"] == 100


def test_percentiles_of_buckets() -> None:
    import numpy as np

    from holdfast.spark.reports import histogram

    dice = Random(2)
    times = [*range(3000), *(int(dice.lognormvariate(9, 4)) for _ in range(3000)), 2**41]
    found = histogram.buckets(np.array(times, np.int64))
    assert found.max() < histogram.BUCKETS
    for time, bucket in zip(times, found.tolist(), strict=True):
        middle = histogram.middle(bucket)
        assert middle == time if time < 128 else abs(middle - time) <= time * 0.0079
    counts = Counter(found.tolist())
    for share in (0.01, 0.5, 0.9, 0.999, 1.0):
        assert histogram.percentile(counts, share) == pytest.approx(
            exactly(times, share), rel=0.0079
        )
    assert histogram.percentile({}, 0.5) is None
