"""What a batch of transitions writes, worked out from the documents as they are.

In a transaction nothing can have changed since they were read. On a standalone server each write
compares once more, and says whether it fitted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bson import Timestamp
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.collection import Collection

from holdfast.model import clock
from holdfast.model.message import PRIORITY_MAX
from holdfast.model.moves import Settled, Target, Transition
from holdfast.model.payload import JSON
from holdfast.stores.mongo.connections import Connections, Session, insert
from holdfast.stores.mongo.counts import DONE, WOKEN, Deltas, moved
from holdfast.stores.mongo.homes import move_alone
from holdfast.stores.mongo.layout import DELAYED, LEASED, LOG, MESSAGES, READY, Doc
from holdfast.stores.mongo.queues import Known
from holdfast.stores.mongo.rows import (
    TICK,
    base_of,
    key_of,
    log_key,
    logged_again,
    number,
    write_log,
)
from holdfast.stores.rows import write_history

SMALL_BYTES = 8192
"""Of a payload: a message that goes to another queue with one is written anew, not changed."""


class Again(Exception):
    """The log has one of these already, or one is not held any more: look before you write."""


class Settling:
    """One batch. `work` is run by whoever counts: in a transaction, maybe several times."""

    def __init__(
        self,
        db: Connections,
        moves: Sequence[Transition],
        now: int,
        *,
        careful: bool,
        remembered: list[Doc] | None = None,
    ) -> None:
        """`remembered`: all that these acks finish, in their order, as this process leased it."""
        self._db = db
        self._moves = moves
        self._now = now
        self._careful = careful
        self._remembered = remembered

    def work(
        self, session: Session, known: dict[str, Known | None]
    ) -> tuple[list[Settled], dict[int, Deltas]]:
        self._session = session
        self._known = known
        self._counts: dict[int, Deltas] = defaultdict(Counter)
        if self._remembered and session is not None and self._are_there(self._remembered):
            return self._finish_all(self._remembered)
        self._writes: list[UpdateOne | InsertOne[Doc] | DeleteOne] = []
        self._anew: list[Doc] = []
        self._once = len({move.id for move in self._moves}) == len(self._moves)
        self._done: list[tuple[int, Doc, Doc | None]] = []
        self._leaving: list[tuple[Doc, Doc]] = []
        self._docs = self._read_docs()
        self._logged = self._read_log()
        if session is None:
            answers = [self._alone(n, move) for n, move in enumerate(self._moves)]
        else:
            answers = [self._plan(n, move) for n, move in enumerate(self._moves)]
            self._write()
        return answers, self._counts

    def _are_there(self, docs: list[Doc]) -> bool:
        """Whether the queues that these were leased from are still the ones of that name."""
        known = [self._known.get(move.queue) for move in self._moves]
        pairs = zip(known, docs, strict=True)
        return all(queue is not None and queue.q == doc["q"] for queue, doc in pairs)

    def _finish_all(self, docs: list[Doc]) -> tuple[list[Settled], dict[int, Deltas]]:
        """Acks, without reading anything: what is not held any more is not deleted."""
        messages, log = (self._db.get(kind, self._session) for kind in (MESSAGES, LOG))
        by_token: dict[str, list[str]] = defaultdict(list)
        by_queue: dict[int, list[Doc]] = defaultdict(list)
        for doc in docs:
            by_token[doc["tk"]].append(doc["_id"])
            by_queue[doc["q"]].append(doc)
        qs = list(by_queue)
        for token, ids in by_token.items():
            held = {"_id": {"$in": ids}, "tk": token, "st": LEASED, "q": {"$in": qs}}
            if messages.delete_many(held, session=self._session).deleted_count != len(ids):
                raise Again
        wall, rows = clock.wall_ms(), list[Doc]()
        for doc, move in zip(docs, self._moves, strict=True):
            if move.status is not None:
                row = write_log(doc, self._now, move.status, move.verb.value, wall)
                if move.result is not None:
                    row["rs"] = move.result
                rows.append(row)
        if rows and insert(log, rows, self._session):
            raise Again
        for q, some in by_queue.items():
            self._counts[q].update(moved(len(some), Counter(doc["pt"] for doc in some), LEASED))
            self._counts[q][DONE] += len(some)
        return [Settled.APPLIED] * len(docs), self._counts

    def _read_docs(self) -> dict[str, Doc]:
        keys: set[str] = set()
        for move in self._moves:
            for name in (move.queue, move.to_queue):
                if name and (queue := self._known.get(name)):
                    keys.add(key_of(queue.home, move.id))
        found = self._db.get(MESSAGES, self._session).find(
            {"_id": {"$in": list(keys)}}, session=self._session, batch_size=len(keys) + 1
        )
        return {doc["_id"]: doc for doc in found}

    def _read_log(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """How those ended that are not there any more; when careful, of all that will end."""
        wanted: dict[str, tuple[str, str]] = {}
        for move in self._moves:
            queue = self._known.get(move.queue)
            if queue is None:
                continue
            gone = key_of(queue.home, move.id) not in self._docs
            if gone or (self._careful and move.target is Target.DONE):
                wanted[log_key(queue.q, move.id)] = (move.queue, move.id)
                if move.token is not None:
                    again = log_key(queue.q, move.id, base_of(move.token, move.id))
                    wanted[again] = (move.queue, move.id)
        if not wanted:
            return {}
        found = self._db.get(LOG, self._session).find(
            {"_id": {"$in": list(wanted)}}, {"tk": 1, "vb": 1}, session=self._session
        )
        ends: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for doc in found:
            ends[wanted[doc["_id"]]].append((doc.get("tk", ""), doc.get("vb", "")))
        return ends

    def _plan(self, n: int, move: Transition) -> Settled:
        queue = self._known.get(move.queue)
        if queue is None:
            return Settled.STALE
        key = key_of(queue.home, move.id)
        doc = self._docs.get(key)
        if doc is None or doc.get("q") != queue.q or not _fits(doc, move):
            return self._lost(doc, move)
        match move.target:
            case Target.LEASED:
                self._update(doc, move, {"dl": move.deadline})
            case Target.WAITING:
                return self._put_back(doc, queue, move)
            case Target.DONE:
                self._finish(n, doc, queue, move)
        return Settled.APPLIED

    def _lost(self, doc: Doc | None, move: Transition) -> Settled:
        last: list[tuple[Any, Any]] = self._logged.get((move.queue, move.id), [])
        if doc is not None:
            last = [(doc.get("tk"), doc.get("vb"))]
        if move.token is None:
            return Settled.STALE
        same = (base_of(move.token, move.id), move.verb.value) in last
        return Settled.ALREADY if same else Settled.STALE

    def _put_back(self, doc: Doc, queue: Known, move: Transition) -> Settled:
        to = self._known.get(move.to_queue)
        if to is None:
            return Settled.STALE
        key = key_of(to.home, move.id)
        if key != doc["_id"] and key in self._docs:
            return Settled.STALE
        state = READY if move.available_at <= self._now else DELAYED
        part = doc.get("pt")
        self._counts[queue.q].update(moved(1, Counter([part]), doc["st"]))
        part = part if move.partition is None else move.partition
        self._counts[to.q].update(moved(1, Counter([part]), to=state))
        self._counts[to.q][WOKEN] = 1
        change: Doc = {
            "q": to.q,
            "st": state,
            "rk": PRIORITY_MAX - move.lane,
            "av": move.available_at,
            "at": move.attempts,
            "vb": move.verb.value,
            "ua": self._now,
        }
        history = write_history(move.history)
        if history is not None and move.history is not None:
            change["hi"] = history
            if move.history.errors:
                change["er"] = move.history.errors[-1].message
        remove = [name for name in ("ba", *(("tk",) if move.token is None else ())) if name in doc]
        if not move.tail and to.q != queue.q and "sq" in doc:
            change["pl"] = doc["sq"]
        _edit(move, change, remove)
        if key != doc["_id"]:
            self._move_home(doc, key, change, remove, tail=move.tail)
        elif to.q != queue.q and self._may_be_anew(doc):
            self._anew.append(_changed(doc, change, remove, tail=move.tail))
        else:
            self._update(doc, move, change, remove, tail=move.tail)
        return Settled.APPLIED

    def _may_be_anew(self, doc: Doc) -> bool:
        """An update works out, before and after, which of the partial indexes have it: to take it
        out and put it in again costs MongoDB half of that. A large one would fill its log."""
        body = doc.get("bd")
        small = isinstance(body, bytes) and len(body) <= SMALL_BYTES
        return small and self._session is not None and self._once

    def _update(
        self,
        doc: Doc,
        move: Transition,
        change: Doc,
        remove: Iterable[str] = (),
        tail: bool = False,
    ) -> None:
        write: Doc = {"$set": change}
        if remove:
            write["$unset"] = dict.fromkeys(remove, "")
        if tail:
            write["$currentDate"] = {"pl": {"$type": "timestamp"}}
        # Within a transaction whoever changes it first makes the other start again, and the key
        # alone spares MongoDB the choice of an index.
        guard = _guard(doc, move) if self._session is None else {"_id": doc["_id"]}
        self._writes.append(UpdateOne(guard, write))
        doc.update(change)
        for name in remove:
            doc.pop(name, None)

    def _move_home(
        self, doc: Doc, key: str, change: Doc, remove: Iterable[str], *, tail: bool
    ) -> None:
        """To the queue of another home, where it has another key. New first: never in none."""
        old = doc["_id"]
        moved = _changed(doc, {**change, "_id": key}, remove, tail=tail)
        self._writes += [InsertOne(moved), DeleteOne({"_id": old, "tk": doc.get("tk")})]
        self._leaving.append((doc, moved))
        self._docs[key] = moved
        del self._docs[old]

    def _finish(self, n: int, doc: Doc, queue: Known, move: Transition) -> None:
        del self._docs[doc["_id"]]
        self._counts[queue.q].update(moved(1, Counter([doc.get("pt")]), doc["st"]))
        self._counts[queue.q][DONE] += 1
        row = None
        if move.status is not None:
            history = write_history(move.history)
            if history is not None:
                doc["hi"] = history
            row = write_log(doc, self._now, move.status, move.verb.value, clock.wall_ms())
            if move.result is not None:
                row["rs"] = move.result
            ends = self._logged.setdefault((move.queue, move.id), [])
            if any(token != doc["tk"] for token, _ in ends):
                row = logged_again(row)
            ends.append((doc["tk"], move.verb.value))
        self._done.append((n, doc, row))

    def _write(self) -> None:
        """All of it, as a part of the transaction."""
        messages, log = (self._db.get(kind, self._session) for kind in (MESSAGES, LOG))
        if self._anew:
            keys = [doc["_id"] for doc in self._anew]
            messages.delete_many({"_id": {"$in": keys}}, session=self._session)
            if insert(messages, self._anew, self._session):
                raise Again
        if self._writes:
            messages.bulk_write(self._writes, ordered=True, session=self._session)
        finish(messages, log, [(doc, row) for _, doc, row in self._done], self._session)

    # Without transactions

    def _alone(self, n: int, move: Transition) -> Settled:
        """One move by itself, each of its writes comparing again what it relies on."""
        before = {q: Counter(deltas) for q, deltas in self._counts.items()}
        self._writes, self._done, self._leaving = [], [], []
        answer = self._plan(n, move)
        messages = self._db.get(MESSAGES)
        fits = True
        for doc, new in self._leaving:
            fits = move_alone(messages, doc, new, self._now)
        if self._writes and not self._leaving:
            fits = bool(messages.bulk_write(self._writes).matched_count)
        for _, doc, row in self._done:
            fits = finish_alone(messages, self._db.get(LOG), doc, row)
        if fits:
            return answer
        self._counts.clear()
        self._counts.update(before)
        return Settled.STALE


def finish(
    messages: Collection[Doc],
    log: Collection[Doc],
    done: Sequence[tuple[Doc, Doc | None]],
    session: Session,
) -> None:
    """Out of the queue and into the log, as a part of a transaction."""
    if not done:
        return
    messages.delete_many({"_id": {"$in": [doc["_id"] for doc, _ in done]}}, session=session)
    rows = [row for _, row in done if row is not None]
    if rows and insert(log, rows, session):
        raise Again


def finish_alone(
    messages: Collection[Doc], log: Collection[Doc], doc: Doc, row: Doc | None
) -> bool:
    """First into the log, then out of the queue; if the lease was lost between, out of the log.

    Whoever dies between leaves a log row with the token that the message is still held by: see
    `MongoStore._read_overdue`.
    """
    new = False
    if row is not None:
        row, new = _note(log, row)
    held = {"_id": doc["_id"], "st": doc["st"], "tk": doc.get("tk")}
    if messages.delete_one(held).deleted_count:
        return True
    # Gone: somebody finished it, and found this row in the log. There: it was not finished.
    if row is not None and new and messages.find_one({"_id": doc["_id"]}, {"_id": 1}):
        log.delete_one({"_id": row["_id"], "tk": doc["tk"]})
    return False


def _note(log: Collection[Doc], row: Doc) -> tuple[Doc, bool]:
    """The row as the log has it now, and whether it is new. The same end of the same lease is noted
    once; the plain key may belong to an earlier end of this id."""
    noted = log.update_one({"_id": row["_id"]}, {"$setOnInsert": row}, upsert=True)
    if noted.upserted_id is None:
        held = log.find_one({"_id": row["_id"]}, {"tk": 1}) or {}
        if held.get("tk") != row.get("tk"):
            row = logged_again(row)
            noted = log.update_one({"_id": row["_id"]}, {"$setOnInsert": row}, upsert=True)
    return row, noted.upserted_id is not None


def _fits(doc: Doc, move: Transition) -> bool:
    state, place, deadline = doc.get("st"), doc.get("pl"), doc.get("dl")
    if move.token is None:
        here = isinstance(place, Timestamp) and number(place) == move.place
        return state in (READY, DELAYED) and here
    if state != LEASED or doc.get("tk") != base_of(move.token, move.id):
        return False
    late = move.overdue_at
    return late is None or (isinstance(deadline, int) and deadline <= late)


def _changed(doc: Doc, change: Doc, remove: Iterable[str], *, tail: bool) -> Doc:
    """As it is afterwards; the server sets the end of the line."""
    new = {**doc, **change}
    for name in remove:
        new.pop(name, None)
    if tail:
        new["pl"] = TICK
    return new


def _edit(move: Transition, change: Doc, remove: list[str]) -> None:
    """A new partition, a new payload, where the move has them."""
    if move.partition is not None:
        change["pt"] = move.partition
    if move.body is not None:
        change["bd"] = move.body
    if move.content_type == JSON:
        remove.append("ct")
    elif move.content_type is not None:
        change["ct"] = move.content_type


def _guard(doc: Doc, move: Transition) -> Doc:
    guard: Doc = {"_id": doc["_id"], "st": doc["st"], "tk": doc.get("tk")}
    if move.overdue_at is not None:
        guard["dl"] = doc["dl"]
    return guard
