"""Queues by name: their settings, their numbers, and how they come and go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

import msgspec

from holdfast.errors import QueueNotFound, StoreCorrupt
from holdfast.model import clock
from holdfast.model.message import DLQ_SUFFIX, dlq_of, home_of, is_dlq
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.stores.mongo.connections import Connections, Session, upserted
from holdfast.stores.mongo.counts import WOKEN, new_gates
from holdfast.stores.mongo.layout import (
    COUNTS,
    DELAYED,
    LEASED,
    MESSAGES,
    META,
    QUEUES,
    READY,
    Doc,
)

SPEC_S = 0.25
"""How long a queue's settings are remembered: another process's change arrives that late. Whether
it is paused, and whether it exists, is read anew by every lease and every enqueue."""

LATE_S = 2.0
"""How much longer than others a lease from many queues remembers where they are: whether one of
them is paused, or gone, it reads when it takes something."""


class Known(msgspec.Struct, frozen=True):
    """A queue as it was last looked up."""

    spec: QueueSpec
    q: int
    home: int
    until: float


class Queues:
    def __init__(self, db: Connections) -> None:
        self._db = db
        self._known: dict[str, Known] = {}

    def look_up(self, name: str) -> Known | None:
        known = self._known.get(name)
        if known is not None and known.until > clock.monotonic():
            return known
        with self._db.translated():
            doc = self._db.get(QUEUES).find_one({"_id": name})
        if doc is None:
            self._known.pop(name, None)
            return None
        known = self._known[name] = known_of(doc)
        return known

    def look_up_all(self, names: Iterable[str], *, late_s: float = 0.0) -> dict[str, Known | None]:
        """In one read of those that are not remembered, or were read `late_s` too long ago."""
        found: dict[str, Known | None] = {name: self._known.get(name) for name in names}
        now = clock.monotonic() - late_s
        old = [name for name, known in found.items() if known is None or known.until <= now]
        if old:
            found.update(self.read(old))
        return found

    def read(self, names: Sequence[str]) -> dict[str, Known | None]:
        """As they are now."""
        with self._db.translated():
            docs = list(self._db.get(QUEUES).find({"_id": {"$in": list(names)}}))
        read = {doc["_id"]: known_of(doc) for doc in docs}
        for name in names:
            self._known.pop(name, None)
        self._known.update(read)
        return {name: read.get(name) for name in names}

    def must_exist(self, name: str) -> Known:
        return there(name, self.look_up(name))

    def fresh(self, name: str) -> Known:
        """Also with the partitions that somebody has added just now."""
        self._known.pop(name, None)
        return self.must_exist(name)

    def with_dlq(self, name: str) -> dict[int, str]:
        """A queue and its dead-letter queue, by their numbers."""
        return {
            known.q: each
            for each in (home_of(name), dlq_of(name))
            if (known := self.look_up(each)) is not None
        }

    def remembered(self, name: str) -> Known | None:
        return self._known.get(name)

    def forget(self) -> None:
        self._known.clear()

    def all(self) -> list[QueueSpec]:
        with self._db.translated():
            found = self._db.get(QUEUES).find({}).sort("_id", 1)
            return [_spec(doc) for doc in found]

    def numbered(self, qs: Collection[int]) -> list[QueueSpec]:
        """Those with these numbers, by name."""
        if not qs:
            return []
        found = self._db.get(QUEUES).find({"qid": {"$in": list(qs)}}).sort("_id", 1)
        return [_spec(doc) for doc in found]

    def put(self, specs: Sequence[QueueSpec]) -> bool:
        self._known.clear()

        def write(session: Session) -> bool:
            queues = self._db.get(QUEUES, session)
            stored = {doc["_id"]: doc for doc in queues.find({}, session=session)}
            revisions = {name: doc.get("revision") for name, doc in stored.items()}
            if any(revisions.get(spec.name, 0) != spec.revision for spec in specs):
                return False
            for spec in specs:
                change = _written(spec)
                if spec.name in stored:
                    queues.update_one({"_id": spec.name}, {"$set": change}, session=session)
                    gate = {"_id": f"{stored[spec.name]['qid']}/gate/0"}
                    self._db.get(COUNTS, session).update_one(
                        gate, {"$inc": {WOKEN: 1}}, session=session
                    )
                else:
                    stored[spec.name] = self._new_queue(spec.name, change, stored, session)
            return True

        done = self._db.tx(write)
        self._known.clear()
        return done

    def _new_queue(self, name: str, change: Doc, stored: dict[str, Doc], session: Session) -> Doc:
        """With a number of its own, so that nothing of one that had its name before is taken for
        its own; and the home of its source or its dead-letter queue."""
        # Not a part of the transaction: who dies in it would lock it to all who make queues.
        last = upserted(self._db.get(META), {"_id": "queues"}, {"$inc": {"last": 1}})
        q = last["last"]
        sibling = stored.get(home_of(name) if is_dlq(name) else name + DLQ_SUFFIX)
        doc = {"_id": name, "qid": q, "home": sibling["home"] if sibling else q, **change}
        self._db.get(COUNTS, session).insert_many(new_gates(q), session=session)
        self._db.get(QUEUES, session).insert_one(doc, session=session)
        return doc

    def delete(self, names: Sequence[str], *, only_empty: bool) -> list[int] | None:
        """The numbers of those that are gone, whose messages are still to be dropped."""
        self._known.clear()

        def write(session: Session) -> list[int] | None:
            queues, counts = (self._db.get(kind, session) for kind in (QUEUES, COUNTS))
            found = list(queues.find({"_id": {"$in": list(names)}}, session=session))
            qs = [doc["qid"] for doc in found]
            if only_empty and any(self._holds(q, session) for q in qs):
                return None
            if qs:
                for q in qs:
                    grave = {"$set": {"q": q, "on": clock.wall_ms()}}
                    upserted(self._db.get(META, session), {"_id": f"gone/{q}"}, grave, session)
                queues.delete_many({"qid": {"$in": qs}}, session=session)
                counts.delete_many({"q": {"$in": qs}}, session=session)
            return qs

        gone = self._db.tx(write)
        self._known.clear()
        return gone

    def _holds(self, q: int, session: Session) -> bool:
        messages = self._db.get(MESSAGES, session)
        return any(
            messages.find_one({"q": q, "st": state}, {"_id": 1}, session=session)
            for state in (READY, DELAYED, LEASED)
        )


def there(name: str, known: Known | None) -> Known:
    if known is None:
        raise QueueNotFound(f"no queue {name!r}")
    return known


def known_of(doc: Doc) -> Known:
    q, home = doc.get("qid"), doc.get("home")
    if not isinstance(q, int) or not isinstance(home, int):
        raise StoreCorrupt(f"{doc['_id']}: its settings were not written by Holdfast")
    return Known(_spec(doc), q, home, clock.monotonic() + SPEC_S)


def _written(spec: QueueSpec) -> Doc:
    return {
        "partitions": spec.partitions,
        "policy": msgspec.json.encode(spec.policy.to_dict()).decode(),
        "paused": spec.paused,
        "created_at": spec.created_at,
        "revision": spec.revision + 1,
        "ordered": spec.ordered,
        "starts": list(spec.starts),
    }


def _spec(doc: Doc) -> QueueSpec:
    try:
        return QueueSpec(
            doc["_id"],
            int(doc["partitions"]),
            _policy(doc["policy"]),
            bool(doc["paused"]),
            int(doc["created_at"]),
            int(doc["revision"]),
            bool(doc.get("ordered", False)),
            tuple(int(start) for start in doc.get("starts", (0,))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(f"{doc['_id']}: its settings were not written by Holdfast") from error


@lru_cache(maxsize=1000)
def _policy(stored: str) -> Policy:
    return Policy.from_dict(msgspec.json.decode(stored))
