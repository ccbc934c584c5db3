"""Runs what moves messages, and counts what it moves: see counts.py."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pymongo.client_session import ClientSession

from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.counts import Counts, Deltas, Gone, Slot
from holdfast.stores.mongo.joined import joined
from holdfast.stores.mongo.layout import QUEUES
from holdfast.stores.mongo.queues import Known, Queues, known_of, there

T = TypeVar("T")
Changed = tuple[T, dict[int, Deltas]]
"""An answer, and by number of the queue how its counts change."""
Work = Callable[[ClientSession, dict[str, Known | None]], Changed[T]]
Slots = dict[int, Slot]
"""By the numbers of their queues."""


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
        patience: float | None = None,
    ) -> T:
        """Run `work`, which says how its queues' counts change, and count that with it, in one
        transaction. It may run several times."""
        if within is not None:
            return self._joined(sorted(names), now, work, within)

        def counted(known: dict[str, Known | None], slots: Slots) -> T:
            def whole(session: ClientSession) -> T:
                answer, counts = work(session, known)
                self._counts.add_all(list(slots.values()), counts, now, session)
                return answer

            return self._db.tx(whole, patience, next((s.session for s in slots.values()), None))

        return self._with_slots(names, now, counted)

    def moving(
        self,
        queue: Known,
        now: int,
        move: Callable[[Known], tuple[T, Deltas]],
        ahead: Deltas | None = None,
    ) -> T:
        """Move many messages at once, outside of a transaction. With `ahead` that much of it is
        counted before it is done."""
        name = queue.spec.name

        def counted(known: dict[str, Known | None], slots: Slots) -> T:
            found = there(name, known[name])
            call = secrets.token_hex(8)
            self._mark(slots, found.q, call, now, ahead or Counter())
            answer, deltas = move(found)
            deltas.subtract(ahead or {})
            self._counts.unmark(slots[found.q], call, deltas, now)
            return answer

        return self._with_slots([name], now, counted)

    def moving_many(
        self,
        names: Iterable[str],
        now: int,
        move: Callable[[dict[str, Known]], Changed[T]],
    ) -> T:
        """The same for messages of several queues; those that are gone are left out."""

        def counted(known: dict[str, Known | None], slots: Slots) -> T:
            call = secrets.token_hex(8)
            for slot in self._counts.mark_all(list(slots.values()), call, now):
                self._mark(slots, slot.q, call, now, Counter())
            answer, counts = move({name: found for name, found in known.items() if found})
            self._counts.unmark_all(list(slots.values()), call, counts, now)
            return answer

        return self._with_slots(names, now, counted)

    def _with_slots(
        self, names: Iterable[str], now: int, counted: Callable[[dict[str, Known | None], Slots], T]
    ) -> T:
        while True:
            known = self._queues.look_up_all(sorted(names))
            slots = self._slots(known, now)
            try:
                with self._db.translated():
                    return counted(known, slots)
            except Gone as gone:
                slots.pop(gone.slot.q)
                self._queues.forget()
            finally:
                for slot in slots.values():
                    self._counts.give(slot)

    def _slots(self, known: dict[str, Known | None], now: int) -> Slots:
        """One that turns out to be gone is None in `known` then."""
        qs = [queue.q for queue in known.values() if queue is not None]
        with self._db.translated():
            slots = self._counts.take(qs, now)
        for name, queue in known.items():
            if queue is not None and slots[queue.q] is None:
                known[name] = None
                self._queues.forget()
        return {q: slot for q, slot in slots.items() if slot is not None}

    def _mark(self, slots: Slots, q: int, call: str, now: int, ahead: Deltas) -> None:
        """Mark the queue's slot, or another one where a call that broke off has left its mark."""
        while not self._counts.mark(slots[q], call, now, ahead):
            fresh = self._counts.take([q], now)[q]
            if fresh is None:
                raise Gone(slots[q])
            slots[q] = fresh

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
