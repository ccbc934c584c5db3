"""Waiting, for messages and for news: a change stream tells, and a slow look is the net.

One stream for a process, on the collection of the counts: every write that makes a message ready
counts there. Where there are no change streams, waiters look by themselves.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
from pymongo.errors import PyMongoError

from holdfast.errors import HoldfastError
from holdfast.model import clock
from holdfast.stores.contract import Event
from holdfast.stores.mongo.connections import Connections, upserted
from holdfast.stores.mongo.counts import WOKEN
from holdfast.stores.mongo.layout import COUNTS, EVENTS, Doc

LOOK_S = 1.0
"""How long a waiter trusts that it will be woken."""
BLIND_LOOK_S = 0.02
"""How often it looks when nobody tells."""
HEARD_MS = 1000
IDLE_S = 5.0
"""The stream is closed when nobody has waited for so long: it costs the server work."""
RECONNECT_S = (0.1, 5.0)
EVENTS_KEPT = 1000
GAP_S, GAP_LOOK_S = 1.0, 0.02
"""How long news waits for news with a smaller number, and how often it looks."""
ALL, NEWS = -1, -2

logger = logging.getLogger("holdfast.mongo")


class Wake:
    def __init__(self, db: Connections) -> None:
        self._db = db
        self._news = threading.Condition()
        self._told: Counter[int] = Counter()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._hearing = False
        self._asked = 0.0

    def watch(self, topics: Iterable[int]) -> dict[int, int]:
        """Start to listen; what is told from now on ends a `wait` for what this returns."""
        self._asked = clock.monotonic()
        with self._news:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._listen_loop, name="holdfast-listen", daemon=True
                )
                self._thread.start()
        return {topic: self._told[topic] for topic in (ALL, *topics)}

    def wait(self, seen: dict[int, int], timeout: float) -> bool:
        """Whether anything was told; False after `timeout`, or when it is time to look again."""
        look = LOOK_S if self._hearing else BLIND_LOOK_S
        with self._news:
            return self._news.wait_for(
                lambda: any(self._told[topic] != n for topic, n in seen.items()),
                min(timeout, look),
            )

    def stop(self) -> None:
        """The thread ends with the next answer of the server, within HEARD_MS."""
        self._stopped.set()
        self._changed((ALL,))

    def tell(self, topics: Iterable[int]) -> None:
        """Within this process, at once."""
        self._changed(topics)

    def _changed(self, topics: Iterable[int]) -> None:
        with self._news:
            self._told.update(topics)
            self._news.notify_all()

    def _listen_loop(self) -> None:
        pause = RECONNECT_S[0]
        while not self._stopped.is_set() and not self._may_end():
            try:
                self._listen()
                pause = RECONNECT_S[0]
            except (HoldfastError, PyMongoError, OSError) as error:
                if not self._stopped.is_set():
                    logger.info("not listening, again in %.1f s: %s", pause, error)
                self._lost()
                self._stopped.wait(pause)
                pause = min(pause * 2, RECONNECT_S[1])

    def _may_end(self) -> bool:
        """Nobody has waited for a while; who waits next begins anew."""
        with self._news:
            if clock.monotonic() - self._asked < IDLE_S:
                return False
            self._thread, self._hearing = None, False
            return True

    def _lost(self) -> None:
        self._hearing = False
        self._changed((ALL,))

    def _listen(self) -> None:
        woken: list[Doc] = [
            {"$changeStream": {}},
            {"$match": {f"updateDescription.updatedFields.{WOKEN}": {"$exists": True}}},
            {"$project": {"documentKey": 1}},
        ]
        counts = self._db.get(COUNTS)
        with counts.aggregate(woken, maxAwaitTimeMS=HEARD_MS) as stream:
            self._hearing = True
            self._changed((ALL,))  # whatever was told while nobody listened
            while stream.alive and not self._stopped.is_set():
                if clock.monotonic() - self._asked > IDLE_S:
                    return
                change = stream.try_next()
                if change is not None:
                    self._changed((int(change["documentKey"]["_id"].partition("/")[0]),))


class Subscription:
    def __init__(self, read: Callable[[int], list[Event]], wake: Wake, after: int) -> None:
        self._read = read
        self._wake = wake
        self._after = after
        self._gap_since: float | None = None

    def next(self, timeout: float) -> list[Event]:
        until = clock.monotonic() + timeout
        while True:
            seen = self._wake.watch([NEWS])
            events = self._in_order(self._read(self._after))
            left = until - clock.monotonic()
            if events or left <= 0:
                self._after = events[-1].seq if events else self._after
                return events
            self._wake.wait(seen, left if self._gap_since is None else min(left, GAP_LOOK_S))

    def _in_order(self, events: list[Event]) -> list[Event]:
        """Those before the first that is missing: who took its number is about to write it. One
        that does not come had a writer that died; and old ones are not kept."""
        now, last = clock.monotonic(), self._after
        if not last and events and events[0].seq > EVENTS_KEPT:
            last = events[0].seq - 1
        whole = [event for n, event in enumerate(events, 1) if event.seq == last + n]
        if whole or not events:
            self._gap_since = None
            return whole
        self._gap_since = self._gap_since or now
        if now - self._gap_since < GAP_S:
            return []
        self._after, self._gap_since = events[0].seq - 1, None
        return self._in_order(events)

    def close(self) -> None: ...


class News:
    """Events for people who watch: the newest EVENTS_KEPT of them."""

    def __init__(self, db: Connections, wake: Wake) -> None:
        self._db = db
        self._wake = wake

    def publish(self, events: Sequence[Event]) -> None:
        with self._db.translated():
            more = {"$inc": {WOKEN: len(events)}}
            counts = self._db.get(COUNTS, soon=True)
            last = upserted(counts, {"_id": f"{NEWS}/events"}, more)[WOKEN]
            kept = self._db.get(EVENTS)
            kept.insert_many(
                {
                    "_id": last - len(events) + n,
                    "type": event.type,
                    "at": event.timestamp,
                    "payload": msgspec.json.encode(event.payload),
                }
                for n, event in enumerate(events, 1)
            )
            kept.delete_many({"_id": {"$lte": last - EVENTS_KEPT}})
        self._wake.tell([NEWS])

    def subscribe(self, after: int | None) -> Subscription:
        if after is None:
            with self._db.translated():
                newest = self._db.get(EVENTS).find_one({}, {"_id": 1}, sort=[("_id", -1)])
            after = newest["_id"] if newest else 0
        return Subscription(self._read, self._wake, after or 0)

    def _read(self, after: int) -> list[Event]:
        with self._db.translated():
            found = self._db.get(EVENTS).find({"_id": {"$gt": after}}).sort("_id", 1).limit(1000)
            return [
                Event(d["type"], int(d["at"]), msgspec.json.decode(d["payload"]), d["_id"])
                for d in found
            ]
