"""Runs what moves messages, and counts it with it: see counts.py."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, TypeVar

from holdfast.stores.mongo.connections import Connections, Session
from holdfast.stores.mongo.counts import Counts, Deltas, Gone, Slot
from holdfast.stores.mongo.joined import joined
from holdfast.stores.mongo.layout import QUEUES
from holdfast.stores.mongo.queues import Known, Queues, known_of, there

T = TypeVar("T")
Work = Callable[[Session, dict[str, Known | None]], tuple[T, dict[int, Deltas]]]


class Counting:
    def __init__(self, db: Connections, counts: Counts, queues: Queues) -> None:
        self._db = db
        self._counts = counts
        self._queues = queues

    def run(
        self,
        names: Iterable[str],
        now: int,
        work: Work[T],
        within: Any = None,
        *,
        ahead: Deltas | None = None,
        patience: float | None = None,
    ) -> T:
        """Run `work`, which says how its queues' counts change, and count that with it.

        With `ahead` outside of a transaction: that much of it is counted before it is done.
        """
        if within is not None:
            return self._joined(sorted(names), now, work, within)
        while True:
            known = {name: self._queues.look_up(name) for name in sorted(names)}
            with ExitStack() as given:
                slots: dict[int, Slot] = {}
                for name, queue in known.items():
                    slot = queue and self._slot(queue, name, now)
                    if queue and slot:
                        slots[queue.q] = slot
                    else:
                        known[name] = None
                try:
                    answer = self._run(work, known, slots, now, ahead, patience)
                except Gone as gone:
                    slots.pop(gone.slot.q)
                    self._queues.forget()
                    continue
                finally:
                    for slot in slots.values():
                        given.callback(self._counts.give, slot)
                return answer

    def _slot(self, queue: Known, name: str, now: int) -> Slot | None:
        with self._db.translated():
            slot = self._counts.take(queue.q, now)
        if slot is None:
            self._queues.forget()
        return slot

    def _run(
        self,
        work: Work[T],
        known: dict[str, Known | None],
        slots: dict[int, Slot],
        now: int,
        ahead: Deltas | None,
        patience: float | None,
    ) -> T:
        with self._db.translated():
            if ahead is not None or not self._db.has_transactions:
                return self._run_marked(work, known, slots, now, ahead or Counter())

            def whole(session: Session) -> T:
                answer, counts = work(session, known)
                for q, slot in slots.items():
                    self._counts.add(slot, counts.get(q, Counter()), now, session)
                return answer

            return self._db.tx(whole, patience, next((s.session for s in slots.values()), None))

    def _run_marked(
        self,
        work: Work[T],
        known: dict[str, Known | None],
        slots: dict[int, Slot],
        now: int,
        ahead: Deltas,
    ) -> T:
        call = secrets.token_hex(8)
        for queue in known.values():
            if queue is None:
                continue
            while not self._counts.mark(slots[queue.q], call, now, ahead):
                fresh = self._counts.take(queue.q, now)
                if fresh is None:
                    raise Gone(slots[queue.q])
                slots[queue.q] = fresh
        answer, counts = work(None, known)
        for q, slot in slots.items():
            deltas = counts.get(q, Counter())
            deltas.subtract(ahead)
            self._counts.unmark(slot, call, deltas, now)
        return answer

    def _joined(self, names: list[str], now: int, work: Work[T], within: Any) -> T:
        """In the caller's own transaction: what it writes, it commits."""
        with joined(within, self._db) as session:
            docs = self._db.get(QUEUES, session).find({"_id": {"$in": names}}, session=session)
            found = {doc["_id"]: known_of(doc) for doc in docs}
            known = {name: found.get(name) for name in names}
            answer, counts = work(session, known)
            for queue in found.values():
                gate = self._counts.gate(queue.q)
                self._counts.add(gate, counts.get(queue.q, Counter()), now, session)
            return answer

    def moving(
        self,
        queue: Known,
        now: int,
        move: Callable[[Known], tuple[T, Deltas]],
        ahead: Deltas | None = None,
    ) -> T:
        """Many messages at once, outside of a transaction."""

        def work(_: Session, known: dict[str, Known | None]) -> tuple[T, dict[int, Deltas]]:
            found = there(queue.spec.name, known[queue.spec.name])
            answer, deltas = move(found)
            return answer, {found.q: deltas}

        return self.run([queue.spec.name], now, work, ahead=ahead or Counter())
