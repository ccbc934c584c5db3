"""Runs handlers: in threads, in a process of each thread, or on the event loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from holdfast.model.message import Lease
from holdfast.telemetry import tracing
from holdfast.work.calls import CannotRun, problem, run, run_async
from holdfast.work.delivery import Delivery
from holdfast.work.handlers import Registry
from holdfast.work.loops.eventloop import EventLoop
from holdfast.work.loops.shared import Shared
from holdfast.work.loops.trouble import RECONNECT_S, Patience
from holdfast.work.ownership import Work
from holdfast.work.process import Child, time_for
from holdfast.work.verdict import Verdict

STARTING = "starting handlers"

logger = logging.getLogger("holdfast.worker")


class Handling:
    """`run` is the loop of one handler thread."""

    def __init__(
        self,
        shared: Shared,
        registry: Registry,
        *,
        concurrency: int,
        in_processes: bool,
        time_limit: float | None,
    ) -> None:
        self._at = shared.context
        self._flight = shared.flight
        self._trouble = shared.trouble
        self._stop = shared.stop
        self._registry = registry
        self._concurrency = concurrency
        self._in_processes = in_processes
        self._time_limit = time_limit
        self._loop = EventLoop(concurrency)
        self._lock = threading.Lock()
        self._unable = 0
        """Handler threads without a process."""

    @property
    def able(self) -> int:
        """How many handlers can run at once now."""
        return self._concurrency - self._unable

    def start(self, items: Sequence[Delivery]) -> None:
        """Let handlers run for these, each in its kind of thread."""
        if not self._in_processes and any(handler.is_async for handler in self._registry.all()):
            awaited = [item for item in items if self._is_async(item.lease)]
            items = [item for item in items if not self._is_async(item.lease)]
            if awaited:
                self._loop.start(self._handle_async, awaited)
        self._flight.queue_up(items)

    def _is_async(self, lease: Lease) -> bool:
        return any(handler.is_async for handler in self._registry.matching(lease.message))

    def go_on(self, work: Work) -> None:
        """Do what the owner of a partition says."""
        if work.back:
            self._flight.finish_all(work.back)
        if work.start:
            self.start(work.start)

    def give_back_waiting(self) -> None:
        """What has not started yet another worker may take."""
        for item in self._flight.drop_waiting():
            self._finish(item)

    def stop_starting(self) -> None:
        """Nothing starts any more, what runs may finish."""
        self.give_back_waiting()
        for item in self._loop.drop_waiting():
            self._finish(item)

    def close(self) -> None:
        self._loop.stop()

    def _finish(self, item: Delivery) -> None:
        work = item.handled()  # first: whoever settles it must know whether it holds its key
        self._flight.finish(item)
        if work is not None:
            self.go_on(work)

    # In threads

    def run(self) -> None:
        child = Child(self._registry.all()) if self._in_processes else None
        while (item := self._flight.take()) is not None:
            unable: CannotRun | None = None
            try:
                if item.may_start():
                    item.verdict = self._handle(item.lease, child)
            except CannotRun as error:
                unable = error
            except BaseException as error:  # this thread stays, whatever is thrown into it
                item.verdict = _unhandled(item, error)
            self._finish(item)
            if unable is not None and child is not None:
                self._wait_until_able(child, unable)
        if child is not None:
            child.kill()

    def _handle(self, lease: Lease, child: Child | None) -> Verdict:
        handlers = self._registry.due(lease.message)
        if not handlers:
            return self._registry.nothing_due(lease.message)
        begun = self._at.clock.monotonic()
        with tracing.handling(lease) as span:
            if child is None:
                verdict = run(handlers, lease)
            else:
                verdict = child.run(lease, time_for(handlers, self._time_limit))
            _trace(span, verdict, recorded=child is None)
        self._observe(lease, begun, verdict)
        return verdict

    def _wait_until_able(self, child: Child, why: CannotRun) -> None:
        """Take no message before a handler can be run again."""
        patience = Patience(self._trouble, STARTING, self._stop)
        self._count_unable(1)
        while not self._stop.is_set():
            patience.wait(why)
            try:
                child.start()
                patience.reward()
                break
            except CannotRun as error:
                why = error
        self._count_unable(-1)

    def _count_unable(self, change: int) -> None:
        with self._lock:
            self._unable += change
        self._flight.make_room()

    # On the event loop

    async def _handle_async(self, item: Delivery) -> None:
        try:
            if item.may_start():
                item.verdict = await self._await(item.lease)
        except CannotRun as error:
            self._trouble[STARTING] = str(error)
            logger.warning("%s: %s", item.lease.message.id, error)
            item.verdict = Verdict(ending="release", delay=RECONNECT_S[1])
        except BaseException as error:
            if self._loop.is_ending:
                raise  # this delivery stays open and becomes overdue
            item.verdict = _unhandled(item, error)
        self._finish(item)

    async def _await(self, lease: Lease) -> Verdict:
        handlers = self._registry.due(lease.message)
        if not handlers:
            return self._registry.nothing_due(lease.message)
        begun = self._at.clock.monotonic()
        with tracing.handling(lease) as span:
            verdict = await run_async(handlers, lease)
            _trace(span, verdict, recorded=True)
        self._observe(lease, begun, verdict)
        self._trouble.pop(STARTING, None)
        return verdict

    def _observe(self, lease: Lease, begun: float, verdict: Verdict) -> None:
        for observer in self._at.observers:
            seconds = self._at.clock.monotonic() - begun
            observer.handled(lease.message.queue, seconds, not verdict.problems)


def _unhandled(item: Delivery, error: BaseException) -> Verdict:
    """An error that should not have come out of a handler's call: only its own message fails."""
    logger.error("%s: its handling failed: %r", item.lease.message.id, type(error))
    return Verdict(problems=(problem(error, None),))


def _trace(span: tracing.Handling, verdict: Verdict, *, recorded: bool) -> None:
    for each in verdict.problems:
        span.failed(each.code, each.message, recorded=recorded)
