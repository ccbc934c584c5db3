"""What a lease call does: looks, makes ready what is due, takes what is there, and tries again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.message import Lease
from holdfast.stores import in_steps
from holdfast.stores.contract import NO_DEADLINE, LeaseAsk
from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.counting import Counting
from holdfast.stores.mongo.counts import moved
from holdfast.stores.mongo.layout import LEASED, READY, Doc
from holdfast.stores.mongo.leasing import PENDING_S, TRIES, Leasing
from holdfast.stores.mongo.queues import LATE_S, Known, Queues

STEP = 1000
"""Messages that one step of `reserve` takes."""
HEADS_MAX = 100
"""Queues whose heads are read at once."""


class Consuming:
    def __init__(
        self, db: Connections, queues: Queues, counting: Counting, leasing: Leasing
    ) -> None:
        self._db = db
        self._queues = queues
        self._counting = counting
        self._leasing = leasing
        self._was_full = False

    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]:
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
        for _ in range(TRIES):
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

    def reserve(self, ask: LeaseAsk, now: int) -> int:
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
        while tries < TRIES:
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
        for _ in range(TRIES):
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
                self._db.pause(PENDING_S)
                continue
            if ground.due:
                self.promote_all(queue, now)
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
                self._db.pause(PENDING_S)
        return []

    def promote_all(self, queue: Known, now: int) -> None:
        while self._counting.moving(queue, now, lambda q: self._leasing.promote(q, now)):
            pass
