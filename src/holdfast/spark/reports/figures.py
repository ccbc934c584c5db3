"""From sums to figures: small tables, the same for Parquet, for the page and for a summary."""

# pyright: basic

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from holdfast.queue.failures import BUCKETS_MS
from holdfast.spark.reports import histogram
from holdfast.spark.reports.scan import MEASURES, STEPS_MAX

KEYS = 15
"""Of each queue, the slowest and the noisiest."""
REST_MAX = 50_000
"""Causes by step, and consumers: the largest."""
STORMS_MAX = 200
STORM_LEAST = 20
"""Retries in a minute, below which nobody would call it a storm."""
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

Row = dict[str, Any]

SCHEMAS = {
    "summary": "queue string, done long, with_errors long, dead long, deliveries long, "
    "amplification double",
    "throughput": "queue string, at timestamp, done long, with_errors long, dead long, "
    "deliveries long",
    "times": "queue string, measure string, n long, mean_ms double, p50_ms double, p90_ms double, "
    "p95_ms double, p99_ms double, max_ms long",
    "times_by_step": "queue string, at timestamp, measure string, n long, p50_ms double, "
    "p90_ms double, p95_ms double, p99_ms double",
    "states": "queue string, waiting_ms double, between_ms double, handling_ms double",
    "failures": "queue string, fingerprint string, cause string, n long, dead long, retried long, "
    "first timestamp, last timestamp, trend string",
    "failures_by_step": "queue string, fingerprint string, at timestamp, n long",
    "keys": "queue string, key string, n long, mean_ms double, max_ms long, total_ms long, "
    "retries long",
    "storms": "queue string, at timestamp, retries long, peak long, expected double",
    "consumers": "queue string, consumer string, deliveries long, failed long, overdue long, "
    "overdue_rate double",
}
"""Every table of a report; times in milliseconds, `at` the beginning of a step."""


class Figures(msgspec.Struct, frozen=True):
    start: int
    step_ms: int
    steps: int
    tables: dict[str, list[Row]]
    overall: Row
    """End to end, of all queues together."""

    @property
    def queues(self) -> list[str]:
        """By how much they did."""
        rows = sorted(self.tables["summary"], key=lambda row: -(row["done"] + row["dead"]))
        return [row["queue"] for row in rows]


def step_of(first: int, last: int) -> tuple[int, int]:
    """Where the first step begins, and how long steps are: at most STEPS_MAX of them."""
    span = last - first
    fitting = (size for size in BUCKETS_MS if span // size + 2 <= STEPS_MAX)
    step = next(fitting, span // (STEPS_MAX - 2) + 1)
    return first - first % step, step


def figures(sums: DataFrame, start: int, last: int, step_ms: int) -> Figures:
    """`sums` is asked several times: it should be cached."""
    by: dict[str, list[Any]] = defaultdict(list)
    for row in _rows(sums.where("what IN ('done', 'dead', 'time', 'step')")):
        by[row["what"]].append(row)
    at = _Clock(start, step_ms)
    throughput = _throughput(by["done"], by["dead"], at)
    rest = sums.where("what IN ('cause', 'consumer')").orderBy(F.desc("n"), "queue", "a", "t")
    # Small jobs, most of which is waiting for Spark: at once.
    with ThreadPoolExecutor(3) as pool:
        keys, storms = pool.submit(_keys, sums), pool.submit(_storms, sums)
        for row in _rows(rest.limit(REST_MAX)):
            by[row["what"]].append(row)
    causes = by["cause"]
    steps = max(1, (last - start) // step_ms + 1)
    times = _histograms(by["time"])
    return Figures(
        start,
        step_ms,
        steps,
        {
            "summary": _summary(throughput),
            "throughput": throughput,
            "times": _times(times),
            "times_by_step": _times_by_step(by["step"], at),
            "states": _states(times),
            "failures": _failures(causes, steps),
            "failures_by_step": _failures_by_step(causes, at),
            "keys": keys.result(),
            "storms": storms.result(),
            "consumers": _consumers(by["consumer"]),
        },
        _overall(times),
    )


def _rows(frame: DataFrame) -> list[Row]:
    """By way of Arrow: a row of Spark's own takes ten times as long to arrive."""
    return frame.toArrow().to_pylist()


class _Clock:
    def __init__(self, start: int, step_ms: int) -> None:
        self._start = start
        self._step = step_ms

    def at(self, step: int) -> int:
        return self._start + step * self._step


def _throughput(done: list[Any], dead: list[Any], at: _Clock) -> list[Row]:
    found: dict[tuple[str, int], Row] = {}
    for row in (*done, *dead):
        key = (row["queue"], row["t"])
        one = found.setdefault(
            key,
            {
                "queue": row["queue"],
                "at": at.at(row["t"]),
                "done": 0,
                "with_errors": 0,
                "dead": 0,
                "deliveries": 0,
            },
        )
        one["deliveries"] += row["s"]
        if row["what"] == "done":
            one["done"] += row["n"]
            one["with_errors"] += row["r"]
        else:
            one["dead"] += row["n"]
    return [found[key] for key in sorted(found)]


def _summary(throughput: list[Row]) -> list[Row]:
    found: dict[str, Row] = {}
    names = ("done", "with_errors", "dead", "deliveries")
    for row in throughput:
        one = found.setdefault(row["queue"], {"queue": row["queue"], **dict.fromkeys(names, 0)})
        for name in names:
            one[name] += row[name]
    for one in found.values():
        one["amplification"] = one["deliveries"] / one["done"] if one["done"] else None
    return [found[queue] for queue in sorted(found)]


Histograms = dict[tuple[str, str], tuple[dict[int, int], int, int]]
"""By queue and measure: counts of buckets, the sum of the times, the longest."""


def _histograms(rows: list[Any]) -> Histograms:
    found: Histograms = {}
    for row in rows:
        counts, total, most = found.get((row["queue"], row["a"]), ({}, 0, 0))
        counts[row["k"]] = row["n"]
        found[row["queue"], row["a"]] = (counts, total + row["s"], max(most, row["hi"]))
    return found


def _times(histograms: Histograms) -> list[Row]:
    rows: list[Row] = []
    for queue, measure in sorted(histograms, key=lambda k: (k[0], MEASURES.index(k[1]))):
        counts, total, most = histograms[queue, measure]
        n = sum(counts.values())
        shares = _shares(counts, most)
        rows.append(
            {
                "queue": queue,
                "measure": measure,
                "n": n,
                "mean_ms": total / n,
                **shares,
                "max_ms": most,
            }
        )
    return rows


def _overall(histograms: Histograms) -> Row:
    found = [one for (_, measure), one in histograms.items() if measure == "total"]
    most = max((most for _, _, most in found), default=0)
    return _shares(histogram.added(counts for counts, _, _ in found), most)


def _shares(counts: dict[int, int], most: int | None) -> Row:
    """No percentile is longer than the longest; None: that is not known."""
    found: Row = {}
    for name, share in SHARES.items():
        ms = histogram.percentile(counts, share)
        found[f"{name}_ms"] = ms if ms is None or most is None else min(ms, most)
    return found


def _times_by_step(rows: list[Any], at: _Clock) -> list[Row]:
    found: dict[tuple[str, str, int], dict[int, int]] = {}
    for row in rows:
        found.setdefault((row["queue"], row["a"], row["t"]), {})[row["k"]] = row["n"]
    return [
        {
            "queue": queue,
            "at": at.at(step),
            "measure": measure,
            "n": sum(counts.values()),
            **_shares(counts, None),
        }
        for (queue, measure, step), counts in sorted(found.items())
    ]


def _states(histograms: Histograms) -> list[Row]:
    """How long the mean message was in each: before its first delivery, between its first and its
    last, in the hands of the last."""
    rows: list[Row] = []
    names = {"waiting_ms": "wait", "between_ms": "between", "handling_ms": "run"}
    for queue in sorted({queue for queue, _ in histograms}):
        row: Row = {"queue": queue}
        for column, measure in names.items():
            counts, total, _ = histograms.get((queue, measure), ({}, 0, 0))
            n = sum(counts.values())
            row[column] = total / n if n else 0.0
        rows.append(row)
    return rows


def _failures(causes: list[Any], steps: int) -> list[Row]:
    found: dict[tuple[str, str], Row] = {}
    lately: dict[tuple[str, str], int] = defaultdict(int)
    for row in causes:
        key = (row["queue"], row["a"])
        one = found.setdefault(
            key,
            {
                "queue": row["queue"],
                "fingerprint": row["a"],
                "cause": row["b"],
                "n": 0,
                "dead": 0,
                "first": row["lo"],
                "last": row["hi"],
            },
        )
        one["n"] += row["n"]
        one["dead"] += row["s"]
        one["first"], one["last"] = min(one["first"], row["lo"]), max(one["last"], row["hi"])
        if row["t"] >= steps - max(1, steps // 4):
            lately[key] += row["n"]
    for key, one in found.items():
        one["retried"] = one["n"] - one["dead"]
        one["trend"] = trend(lately[key], one["n"], steps)
    return sorted(found.values(), key=lambda row: (-row["n"], row["queue"], row["fingerprint"]))


def trend(lately: int, n: int, steps: int) -> str:
    """How the last quarter of the time compares with an even spread."""
    share = max(1, steps // 4) / steps
    if share == 1:
        return "steady"
    if not lately:
        return "gone"
    expected = n * share
    if lately > 1.5 * expected and lately - expected > 2 * math.sqrt(expected):
        return "rising"
    return "falling" if lately < expected / 2 else "steady"


def _failures_by_step(causes: list[Any], at: _Clock) -> list[Row]:
    return sorted(
        (
            {"queue": row["queue"], "fingerprint": row["a"], "at": at.at(row["t"]), "n": row["n"]}
            for row in causes
        ),
        key=lambda row: (row["queue"], row["fingerprint"], row["at"]),
    )


def _keys(sums: DataFrame) -> list[Row]:
    """The slowest by their mean, the noisiest by their number and by retries."""
    by = {
        "slow": F.desc(F.col("s") / F.col("n")),
        "often": F.desc("n"),
        "again": F.desc("r"),
    }
    ranked = sums.where("what = 'key'")
    for name, order in by.items():
        ranked = ranked.withColumn(
            name, F.row_number().over(Window.partitionBy("queue").orderBy(order, "a"))
        )
    rows = ranked.where(F.least(*by) <= KEYS).collect()
    return [
        {
            "queue": row["queue"],
            "key": row["a"],
            "n": row["n"],
            "mean_ms": row["s"] / row["n"],
            "max_ms": row["hi"] or 0,
            "total_ms": row["s"],
            "retries": row["r"],
        }
        for row in sorted(rows, key=lambda row: (row["queue"], -row["n"], row["a"]))
    ]


def _storms(sums: DataFrame) -> list[Row]:
    """Minutes with a second of far more retries than an even spread would give.

    Jitter is there to spread them: n retries in a minute, spread evenly, are n / 60 a second, give
    or take the root of it. Five times that is not chance.
    """
    minutes = (
        sums.where("what = 'retry'")
        .withColumn("minute", F.floor(F.col("t") / 60))
        .groupBy("queue", "minute")
        .agg(F.sum("n").alias("retries"), F.max("n").alias("peak"))
        .withColumn("expected", F.col("retries") / 60)
        .where(F.col("retries") >= STORM_LEAST)
        .where(F.expr("peak > expected + 5 * sqrt(expected) + 5"))
        .orderBy(F.desc("peak"), "queue", "minute")
        .limit(STORMS_MAX)
    )
    return [
        {
            "queue": row["queue"],
            "at": row["minute"] * 60_000,
            "retries": row["retries"],
            "peak": row["peak"],
            "expected": row["expected"],
        }
        for row in minutes.collect()
    ]


def _consumers(rows: list[Any]) -> list[Row]:
    rows = sorted(rows, key=lambda row: (-row["s"], -row["n"], row["queue"], row["a"] or ""))
    return [
        {
            "queue": row["queue"],
            "consumer": row["a"],
            "deliveries": row["n"],
            "failed": row["r"],
            "overdue": row["s"],
            "overdue_rate": row["s"] / row["n"],
        }
        for row in rows
        if row["a"] is not None
    ]


def of(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Those rows of a table of which this holds."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]
