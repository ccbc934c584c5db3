"""What queues looked like over the last hour: numbers and rates, and how long messages took.

A thread looks at the numbers of every queue every few seconds and keeps them, in a ring for each
queue. It is this server's own memory: a server that was just started knows little, and two servers
of one store need not agree to the second. Waiting and handling times come from the log, which
every server reads alike: a sample of each stretch of two minutes, which is read once when it is
over.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.model.message import Finished
from holdfast.model.moves import State
from holdfast.queue.context import Context
from holdfast.stores.contract import QueueStats, View
from holdfast.wire import shapes as s

STEP_S = 5.0
POINTS = 720
"""Of one queue: an hour."""
LAST = 60
"""Points of each queue, when all are asked for."""
QUEUES_MAX = 1000
"""Of those with the first names, as for a page of the list."""
SPAN_MS = 120_000
SPANS = 30
SAMPLE = 100
"""Log rows that are read of each span; they carry their payloads."""
LATE_MS = 5000
"""A span is over when so much time has passed since: a clock or a write may be a little late."""
REMEMBERED_MAX = 200

logger = logging.getLogger("holdfast.server")


class _Seen(msgspec.Struct, frozen=True):
    """A look at one queue."""

    at: int
    stats: QueueStats

    @property
    def came(self) -> int:
        """All that ever came and was not purged."""
        return self.stats.lag + self.stats.dead + self.stats.done


class Recorder:
    """Looks every `step` seconds, in a thread of its own, until `stop`."""

    def __init__(self, hf: Holdfast, *, step: float = STEP_S) -> None:
        self._hf = hf
        self.step_ms = int(step * 1000)
        self._quit = threading.Event()
        self._lock = threading.Lock()
        self._seen: dict[str, deque[_Seen]] = {}
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="holdfast-history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        self._quit.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._quit.is_set():
            try:
                self.look()
                self._is_away = False
            except HoldfastError as error:  # no point then: a gap says that nobody could look
                if not self._is_away:
                    logger.warning("no history while the store is away: %s", error)
                self._is_away = True
            except Exception:
                logger.exception("a look at the queues failed")
            self._quit.wait(self.step_ms / 1000)

    def look(self) -> None:
        found = self._hf.stats()[:QUEUES_MAX]
        now = self._hf.context.clock.now()
        with self._lock:
            names = {stats.queue for stats in found}
            for gone in self._seen.keys() - names:
                del self._seen[gone]
            for stats in found:
                ring = self._seen.setdefault(stats.queue, deque(maxlen=POINTS + 1))
                if not ring or ring[-1].at < now:
                    ring.append(_Seen(now, stats))

    def points(self, queue: str, last: int = POINTS) -> list[s.PointDoc]:
        with self._lock:
            seen = list(self._seen.get(queue, ()))
        return points(seen)[-last:]

    def queues(self) -> list[str]:
        with self._lock:
            return sorted(self._seen)


def points(seen: Sequence[_Seen]) -> list[s.PointDoc]:
    """The first look has nothing to compare with, and is the start of the first step."""
    return [_point(before, now) for before, now in pairwise(seen)]


def _point(before: _Seen, now: _Seen) -> s.PointDoc:
    seconds = (now.at - before.at) / 1000

    def rate(count: int) -> float:
        """What was purged, or deleted and made anew, takes numbers back: nothing came then."""
        return max(0.0, round(count / seconds, 3))

    stats = now.stats
    return s.PointDoc(
        at=now.at,
        ready=stats.ready,
        delayed=stats.delayed,
        leased=stats.leased,
        dead=stats.dead,
        in_rate=rate(now.came - before.came),
        out_rate=rate(stats.done - before.stats.done),
        dead_rate=rate(stats.dead - before.stats.dead),
    )


class Spans:
    """How long messages of a queue waited and were worked on, from its log."""

    def __init__(self, at: Context) -> None:
        self._at = at
        self._lock = threading.Lock()
        self._known: OrderedDict[str, dict[int, s.SpanDoc | None]] = OrderedDict()

    def of(self, queue: str) -> list[s.SpanDoc]:
        now = self._at.clock.now()
        newest = now - now % SPAN_MS
        begins = range(max(0, newest - (SPANS - 1) * SPAN_MS), newest + 1, SPAN_MS)
        with self._lock:
            known = dict(self._known.get(queue, {}))
        spans = {at: known[at] if at in known else self._read(queue, at, now) for at in begins}
        over = {at: span for at, span in spans.items() if at + SPAN_MS + LATE_MS <= now}
        with self._lock:
            self._known[queue] = over
            self._known.move_to_end(queue)
            while len(self._known) > REMEMBERED_MAX:
                self._known.popitem(last=False)
        return [span for span in spans.values() if span is not None]

    def forget(self, queue: str) -> None:
        """A queue of that name that is made anew has a log of its own."""
        with self._lock:
            self._known.pop(queue, None)

    def _read(self, queue: str, at: int, now: int) -> s.SpanDoc | None:
        view = View(queue, State.LOG, since=at, until=at + SPAN_MS)
        rows = self._at.store.browse(view, None, SAMPLE, now).entries
        return span(at, [entry.finished for entry in rows if entry.finished is not None])


def span(at: int, rows: Sequence[Finished]) -> s.SpanDoc | None:
    if not rows:
        return None
    waits = _sorted(rows, _wait_ms)
    handles = _sorted(rows, _handle_ms)
    return s.SpanDoc(
        at=at,
        count=len(rows),
        wait_p50=_share(waits, 0.5),
        wait_p95=_share(waits, 0.95),
        handle_p50=_share(handles, 0.5),
        handle_p95=_share(handles, 0.95),
    )


def _wait_ms(row: Finished) -> int:
    """From when it could have been leased to when it first was. `available_at` is that of the last
    delivery: it counts only where there was no other."""
    message, leased_at = row.message, row.first_leased_at
    if leased_at is None:
        return 0
    could = message.enqueued_at
    if message.available_at <= leased_at:
        could = max(could, message.available_at)
    return max(0, leased_at - could)


def _handle_ms(row: Finished) -> int:
    return 0 if row.last_leased_at is None else max(0, row.finished_at - row.last_leased_at)


def _sorted(rows: Sequence[Finished], of: Callable[[Finished], int]) -> list[int]:
    return sorted(map(of, rows))


def _share(ordered: Sequence[int], share: float) -> float:
    """The value that so large a share does not exceed, in seconds."""
    place = min(len(ordered) - 1, int(share * len(ordered)))
    return ordered[place] / 1000


def history(
    ask: s.HistoryAsk,
    recorder: Recorder,
    spans: Spans,
    may_read: Callable[[str], bool],
    now: int,
) -> s.HistoryDoc:
    """Of one queue all that is known; of all, what small pictures need."""
    if ask.queue is not None:
        docs = [
            s.QueueHistoryDoc(ask.queue, recorder.points(ask.queue), spans.of(ask.queue)),
        ]
    else:
        names = [name for name in recorder.queues() if may_read(name)]
        docs = [s.QueueHistoryDoc(name, recorder.points(name, LAST), []) for name in names]
    return s.HistoryDoc(recorder.step_ms, SPAN_MS, now, docs)
