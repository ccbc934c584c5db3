"""From the head of the line: a look, then one write that takes what is still there.

A fenced lease (of partitions that the asker owns) is the same in more steps, as a claim and the
messages are not written at once:

1. It looks whether the claims are the asker's, and makes ready all that is due.
2. It takes the head, pending: `fe` has its token. All of it, or it gives back what it got.
3. It looks at the claims once more. If they are still the asker's, then what it took was there to
   be seen before anybody else took a claim: who takes one and then lists what is leased, sees it.
   If they are not, or if it dies before, these are leases that nobody has.
4. It confirms: takes `fe` away from all of them. From then on they are leases like others.

Nobody waits for what is pending under another token: a fenced lease that meets it twice gives it
back, and who would confirm it finds that it is too late. What is given back keeps `fe`, as a trace.
So a look that passed over a message because somebody had it pending is found out in step 3: the
message is still pending, or it is in line with a trace in it, before the last that was taken. Then
all is given back and begun anew. Hence, when an owner O writes after N has taken its claim: either
N sees in step 3 what O did, or O took only what lies behind all that N has.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.model.message import Lease
from holdfast.model.moves import Transition
from holdfast.model.queues import partition_claim
from holdfast.stores.contract import NO_DEADLINE, LeaseAsk
from holdfast.stores.mongo.browse import of_partitions
from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.counts import WOKEN, Deltas, moved
from holdfast.stores.mongo.layout import (
    CLAIMS,
    DELAYED,
    LEASED,
    MESSAGES,
    ODD,
    QUEUES,
    READY,
    Doc,
    as_long,
)
from holdfast.stores.mongo.queues import Known
from holdfast.stores.mongo.records import read_claim
from holdfast.stores.mongo.rows import base_of, position, read_lease, take_lease

TRIES = 20
WINDOWS = 4
"""Who lost a race for the head of the line looks at one of so many stretches of it."""
REMEMBERED, REMEMBERED_BYTES = 10_000, 4096
PENDING_S = 0.02
"""How long at most a fenced lease makes way for another that is under way."""
PROMOTE_MAX = 2_000
"""Delayed messages that one lease call makes ready; more come due in the next calls."""


class Look(msgspec.Struct, frozen=True):
    """What lies at the head of a line."""

    spec: Doc | None
    docs: list[Doc]
    due: int | None
    """When the first of the delayed is (to be) ready."""


class Ground(msgspec.Struct, frozen=True):
    """What a fenced lease stands on."""

    ask: LeaseAsk
    """For those of its partitions alone that the asker owns."""
    due: bool
    marked: list[Doc]
    """Messages of these partitions that have, or had, another fenced lease."""

    @property
    def pending(self) -> list[Doc]:
        return [doc for doc in self.marked if doc["st"] == LEASED and doc.get("tk") == doc["fe"]]

    def has_before(self, last: tuple[int, int]) -> bool:
        """Whether something waits in line before this place that another lease had pending."""
        waiting = [doc for doc in self.marked if doc["st"] == READY]
        return any((-1, -1) < _in_line(doc) < last for doc in waiting)


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

    def anything(self, queue: Known, partitions: Sequence[int] | None) -> Look:
        """Only what a lease would find: else whoever waits would look again and again."""
        wanted = range(queue.spec.partitions) if partitions is None else partitions
        look = Look(None, [], None)
        for of in of_partitions(wanted):
            look = self._look(queue, of, 0, 1, None)
            if look.docs:
                break
        return look

    def ready(self, queues: Sequence[Known]) -> tuple[set[int], dict[int, int]]:
        """Of several queues: those where something is ready; and when the first delayed message of
        each that has any is due. By a look into the index for each of those that have something."""
        qs: Doc = {"$in": [queue.q for queue in queues]}
        delayed: list[Doc] = [
            {"$match": {"q": qs, "st": DELAYED, "av": {"$gte": 0}}},
            {"$sort": {"q": 1, "st": 1, "av": 1, "sq": 1}},
            {"$group": {"_id": "$q", "av": {"$first": "$av"}}},
        ]
        pipeline: list[Doc] = [
            {"$match": {"q": qs, "st": READY}},
            {"$sort": {"q": 1, "st": 1, "pt": 1, "rk": 1, "pl": 1}},
            {"$group": {"_id": "$q"}},
            {"$unionWith": {"coll": self._db.name(MESSAGES), "pipeline": delayed}},
        ]
        ready: set[int] = set()
        due: dict[int, int] = {}
        for doc in self._db.get(MESSAGES).aggregate(pipeline, batchSize=len(queues) * 2 + 1):
            if "av" in doc:
                due[doc["_id"]] = int(doc["av"])
            else:
                ready.add(doc["_id"])
        return ready, due

    def heads(
        self, asks: Sequence[tuple[LeaseAsk, Known]], limit: int
    ) -> tuple[dict[int, Doc], dict[int, list[Doc]]]:
        """By number: the queues as they are now, and the head of each one's line."""
        names: Doc = {"$match": {"_id": {"$in": [ask.queue for ask, _ in asks]}}}
        pipeline: list[Doc] = [names]
        for ask, queue in asks:
            most = min(ask.limit, limit)
            for of in of_partitions(range(queue.spec.partitions)):
                line: list[Doc] = [
                    {"$match": {"q": queue.q, "st": READY, "pt": of}},
                    {"$sort": {"rk": 1, "pl": 1}},
                    {"$limit": most},
                ]
                pipeline.append({"$unionWith": {"coll": self._db.name(MESSAGES), "pipeline": line}})
        specs: dict[int, Doc] = {}
        docs: dict[int, list[Doc]] = {queue.q: [] for _, queue in asks}
        for doc in self._db.get(QUEUES).aggregate(pipeline, batchSize=limit + 2 * len(asks)):
            if "qid" in doc:
                specs[doc["qid"]] = doc
            else:
                docs[doc["q"]].append(doc)
        for of in docs.values():
            of.sort(key=_in_line)
        return specs, docs

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

    def promote(self, queue: Known, now: int) -> tuple[bool, Deltas]:
        """Make ready what is due; whether there may be more."""
        n, deltas = self.promote_many({queue.spec.name: queue}, now)
        return n >= PROMOTE_MAX, deltas[queue.q]

    def promote_many(self, known: dict[str, Known], now: int) -> tuple[int, dict[int, Deltas]]:
        """Make ready what is due in several queues, the first ones of each; how many there were."""
        messages, mine = self._db.get(MESSAGES, soon=True), secrets.token_hex(4)
        qs = [queue.q for queue in known.values()]
        due: Doc = {"q": {"$in": qs}, "st": DELAYED, "av": {"$lte": now}}
        line = messages.find(due, {"q": 1, "pt": 1})
        if len(qs) == 1:
            line = line.sort([("av", 1), ("sq", 1)])
        found = list(line.limit(PROMOTE_MAX))
        met, ids = len(found), {"$in": [doc["_id"] for doc in found]}
        change = {"$set": {"st": READY, "pm": mine}}
        if found and messages.update_many({**due, "_id": ids}, change).modified_count < met:
            found = list(messages.find({"_id": ids, "pm": mine}, {"q": 1, "pt": 1}))
        deltas: dict[int, Deltas] = {q: Counter() for q in qs}
        for q in qs:
            parts = Counter(doc.get("pt") for doc in found if doc["q"] == q)
            deltas[q].update(moved(parts.total(), parts, DELAYED, READY))
        return met, deltas

    def _parts(self, docs: list[Doc], n: int, mine: Doc) -> Counter[Any]:
        """How many of each partition there are among the `n` of these that a write has changed,
        and marked so."""
        if n == len(docs):
            return Counter(doc.get("pt") for doc in docs)
        if not n or not any(doc.get("pt") for doc in docs):
            return Counter({0: n})
        asked = {"_id": {"$in": [doc["_id"] for doc in docs]}, **mine}
        return Counter(doc.get("pt") for doc in self._db.get(MESSAGES).find(asked, {"pt": 1}))

    def claim(
        self, queue: Known, ask: LeaseAsk, docs: list[Doc], now: int
    ) -> tuple[list[Lease] | None, Deltas]:
        """Those of the candidates that nobody else took meanwhile; None: all were nonsense."""
        taken, deltas = self._sound(ask, docs, now)
        if not taken:
            return None, deltas
        mine = [(ask, doc, lease) for doc, lease in taken]
        won = self._claim_alike(mine, now, fresh=all(_is_fresh(doc) for doc, _ in taken))
        parts = Counter(doc.get("pt") for doc, _ in taken if doc["_id"] in won)
        deltas.update(moved(len(won), parts, READY, LEASED))
        return [won[doc["_id"]] for doc, _ in taken if doc["_id"] in won], deltas

    def claim_many(
        self, known: dict[str, Known], found: Sequence[tuple[LeaseAsk, list[Doc]]], now: int
    ) -> tuple[list[Lease], dict[int, Deltas]]:
        """As `claim`, of several queues: a write for all that are leased for the same time."""
        deltas: dict[int, Deltas] = {queue.q: Counter() for queue in known.values()}
        writes: dict[tuple[int, bool], list[tuple[LeaseAsk, Doc, Lease]]] = defaultdict(list)
        for ask, docs in found:
            if ask.queue not in known:
                continue
            taken, odd = self._sound(ask, docs, now)
            deltas[known[ask.queue].q].update(odd)
            for doc, lease in taken:
                writes[ask.timeout_ms, _is_fresh(doc)].append((ask, doc, lease))
        won: dict[str, Lease] = {}
        for (_, fresh), taken in writes.items():
            won.update(self._claim_alike(taken, now, fresh=fresh))
        leases: list[Lease] = []
        for ask, docs in found:
            mine = [doc for doc in docs if doc["_id"] in won]
            leases += [won[doc["_id"]] for doc in mine]
            if mine:
                parts = Counter(doc.get("pt") for doc in mine)
                deltas[known[ask.queue].q].update(moved(len(mine), parts, READY, LEASED))
        return leases, deltas

    def _claim_alike(
        self, taken: list[tuple[LeaseAsk, Doc, Lease]], now: int, *, fresh: bool
    ) -> dict[str, Lease]:
        messages, first = self._db.get(MESSAGES), taken[0][0]
        ids = [doc["_id"] for _, doc, _ in taken]
        qs = list({doc["q"] for _, doc, _ in taken})
        line: Doc = {"_id": {"$in": ids}, "st": READY, "q": {"$in": qs}}
        if fresh:  # one that had come back meanwhile would not be as it was read
            line["fl"] = None
        change = _first(first, now) if fresh else _again(first, now)
        n = messages.update_many(line, change).modified_count
        if fresh and n == len(ids):
            self.remembered.keep([(doc, lease) for _, doc, lease in taken])
            return {doc["_id"]: lease for _, doc, lease in taken}
        if not n:
            return {}
        mine = {"_id": {"$in": ids}, "tk": first.token, "st": LEASED}
        if fresh:
            there = {doc["_id"] for doc in messages.find(mine, {"_id": 1})}
            return {doc["_id"]: lease for _, doc, lease in taken if doc["_id"] in there}
        names = {doc["_id"]: ask.queue for ask, doc, _ in taken}
        return {doc["_id"]: read_lease(doc, names[doc["_id"]]) for doc in messages.find(mine)}

    def hold(
        self, queue: Known, ask: LeaseAsk, docs: list[Doc], now: int
    ) -> tuple[range | None, Deltas]:
        taken, deltas = self._sound(ask, docs, now)
        if not taken:
            return None, deltas
        line: Doc = {"_id": {"$in": [doc["_id"] for doc, _ in taken]}, "st": READY, "q": queue.q}
        change = _again(ask, now, NO_DEADLINE)
        n = self._db.get(MESSAGES).update_many(line, change).modified_count
        deltas.update(self._taken(ask, taken, n))
        return range(n), deltas

    def _taken(self, ask: LeaseAsk, taken: list[tuple[Doc, Lease]], n: int) -> Deltas:
        parts = self._parts([doc for doc, _ in taken], n, {"tk": ask.token})
        return moved(n, parts, READY, LEASED)

    # Fenced

    def ground(self, queue: Known, ask: LeaseAsk, now: int) -> Ground:
        wanted = dict(zip(ask.partitions or (), ask.epochs or (), strict=True))
        names = {partition_claim(ask.queue, part): part for part in wanted}
        due: Doc = {"$match": {"q": queue.q, "st": DELAYED, "av": {"$lte": now}}}
        others: Doc = {"$gt": "", "$ne": ask.token}
        marked: Doc = {"$match": {"q": queue.q, "pt": {"$in": list(wanted)}, "fe": others}}
        fields = dict.fromkeys(("st", "pt", "rk", "pl", "tk", "fe"), 1)
        messages = self._db.name(MESSAGES)
        pipeline: list[Doc] = [
            {"$match": {"_id": {"$in": list(names)}}},
            {"$unionWith": {"coll": messages, "pipeline": [marked, {"$project": fields}]}},
            {
                "$unionWith": {
                    "coll": messages,
                    "pipeline": [due, {"$limit": 1}, {"$project": {"due": "$av"}}],
                }
            },
        ]
        owned: list[int] = []
        found: list[Doc] = []
        is_due = False
        for doc in self._db.get(CLAIMS).aggregate(pipeline):
            if "due" in doc:
                is_due = True
            elif "fe" in doc:
                found.append(doc)
            else:
                part, claim = names[doc["_id"]], read_claim(doc)
                whose = (claim.owner, claim.epoch)
                if whose == (ask.owner, wanted[part]) and claim.expires_at > now:
                    owned.append(part)
        mine = [part for part in wanted if part in owned]
        narrowed = msgspec.structs.replace(
            ask, partitions=tuple(mine), epochs=tuple(wanted[part] for part in mine)
        )
        return Ground(narrowed, is_due, [doc for doc in found if doc.get("pt") in owned])

    def claim_fenced(
        self, queue: Known, ask: LeaseAsk, docs: list[Doc], now: int, deadline: int | None
    ) -> tuple[list[Lease] | None, Deltas]:
        """All of the candidates, or none; None: all were nonsense. `deadline`: of what is held."""
        taken, deltas = self._sound(ask, docs, now)
        if not taken:
            return None, deltas
        mine = [doc for doc, _ in taken]
        fresh = all(map(_is_fresh, mine))
        pending: Doc = {"_id": {"$in": [doc["_id"] for doc in mine]}, "st": READY, "q": queue.q}
        if fresh:
            pending["fl"] = None
        change = [{"$set": WAS}, *_again(ask, now, fenced=True)]
        # The write that confirms waits for others, and covers this one.
        n = self._db.get(MESSAGES, soon=True).update_many(pending, change).modified_count
        deltas.update(self._taken(ask, taken, n))
        stands = n == len(mine) and self._stands(queue, ask, mine, now)
        if not stands or self._confirm(ask, mine, deadline) < n:
            deltas.update(self._give_back(ask.token, mine, {}))
            return [], deltas
        if not fresh:
            held = {"_id": {"$in": [doc["_id"] for doc in mine]}, "tk": ask.token, "st": LEASED}
            read = {doc["_id"]: doc for doc in self._db.get(MESSAGES).find(held)}
            there = [read[doc["_id"]] for doc in mine if doc["_id"] in read]
            return [read_lease(doc, ask.queue) for doc in there], deltas
        if deadline is None:
            self.remembered.keep(taken)
        return [lease for _, lease in taken], deltas

    def _stands(self, queue: Known, ask: LeaseAsk, mine: list[Doc], now: int) -> bool:
        ground = self.ground(queue, ask, now)
        last = max(_in_line(doc) for doc in mine)
        return ground.ask == ask and not ground.pending and not ground.has_before(last)

    def _confirm(self, ask: LeaseAsk, docs: list[Doc], deadline: int | None) -> int:
        """What is pending has no name of a batch yet, nor is it without a deadline: if its owner
        dies, the batch never had it, and the sweep finds it."""
        pending = {"_id": {"$in": [doc["_id"] for doc in docs]}, "tk": ask.token, "fe": ask.token}
        held: Doc = {} if ask.batch is None else {"ba": ask.batch}
        if deadline is not None:
            held["dl"] = deadline
        change: Doc = {"$unset": {"fe": ""}, **({"$set": held} if held else {})}
        return self._db.get(MESSAGES).update_many({**pending, "st": LEASED}, change).modified_count

    def void(self, pending: list[Doc]) -> tuple[None, Deltas]:
        """Give back what others have taken and not confirmed."""
        deltas: Deltas = Counter()
        for token in {doc["fe"] for doc in pending}:
            theirs = [doc for doc in pending if doc["fe"] == token]
            deltas.update(self._give_back(token, theirs, {"fe": token}))
        return None, deltas

    def _give_back(self, token: str, docs: list[Doc], only: Doc) -> Deltas:
        """As if they had never been leased, those that still are with this token."""
        ids: dict[Any, list[str]] = defaultdict(list)
        for doc in docs:
            ids[doc.get("pt")].append(doc["_id"])
        deltas: Deltas = Counter()
        for part, some in ids.items():
            held = {"_id": {"$in": some}, "tk": token, "st": LEASED, **only}
            n = self._db.get(MESSAGES).update_many(held, BACK).modified_count
            deltas.update(moved(n, Counter({part: n}), LEASED, READY))
            deltas[WOKEN] += n
        return deltas

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
            state, part = doc["st"], doc.get("pt")
            change = {"$set": {"st": ODD, "was": state}}
            known = {"_id": doc["_id"], "st": state}
            n = self._db.get(MESSAGES).update_one(known, change).modified_count
            if isinstance(state, int) and isinstance(part, int | None):
                deltas.update(moved(n, Counter({part: n}), state))
        return len(docs), deltas


def _is_fresh(doc: Doc) -> bool:
    """Never leased before, and without a time-out of its own: one change fits all such."""
    return "fl" not in doc and "to" not in doc


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


WAS: Doc = {"fw": {name: f"${name}" for name in ("tk", "vb", "fl", "la")}}
BACK: list[Doc] = [
    {
        "$set": {
            **{name: f"$fw.{name}" for name in WAS["fw"]},
            "st": READY,
            "at": {"$subtract": ["$at", 1]},
            "fe": "$tk",
        }
    },
    {"$unset": ["fw", "ba", "dl", "ow"]},
]
"""Fields that there were not go again: that is what comes of a path that leads nowhere."""


def _again(
    ask: LeaseAsk, now: int, deadline: int | None = None, *, fenced: bool = False
) -> list[Doc]:
    """For any message: with a time-out of its own, or leased before."""
    own = as_long({"$round": [{"$multiply": ["$to", 1000]}]})  # nothing, where that is no number
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
    if fenced:
        held["fe"] = held["tk"]
    elif ask.batch is not None:
        held["ba"] = {"$literal": ask.batch}
    return [{"$set": held}, {"$unset": "vb"}]
