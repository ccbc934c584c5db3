"""What a batch of transitions writes, worked out from the documents as they are.

It runs in a transaction, so nothing can have changed since they were read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from bson import Timestamp
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

from holdfast.model import clock
from holdfast.model.message import PRIORITY_MAX, Status
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.model.payload import JSON
from holdfast.stores.contract import BatchEnd
from holdfast.stores.mongo.connections import CONFLICT_S, Conflict, Connections, insert
from holdfast.stores.mongo.counting import Changed, Counting
from holdfast.stores.mongo.counts import DONE, WOKEN, Deltas, moved
from holdfast.stores.mongo.layout import DELAYED, LEASED, LOG, MESSAGES, READY, Doc
from holdfast.stores.mongo.leasing import Remembered
from holdfast.stores.mongo.queues import Known, Queues, there
from holdfast.stores.mongo.rows import (
    TICK,
    base_of,
    key_of,
    log_key,
    logged_again,
    number,
    write_log,
)
from holdfast.stores.mongo.sessions import Sessions
from holdfast.stores.rows import write_history

STEP = 1000
"""Messages that one step of `end_batch` takes."""
APART_S = 0.02
"""How long a part of a batch, some of which is locked, makes way for others."""
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
        self, session: ClientSession, known: dict[str, Known | None]
    ) -> Changed[list[Settled]]:
        self._session = session
        self._known = known
        self._counts: dict[int, Deltas] = defaultdict(Counter)
        if self._remembered and self._are_there(self._remembered):
            return self._finish_all(self._remembered)
        self._writes: list[UpdateOne | InsertOne[Doc] | DeleteOne] = []
        self._anew: list[Doc] = []
        self._once = len({move.id for move in self._moves}) == len(self._moves)
        self._done: list[tuple[Doc, Doc | None]] = []
        self._docs = self._read_docs()
        self._logged = self._read_log()
        answers = [self._plan(move) for move in self._moves]
        self._write()
        return answers, self._counts

    def _are_there(self, docs: list[Doc]) -> bool:
        """Whether the queues that these were leased from are still the ones of that name."""
        known = [self._known.get(move.queue) for move in self._moves]
        pairs = zip(known, docs, strict=True)
        return all(queue is not None and queue.q == doc["q"] for queue, doc in pairs)

    def _finish_all(self, docs: list[Doc]) -> Changed[list[Settled]]:
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
        if rows and not insert(log, rows, self._session):
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

    def _plan(self, move: Transition) -> Settled:
        queue = self._known.get(move.queue)
        if queue is None:
            return Settled.STALE
        key = key_of(queue.home, move.id)
        doc = self._docs.get(key)
        if doc is None or doc.get("q") != queue.q or not _fits(doc, move):
            return self._lost(doc, move)
        match move.target:
            case Target.LEASED:
                self._update(doc, {"dl": move.deadline})
            case Target.WAITING:
                return self._put_back(doc, queue, move)
            case Target.DONE:
                self._finish(doc, queue, move)
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
            self._update(doc, change, remove, tail=move.tail)
        return Settled.APPLIED

    def _may_be_anew(self, doc: Doc) -> bool:
        """An update works out, before and after, which of the partial indexes have it: to take it
        out and put it in again costs MongoDB half of that. A large one would fill its log."""
        body = doc.get("bd")
        small = isinstance(body, bytes) and len(body) <= SMALL_BYTES
        return small and self._once

    def _update(
        self, doc: Doc, change: Doc, remove: Iterable[str] = (), *, tail: bool = False
    ) -> None:
        write: Doc = {"$set": change}
        if remove:
            write["$unset"] = dict.fromkeys(remove, "")
        if tail:
            write["$currentDate"] = {"pl": {"$type": "timestamp"}}
        # In a transaction, whichever call changes it first makes the other start again. The key
        # alone spares MongoDB the choice of an index.
        self._writes.append(UpdateOne({"_id": doc["_id"]}, write))
        doc.update(change)
        for name in remove:
            doc.pop(name, None)

    def _move_home(
        self, doc: Doc, key: str, change: Doc, remove: Iterable[str], *, tail: bool
    ) -> None:
        """To the queue of another home, where it has another key."""
        old = doc["_id"]
        moved = _changed(doc, {**change, "_id": key}, remove, tail=tail)
        self._writes += [InsertOne(moved), DeleteOne({"_id": old})]
        self._docs[key] = moved
        del self._docs[old]

    def _finish(self, doc: Doc, queue: Known, move: Transition) -> None:
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
        self._done.append((doc, row))

    def _write(self) -> None:
        messages, log = (self._db.get(kind, self._session) for kind in (MESSAGES, LOG))
        if self._anew:
            keys = [doc["_id"] for doc in self._anew]
            messages.delete_many({"_id": {"$in": keys}}, session=self._session)
            if not insert(messages, self._anew, self._session):
                raise Again
        if self._writes:
            messages.bulk_write(self._writes, ordered=True, session=self._session)
        finish(messages, log, self._done, self._session)


class Settlements:
    """Settles batches, and ends what a durable batch name holds."""

    def __init__(
        self, db: Connections, queues: Queues, counting: Counting, remembered: Remembered
    ) -> None:
        self._db = db
        self._queues = queues
        self._counting = counting
        self._remembered = remembered
        self._sessions = Sessions(db)

    def settle(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]:
        can_cut = len(moves) > 1 or moves[0].overdue_at is not None
        patience = CONFLICT_S if can_cut else None
        try:
            careful = within is not None
            return self._settle(moves, now, within, careful=careful, patience=patience)
        except Conflict as error:
            until = clock.monotonic() + self._db.where.timeout
            return self._settle_late(moves, now) or self._settle_apart(moves, now, until, error)

    def _settle_late(self, moves: Sequence[Transition], now: int) -> list[Settled] | None:
        """Of a sweep that met a transaction: end it if its process seems to have died in it."""
        late = {move.queue for move in moves if move.overdue_at is not None}
        known = [queue.q for name in late if (queue := self._queues.look_up(name))]
        if not known or not self._sessions.end_abandoned(known):
            return None
        with suppress(Conflict):
            return self._settle(moves, now, None, careful=True, patience=APART_S)
        return None

    def _settle(
        self,
        moves: Sequence[Transition],
        now: int,
        within: Any,
        *,
        careful: bool,
        patience: float | None,
    ) -> list[Settled]:
        names = {move.queue for move in moves} | {move.to_queue for move in moves} - {""}
        while True:
            remembered = None if careful else self._of_this_process(moves)
            settling = Settling(self._db, moves, now, careful=careful, remembered=remembered)
            try:
                return self._counting.run(names, now, settling.work, within, patience=patience)
            except Again:
                if careful:
                    raise
                careful = True

    def _of_this_process(self, moves: Sequence[Transition]) -> list[Doc] | None:
        """The documents of a batch that this process leased and now acks, if it is no more."""
        found = self._remembered.take(moves)
        plain = all(
            move.target is Target.DONE and move.history is None and move.overdue_at is None
            for move in moves
        )
        return found if plain and len(found) == len(moves) else None

    def _settle_apart(
        self, moves: Sequence[Transition], now: int, until: float, error: Conflict
    ) -> list[Settled]:
        """Some of these are locked, by somebody who died with them: the others need not wait."""
        if len(moves) == 1 and moves[0].overdue_at is not None:
            return [Settled.STALE]  # a sweep: the settlement in progress may still succeed
        if len(moves) == 1 or clock.monotonic() > until:
            raise error
        answers: list[Settled] = []
        half, failed = len(moves) // 2, None
        for part in (moves[:half], moves[half:]):
            try:
                answers += self._settle_part(part, now, until)
            except Conflict as conflict:
                failed = conflict
        if failed is not None:  # who repeats the call learns what became of each
            raise failed
        return answers

    def _settle_part(self, moves: Sequence[Transition], now: int, until: float) -> list[Settled]:
        try:
            # At once: that they are held by somebody was seen for a second already.
            return self._settle(moves, now, None, careful=True, patience=APART_S)
        except Conflict as error:
            return self._settle_apart(moves, now, until, error)

    def end_batch(self, end: BatchEnd, now: int) -> int:
        self._queues.must_exist(end.queue)
        done = 0
        while done < end.limit:
            if not self._is_held(end.queue, end.batch):
                break
            step = min(STEP, end.limit - done)
            done += self._finish(end.queue, end.batch, step, now, end.status)
        return done

    def _is_held(self, queue: str, batch: str) -> bool:
        """Before a transaction is begun: readers ask again and again, and may be killed in one."""
        held: Doc = {"ba": batch, "q": self._queues.must_exist(queue).q, "st": LEASED}
        with self._db.translated():
            return self._db.get(MESSAGES).find_one(held, {"_id": 1}) is not None

    def _finish(self, queue: str, batch: str, limit: int, now: int, status: Status | None) -> int:
        """How many of them no other call finished meanwhile."""
        careful = False

        def work(session: ClientSession, known: dict[str, Known | None]) -> Changed[int]:
            q = there(queue, known[queue]).q
            messages, log = (self._db.get(kind, session) for kind in (MESSAGES, LOG))
            held = list(
                messages.find({"ba": batch, "q": q, "st": LEASED}, session=session)
                .sort("_id", 1)
                .limit(limit)
            )
            logged: set[str] = set()
            if careful:
                keys = [log_key(q, doc["_id"][-36:]) for doc in held]
                found = log.find({"_id": {"$in": keys}}, {"_id": 1}, session=session)
                logged = {doc["_id"] for doc in found}
            done: list[tuple[Doc, Doc | None]] = []
            for doc in held:
                row = None
                if status is not None:
                    row = write_log(doc, now, status, Verb.ACK.value, clock.wall_ms())
                    row = logged_again(row) if row["_id"] in logged else row
                done.append((doc, row))
            finish(messages, log, done, session)
            n, parts = len(done), Counter(doc.get("pt") for doc, _ in done)
            deltas = moved(n, parts, LEASED)
            deltas[DONE] = n
            return n, {q: deltas}

        try:
            return self._counting.run([queue], now, work)
        except Again:
            careful = True
            return self._counting.run([queue], now, work)


def finish(
    messages: Collection[Doc],
    log: Collection[Doc],
    done: Sequence[tuple[Doc, Doc | None]],
    session: ClientSession,
) -> None:
    """Out of the queue and into the log, as a part of a transaction."""
    if not done:
        return
    messages.delete_many({"_id": {"$in": [doc["_id"] for doc, _ in done]}}, session=session)
    rows = [row for _, row in done if row is not None]
    if rows and not insert(log, rows, session):
        raise Again


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
