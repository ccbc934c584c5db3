"""From the head of the line: a look, then one write that takes what is still there."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.message import Lease
from holdfast.store import NO_DEADLINE, LeaseAsk, Transition
from holdfast.stores.mongo.browse import of_partitions
from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.counts import FIELDS, Deltas
from holdfast.stores.mongo.layout import DELAYED, LEASED, MESSAGES, ODD, QUEUES, READY, Doc
from holdfast.stores.mongo.queues import Known
from holdfast.stores.mongo.rows import base_of, position, read_lease, take_lease

TRIES = 20
WINDOWS = 4
"""Who lost a race for the head of the line looks at one of so many stretches of it."""
REMEMBERED, REMEMBERED_BYTES = 10_000, 4096
PROMOTE_MAX = 2_000
"""Delayed messages that one lease call makes ready; more come due in the next calls."""


class Look(msgspec.Struct, frozen=True):
    """What lies at the head of a line."""

    spec: Doc | None
    docs: list[Doc]
    due: int | None
    """When the first of the delayed is (to be) ready."""


class Remembered:
    """Documents that this process leased, as they are while it holds them: an ack that knows what
    it finishes need not read it again. A lease that was lost shows when it deletes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._docs: dict[tuple[str, str | None], Doc] = {}

    def keep(self, taken: list[tuple[Doc, Lease]]) -> None:
        with self._lock:
            for doc, lease in taken:
                if len(doc["bd"]) <= REMEMBERED_BYTES:
                    message = lease.message
                    doc.update(at=message.attempts, fl=message.first_leased_at)
                    doc.update(
                        tk=base_of(lease.token, lease.id), la=lease.leased_at, ow=lease.owner
                    )
                    self._docs[lease.id, lease.token] = doc
            while len(self._docs) > REMEMBERED:
                del self._docs[next(iter(self._docs))]

    def take(self, moves: Sequence[Transition]) -> list[Doc]:
        """Those of them that are remembered; they are forgotten by that."""
        with self._lock:
            found = [self._docs.pop((move.id, move.token), None) for move in moves]
        return [doc for doc in found if doc is not None]


class Leasing:
    def __init__(self, db: Connections) -> None:
        self._db = db
        self.remembered = Remembered()

    def look(self, queue: Known, ask: LeaseAsk, now: int, *, spread: bool) -> Look:
        """The candidates, in order; the queue as it is now; whether a delayed one is due."""
        wanted = range(queue.spec.partitions) if ask.partitions is None else ask.partitions
        skip = random.randrange(WINDOWS) * ask.limit if spread else 0
        docs: list[Doc] = []
        look = Look(None, [], None)
        for of in of_partitions(wanted):
            look = self._look(queue, of, skip, ask.limit, {"$lte": now})
            docs += look.docs
        if len(docs) > ask.limit:
            docs.sort(key=_in_line)
        return Look(look.spec, docs[: ask.limit], look.due)

    def anything(self, queue: Known) -> Look:
        """Only what a lease would find: else whoever waits would look again and again."""
        look = Look(None, [], None)
        for of in of_partitions(range(queue.spec.partitions)):
            look = self._look(queue, of, 0, 1, None)
            if look.docs:
                break
        return look

    def _look(self, queue: Known, of: Any, skip: int, limit: int, due: Any) -> Look:
        line: Doc = {"q": queue.q, "st": READY, "pt": of}
        delayed: Doc = {"q": queue.q, "st": DELAYED, "av": due or {"$gte": 0}}
        pipeline: list[Doc] = [{"$match": line}]
        if due is not None:
            pipeline.append({"$sort": {"rk": 1, "pl": 1}})
        if skip:
            pipeline.append({"$skip": skip})
        pipeline += [
            {"$limit": limit},
            {
                "$unionWith": {
                    "coll": self._db.name(QUEUES),
                    "pipeline": [{"$match": {"_id": queue.spec.name}}],
                }
            },
            {
                "$unionWith": {
                    "coll": self._db.name(MESSAGES),
                    "pipeline": [
                        {"$match": delayed},
                        {"$sort": {"av": 1, "sq": 1}},
                        {"$limit": 1},
                        {"$project": {"st": 1, "av": 1}},
                    ],
                }
            },
        ]
        found = self._db.get(MESSAGES).aggregate(pipeline, batchSize=limit + 3)
        spec, at, docs = None, None, list[Doc]()
        for doc in found:
            if "qid" in doc and doc["_id"] == queue.spec.name:
                spec = doc
            elif doc["st"] == DELAYED:
                at = int(doc["av"])
            else:
                docs.append(doc)
        return Look(spec, docs, at)

    def promote(self, queue: Known, now: int) -> tuple[int, Deltas]:
        """Make ready what is due."""
        messages = self._db.get(MESSAGES, soon=True)
        due: Doc = {"q": queue.q, "st": DELAYED, "av": {"$lte": now}}
        found = messages.find(due, {"_id": 1}).sort([("av", 1), ("sq", 1)]).limit(PROMOTE_MAX)
        ids = [doc["_id"] for doc in found]
        n = messages.update_many(
            {**due, "_id": {"$in": ids}}, {"$set": {"st": READY}}
        ).modified_count
        return n, Counter({FIELDS[DELAYED]: -n, FIELDS[READY]: n})

    def claim(
        self, queue: Known, ask: LeaseAsk, docs: list[Doc], now: int
    ) -> tuple[list[Lease] | None, Deltas]:
        """Those of the candidates that nobody else took meanwhile; None: all were nonsense."""
        taken, deltas = self._sound(ask, docs, now)
        if not taken:
            return None, deltas
        messages = self._db.get(MESSAGES)
        fresh = all("fl" not in doc and "to" not in doc for doc, _ in taken)
        ids = [doc["_id"] for doc, _ in taken]
        line: Doc = {"_id": {"$in": ids}, "st": READY, "q": queue.q}
        if fresh:  # one that had come back meanwhile would not be as it was read
            line["fl"] = None
        change = _first(ask, now) if fresh else _again(ask, now)
        n = messages.update_many(line, change).modified_count
        deltas.update({FIELDS[READY]: -n, FIELDS[LEASED]: n})
        if fresh and n == len(ids):
            self.remembered.keep(taken)
            return [lease for _, lease in taken], deltas
        if not n:
            return [], deltas
        mine = {"_id": {"$in": ids}, "tk": ask.token, "st": LEASED}
        if fresh:
            won = {doc["_id"] for doc in messages.find(mine, {"_id": 1})}
            return [lease for doc, lease in taken if doc["_id"] in won], deltas
        read = {doc["_id"]: doc for doc in messages.find(mine)}
        return [read_lease(read[id], ask.queue) for id in ids if id in read], deltas

    def hold(
        self, queue: Known, ask: LeaseAsk, docs: list[Doc], now: int
    ) -> tuple[range | None, Deltas]:
        taken, deltas = self._sound(ask, docs, now)
        if not taken:
            return None, deltas
        line: Doc = {"_id": {"$in": [doc["_id"] for doc, _ in taken]}, "st": READY, "q": queue.q}
        change = _again(ask, now, NO_DEADLINE)
        n = self._db.get(MESSAGES).update_many(line, change).modified_count
        deltas.update({FIELDS[READY]: -n, FIELDS[LEASED]: n})
        return range(n), deltas

    def _sound(
        self, ask: LeaseAsk, docs: list[Doc], now: int
    ) -> tuple[list[tuple[Doc, Lease]], Deltas]:
        """With the lease that each will be; the others are set aside. The server would refuse to
        count with them, and so the whole write."""
        taken: list[tuple[Doc, Lease]] = []
        odd: list[Doc] = []
        for doc in docs:
            try:
                taken.append((doc, take_lease(doc, ask, now)))
            except StoreCorrupt:
                odd.append(doc)
        return taken, self.set_aside(odd)[1] if odd else Counter()

    def set_aside(self, docs: list[Doc]) -> tuple[int, Deltas]:
        """What somebody edited into nonsense: out of the way, as it is."""
        deltas: Deltas = Counter()
        for doc in docs:
            known = {"_id": doc["_id"], "st": doc["st"]}
            change = {"$set": {"st": ODD, "was": doc["st"]}}
            n = self._db.get(MESSAGES).update_one(known, change).modified_count
            deltas[FIELDS[doc["st"]]] -= n
        return len(docs), deltas


def _in_line(doc: Doc) -> tuple[int, int]:
    try:
        return position(doc, "rk", "pl")
    except StoreCorrupt:
        return -1, -1


def _first(ask: LeaseAsk, now: int) -> Doc:
    held: Doc = {
        "st": LEASED,
        "tk": ask.token,
        "dl": now + ask.timeout_ms,
        "la": now,
        "ow": ask.owner,
        "fl": now,
    }
    if ask.batch is not None:
        held["ba"] = ask.batch
    return {"$set": held, "$inc": {"at": 1}}


def _again(ask: LeaseAsk, now: int, deadline: int | None = None) -> list[Doc]:
    """For any message: with a time-out of its own, or leased before."""
    own: Doc = {"$toLong": {"$round": [{"$multiply": ["$to", 1000]}]}}
    held: Doc = {
        "st": LEASED,
        "tk": {"$literal": ask.token},
        "dl": {"$add": [now, {"$ifNull": [own, ask.timeout_ms]}]},
        "la": now,
        "ow": {"$literal": ask.owner},
        "fl": {"$ifNull": ["$fl", now]},
        "at": {"$add": ["$at", 1]},
    }
    if deadline is not None:
        held["dl"] = deadline
    if ask.batch is not None:
        held["ba"] = {"$literal": ask.batch}
    return [{"$set": held}, {"$unset": "vb"}]
