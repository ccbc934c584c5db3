"""Keeps the partitions of a worker's ordered queues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.errors import StoreError
from holdfast.model.settings import Settings
from holdfast.queue.queue import LocalQueue
from holdfast.work.loops.shared import Shared
from holdfast.work.loops.trouble import Patience
from holdfast.work.ownership import Owner, Work

logger = logging.getLogger("holdfast.worker")


class Owning:
    """An owner for each ordered queue, made when it is first needed."""

    def __init__(self, shared: Shared, settings: Settings, go_on: Callable[[Work], None]) -> None:
        self.owners: dict[str, Owner] = {}
        """By queue."""
        self._at = shared.context
        self._flight = shared.flight
        self._trouble = shared.trouble
        self._quit = shared.quit
        self._settings = settings
        self._go_on = go_on
        self._nudge = threading.Event()  # partitions need care before their time

    def owner(self, queue: LocalQueue) -> Owner:
        owner = self.owners.get(queue.name)
        if owner is None:
            take_in = self._flight.take_in
            owner = Owner(self._at, queue, self._settings, nudge=self._nudge, on_lease=take_in)
            self.owners[queue.name] = owner
            self._nudge.set()
        return owner

    def run(self) -> None:
        """Runs until the worker quits: what has started may finish only with its partition."""
        patience = Patience(self._trouble, "own", self._quit)
        while not self._quit.is_set():
            try:
                for owner in list(self.owners.values()):
                    self._go_on(owner.tick())
                patience.reward()
            except Exception as error:
                patience.wait(error)
            dues = [owner.due_in() for owner in list(self.owners.values())]
            self._nudge.wait(min(dues, default=None))
            self._nudge.clear()

    def wake(self) -> None:
        self._nudge.set()

    def clear(self) -> None:
        """Send back everything that has not started."""
        for owner in self.owners.values():
            self._go_on(owner.clear())

    def leave(self) -> None:
        for owner in self.owners.values():
            try:
                owner.leave()
            except StoreError as error:
                logger.warning("%s: partitions run out by themselves: %s", owner.queue.name, error)
