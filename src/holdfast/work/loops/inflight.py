"""Everything that a worker has leased and not settled: waiting to start, running, or finished.

The loops pass deliveries to each other through it. Handler threads take from it and give to it
without a lock while there is work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from holdfast.work.delivery import Delivery

GROUP = 500
LINGER_S = 0.002
"""How long a lone ack waits for others while other handlers run."""
IDLE_S = 1.0


class InFlight:
    """`quit` is set when everything is settled, or given up."""

    def __init__(self, quit: threading.Event) -> None:
        self.running: dict[str, Delivery] = {}
        """Leased and not finished, by token."""
        self.unsettled = 0
        self.settled = 0
        self._quit = quit
        self._waiting: deque[Delivery] = deque()
        """Leased and not started."""
        self._finished: deque[Delivery] = deque()
        self._may_start = threading.Condition()
        self._idle = 0
        """Handler threads that wait for work."""
        self._has_finished = threading.Event()
        self._has_room = threading.Event()

    def take_in(self, items: Sequence[Delivery]) -> None:
        """They were leased; called before any of them may start."""
        with self._may_start:
            self.unsettled += len(items)
        self.running.update((item.lease.token, item) for item in items)

    # Starting

    def queue_up(self, items: Sequence[Delivery]) -> None:
        """Handler threads may take them now."""
        self._waiting.extend(items)
        if self._idle:
            with self._may_start:
                self._may_start.notify(len(items))

    def take(self) -> Delivery | None:
        """Wait for the next one to start; None when the worker quits."""
        while True:
            try:
                return self._waiting.popleft()  # no lock while there is work
            except IndexError:
                pass
            with self._may_start:
                if self._quit.is_set():
                    return None
                self._idle += 1
                if not self._waiting:
                    self._may_start.wait(IDLE_S)
                self._idle -= 1

    def drop_waiting(self) -> list[Delivery]:
        """Those that have not started; they will not start any more."""
        dropped: list[Delivery] = []
        with suppress(IndexError):
            while self._waiting:
                dropped.append(self._waiting.popleft())
        return dropped

    # Finishing

    def finish(self, item: Delivery) -> None:
        self._finished.append(item)
        if not self._has_finished.is_set():
            self._has_finished.set()

    def finish_all(self, items: Sequence[Delivery]) -> None:
        self._finished.extend(items)
        self._has_finished.set()

    def has_finished(self) -> bool:
        """Whether some are finished and not settled."""
        return bool(self._finished)

    def take_finished(self, *, wait: bool) -> list[Delivery]:
        if wait:
            self._has_finished.wait()
        if len(self._finished) < len(self.running) and len(self._finished) < GROUP:
            self._quit.wait(LINGER_S)  # others are about to finish: one write for all of them
        self._has_finished.clear()
        taken: list[Delivery] = []
        while self._finished:
            item = self._finished.popleft()
            self.running.pop(item.lease.token, None)
            taken.append(item)
        self._has_room.set()
        return taken

    def settle(self, items: Sequence[Delivery]) -> None:
        """They are settled, or given up."""
        for item in items:
            item.ended = True
        with self._may_start:
            self.unsettled -= len(items)
        self.settled += len(items)
        self._has_room.set()

    # Waiting for each other

    def wait_for_room(self, timeout_s: float) -> None:
        """Until something is settled or finished, or `make_room` is called."""
        self._has_room.wait(timeout_s)
        self._has_room.clear()

    def make_room(self) -> None:
        self._has_room.set()

    def wake_all(self) -> None:
        """The worker quits: nobody waits any more."""
        self._has_finished.set()
        with self._may_start:
            self._may_start.notify_all()
