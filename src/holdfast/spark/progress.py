"""What a query says of itself: a log line for every batch, and metrics for Prometheus.

Spark tells of a batch when it has committed it; what became of its messages is known when the
source has settled it, a moment later, and stands in the query's record (work/ledger). So a thread
looks there, and then reports. Totals come from that record: they go on after a restart.
"""

# pyright: basic

from __future__ import annotations

import json
import logging
import queue
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import start_http_server as serve
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.model import clock
from holdfast.queue.context import Context
from holdfast.work import ledger
from holdfast.work.ledger import Past, Query

ADDRESS = "127.0.0.1"
SETTLED_S = 30.0
"""How long a batch that Spark has committed is waited for; then its line comes without verdicts."""
POLL_S = 0.1
RUNS = 1000
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
LABELS = ("query", "name", "queue")

logger = logging.getLogger("holdfast.spark")


def watch(
    spark: SparkSession,
    metrics_port: int | None = None,
    *,
    handled: Mapping[str, Context] | None = None,
) -> None:
    """Report every batch of this session's queries that read a queue. Again changes nothing.

    `metrics_port`: metrics for Prometheus on 127.0.0.1. `handled` are queries by their Spark name
    whose messages get verdicts, each with its store: `run` says so of its own.
    """
    if metrics_port is not None:
        _serve(metrics_port)
    with _lock:
        _handled.update(handled or {})
        session = spark._jsparkSession.sessionUUID()  # pyright: ignore
        if session in _watched:
            return
        _watched.add(session)
        _reporter.begin()
    spark.streams.addListener(_Listener())


def metrics() -> bytes:
    """What Prometheus would get."""
    return generate_latest(_registry)


def flush(run_id: str, timeout: float = 10.0) -> None:
    """Wait until everything is reported of a query that has ended: Spark tells of it late."""
    until = clock.monotonic() + timeout
    while run_id not in _reporter.over and clock.monotonic() < until:
        clock.sleep(0.02)


def cause_of(text: str) -> str:
    """The one line that matters of what Spark says when a query fails: the last Python error in
    its stack, else the last Java one, else its first line."""
    python = [error for error in _PYTHON.findall(text) if not error.startswith("py4j.")]
    found = python or _JAVA.findall(text) or text.strip().splitlines() or [""]
    line = found[-1] if python or _JAVA.search(text) else found[0]
    line = re.sub(r"^.*? terminated with exception: ", "", line)
    line = re.sub(r"( SQLSTATE: \w+)+$", "", line.strip())
    return re.sub(r"^(?:[\w$]+\.)+(?=[\w$]+: )", "", line)


# In a Python stack, the first line that is not indented.
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)")
_JAVA = re.compile(r"^(?:Caused by: |: )(\S.*)", re.MULTILINE)

_lock = threading.Lock()
_handled: dict[str, Context] = {}
_watched: set[str] = set()
_served: set[int] = set()


def _serve(port: int) -> None:
    with _lock:
        if port in _served:
            return
        try:
            serve(port, addr=ADDRESS, registry=_registry)
        except (OSError, OverflowError) as error:
            raise InvalidArgument("metrics_port", f"{port}: {error}") from error
        _served.add(port)


class Batch(msgspec.Struct, frozen=True):
    """A batch as Spark tells of it."""

    run: str
    name: str
    query: str
    number: int
    rows: int
    seconds: float
    told: dict[str, Any]
    """How far behind the source was, and its totals: without the last batch."""


class Ended(msgspec.Struct, frozen=True):
    run: str
    error: str | None


class _Listener(StreamingQueryListener):
    """Hands on; Spark's own thread must not wait for a store."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if event.name in _handled:
            _reporter.ours[str(event.runId)] = event.name

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for batch in batches_of(json.loads(event.progress.json)):
            _reporter.todo.put(batch)

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        _reporter.ending.add(str(event.runId))
        _reporter.todo.put(Ended(str(event.runId), event.exception))


def batches_of(progress: dict[str, Any]) -> list[Batch]:
    """One for each source of the query that is a queue."""
    found: list[Batch] = []
    for source in progress["sources"]:
        end, latest = _as_dict(source.get("endOffset")), _as_dict(source.get("latestOffset"))
        if {"query", "batch", "hold"} <= end.keys():
            ms = progress.get("batchDuration") or 0
            ms = max(ms, progress.get("durationMs", {}).get("triggerExecution", 0))
            found.append(
                Batch(
                    progress["runId"],
                    progress.get("name") or "",
                    end["query"],
                    end["batch"],
                    source["numInputRows"],
                    ms / 1000,
                    latest,
                )
            )
    return found


def _as_dict(offset: Any) -> dict[str, Any]:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) else {}


class _Totals(Collector):
    """Counters that are totals of the store: this process only passes them on."""

    NAMES = {
        "rows": "Messages of settled batches",
        "done": "Messages finished",
        "retried": "Deliveries that failed and will be repeated",
        "dead": "Messages moved to the dead letters",
    }

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[str, int]] = {}

    def set(self, labels: tuple[str, ...], done: int, retried: int, dead: int) -> None:
        totals = {"rows": done + retried + dead, "done": done, "retried": retried, "dead": dead}
        before = self._known.get(labels, {})
        # A record that was read late must not turn a counter back.
        known = {name: max(n, before.get(name, 0)) for name, n in totals.items()}
        self._known = {**self._known, labels: known}

    def collect(self) -> Iterable[CounterMetricFamily]:
        known = self._known
        for name, text in self.NAMES.items():
            family = CounterMetricFamily(f"holdfast_spark_{name}", text, labels=LABELS)
            for labels, totals in known.items():
                family.add_metric(labels, totals[name])
            yield family


_registry = CollectorRegistry()
_totals = _Totals()
_registry.register(_totals)
_batch_seconds = Histogram(
    "holdfast_spark_batch_seconds",
    "Time of a batch with messages, as Spark took it",
    LABELS,
    registry=_registry,
    buckets=BUCKETS,
)
_backlog = Gauge(
    "holdfast_spark_backlog", "Messages ready or delayed in the queue", LABELS, registry=_registry
)
_oldest = Gauge(
    "holdfast_spark_oldest_seconds", "Age of the oldest ready message", LABELS, registry=_registry
)


class _Reporter:
    """One thread for all: takes what Spark told, waits for the store's side, writes it down."""

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[Batch | Ended] = queue.SimpleQueue()
        self.ours: dict[str, str] = {}
        """Runs of queries that read a queue, with their names."""
        self.ending: set[str] = set()
        """Runs that settle no more."""
        self.over: dict[str, None] = {}
        self._labels: dict[str, set[tuple[str, ...]]] = {}
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-progress", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            told = self.todo.get()
            try:
                self._ended(told) if isinstance(told, Ended) else self._batch(told)
            except Exception:
                logger.exception("a batch could not be reported")
            if isinstance(told, Ended):
                self._over(told.run)

    def _batch(self, batch: Batch) -> None:
        self.ours[batch.run] = batch.name
        if not batch.rows:
            return
        at, told = _handled.get(batch.name), batch.told
        record = None if at is None else self._settled(at, batch)
        labels = (batch.query, batch.name, record.queue if record else told.get("queue", ""))
        self._labels.setdefault(batch.run, set()).add(labels)
        if at is not None and record is not None:
            told = {**told, **_backlog_now(at, record.queue)}
            _totals.set(labels, record.done, record.retried, record.dead)
        elif "done" in told:
            _totals.set(labels, told["done"], told["retried"], told["deadLettered"])
        _batch_seconds.labels(*labels).observe(batch.seconds)
        if "ready" in told:
            _backlog.labels(*labels).set(told["ready"] + told["delayed"])
            _oldest.labels(*labels).set(told["oldestAgeMs"] / 1000)
        logger.info("%s", line(batch, _past(record, batch.number), told))

    def _settled(self, at: Context, batch: Batch) -> Query | None:
        """The query's record when it tells what became of the batch; as it is, if that never
        comes."""
        until = clock.monotonic() + SETTLED_S
        while True:
            last = batch.run in self.ending or clock.monotonic() > until
            record = _find(at, batch.query)
            if last or (record is not None and record.settled >= batch.number):
                return record
            clock.sleep(POLL_S)

    def _ended(self, ended: Ended) -> None:
        name = self.ours.pop(ended.run, None)
        for labels in self._labels.pop(ended.run, ()):
            for gauge in (_backlog, _oldest):
                gauge.remove(*labels)
        if name is not None and ended.error is not None:
            logger.error("%s: ended by an error: %s", name, cause_of(ended.error))

    def _over(self, run: str) -> None:
        self.ending.discard(run)
        self.over[run] = None
        if len(self.over) > RUNS:
            self.over.pop(next(iter(self.over)))


_reporter = _Reporter()


def line(batch: Batch, past: Past | None, told: dict[str, Any]) -> str:
    """One batch on one line."""
    rate = batch.rows / max(batch.seconds, 0.001)
    said = f"{batch.name or batch.query}: batch {batch.number}: {batch.rows:,} messages"
    said += f" in {batch.seconds:.1f} s ({rate:,.{1 if rate < 10 else 0}f}/s)"
    if past is not None:
        said += f": {past.done:,} done, {past.retried:,} to be retried, {past.dead:,} dead"
    if "ready" in told:
        said += f"; {told['ready']:,} ready, {told['delayed']:,} delayed"
        if told["oldestAgeMs"]:
            said += f", oldest {told['oldestAgeMs'] / 1000:,.1f} s"
    return said


def _find(at: Context, query: str) -> Query | None:
    try:
        return ledger.find(at, query)
    except HoldfastError as error:
        logger.debug("query %s: %s", query, error)
        return None


def _past(record: Query | None, number: int) -> Past | None:
    history = record.history if record else ()
    return next((past for past in history if past.batch == number), None)


def _backlog_now(at: Context, name: str) -> dict[str, Any]:
    try:
        (stats,) = at.store.stats([name], at.clock.now())
    except HoldfastError:
        return {}
    age = round((stats.oldest_age or 0.0) * 1000)
    return {"ready": stats.ready, "delayed": stats.delayed, "oldestAgeMs": age}
