"""How many messages a queue has in each state: sums of small documents, each written by one call
at a time, so that no two transactions meet there.

A process has documents of its own for each queue, one for each call that runs at once (a slot).
Who joins somebody else's transaction, which may have begun long ago, takes one of the gates that
a queue was made with. To delete a queue is to delete them all: whoever still counts on one of
them is told so, and nothing is put into a queue that is gone.

What moves many messages outside of a transaction marks its slot before, and counts and unmarks it
after. A mark that stays says that somebody died in between: `repair` then counts anew.

Beside the sums of a queue there are those of its partitions, but for the first: that has the rest.
So a queue of one partition counts no more than itself, and when it grows its counts are right.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pymongo import UpdateOne
from pymongo.client_session import ClientSession

from holdfast.stores.mongo.connections import CONFLICT_S, Connections, Session
from holdfast.stores.mongo.layout import COUNTS, DELAYED, LEASED, MESSAGES, QUEUES, READY, Doc

GATES = 32
MARK_STALE_MS = 10_000
IDLE_MS = 600_000
"""A slot that nobody used for so long is added to a gate."""
FOLD_MAX = 100
FIELDS = {READY: "r", DELAYED: "d", LEASED: "l"}
DONE, WOKEN = "n", "w"
UNSURE = "?"
"""Among deltas: it is not known which partitions they are of. The queue is to be counted anew."""
COUNT = re.compile("[rdl][0-9]*|n")

Deltas = Counter[str]


def part_name(state: int, part: int) -> str:
    return f"{FIELDS[state]}{part}"


def moved(n: int, parts: Counter[Any], gone: int | None = None, to: int | None = None) -> Deltas:
    """How counts change when `n` messages leave a state or come into one; `parts` says how many
    there were of each partition."""
    deltas: Deltas = Counter()
    for state, times in ((gone, -1), (to, 1)):
        if state is None:
            continue
        deltas[FIELDS[state]] += times * n
        for part, k in parts.items():
            if isinstance(part, int) and part > 0:
                deltas[part_name(state, part)] += times * k
    if parts.total() != n:
        deltas[UNSURE] = 1
    return deltas


class Gone(Exception):
    """The slot is not there: it was folded away, or the queue was deleted."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot


class Slot(msgspec.Struct, frozen=True):
    q: int
    id: str
    session: ClientSession | None = None
    """In which its transactions run, one at a time; its id is kept with the slot, so that others
    can end what this process leaves open when it dies (see sessions.py)."""


class Counts:
    def __init__(self, db: Connections) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._pid = 0
        self._process = ""
        self._free: dict[int, deque[Slot]] = {}
        self._made: Counter[int] = Counter()

    def take(self, qs: Sequence[int], now: int) -> dict[int, Slot | None]:
        """A slot of each queue for one call; None for a queue that is gone. Slots that have to be
        made are made in one transaction."""
        found: dict[int, Slot | None] = {}
        made: list[Slot] = []
        with self._lock:
            self._mine()
            for q in qs:
                if self._free[q]:
                    found[q] = self._free[q].pop()
                else:
                    made.append(self._new(q))
        if made and self._open(made, now):
            found.update((slot.q, slot) for slot in made)
        else:  # a queue is gone
            found.update((slot.q, slot if self._open([slot], now) else None) for slot in made)
        return found

    def give(self, slot: Slot) -> None:
        if "/gate/" not in slot.id and slot.id.split("/")[1] == self._process:
            self._free[slot.q].append(slot)

    def _mine(self) -> None:
        """A process that was forked off has slots of its own."""
        if self._pid != os.getpid():
            self._pid, self._process = os.getpid(), secrets.token_hex(6)
            self._free, self._made = defaultdict(deque), Counter()

    def _new(self, q: int) -> Slot:
        self._made[q] += 1
        session = self._db.client.start_session()
        return Slot(q, f"{q}/{self._process}/{self._made[q]}", session)

    def _open(self, slots: list[Slot], now: int) -> bool:
        """False: nothing was made, as one of the queues is gone."""

        def make(session: Session) -> bool:
            # By any of the gates: if this process died here, the queue's own document would stay
            # locked, for a minute, to everybody else who opens one.
            counts = self._db.get(COUNTS, session)
            gates = [self.gate(slot.q).id for slot in slots]
            there = counts.update_many({"_id": {"$in": gates}}, {"$inc": {"f": 1}}, session=session)
            if there.matched_count == len(slots):
                counts.insert_many([_doc(slot, now) for slot in slots], session=session)
            return there.matched_count == len(slots)

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

    def add_all(
        self, slots: Sequence[Slot], deltas: dict[int, Deltas], now: int, session: Session
    ) -> None:
        """As part of a transaction, in one write."""
        if len(slots) == 1:
            self.add(slots[0], deltas.get(slots[0].q, Counter()), now, session)
            return
        counts = self._db.get(COUNTS, session)
        writes = [
            UpdateOne({"_id": slot.id}, _change(deltas.get(slot.q, Counter()), now))
            for slot in slots
        ]
        if counts.bulk_write(writes, ordered=True, session=session).matched_count < len(slots):
            named = {"_id": {"$in": [slot.id for slot in slots]}}
            there = {doc["_id"] for doc in counts.find(named, {"_id": 1}, session=session)}
            raise Gone(next(slot for slot in slots if slot.id not in there))

    def mark_all(self, slots: Sequence[Slot], call: str, now: int) -> list[Slot]:
        """Mark slots for a call that counts nothing ahead, in one write. Those that were not
        marked: the call that had them broke off, or their queue is gone."""
        counts = self._db.get(COUNTS, soon=True)
        ids = [slot.id for slot in slots]
        change: Doc = {"$set": {"u": now, "do": call, "ds": now}}
        marked = counts.update_many({"_id": {"$in": ids}, "do": None}, change).matched_count
        if marked == len(slots):
            return []
        mine = {doc["_id"] for doc in counts.find({"_id": {"$in": ids}, "do": call}, {"_id": 1})}
        return [slot for slot in slots if slot.id not in mine]

    def unmark_all(
        self, slots: Sequence[Slot], call: str, deltas: dict[int, Deltas], now: int
    ) -> None:
        """In one write, where it is known what changed."""
        plain = [slot for slot in slots if not deltas.get(slot.q, Deltas()).get(UNSURE)]
        writes = [
            UpdateOne(
                {"_id": slot.id, "do": call},
                {**_change(deltas.get(slot.q, Counter()), now), "$unset": {"do": "", "ds": ""}},
            )
            for slot in plain
        ]
        counts = self._db.get(COUNTS, soon=True)
        if writes and counts.bulk_write(writes, ordered=False).matched_count < len(writes):
            # As in `unmark`. It is not known which of them were repaired.
            ids = [slot.id for slot in plain]
            counts.update_many({"_id": {"$in": ids}}, {"$set": {"do": "late", "ds": now}})
        for slot in slots:
            if slot not in plain:
                self.unmark(slot, call, deltas[slot.q], now)

    def mark(self, slot: Slot, call: str, now: int, ahead: Deltas) -> bool:
        """False: this slot has a mark already, of a call that broke off."""
        counts = self._db.get(COUNTS, soon=True)
        set_mark = _change(ahead, now)
        set_mark["$set"].update(do=call, ds=now)
        if counts.update_one({"_id": slot.id, "do": None}, set_mark).matched_count:
            return True
        if counts.find_one({"_id": slot.id}, {"_id": 1}) is None:
            raise Gone(slot)
        return False

    def unmark(self, slot: Slot, call: str, deltas: Deltas, now: int) -> None:
        counts = self._db.get(COUNTS, soon=True)
        unsure = deltas.pop(UNSURE, 0)
        change = {**_change(deltas, now), "$unset": {"do": "", "ds": ""}}
        if unsure:
            change = _change(deltas, now)
            change["$set"].update(do="late", ds=now)
        if not counts.update_one({"_id": slot.id, "do": call}, change).matched_count:
            # It took so long that somebody repaired the counts meanwhile: they must look again.
            counts.update_one({"_id": slot.id}, {"$set": {"do": "late", "ds": now}})

    def sums(self, qs: Iterable[int]) -> dict[int, Doc]:
        fields = [*FIELDS.values(), DONE]
        group: Doc = {"_id": "$q", **{name: {"$sum": f"${name}"} for name in fields}}
        pipeline: list[Doc] = [{"$match": {"q": {"$in": list(qs)}}}, {"$group": group}]
        return {doc["_id"]: doc for doc in self._db.get(COUNTS).aggregate(pipeline)}

    def depths(self, q: int) -> Deltas:
        """The sums of a queue and of its partitions, by the names of their fields."""

        def read(session: Session) -> Deltas:
            """At one moment: what is folded meanwhile would be missed, or met twice."""
            sums: Deltas = Counter()
            for doc in self._db.get(COUNTS, session).find({"q": q}, session=session):
                sums.update(_counts(doc))
            return sums

        return self._db.tx(read)

    # Upkeep

    def fold(self, now: int) -> int:
        """What processes that are gone have counted, into the gates."""
        not_a_gate = {"$not": {"$regex": "/gate/"}}  # which says when it was used as well
        old = {"do": None, "u": {"$lt": now - IDLE_MS}, "_id": not_a_gate}
        idle = list(self._db.get(COUNTS).find(old, limit=FOLD_MAX))
        for doc in idle:
            self._db.tx(lambda session, doc=doc: self._fold(doc, now, session), CONFLICT_S)
        return len(idle)

    def _fold(self, doc: Doc, now: int, session: Session) -> None:
        counts = self._db.get(COUNTS, session)
        known = {"_id": doc["_id"], "u": doc["u"], "do": None}
        if counts.delete_one(known, session=session).deleted_count:
            gate = self.gate(doc["q"]).id
            counts.update_one({"_id": gate}, {"$inc": {**_counts(doc), "f": 1}}, session=session)

    def repair(self, now: int) -> int:
        """Count anew the queues of whoever died while they moved messages."""
        counts = self._db.get(COUNTS)
        stale = {"do": {"$gt": ""}, "ds": {"$lte": now - MARK_STALE_MS}}
        queues = counts.distinct("q", stale)
        return sum(
            self._db.tx(lambda session, q=q: self._repair(q, now, session), CONFLICT_S)
            for q in queues
        )

    def _repair(self, q: int, now: int, session: Session) -> int:
        counts, messages, queues = (
            self._db.get(kind, session) for kind in (COUNTS, MESSAGES, QUEUES)
        )
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
        if queues.find_one({"qid": q, "partitions": {"$gt": 1}}, {"_id": 1}, session=session):
            change.update(self._parts(q, docs, session))
        gate = self.gate(q).id
        counts.update_one({"_id": gate}, {"$inc": {**change, "f": 1}}, session=session)
        for doc in marked:
            counts.update_one(
                {"_id": doc["_id"], "do": doc["do"]},
                {"$unset": {"do": "", "ds": ""}},
                session=session,
            )
        return 1

    def _parts(self, q: int, docs: list[Doc], session: Session) -> Deltas:
        """What the counts of the partitions lack."""
        lack: Deltas = Counter()
        for doc in docs:
            lack.subtract({name: n for name, n in _counts(doc).items() if name[1:]})
        for state in FIELDS:
            there: list[Doc] = [
                {"$match": {"q": q, "st": state, "pt": {"$gt": 0}}},
                {"$group": {"_id": "$pt", "n": {"$sum": 1}}},
            ]
            for group in self._db.get(MESSAGES, session).aggregate(there, session=session):
                if isinstance(group["_id"], int):
                    lack[part_name(state, group["_id"])] += group["n"]
        return Counter({name: n for name, n in lack.items() if n})


def _counts(doc: Doc) -> dict[str, int]:
    return {name: n for name, n in doc.items() if n and COUNT.fullmatch(name)}


def _change(deltas: Deltas, now: int) -> Doc:
    change: Doc = {"$set": {"u": now}}
    inc = {name: n for name, n in deltas.items() if n}
    return {**change, "$inc": inc} if inc else change


def _doc(slot: Slot, now: int) -> Doc:
    doc: Doc = {"_id": slot.id, "q": slot.q, "u": now}
    if slot.session is not None:
        doc["se"] = slot.session.session_id["id"]
    return doc


def new_gates(q: int) -> list[Doc]:
    return [{"_id": f"{q}/gate/{n}", "q": q} for n in range(GATES)]
