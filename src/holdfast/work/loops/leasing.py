"""Leases messages ahead of the handlers, and waits where there are none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from holdfast.errors import QueueNotFound
from holdfast.model.queues import QueueSpec
from holdfast.queue.queue import LocalQueue
from holdfast.stores.contract import ByPartition
from holdfast.work.delivery import Delivery
from holdfast.work.leaser import Leaser
from holdfast.work.loops.handling import Handling
from holdfast.work.loops.inflight import IDLE_S
from holdfast.work.loops.owning import Owning
from holdfast.work.loops.pace import PREFETCH_MAX, Pace
from holdfast.work.loops.shared import Shared
from holdfast.work.loops.trouble import Patience
from holdfast.work.ownership import POLL_S

LOOK_S = 2.0
"""How often an idle worker leases although no store has given a sign."""

logger = logging.getLogger("holdfast.worker")


class Leasing:
    """`on_empty` is called once nothing is left to do; None for a worker that goes on waiting."""

    def __init__(
        self,
        shared: Shared,
        queues: Sequence[LocalQueue],
        owning: Owning,
        handling: Handling,
        on_empty: Callable[[], None] | None,
    ) -> None:
        self._at = shared.context
        self._specs = shared.specs
        self._flight = shared.flight
        self._trouble = shared.trouble
        self._stop = shared.stop
        self._queues = queues
        self._leaser = Leaser(shared.context, shared.specs)
        self._owning = owning
        self._handling = handling
        self._on_empty = on_empty

    def run(self) -> None:
        patience = Patience(self._trouble, "lease", self._stop)
        clock, flight = self._at.clock, self._flight
        pace = Pace(clock)
        while not self._stop.is_set():
            ahead, able = pace.ahead(flight.settled), self._handling.able
            room = able + ahead - len(flight.running)
            is_full = room < max(1, ahead // 2) and not self._owning.owners
            if able <= 0:
                self._handling.give_back_waiting()  # here: a lease may just have brought something
            if able <= 0 or is_full:
                flight.wait_for_room(IDLE_S)
                continue
            try:
                quiet, begun = flight.unsettled == 0, clock.monotonic()
                leased = self._lease(room, ahead)
                pace.leased(clock.monotonic() - begun)
                if leased == 0:
                    self._nothing_there(quiet)
                patience.reward()
            except Exception as error:
                patience.wait(error)

    def _lease(self, room: int, ahead: int) -> int:
        """From ordered queues what their owner gives, from the others what there is room for."""
        leased, plain = 0, list[LocalQueue]()
        specs = self._specs.read()
        for queue in self._queues:
            if not self._exists(queue.name, specs):
                continue
            if not specs[queue.name].ordered:
                plain.append(queue)
                continue
            work = self._owning.owner(queue).lease(2 * ahead)
            leased += work.leased
            self._handling.go_on(work)
        leases = self._leaser.lease(plain, min(room - leased, PREFETCH_MAX))
        items = [Delivery(lease) for lease in leases]
        self._flight.take_in(items)
        self._handling.start(items)
        return leased + len(leases)

    def _exists(self, name: str, specs: Mapping[str, QueueSpec]) -> bool:
        """A queue that was deleted is worked again when it is back."""
        if name in specs:
            self._trouble.pop(name, None)
            return True
        if name not in self._trouble:
            self._trouble[name] = "the queue is gone"
            logger.warning("%s: the queue is gone", name)
        return False

    def _nothing_there(self, quiet: bool) -> None:
        if self._on_empty is None:
            self._wait_for_more()
        elif quiet and self._flight.unsettled == 0 and self._all_empty():
            self._stop.set()
            self._on_empty()
        else:
            self._flight.wait_for_room(POLL_S if self._owning.owners else IDLE_S)

    def _all_empty(self) -> bool:
        """Of ordered queues also what others own: they are to finish it."""
        now = self._at.clock.now()
        depths = [self._at.store.stats(ByPartition(name), now) for name in self._owning.owners]
        return not any(depth.ready for partitions in depths for depth in partitions)

    def _wait_for_more(self) -> None:
        names = [queue.name for queue in self._queues if queue.name not in self._trouble]
        now, owners = self._at.clock.now(), self._owning.owners
        ordered = [owners[name] for name in names if name in owners]
        owned = ordered[0].owned() if len(names) == len(ordered) == 1 else []
        if not names:
            self._stop.wait(IDLE_S / 2)
        elif not ordered:
            self._wait_for_any(names)
        elif owned and not self._flight.unsettled:
            self._at.store.wait(names, now, IDLE_S / 2, owned)
        else:  # one wait for several queues knows no partitions
            self._flight.wait_for_room(POLL_S)

    def _wait_for_any(self, names: list[str]) -> None:
        """The store looks by itself before each wait, so nothing needs to be leased in between."""
        until = self._at.clock.monotonic() + LOOK_S
        try:
            while not self._stop.is_set() and self._at.clock.monotonic() < until:
                if self._at.store.wait(names, self._at.clock.now(), IDLE_S / 2):
                    return
        except QueueNotFound:
            self._specs.forget()
            raise
