"""MongoDB: a message is one document; every move of it is filtered by its state and its token.

What a caller may rely on as one step (a batch that is enqueued or settled, done and its log row)
is a transaction. A lease is none: whoever dies inside of a transaction leaves its documents
locked, for a minute, to everybody else. See docs/adr/0010.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast.errors import QueueNotFound, SchemaTooNew, StoreCorrupt
from holdfast.model import clock
from holdfast.model.message import Finished, Lease, Message, Status, dlq_of, home_of, is_dlq
from holdfast.model.moves import Enqueued, Settled, State, Target, Transition, Verb
from holdfast.model.queues import Depth, QueueSpec
from holdfast.stores import in_steps, page_of, read_cursor
from holdfast.stores.base import StoreBase, last_of_each
from holdfast.stores.contract import (
    NO_DEADLINE,
    BatchEnd,
    Claim,
    Cut,
    Entry,
    Event,
    LeaseAsk,
    Page,
    QueueStats,
    Record,
    View,
)
from holdfast.stores.mongo import browse, leasing, records, upkeep
from holdfast.stores.mongo.connections import (
    CONFLICT_S,
    SOON,
    Conflict,
    Connections,
    Session,
    insert,
    upserted,
)
from holdfast.stores.mongo.counting import Counting
from holdfast.stores.mongo.counts import DONE, FIELDS, WOKEN, Counts, Deltas, moved, part_name
from holdfast.stores.mongo.homes import go_on
from holdfast.stores.mongo.layout import (
    CLAIMS,
    COUNTS,
    DELAYED,
    EVENTS,
    INDEXES,
    LEASED,
    LOG,
    MESSAGES,
    META,
    ODD,
    QUEUES,
    READY,
    RECORDS,
    TASKS,
    VERSION,
    Doc,
    tasks,
)
from holdfast.stores.mongo.queues import Known, Queues, known_of, there
from holdfast.stores.mongo.rows import (
    all_of,
    base_of,
    id_of,
    key_of,
    log_key,
    logged_again,
    number,
    q_of,
    read_lease,
    write_finished,
    write_log,
    write_message,
)
from holdfast.stores.mongo.sessions import Sessions
from holdfast.stores.mongo.settling import Again, Settling, finish, finish_alone
from holdfast.stores.mongo.url import Where, where
from holdfast.stores.mongo.wake import EVENTS_KEPT, NEWS, Subscription, Wake
from holdfast.stores.rows import first_of_each

LOOKED_UP = 100
"""Ids that one question to the log names."""
STEP = 1000
"""Documents that one write takes of what may be many."""
LATE_S = 2.0
"""How much longer than others a lease from many queues remembers where they are: whether one of
them is paused, or gone, it reads when it takes something."""
HEADS_MAX = 100
"""Queues whose heads are read at once."""
APART_S = 0.02
"""How long a part of a batch, some of which is locked, makes way for others."""

T = TypeVar("T")


def open_url(url: str) -> MongoStore:
    return MongoStore(where(url))


class MongoStore(StoreBase):
    def __init__(self, where: Where) -> None:
        self._where = where
        self._db = Connections(where)
        self._counts = Counts(self._db)
        self._waking = (os.getpid(), Wake(self._db))
        self._queues = Queues(self._db)
        self._counting = Counting(self._db, self._counts, self._queues)
        self._leasing = leasing.Leasing(self._db)
        self._was_full = False
        self._sessions = Sessions(self._db)

    @property
    def _wake(self) -> Wake:
        """A process that was forked off has none of its parent's threads, and needs its own."""
        if self._waking[0] != os.getpid():
            self._waking = (os.getpid(), Wake(self._db))
        return self._waking[1]

    def migrate(self) -> None:
        with self._db.translated():
            meta = self._db.get(META)
            found = meta.find_one({"_id": "schema"})
            if found is None:
                self._make()
                mine = {"version": VERSION, "store": secrets.token_hex(8)}
                found = upserted(meta, {"_id": "schema"}, {"$setOnInsert": mine})
        stored = found.get("version")
        version = 0
        if isinstance(stored, int) and not isinstance(stored, bool):
            version = int(stored)
        if version > VERSION:
            raise SchemaTooNew(
                f"{self._where.shown} has layout {version}, this Holdfast knows {VERSION}: "
                "pip install --upgrade holdfast"
            )
        if version <= 0 or not isinstance(found.get("store"), str):
            raise StoreCorrupt(f"{self._where.shown}: {self._db.name(META)} is not Holdfast's")
        if version < VERSION:
            with self._db.translated():
                self._upgrade()
        self._db.store = found["store"]

    def _upgrade(self) -> None:
        """From 1. The next `tidy` counts what each partition has."""
        self._make()
        for doc in self._db.get(QUEUES).find({"partitions": {"$gt": 1}}):
            gate = {"_id": f"{doc.get('qid')}/gate/0", "do": None}
            self._db.get(COUNTS).update_one(gate, {"$set": {"do": "upgrade", "ds": 0}})
        self._db.get(META).update_one({"_id": "schema"}, {"$max": {"version": VERSION}})

    def _make(self) -> None:
        """In several steps, each of which may be repeated. The write that then says that all is
        there waits for them as well."""
        database = self._db.client.get_database(self._where.database, write_concern=SOON)
        for kind in (CLAIMS, RECORDS, EVENTS):
            upkeep.make_collection(database, self._db.name(kind))
        for kind, indexes in INDEXES.items():
            self._db.get(kind, soon=True).create_indexes(indexes)
        view = tasks(self._db.name(QUEUES), self._db.name(LOG))
        upkeep.make_collection(
            database, self._db.name(TASKS), viewOn=self._db.name(MESSAGES), pipeline=view
        )

    def close(self) -> None:
        self._wake.stop()
        self._db.close()

    def time(self) -> int:
        with self._db.translated():
            said = self._db.database.command("hello")["localTime"]
        return round(said.timestamp() * 1000)

    # Queues

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        done = self._queues.put(specs)
        self._tell(spec.name for spec in specs)
        return done

    def queues(
        self, names: Sequence[str] | None = None, *, overdue: int | None = None
    ) -> list[QueueSpec]:
        if names is not None:
            known = self._queues.look_up_all(names) if len(names) > 1 else None
            found = known.values() if known else [self._queues.look_up(name) for name in names]
            return [each.spec for each in found if each is not None]
        if overdue is None:
            return self._queues.all()
        with self._db.translated():
            return self._queues.numbered(upkeep.late(self._db.get(MESSAGES), overdue))

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        gone = self._queues.delete(names, only_empty=only_empty)
        for q in gone or ():
            with self._db.translated():
                upkeep.drop_all(self._db, q)
        return gone is not None

    # Messages

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any = None,
        receipt: str | None = None,
        finished_since: Mapping[int, int] | None = None,
    ) -> list[Enqueued]:
        if not messages:
            return []
        names = {message.queue for message in messages}
        careful = within is not None

        def store(
            session: Session, known: dict[str, Known | None]
        ) -> tuple[list[Enqueued], dict[int, Deltas]]:
            queues = {name: there(name, queue) for name, queue in known.items()}
            receipts = self._db.get(RECORDS, session)
            if receipt is not None and records.read_one(receipts, "receipt", receipt, session):
                return [Enqueued.HELD] * len(messages), {}
            # Before the insert: in a transaction both see the same moment, and an id that finishes
            # after it is a conflict.
            done = self._finished(messages, finished_since or {}, session)
            docs = [
                write_message(message, queues[message.queue].home, queues[message.queue].q, now)
                for message in messages
            ]
            new = [doc for n, doc in enumerate(docs) if n not in done]
            inserted = iter(self._insert(new, careful, session))
            stored = [n not in done and next(inserted) for n in range(len(docs))]
            if receipt is not None:
                # After the messages: on a standalone server a call may break off between, and is
                # then repeated. Better twice than never.
                records.note(receipts, "receipt", receipt, b"", now, session)
            counts: dict[int, Deltas] = {queue.q: Counter() for queue in queues.values()}
            come = Counter(
                (doc["q"], doc["st"], doc["pt"])
                for doc, new in zip(docs, stored, strict=True)
                if new
            )
            for (q, state, part), n in come.items():
                counts[q].update(moved(n, Counter({part: n}), to=state))
                counts[q][WOKEN] = 1
            return [Enqueued.STORED if new else Enqueued.HELD for new in stored], counts

        try:
            answers = self._counting.run(names, now, store, within)
        except Again:
            careful = True
            answers = self._counting.run(names, now, store, within)
        if within is None:
            self._tell(names)
        return answers

    def _finished(
        self, messages: Sequence[Message], since: Mapping[int, int], session: Session
    ) -> set[int]:
        """Those of the messages that the logs of their queues or dead letters have since then."""
        found: set[int] = set()
        log, asked = self._db.get(LOG, session), list(since)
        logs = {name: list(self._names(name)) for name in {messages[n].queue for n in asked}}
        for start in range(0, len(asked), LOOKED_UP):
            some = asked[start : start + LOOKED_UP]
            ranges = [
                {"_id": all_of(q, messages[n].id), "fa": {"$gte": since[n]}}
                for n in some
                for q in logs[messages[n].queue]
            ]
            rows = log.find({"$or": ranges}, {"_id": 1}, session=session)
            ended = {(q_of(row["_id"]), id_of(row["_id"])) for row in rows}
            found |= {
                n for n in some for q in logs[messages[n].queue] if (q, messages[n].id) in ended
            }
        return found

    def _insert(self, docs: list[Doc], careful: bool, session: Session) -> list[bool]:
        """Whether each was new; of one id twice, the first is."""
        messages = self._db.get(MESSAGES, session)
        held: set[str] = set()
        if careful:
            keys = [doc["_id"] for doc in docs]
            found = messages.find({"_id": {"$in": keys}}, {"_id": 1}, session=session)
            held = {doc["_id"] for doc in found}
        stored: list[bool] = []
        for doc in docs:
            stored.append(doc["_id"] not in held)
            if careful:
                held.add(doc["_id"])
        new = [doc for doc, is_new in zip(docs, stored, strict=True) if is_new]
        failed = set(insert(messages, new, session)) if new else set[int]()
        if not failed:
            return stored
        if session is not None:  # which has ended the transaction
            raise Again
        at = iter(range(len(new)))
        return [is_new and next(at) not in failed for is_new in stored]

    def _take_leases(self, ask: LeaseAsk, now: int) -> list[Lease]:
        if ask.others:
            return self._lease_many(ask, now)
        if ask.epochs is not None:
            return self._lease_fenced(ask, now, None)
        return self._lease(ask, now, self._leasing.claim)

    def _lease_many(self, ask: LeaseAsk, now: int) -> list[Lease]:
        """A look for those of the queues that have something, first among as many as may be
        enough; then the heads of some of these, and one write that takes them."""
        leases: list[Lease] = []
        for some in in_steps(ask, full=self._was_full):
            leases += self._lease_some(some, ask.limit - len(leases), now)
            if len(leases) >= ask.limit:
                break
        self._was_full = len(leases) >= ask.limit
        return leases

    def _lease_some(self, asks: list[LeaseAsk], limit: int, now: int) -> list[Lease]:
        of = {one.queue: one for one in asks}
        for _ in range(leasing.TRIES):
            known = self._queues.look_up_all(of, late_s=LATE_S)
            there = [queue for queue in known.values() if queue is not None]
            if not there:
                return []
            with self._db.translated():
                ready, due = self._leasing.ready(there)
            late = [queue.spec.name for queue in there if due.get(queue.q, now + 1) <= now]
            if late:
                self._counting.moving_many(late, now, lambda q: self._leasing.promote_many(q, now))
            chosen = [
                (of[queue.spec.name], queue)
                for queue in there
                if queue.q in ready or queue.spec.name in late
            ]
            leases, met = self._lease_from(chosen, limit, now)
            if leases or not met:
                return leases
        return []

    def _lease_from(
        self, chosen: list[tuple[LeaseAsk, Known]], limit: int, now: int
    ) -> tuple[list[Lease], bool]:
        """Also whether there was anything to take, which others may have taken first. Each step
        takes more queues, as it is not known how much each has."""
        leases, met = list[Lease](), False
        at, wide = 0, -(-limit // chosen[0][0].limit) if chosen else 1
        while at < len(chosen) and len(leases) < limit:
            wide = min(wide, HEADS_MAX)
            some, left = chosen[at : at + wide], limit - len(leases)
            at, wide = at + wide, 2 * wide
            with self._db.translated():
                specs, docs = self._leasing.heads(some, left)
            found: list[tuple[LeaseAsk, list[Doc]]] = []
            for one, queue in some:
                spec = specs.get(queue.q)
                if spec is None or spec["partitions"] != queue.spec.partitions:
                    self._queues.forget()
                    met = True
                elif not spec["paused"] and left and docs[queue.q]:
                    mine = docs[queue.q][: min(one.limit, left)]
                    found.append((one, mine))
                    left -= len(mine)
            if found:
                met = True
                leases += self._counting.moving_many(
                    [one.queue for one, _ in found],
                    now,
                    lambda known, found=found: self._leasing.claim_many(known, found, now),
                )
        return leases, met

    def _reserve(self, ask: LeaseAsk, now: int) -> int:
        held = 0
        while held < ask.limit:
            part = msgspec.structs.replace(ask, limit=min(STEP, ask.limit - held))
            if ask.epochs is None:
                n = len(self._lease(part, now, self._leasing.hold))
            else:
                n = len(self._lease_fenced(part, now, NO_DEADLINE))
            held += n
            if not n:
                break
        return held

    def _lease(
        self, ask: LeaseAsk, now: int, claim: Callable[[Known, LeaseAsk, list[Doc], int], Any]
    ) -> Any:
        spread, promoted, tries = False, False, 0
        while tries < leasing.TRIES:
            tries += 1
            queue = self._queues.must_exist(ask.queue)
            with self._db.translated():
                look = self._leasing.look(queue, ask, now, spread=spread)
            if look.spec is None or look.spec["qid"] != queue.q:
                self._queues.forget()
                self._queues.must_exist(ask.queue)
                continue
            if look.spec["paused"]:
                return []
            if look.spec["partitions"] != queue.spec.partitions:
                self._queues.forget()
                continue
            if look.due and not promoted:
                promoted = True
                self._counting.moving(queue, now, lambda q: self._leasing.promote(q, now))
                continue
            if not look.docs:
                if not spread:
                    return []
                spread = False
                continue
            won = self._counting.moving(
                queue, now, lambda q, docs=look.docs: claim(q, ask, docs, now)
            )
            if won is None:  # nonsense, and out of the way now
                tries -= 1
                continue
            if won:
                return won
            spread = True
        return []

    def _lease_fenced(self, ask: LeaseAsk, now: int, deadline: int | None) -> list[Lease]:
        """See leasing.py. What it will take is counted as leased before: who takes the claim, and
        asks what the partition has, must not be told less."""
        met: set[str] = set()
        for _ in range(leasing.TRIES):
            queue = self._queues.must_exist(ask.queue)
            with self._db.translated():
                ground = self._leasing.ground(queue, ask, now)
            if not ground.ask.partitions:
                return []
            if ground.pending:
                late = [doc for doc in ground.pending if doc["fe"] in met]
                met |= {doc["fe"] for doc in ground.pending}
                if late:
                    self._counting.moving(queue, now, lambda _, late=late: self._leasing.void(late))
                self._db.pause(leasing.PENDING_S)
                continue
            if ground.due:
                self._promote_all(queue, now)
            with self._db.translated():
                look = self._leasing.look(queue, ground.ask, now, spread=False)
            if look.spec is None or look.spec["qid"] != queue.q:
                self._queues.forget()
                continue
            if look.spec["paused"] or not look.docs:
                return []
            parts = Counter(doc.get("pt") for doc in look.docs)
            won = self._counting.moving(
                queue,
                now,
                lambda q, its=ground.ask, docs=look.docs: self._leasing.claim_fenced(
                    q, its, docs, now, deadline
                ),
                ahead=moved(len(look.docs), parts, READY, LEASED),
            )
            if won:
                return won
            if won is not None:
                self._db.pause(leasing.PENDING_S)
        return []

    def _promote_all(self, queue: Known, now: int) -> None:
        while self._counting.moving(queue, now, lambda q: self._leasing.promote(q, now)):
            pass

    def _end_batch(self, end: BatchEnd, now: int) -> int:
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
        """How many there were that nobody else finished meanwhile."""
        careful = False

        def work(session: Session, known: dict[str, Known | None]) -> tuple[int, dict[int, Deltas]]:
            q = there(queue, known[queue]).q
            messages, log = (self._db.get(kind, session) for kind in (MESSAGES, LOG))
            held = list(
                messages.find({"ba": batch, "q": q, "st": LEASED}, session=session)
                .sort("_id", 1)
                .limit(limit)
            )
            logged: set[str] = set()
            if careful and session is not None:
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
            if session is None:
                done = [pair for pair in done if finish_alone(messages, log, *pair)]
            else:
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

    def _apply(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]:
        if not moves:
            return []
        can_cut = len(moves) > 1 or moves[0].overdue_at is not None
        patience = CONFLICT_S if can_cut else None
        try:
            answers = self._settle(
                moves, now, within, careful=within is not None, patience=patience
            )
        except Conflict as error:
            until = clock.monotonic() + self._where.timeout
            answers = self._settle_late(moves, now) or self._settle_apart(moves, now, until, error)
        if within is None:
            self._tell({move.to_queue for move in moves} - {""})
        return answers

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
            remembered = None if careful else self._remembered(moves)
            settling = Settling(self._db, moves, now, careful=careful, remembered=remembered)
            try:
                return self._counting.run(names, now, settling.work, within, patience=patience)
            except Again:
                if careful:
                    raise
                careful = True

    def _remembered(self, moves: Sequence[Transition]) -> list[Doc] | None:
        """The documents of a batch that this process leased and now acks, if it is no more."""
        found = self._leasing.remembered.take(moves)
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
            return [Settled.STALE]  # a sweep: whoever settles it may still come through
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

    def _read_overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        q = self._queues.must_exist(queue).q
        leases: list[Lease] = []
        with self._db.translated():
            while not leases:
                late = list(
                    self._db.get(MESSAGES)
                    .find({"q": q, "st": LEASED, "dl": {"$lte": now}})
                    .sort([("dl", 1), ("sq", 1)])
                    .limit(limit)
                )
                if not late:
                    return []
                broken_off = [doc for doc in late if "mf" in doc]
                if broken_off:
                    self._go_on(queue, broken_off, now)
                    late = [doc for doc in late if "mf" not in doc]
                leases = self._readable(queue, late, read_lease, now)
            if self._db.has_transactions:
                return leases
        return self._unfinished(queue, leases, now)

    def _go_on(self, queue: str, docs: list[Doc], now: int) -> None:
        """Moves from another home, on a standalone server, of somebody who died on the way."""

        def work(_: Known) -> tuple[None, Deltas]:
            deltas: Deltas = Counter()
            for doc in docs:
                deltas.update(go_on(self._db.get(MESSAGES), doc))
            return None, deltas

        self._counting.moving(self._queues.must_exist(queue), now, work)

    def _unfinished(self, queue: str, leases: list[Lease], now: int) -> list[Lease]:
        """Of a standalone server: those in the log were done, and only have to be taken out."""
        known = self._queues.must_exist(queue)
        with self._db.translated():
            keys = {log_key(known.q, lease.id): lease for lease in leases}
            for lease in leases:
                keys[log_key(known.q, lease.id, base_of(lease.token, lease.id))] = lease
            rows = self._db.get(LOG).find({"_id": {"$in": list(keys)}}, {"tk": 1})
            done = {
                keys[row["_id"]].id
                for row in rows
                if row["tk"] == base_of(keys[row["_id"]].token, keys[row["_id"]].id)
            }
        for lease in leases:
            if lease.id in done:
                held = {
                    "_id": key_of(known.home, lease.id),
                    "st": LEASED,
                    "tk": base_of(lease.token, lease.id),
                }

                part = lease.message.partition

                def drop(_: Known, held: Doc = held, part: int = part) -> tuple[None, Deltas]:
                    n = self._db.get(MESSAGES).delete_one(held).deleted_count
                    deltas = moved(n, Counter({part: n}), LEASED)
                    deltas[DONE] = n
                    return None, deltas

                self._counting.moving(known, now, drop)
        return [lease for lease in leases if lease.id not in done]

    def _readable(
        self, queue: str, docs: Iterable[Doc], read: Callable[[Doc, str], T], now: int
    ) -> list[T]:
        """What can be read; the rest is set aside, for `holdfast doctor` to show."""
        good: list[T] = []
        for doc in docs:
            try:
                good.append(read(doc, queue))
            except StoreCorrupt:
                known = self._queues.must_exist(queue)
                self._counting.moving(known, now, lambda _, doc=doc: self._leasing.set_aside([doc]))
        return good

    def _read_batch(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        known = self._queues.must_exist(queue)
        with self._db.translated():
            asked: Doc = {"ba": batch, "q": known.q, "st": LEASED}
            if after:
                asked["_id"] = {"$gt": key_of(known.home, after)}
            leases: list[Lease] = []
            while not leases:  # an empty answer would say that there are no more
                found = list(self._db.get(MESSAGES).find(asked).sort("_id", 1).limit(limit))
                if not found:
                    return []
                leases = self._readable(queue, found, read_lease, clock.wall_ms())
            return leases

    # Looking

    def _read_page(self, view: View, after: str | None, limit: int, now: int) -> Page:
        cursor, known = read_cursor(after), self._queues.fresh(view.queue)
        at = self._db.get(LOG if view.state is State.LOG else MESSAGES)
        with self._db.translated():
            end = self._end()
            rows = browse.page(at, view, known.q, known.spec.partitions, cursor, limit + 1, now)
        return page_of(rows, view, limit, end)

    def _end(self) -> int:
        """The end of every line: the last tick that the server gave."""
        if self._db.has_transactions:
            with self._db.client.start_session() as session:
                self._db.database.command("ping", session=session)
                if session.operation_time is not None:
                    return number(session.operation_time)
        now: Doc = {"$currentDate": {"at": {"$type": "timestamp"}}}
        ticked = upserted(self._db.get(META, soon=True), {"_id": "tick"}, now)
        return number(ticked["at"])

    def split(self, view: View, parts: int, now: int) -> list[str]:
        known = self._queues.fresh(view.queue)
        at = self._db.get(LOG if view.state is State.LOG else MESSAGES)
        with self._db.translated():
            n = browse.count(at, view, known.q, now)
            return browse.split(at, view, known.q, known.spec.partitions, parts, now, n)

    def _find_held(self, queue: str, ids: Sequence[str]) -> list[Entry]:
        home, names = self._queues.must_exist(queue).home, self._names(queue)
        docs: list[Doc] = []
        with self._db.translated():
            for start in range(0, len(ids), STEP):
                keys = [key_of(home, id) for id in ids[start : start + STEP]]
                docs += self._db.get(MESSAGES).find({"_id": {"$in": keys}})
        there = [doc for doc in docs if doc.get("q") in names and doc.get("st") != ODD]
        return [browse.found(doc, names[doc["q"]]) for doc in there]

    def _find_logged(self, queue: str, ids: Sequence[str]) -> Mapping[str, Entry]:
        names, rows = self._names(queue), list[Entry]()
        with self._db.translated():
            for start in range(0, len(ids), LOOKED_UP):
                some = ids[start : start + LOOKED_UP]
                asked = [{"_id": all_of(q, id)} for id in some for q in names]
                for doc in self._db.get(LOG).find({"$or": asked}):
                    with suppress(StoreCorrupt):  # see `holdfast doctor`
                        rows.append(browse.logged(doc, names[q_of(doc["_id"])]))
        return last_of_each(rows)

    def _names(self, queue: str) -> dict[int, str]:
        """A queue and its dead-letter queue, by their numbers."""
        return {
            known.q: name
            for name in (home_of(queue), dlq_of(queue))
            if (known := self._queues.look_up(name))
        }

    def _count_queues(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        with self._db.translated():
            docs = {doc["_id"]: doc for doc in self._db.get(QUEUES).find({})}
            for name in queues:
                if name not in docs:
                    raise QueueNotFound(f"no queue {name!r}")
            qs = {q for doc in docs.values() if isinstance(q := doc.get("qid"), int)}
            sums = self._counts.sums(qs)
            return [self._stats(known_of(docs[name]), docs, sums, now) for name in queues]

    def _stats(
        self, known: Known, docs: dict[str, Doc], sums: dict[int, Doc], now: int
    ) -> QueueStats:
        at = self._db.get(MESSAGES)
        late, heads = upkeep.heads(at, known.q, known.spec.partitions, now)
        due, oldest = late.total(), min(heads.values(), default=None)
        mine = sums.get(known.q, {})
        dlq, dead = docs.get(dlq_of(known.spec.name)), 0
        if dlq is not None and not is_dlq(known.spec.name):
            dead = sum(
                int(sums.get(dlq.get("qid", 0), {}).get(name, 0)) for name in FIELDS.values()
            )
        return QueueStats(
            queue=known.spec.name,
            ready=int(mine.get(FIELDS[READY], 0)) + due,
            delayed=int(mine.get(FIELDS[DELAYED], 0)) - due,
            leased=int(mine.get(FIELDS[LEASED], 0)),
            dead=dead,
            done=int(mine.get(DONE, 0)),
            oldest_age=None if oldest is None else max(0, now - oldest) / 1000,
            paused=known.spec.paused,
        )

    def _count_partitions(self, queue: str, now: int) -> list[Depth]:
        known = self._queues.fresh(queue)
        counted = self._counts.depths(known.q)
        for state, name in FIELDS.items():  # the first partition has the rest
            others = sum(counted[part_name(state, n)] for n in range(1, known.spec.partitions))
            counted[part_name(state, 0)] = counted[name] - others
        with self._db.translated():
            at = self._db.get(MESSAGES)
            due, oldest = upkeep.heads(at, known.q, known.spec.partitions, now)
        return [
            Depth(
                part,
                ready=counted[part_name(READY, part)] + due[part],
                delayed=counted[part_name(DELAYED, part)] - due[part],
                leased=counted[part_name(LEASED, part)],
                oldest_at=oldest.get(part),
            )
            for part in range(known.spec.partitions)
        ]

    # Upkeep

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        if not rows:
            return 0
        unique = first_of_each(rows)

        def write(
            session: Session, known: dict[str, Known | None]
        ) -> tuple[int, dict[int, Deltas]]:
            found = there(queue, known[queue])
            log = self._db.get(LOG, session)
            new = self._not_logged(
                [write_finished(row, found.home, found.q, now) for row in unique], session
            )
            failed = insert(log, new, session) if new else []
            n = len(new) - len(failed)
            return n, {found.q: Counter({DONE: n})}

        return self._counting.run([queue], now, write)

    def _not_logged(self, rows: list[Doc], session: Session) -> list[Doc]:
        """Those that the log does not have; under a key of their own where it has their id."""
        keys = [key for row in rows for key in (row["_id"], logged_again(row)["_id"])]
        log = self._db.get(LOG, session)
        ends = {
            doc["_id"]: doc.get("fa")
            for start in range(0, len(keys), STEP)
            for doc in log.find(
                {"_id": {"$in": keys[start : start + STEP]}}, {"fa": 1}, session=session
            )
        }
        new: list[Doc] = []
        for row in rows:
            if row["_id"] in ends and ends[row["_id"]] != row["fa"]:
                row = logged_again(row)
            if row["_id"] not in ends:
                ends[row["_id"]] = row["fa"]
                new.append(row)
        return new

    def _drop_logged(self, cuts: Sequence[Cut]) -> list[int]:
        known = self._queues.look_up_all(cut.queue for cut in cuts)
        there = {name: queue.q for name, queue in known.items() if queue is not None}
        with self._db.translated():
            log = self._db.get(LOG)
            wanted = upkeep.to_trim(log, [(there[c.queue], c) for c in cuts if c.queue in there])
            return [
                upkeep.trim(log, there[cut.queue], cut) if there.get(cut.queue) in wanted else 0
                for cut in cuts
            ]

    def tidy(self, now: int, *, log_before: int | None) -> None:
        """Put the counts right, end what deleting a queue began, keep the log's own time-out."""
        self._counts.repair(now)
        self._counts.fold(now)
        with self._db.translated():
            upkeep.bury(self._db)
            upkeep.expire(self._db, None if log_before is None else now - log_before)

    def _drop_waiting(self, queue: str, limit: int) -> int:
        dropped = 0
        while dropped < limit:
            n = self._purge(queue, min(STEP, limit - dropped))
            dropped += n
            if not n:
                break
        return dropped

    def _purge(self, queue: str, limit: int) -> int:
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

        return self._counting.moving(self._queues.must_exist(queue), self.time(), drop)

    # Claims, records, events

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        with self._db.translated():
            return records.claim(self._db.get(CLAIMS), name, owner, ttl_ms, now)

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        with self._db.translated():
            return records.claims(self._db.get(CLAIMS), names)

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        with self._db.translated():
            return records.put(self._db.get(RECORDS), kind, name, value, revision, now)

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        with self._db.translated():
            return records.read(self._db.get(RECORDS), kind, prefix, after, limit)

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        with self._db.translated():
            return records.drop(self._db.get(RECORDS), kind, prefix, before, limit)

    def publish(self, events: Sequence[Event]) -> None:
        if not events:
            return
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

    def subscribe(self, after: int | None = None) -> Subscription:
        if after is None:
            with self._db.translated():
                newest = self._db.get(EVENTS).find_one({}, {"_id": 1}, sort=[("_id", -1)])
            after = newest["_id"] if newest else 0
        return Subscription(self._events, self._wake, after or 0)

    def _events(self, after: int) -> list[Event]:
        with self._db.translated():
            found = self._db.get(EVENTS).find({"_id": {"$gt": after}}).sort("_id", 1).limit(1000)
            return [
                Event(d["type"], int(d["at"]), msgspec.json.decode(d["payload"]), d["_id"])
                for d in found
            ]

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        if len(queues) > 1:
            return self._wait_many(queues, now, timeout)
        until = clock.monotonic() + timeout
        while (left := until - clock.monotonic()) > 0:
            begun = clock.monotonic()
            found, news = self._wait(queues, now, left, partitions)
            if found or partitions is None:
                return found or news
            now += round((clock.monotonic() - begun) * 1000)
        return False

    def _wait_many(self, queues: Sequence[str], now: int, timeout: float) -> bool:
        found = self._queues.look_up_all(queues, late_s=LATE_S)
        known = [there(name, queue) for name, queue in found.items()]
        seen = self._wake.watch([queue.q for queue in known])
        with self._db.translated():
            ready, due = self._leasing.ready(known)
        full = [q.spec.name for q in known if q.q in ready or due.get(q.q, now + 1) <= now]
        if full:
            fresh = [there(name, queue) for name, queue in self._queues.read(full).items()]
            if not all(queue.spec.paused for queue in fresh):
                return True
        ahead = [(at - now) / 1000 for at in due.values() if at > now]
        seconds = min([timeout, *ahead])
        return self._wake.wait(seen, seconds) or seconds < timeout

    def _wait(
        self, queues: Sequence[str], now: int, timeout: float, partitions: Sequence[int] | None
    ) -> tuple[bool, bool]:
        """Whether there is something to lease, else whether there may be after a wait for news."""
        known = [self._queues.must_exist(name) for name in queues]
        seen = self._wake.watch([queue.q for queue in known])
        ahead = [timeout]
        for queue in known:
            with self._db.translated():
                look = self._leasing.anything(queue, partitions)
            if look.spec is None:
                self._queues.forget()
                raise QueueNotFound(f"no queue {queue.spec.name!r}")
            if look.spec["paused"]:
                continue
            if look.docs:
                return True, True
            if partitions is None and look.spec["partitions"] != queue.spec.partitions:
                self._queues.forget()
                return True, True
            if look.due is None:
                continue
            if look.due > now:
                ahead.append((look.due - now) / 1000)
            elif partitions is None:
                return True, True
            else:  # of whichever partition: once they are ready, that is seen
                self._promote_all(queue, now)
                return False, False
        news = self._wake.wait(seen, min(ahead))
        return False, news or min(ahead) < timeout

    def look(self) -> dict[str, Any]:
        """What an operator wants to know of the server; see `holdfast doctor`."""
        with self._db.translated():
            return upkeep.look(self._db)

    def _tell(self, names: Iterable[str]) -> None:
        """Those who wait in this process need no stream to hear of it."""
        known = [self._queues.remembered(name) for name in names]
        self._wake.tell([queue.q for queue in known if queue])
