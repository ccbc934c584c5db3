"""Runs handlers: leases in batches, hands out, settles in groups, renews what still runs.

Five loops around the handlers, each in a thread of its own, so that none waits for another's round
trip: one leases, one settles, one renews, one keeps the partitions of ordered queues, one sweeps.
While the store is unreachable they wait for it; nothing is dropped meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Literal

from holdfast.errors import InvalidArgument, QueueNotFound
from holdfast.model.policy import positive, seconds, whole
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.queue import LocalQueue
from holdfast.work.handlers import Handler, Registry
from holdfast.work.loops.handling import Handling
from holdfast.work.loops.leasing import Leasing
from holdfast.work.loops.owning import Owning
from holdfast.work.loops.renewing import Renewing
from holdfast.work.loops.settling import Settling
from holdfast.work.loops.shared import Shared
from holdfast.work.loops.trouble import Health, health_of
from holdfast.work.process import check_not_importing, check_picklable
from holdfast.work.sweeper import Sweeper

Executor = Literal["thread", "process"]

SIGNAL_S = 0.25
"""A signal that another thread received is handled when the main thread wakes up."""
SWEEP_END_S = 5.0
"""For a sweep that is under way: the store is closed after it, and its lock is given back."""

logger = logging.getLogger("holdfast.worker")


class Worker:
    """Works queues until it is told to stop. `run` blocks; `stop` may come from any thread."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        settings: Settings,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 16,
        executor: Executor = "thread",
        time_limit: float | None = None,
        grace: float = 30.0,
        until_empty: bool = False,
        sweep: bool = True,
    ) -> None:
        whole("concurrency", concurrency, low=1, high=10_000)
        positive("time_limit", time_limit)
        seconds("grace", grace)
        names = list(queues or registry.queues())
        if not names:
            raise InvalidArgument("queues", "no handler is registered and no queue is named")
        check_handlers(registry.all(), executor, time_limit)
        self._clock = context.clock
        self._queues = [LocalQueue(context, name) for name in names]
        self._concurrency = concurrency
        self._in_processes = executor == "process"
        self._grace = grace
        self._asked_to_stop: SimpleQueue[None] = SimpleQueue()
        self._shared = shared = Shared(context, names)
        self._flight = shared.flight
        self._handling = handling = Handling(
            shared,
            registry,
            concurrency=concurrency,
            in_processes=self._in_processes,
            time_limit=time_limit,
        )
        self._owning = owning = Owning(shared, settings, handling.go_on)
        on_empty = self.stop if until_empty else None
        self._leasing = Leasing(shared, self._queues, owning, handling, on_empty)
        self._settling = Settling(shared, handling.go_on)
        self._renewing = Renewing(shared)
        self._sweeper = Sweeper(context, settings) if sweep else None

    def run(self) -> bool:
        """Work until stopped. True when everything that ran was finished and settled."""
        if self._in_processes:
            check_not_importing()
        self._check_queues()
        _start("own", self._owning.run)
        leaser = _start("lease", self._leasing.run)
        settler = _start("settle", self._settling.run)
        _start("renew", self._renewing.run)
        for _ in range(self._concurrency):
            _start("handle", self._handling.run)
        sweeping = self._sweeper and _start("sweep", self._sweeper.run, self._shared.quit)
        names = ", ".join(queue.name for queue in self._queues)
        logger.info("working %s with concurrency %d", names, self._concurrency)
        try:
            self._wait_until_stopped()
            self._shared.stop.set()
            self._flight.make_room()
            logger.info("stopping; %d deliveries in hand", self._flight.unsettled)
            leaser.join()
            clean = self._finish_what_runs()
        finally:
            self._shared.stop.set()
            self._shared.quit.set()
            self._owning.wake()
            self._flight.wake_all()
            settler.join()
            self._handling.close()
            self._owning.leave()
            if sweeping is not None:
                sweeping.join(SWEEP_END_S)
        logger.info("stopped; %d deliveries settled", self._flight.settled)
        return clean and self._flight.unsettled == 0

    def stop(self) -> None:
        """Lease no more; what runs may finish within the grace time. Also for signal handlers:
        a SimpleQueue, because setting an event that this very thread waits for may deadlock."""
        self._asked_to_stop.put(None)

    def health(self) -> Health:
        """Whether the store answers and the queues exist; if not, why."""
        return health_of(self._shared.trouble)

    def _check_queues(self) -> None:
        specs = self._shared.specs.read()
        for queue in self._queues:
            if queue.name not in specs:
                raise QueueNotFound(f"no queue {queue.name!r}")
            if specs[queue.name].ordered:
                self._owning.owner(queue)

    def _wait_until_stopped(self) -> None:
        while True:
            with suppress(Empty):
                return self._asked_to_stop.get(timeout=SIGNAL_S)

    def _finish_what_runs(self) -> bool:
        """Give back what never started, wait for the rest within the grace time."""
        self._owning.clear()
        self._handling.stop_starting()
        running = self._flight.running
        until = self._clock.monotonic() + self._grace
        while running and self._clock.monotonic() < until:
            self._shared.quit.wait(0.01)
        if running:
            logger.warning("%d deliveries still ran after %s s", len(running), self._grace)
        return not running


def _start(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name=f"holdfast-{name}", daemon=True)
    thread.start()
    return thread


def check_handlers(handlers: Sequence[Handler], executor: str, time_limit: float | None) -> None:
    """Whether this executor can call them, and end them where they have a time limit."""
    if executor not in ("thread", "process"):
        raise InvalidArgument("executor", f'must be "thread" or "process", not {executor!r}')
    for handler in handlers:
        handler.prepare()
        limited = handler.time_limit is not None or time_limit is not None
        if limited and executor == "thread" and not handler.is_async:
            raise InvalidArgument(
                "time_limit",
                f"a thread cannot be ended: run {handler.name} with executor='process'",
            )
    if executor == "process":
        check_picklable(handlers)
