"""Drops what is not wanted any more: the oldest rows of logs, and what waits in a queue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from bson import Timestamp
from pymongo.collection import Collection

from holdfast.stores.contract import Cut
from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.counting import Counting
from holdfast.stores.mongo.counts import Deltas, moved
from holdfast.stores.mongo.layout import DELAYED, LOG, MESSAGES, READY, Doc
from holdfast.stores.mongo.queues import Known, Queues
from holdfast.stores.mongo.rows import number

STEP = 1000
"""Messages that one step of a purge drops."""


class Dropping:
    def __init__(self, db: Connections, queues: Queues, counting: Counting) -> None:
        self._db = db
        self._queues = queues
        self._counting = counting

    def purge(self, queue: str, limit: int, now: int) -> int:
        dropped = 0
        while dropped < limit:
            n = self._purge(queue, min(STEP, limit - dropped), now)
            dropped += n
            if not n:
                break
        return dropped

    def _purge(self, queue: str, limit: int, now: int) -> int:
        def drop(known: Known) -> tuple[int, Deltas]:
            messages = self._db.get(MESSAGES)
            deltas: Deltas = Counter()
            dropped = 0
            for state in (READY, DELAYED):
                if dropped < limit:
                    waiting = messages.find({"q": known.q, "st": state}, {"pt": 1})
                    found = list(waiting.limit(limit - dropped))
                    ids = [doc["_id"] for doc in found]
                    gone = messages.delete_many({"_id": {"$in": ids}, "st": state, "q": known.q})
                    n = gone.deleted_count
                    parts = Counter(doc.get("pt") for doc in found)
                    if n < len(found):  # somebody took some of them meanwhile
                        left = messages.find({"_id": {"$in": ids}}, {"pt": 1})
                        parts.subtract(doc.get("pt") for doc in left)
                    deltas.update(moved(n, parts, state))
                    dropped += n
            return dropped, deltas

        return self._counting.moving(self._queues.must_exist(queue), now, drop)

    def trim(self, cuts: Sequence[Cut]) -> list[int]:
        known = self._queues.look_up_all(cut.queue for cut in cuts)
        there = {name: queue.q for name, queue in known.items() if queue is not None}
        with self._db.translated():
            log = self._db.get(LOG)
            wanted = to_trim(log, [(there[c.queue], c) for c in cuts if c.queue in there])
            return [
                trim(log, there[cut.queue], cut) if there.get(cut.queue) in wanted else 0
                for cut in cuts
            ]


def to_trim(log: Collection[Doc], cuts: Sequence[tuple[int, Cut]]) -> set[int]:
    """Of queues by number: those whose logs may have rows to drop. One look into the index
    `finished` for each."""
    wanted = {q for q, cut in cuts if cut.keep is not None}
    old: dict[int, list[int]] = defaultdict(list)
    for q, cut in cuts:
        if cut.before is not None and q not in wanted:
            old[cut.before].append(q)
    for before, qs in old.items():
        first: list[Doc] = [
            {"$match": {"q": {"$in": qs}, "fa": {"$gte": 0, "$lt": before}}},
            {"$sort": {"q": 1, "fa": 1, "sq": 1}},
            {"$group": {"_id": "$q", "fa": {"$first": "$fa"}}},
        ]
        wanted |= {doc["_id"] for doc in log.aggregate(first)}
    return wanted


def trim(log: Collection[Doc], q: int, cut: Cut) -> int:
    order = [("fa", 1), ("sq", 1)]
    # Of the rows that say in numbers when they finished; see `holdfast doctor` for others.
    rows, fields = {"q": q, "fa": {"$gte": 0}}, {"fa": 1, "sq": 1}
    over: tuple[int, int] | None = None
    if cut.keep is not None:
        newest = log.find(rows, fields).sort([(name, -1) for name, _ in order])
        for doc in newest.skip(cut.keep).limit(1):
            over = _finished(doc)
    if over is None and cut.before is None:
        return 0
    ids: list[str] = []
    for doc in log.find(rows, fields).sort(order).limit(cut.limit):
        old = cut.before is not None and doc["fa"] < cut.before
        if not old and (over is None or _finished(doc) > over):
            break
        ids.append(doc["_id"])
    return log.delete_many({"_id": {"$in": ids}}).deleted_count if ids else 0


def _finished(doc: Doc) -> tuple[int, int]:
    place = doc.get("sq")
    return int(doc["fa"]), number(place) if isinstance(place, Timestamp) else 0
