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
            known = self._queues.look_up_all(sorted(names))
            with ExitStack() as given:
                slots = self._slots(known, now)
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

    def _slots(self, known: dict[str, Known | None], now: int) -> dict[int, Slot]:
        """By the numbers of the queues; one that turns out to be gone is None in `known` then."""
        qs = [queue.q for queue in known.values() if queue is not None]
        with self._db.translated():
            slots = self._counts.take_all(qs, now)
        for name, queue in known.items():
            if queue is not None and slots[queue.q] is None:
                known[name] = None
                self._queues.forget()
        return {q: slot for q, slot in slots.items() if slot is not None}

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
                self._counts.add_all(list(slots.values()), counts, now, session)
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
        if len(slots) > 1 and not ahead:
            left = {slot.q for slot in self._counts.mark_all(list(slots.values()), call, now)}
        else:
            left = set(slots)
        for queue in known.values():
            if queue is None or queue.q not in left:
                continue
            while not self._counts.mark(slots[queue.q], call, now, ahead):
                fresh = self._counts.take(queue.q, now)
                if fresh is None:
                    raise Gone(slots[queue.q])
                slots[queue.q] = fresh
        answer, counts = work(None, known)
        if len(slots) > 1 and not ahead:
            self._counts.unmark_all(list(slots.values()), call, counts, now)
            return answer
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

    def moving_many(
        self,
        names: Iterable[str],
        now: int,
        move: Callable[[dict[str, Known]], tuple[T, dict[int, Deltas]]],
    ) -> T:
        """The same for messages of several queues; those that are gone are left out."""

        def work(_: Session, known: dict[str, Known | None]) -> tuple[T, dict[int, Deltas]]:
            return move({name: queue for name, queue in known.items() if queue is not None})

        return self.run(names, now, work, ahead=Counter())

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
