"""How many messages a queue has in each state: sums of small documents, each written by one call
at a time, so that no two transactions meet there.

A process has documents of its own for each queue, one for each call that runs at once (a slot).
Who joins somebody else's transaction, which may have begun long ago, takes one of the gates that
a queue was made with. To delete a queue is to delete them all: whoever still counts on one of
them is told so, and nothing is put into a queue that is gone.

What moves many messages outside of a transaction marks its slot before, and counts and unmarks it
after. A mark that stays says that somebody died in between: `repair` then counts anew.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable

import msgspec

from holdfast.stores.mongo.connections import Connections, Session
from holdfast.stores.mongo.layout import COUNTS, DELAYED, LEASED, MESSAGES, READY, Doc

GATES = 32
MARK_STALE_MS = 10_000
IDLE_MS = 600_000
"""A slot that nobody used for so long is added to a gate."""
FOLD_MAX = 100
FIELDS = {READY: "r", DELAYED: "d", LEASED: "l"}
DONE, WOKEN = "n", "w"

Deltas = Counter[str]


class Gone(Exception):
    """The slot is not there: it was folded away, or the queue was deleted."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot


class Slot(msgspec.Struct, frozen=True):
    q: int
    id: str


class Counts:
    def __init__(self, db: Connections) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._pid = 0
        self._process = ""
        self._free: dict[int, deque[Slot]] = {}
        self._made: Counter[int] = Counter()

    def take(self, q: int, now: int) -> Slot | None:
        """A slot for one call; None if the queue is gone."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._process = os.getpid(), secrets.token_hex(6)
                self._free, self._made = defaultdict(deque), Counter()
            if self._free[q]:
                return self._free[q].pop()
            self._made[q] += 1
            slot = Slot(q, f"{q}/{self._process}/{self._made[q]}")
        return slot if self._open(slot, now) else None

    def give(self, slot: Slot) -> None:
        if "/gate/" not in slot.id and slot.id.split("/")[1] == self._process:
            self._free[slot.q].append(slot)

    def _open(self, slot: Slot, now: int) -> bool:
        def make(session: Session) -> bool:
            # By any of the gates: if this process died here, the queue's own document would stay
            # locked, for a minute, to everybody else who opens one.
            counts, gate = self._db.get(COUNTS, session), {"_id": self.gate(slot.q).id}
            there = counts.update_one(gate, {"$inc": {"f": 1}}, session=session)
            if there.matched_count:
                doc = {"_id": slot.id, "q": slot.q, "u": now}
                counts.insert_one(doc, session=session)
            return bool(there.matched_count)

        return self._db.tx(make)

    def gate(self, q: int) -> Slot:
        return Slot(q, f"{q}/gate/{random.randrange(GATES)}")

    def add(self, slot: Slot, deltas: Deltas, now: int, session: Session) -> None:
        """As part of a transaction."""
        found = self._db.get(COUNTS, session).update_one(
            {"_id": slot.id}, _change(deltas, now), session=session
        )
        if not found.matched_count:
            raise Gone(slot)

    def mark(self, slot: Slot, call: str, now: int) -> bool:
        """False: this slot has a mark already, of a call that broke off."""
        counts = self._db.get(COUNTS, soon=True)
        set_mark: Doc = {"$set": {"do": call, "ds": now, "u": now}}
        if counts.update_one({"_id": slot.id, "do": None}, set_mark).matched_count:
            return True
        if counts.find_one({"_id": slot.id}, {"_id": 1}) is None:
            raise Gone(slot)
        return False

    def unmark(self, slot: Slot, call: str, deltas: Deltas, now: int) -> None:
        counts = self._db.get(COUNTS, soon=True)
        change = {**_change(deltas, now), "$unset": {"do": "", "ds": ""}}
        if not counts.update_one({"_id": slot.id, "do": call}, change).matched_count:
            # It took so long that somebody repaired the counts meanwhile: they must look again.
            counts.update_one({"_id": slot.id}, {"$set": {"do": "late", "ds": now}})

    def sums(self, qs: Iterable[int]) -> dict[int, Doc]:
        fields = [*FIELDS.values(), DONE]
        group: Doc = {"_id": "$q", **{name: {"$sum": f"${name}"} for name in fields}}
        pipeline: list[Doc] = [{"$match": {"q": {"$in": list(qs)}}}, {"$group": group}]
        return {doc["_id"]: doc for doc in self._db.get(COUNTS).aggregate(pipeline)}

    # Upkeep

    def fold(self, now: int) -> int:
        """What processes that are gone have counted, into the gates."""
        not_a_gate = {"$not": {"$regex": "/gate/"}}  # which says when it was used as well
        old = {"do": None, "u": {"$lt": now - IDLE_MS}, "_id": not_a_gate}
        idle = list(self._db.get(COUNTS).find(old, limit=FOLD_MAX))
        for doc in idle:
            self._db.tx(lambda session, doc=doc: self._fold(doc, now, session))
        return len(idle)

    def _fold(self, doc: Doc, now: int, session: Session) -> None:
        """Marked, for a standalone server: if we die on the way, it counts anew."""
        counts = self._db.get(COUNTS, session)
        known = {"_id": doc["_id"], "u": doc["u"], "do": None}
        mark: Doc = {"$set": {"do": "fold", "ds": now}}
        if counts.update_one(known, mark, session=session).matched_count:
            deltas = {name: doc[name] for name in (*FIELDS.values(), DONE) if doc.get(name)}
            gate = self.gate(doc["q"]).id
            counts.update_one({"_id": gate}, {"$inc": {**deltas, "f": 1}}, session=session)
            counts.delete_one({"_id": doc["_id"], "do": "fold"}, session=session)

    def repair(self, now: int) -> int:
        """Count anew the queues of whoever died while they moved messages."""
        counts = self._db.get(COUNTS)
        stale = {"do": {"$gt": ""}, "ds": {"$lte": now - MARK_STALE_MS}}
        queues = counts.distinct("q", stale)
        return sum(self._db.tx(lambda session, q=q: self._repair(q, now, session)) for q in queues)

    def _repair(self, q: int, now: int, session: Session) -> int:
        counts, messages = (self._db.get(kind, session) for kind in (COUNTS, MESSAGES))
        docs = list(counts.find({"q": q}, session=session).sort("_id", 1))
        marked = [doc for doc in docs if doc.get("do")]
        if any(doc["ds"] > now - MARK_STALE_MS for doc in marked):
            return 0  # somebody is at it: their count would come on top
        change: Deltas = Counter()
        for state, name in FIELDS.items():
            there = messages.aggregate(
                [{"$match": {"q": q, "st": state}}, {"$count": "n"}], session=session
            )
            change[name] = next(iter(there), {"n": 0})["n"] - sum(d.get(name, 0) for d in docs)
        if session is None and list(counts.find({"q": q}).sort("_id", 1)) != docs:
            return 0  # no snapshot: somebody moved messages between the counts and the counting
        gate = self.gate(q).id
        counts.update_one({"_id": gate}, {"$inc": {**change, "f": 1}}, session=session)
        for doc in marked:  # last: who dies before is repaired once more
            counts.update_one(
                {"_id": doc["_id"], "do": doc["do"]},
                {"$unset": {"do": "", "ds": ""}},
                session=session,
            )
        return 1


def _change(deltas: Deltas, now: int) -> Doc:
    change: Doc = {"$set": {"u": now}}
    inc = {name: n for name, n in deltas.items() if n}
    return {**change, "$inc": inc} if inc else change


def new_gates(q: int) -> list[Doc]:
    return [{"_id": f"{q}/gate/{n}", "q": q} for n in range(GATES)]
