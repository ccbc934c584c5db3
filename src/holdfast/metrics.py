"""What Prometheus gets: counters of what went through this process, gauges of what the store holds.

    metrics = Metrics().watch(hf)
    body, content_type = metrics.render(accept)

Counters count what this process did: add them up over processes. Gauges are read from the store
when somebody asks, so they are the same wherever they come from: take the greatest. Labels are
bounded: queues beyond a number count together, under a name that no queue can have.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, compress
from operator import attrgetter

import msgspec

from holdfast.app import Holdfast
from holdfast.errors import FailedPrecondition, InvalidArgument, MissingExtra, QueueNotFound
from holdfast.model.message import Lease, Message, Status, home_of, is_dlq
from holdfast.model.moves import Enqueued, Settled, Target, Transition, Verb
from holdfast.queue.context import Context
from holdfast.queue.queue import PartitionStats, Queue
from holdfast.queue.topic import count as count_topics
from holdfast.queue.topic import is_hidden
from holdfast.stores import damage
from holdfast.stores.contract import QueueStats

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtra("metrics need: pip install 'holdfast[server]'") from error

OTHER = "(other)"
QUEUES_MAX = 200
PARTITIONS_MAX = 64
LOOK_S = 5.0
"""Longer no scrape waits for the store: Prometheus itself gives up after ten seconds."""
LOOKS = 5
LEASES_MAX = 100_000
"""Leases whose beginning is remembered, to tell how long they took."""
WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
ATTEMPT_BUCKETS = (1, 2, 3, 4, 5, 7, 10, 20, 50)
HANDLE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

COUNTERS = {
    "produced": "Messages that the store accepted.",
    "leased": "Deliveries that were begun.",
    "acked": "Deliveries that ended well.",
    "retried": "Deliveries that failed, and whose message comes again.",
    "requeued": "Deliveries that ran out of time, and whose message comes again.",
    "dead": "Messages that went to the dead letters.",
    "completed_with_errors": "Messages out of attempts that went to the log, not to the dead.",
    "released": "Deliveries that were given back untouched.",
    "lost": "Outcomes that came too late: the message had moved on.",
    "redriven": "Dead letters that were put back, by the queue they had died in.",
}
DAMAGED = "Damaged rows that were met, and read as far as they can be."
HISTOGRAMS = {
    "wait_seconds": "From when a message could be leased to when it was.",
    "handle_seconds": "How long the handlers of a delivery ran.",
    "attempts": "Which delivery of its message each one was: 1 for the first.",
}
QUEUE_GAUGES = {
    "depth": "Messages that could be leased now.",
    "delayed": "Messages that wait for their time.",
    "leased": "Messages in somebody's hands.",
    "dead": "Dead letters.",
    "oldest_age_seconds": "Since the oldest message that could be leased was enqueued; 0: none.",
    "paused": "1 while nothing is leased from the queue.",
}
PARTITION_GAUGES = {
    "partition_depth": "Messages of a partition that could be leased now.",
    "partition_lag": "Messages of a partition that are not finished.",
    "partition_oldest_age_seconds": "As of a queue, of one partition.",
    "partition_owned": "1 while a consumer owns the partition; of ordered queues.",
}
STORE_GAUGES = {
    "queues": "Queues of the store, groups of topics included and their dead letters not.",
    "topics": "Topics of the store.",
}
logger = logging.getLogger("holdfast.metrics")
STORE_UP = "1 if the store answered this time; if not, there are no gauges of queues."


class Metrics(Collector):
    """An observer that counts. Everything it knows is in `registry`."""

    def __init__(
        self,
        *,
        queues_max: int = QUEUES_MAX,
        partitions_max: int = PARTITIONS_MAX,
        handle_from_leases: bool = False,
    ) -> None:
        """`handle_from_leases`: for a process that leases to handlers elsewhere, as a server does.
        A delivery was handled from its lease to its outcome, as far as can be seen from here."""
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._partitions_max = partitions_max
        self._lock = threading.Lock()
        self._queues = _Bounded(queues_max)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._waits = _Histogram(WAIT_BUCKETS)
        self._handles = _Histogram(HANDLE_BUCKETS)
        self._attempts = _Histogram(ATTEMPT_BUCKETS)
        self._open: dict[str, int] | None = {} if handle_from_leases else None
        self._at: Context | None = None
        self._look: _Look | None = None

    def watch(self, hf: Holdfast) -> Metrics:
        """Count what goes through this connection, and read the gauges by it."""
        self._at = hf.context
        hf.context.observe(self)
        return self

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics for who says so in an Accept header."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Answer over HTTP from a thread: the port (0 lets the system choose), and how to stop."""
        try:
            server, thread = start_http_server(port, addr=host, registry=self.registry)
        except (OSError, OverflowError) as error:
            raise InvalidArgument("metrics", f"{host}:{port}: {error}") from error

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, stop

    # As an observer

    def enqueued(self, messages: Sequence[Message], answers: Sequence[Enqueued]) -> None:
        kept = map(Enqueued.STORED.__eq__, answers)
        stored = Counter(map(attrgetter("queue"), compress(messages, kept)))
        self._add(("produced", queue, n) for queue, n in stored.items())

    def leased(self, leases: Sequence[Lease]) -> None:
        queue = leases[0].message.queue  # a call leases from one
        self._add([("leased", queue, len(leases))])
        with self._lock:
            waits = (max(0, x.leased_at - x.message.available_at) / 1000 for x in leases)
            self._waits.note(self._queues(queue), waits)
            self._attempts.note(self._queues(queue), (x.message.attempts for x in leases))
            if self._open is not None:
                self._open.update((lease.token, lease.leased_at) for lease in leases)
                while len(self._open) > LEASES_MAX:
                    del self._open[next(iter(self._open))]

    def settled(self, moves: Sequence[Transition], answers: Sequence[Settled]) -> None:
        went = Counter(
            (kind, home_of(move.queue) if kind == "redriven" else move.queue)
            for move, answer in zip(moves, answers, strict=True)
            if (kind := _kind(move, answer))
        )
        self._add((kind, queue, n) for (kind, queue), n in went.items())
        if self._open is not None and self._at is not None:
            self._close(self._open, self._at.clock.now(), moves)

    def _close(self, open: dict[str, int], now: int, moves: Sequence[Transition]) -> None:
        with self._lock:
            for move in moves:
                if move.token is None or move.verb is Verb.EXTEND:
                    continue
                leased_at = open.pop(move.token, None)
                if leased_at is not None and move.verb in (Verb.ACK, Verb.NACK, Verb.FAIL):
                    self._handles.note(self._queues(move.queue), [max(0, now - leased_at) / 1000])

    def reserved(self, queue: str, count: int) -> None:
        """Of a batch nothing but its size is known: it adds to no histogram."""
        self._add([("leased", queue, count)])

    def ended(self, queue: str, count: int, status: Status | None) -> None:
        self._add([("acked", queue, count)])

    def handled(self, queue: str, seconds: float, ok: bool) -> None:
        if self._open is None:
            with self._lock:
                self._handles.note(self._queues(queue), [seconds])

    def _add(self, counts: Iterable[tuple[str, str, int]]) -> None:
        with self._lock:
            for kind, queue, n in counts:
                if not is_hidden(queue):  # what topics keep for themselves
                    self._counts[kind, self._queues(queue)] += n

    # As a collector

    def collect(self) -> Iterator[Metric]:
        seen = self._see()
        yield _family(GaugeMetricFamily, "store_up", STORE_UP, (), {(): float(seen is not None)})
        if seen is not None:
            for name, value in (("queues", len(seen.stats)), ("topics", seen.topics)):
                yield _family(GaugeMetricFamily, name, STORE_GAUGES[name], (), {(): float(value)})
        with self._lock:
            for row in seen.stats if seen else ():
                self._queues(row.queue)
            families = [*self._counters(), *self._histograms(), *self._gauges(seen or Seen())]
        yield from families

    def _see(self) -> Seen | None:
        if self._at is None:
            return None
        with self._lock:
            if self._look is None or self._look.over:
                self._look = _Look(self._at)
            look = self._look
        return look.result(LOOK_S)

    def _counters(self) -> Iterator[Metric]:
        for kind, help in COUNTERS.items():
            values = {(queue,): float(self._counts[kind, queue]) for queue in self._queues}
            yield _family(CounterMetricFamily, f"messages_{kind}", help, ("queue",), values)
        damaged = Counter[str]()
        for queue, n in damage.counts().items():
            damaged[self._queues(queue)] += n
        values = {(queue,): float(damaged[queue]) for queue in self._queues}
        yield _family(CounterMetricFamily, "damaged_rows", DAMAGED, ("queue",), values)

    def _histograms(self) -> Iterator[Metric]:
        histograms = {
            "wait_seconds": self._waits,
            "handle_seconds": self._handles,
            "attempts": self._attempts,
        }
        for name, histogram in histograms.items():
            family = HistogramMetricFamily(f"holdfast_{name}", HISTOGRAMS[name], labels=["queue"])
            for queue, buckets, total in histogram.rows():
                family.add_metric([queue], buckets, total)
            yield family

    def _gauges(self, seen: Seen) -> Iterator[Metric]:
        queues = _Table()
        for row in seen.stats:
            queues.add((self._queues(row.queue),), _of_queue(row))
        parts = _Table()
        for queue, (ordered, rows) in seen.partitions.items():
            for n, part in enumerate(rows):
                number = str(part.partition) if n < self._partitions_max else OTHER
                name = self._queues(queue)
                label = (name, OTHER if name == OTHER else number)
                parts.add(label, _of_partition(part, ordered=ordered))
        for name, help in QUEUE_GAUGES.items():
            yield _family(GaugeMetricFamily, name, help, ("queue",), queues.of(name))
        for name, help in PARTITION_GAUGES.items():
            labels = ("queue", "partition")
            yield _family(GaugeMetricFamily, name, help, labels, parts.of(name))


def _kind(move: Transition, answer: Settled) -> str | None:
    """What is counted of a move; None for what is of no interest."""
    if answer is Settled.STALE:
        mine = (Verb.ACK, Verb.NACK, Verb.FAIL, Verb.RELEASE)
        return "lost" if move.token is not None and move.verb in mine else None
    if answer is not Settled.APPLIED:
        return None
    match move.verb:
        case Verb.ACK:
            return "acked"
        case Verb.RELEASE:
            return "released"
        case Verb.REDRIVE:
            return "redriven"
        case Verb.NACK | Verb.FAIL | Verb.EXPIRE:
            if move.target is Target.DONE:
                return "completed_with_errors"
            if is_dlq(move.to_queue) and not is_dlq(move.queue):
                return "dead"
            return "requeued" if move.verb is Verb.EXPIRE else "retried"
        case _:
            return None


class Seen(msgspec.Struct, frozen=True):
    """What a look at the store found; of partitions, also whether their queue is ordered."""

    stats: list[QueueStats] = []
    partitions: dict[str, tuple[bool, list[PartitionStats]]] = {}
    topics: int = 0


class _Look:
    """A look at the store in a thread of its own: one that hangs must not hang who asks."""

    def __init__(self, at: Context) -> None:
        self._at = at
        self._done = threading.Event()
        self._seen: Seen | None = None
        threading.Thread(target=self._run, name="holdfast-metrics", daemon=True).start()

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def result(self, timeout: float) -> Seen | None:
        """None: the store did not answer, or not yet."""
        self._done.wait(timeout)
        return self._seen

    def _run(self) -> None:
        try:
            self._seen = see(self._at)
        except Exception as error:
            logger.debug("the store was not seen: %s", error)
        finally:
            self._done.set()


def see(at: Context) -> Seen:
    for _ in range(LOOKS):
        with suppress(QueueNotFound):  # one was deleted meanwhile: once more
            return _see(at)
    raise FailedPrecondition("queues are deleted faster than they can be looked at")


def _see(at: Context) -> Seen:
    specs = {spec.name: spec for spec in at.store.queues() if not is_hidden(spec.name)}
    homes = [
        spec for spec in specs.values() if not is_dlq(n := spec.name) or home_of(n) not in specs
    ]
    stats = at.store.stats([spec.name for spec in homes], at.clock.now())
    several = [spec for spec in homes if spec.partitions > 1 or spec.ordered]
    parts = {spec.name: (spec.ordered, Queue(at, spec.name).partitions()) for spec in several}
    return Seen(stats, parts, count_topics(at))


def _of_queue(row: QueueStats) -> dict[str, float]:
    return {
        "depth": row.ready,
        "delayed": row.delayed,
        "leased": row.leased,
        "dead": row.dead,
        "oldest_age_seconds": row.oldest_age or 0.0,
        "paused": row.paused,
    }


def _of_partition(part: PartitionStats, *, ordered: bool) -> dict[str, float]:
    values = {
        "partition_depth": part.ready,
        "partition_lag": part.lag,
        "partition_oldest_age_seconds": part.oldest_age or 0.0,
    }
    return {**values, "partition_owned": part.owner is not None} if ordered else values


class _Table:
    """Gauges by their labels; what comes to the same label is added up, of ages the greatest."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], dict[str, float]] = {}

    def add(self, label: tuple[str, ...], values: dict[str, float]) -> None:
        row = self._rows.setdefault(label, {})
        for name, value in values.items():
            before = row.get(name, 0.0)
            row[name] = max(before, value) if name.endswith("_seconds") else before + value

    def of(self, name: str) -> dict[tuple[str, ...], float]:
        return {label: row[name] for label, row in self._rows.items() if name in row}


class _Bounded:
    """The names that have a label of their own: who comes first. Iterates over all labels."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, None] = {}

    def __call__(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._limit:
            name = OTHER
        self._known[name] = None
        return name

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def note(self, label: str, values: Iterable[float]) -> None:
        counts = self._counts.setdefault(label, [0] * (len(self._bounds) + 1))
        total = self._sums.get(label, 0.0)
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
            total += value
        self._sums[label] = total

    def rows(self) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
        """Of each label the buckets, each with all that is below it, and the sum."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for label, counts in self._counts.items():
            yield label, list(zip(names, accumulate(counts), strict=True)), self._sums[label]


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    help: str,
    labels: tuple[str, ...],
    values: dict[tuple[str, ...], float],
) -> Metric:
    family = kind(f"holdfast_{name}", help, labels=labels)
    for label, value in values.items():
        family.add_metric(label, value)
    return family
