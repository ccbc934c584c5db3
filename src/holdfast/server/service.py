"""What the server does: one function for each operation of the table, for HTTP and gRPC alike.

Functions are plain and run in a bounded pool of threads, as stores are synchronous; those that wait
(a lease) or are grouped with others (enqueue, settle) are coroutines. They are methods of the parts
below: messages, leases, queues, reading, overview.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.errors import QueueNotFound
from holdfast.model.settings import Settings
from holdfast.server.actions import Actions
from holdfast.server.auth import ANYBODY, Authority, Principal
from holdfast.server.handles import Handles
from holdfast.server.history import Recorder, Spans
from holdfast.server.leases import Leases
from holdfast.server.limits import Limits
from holdfast.server.messages import Messages
from holdfast.server.ordered import Seats
from holdfast.server.overview import Overview
from holdfast.server.polling import Polls
from holdfast.server.queues import Queues
from holdfast.server.reading import Reading
from holdfast.wire.operations import OPERATIONS, Operation

THREADS = 16
SLOW_THREADS = 8
"""For what looks at many messages: it never takes the threads of those who only want one."""
SLOW = {
    "Browse",
    "Purge",
    "Replay",
    "ListFailures",
    "Redrive",
    "ReadLog",
    "ListConsumers",
    "Bind",
    "Sweep",
    "DeleteQueue",
    "DeleteTopic",
    "GetHistory",
    "ListReports",
    "GetReport",
}
T = TypeVar("T")


class Service:
    """One connection to a store, for all who come over a wire."""

    def __init__(
        self,
        hf: Holdfast,
        settings: Settings,
        limits: Limits,
        *,
        authority: Authority | None,
        started: Callable[[], None],
    ) -> None:
        """`started` is called when there is a new redrive to work on."""
        self.limits = limits
        self.at = hf.context
        self._authority = authority
        self._handles = Handles(hf)
        self._threads = ThreadPoolExecutor(THREADS, "holdfast-serve")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, "holdfast-slow")
        self.polls = Polls(self._handles, self._threads, limits)
        self.seats = Seats(self.at, settings, limits, self._threads)
        self.recorder = Recorder(hf)
        self._actions = Actions(hf)
        spans = Spans(self.at)
        self.leases = Leases(
            self._handles,
            self._threads,
            self.polls,
            self.seats,
            run=self.run,
            still=self.still,
        )
        self.queues = Queues(self._handles, spans)
        overview = Overview(
            self._handles,
            settings,
            limits,
            has_keys=authority is not None,
            recorder=self.recorder,
            spans=spans,
            actions=self._actions,
        )
        messages = Messages(self._handles, self._threads)
        reading = Reading(self._handles, limits, started)
        parts = [messages, self.leases, self.queues, reading, overview]
        self._does: dict[str, tuple[Callable[..., Any], bool]] = {}
        for operation in OPERATIONS:
            [does] = [found for part in parts if (found := getattr(part, operation.function, None))]
            self._does[operation.name] = (does, inspect.iscoroutinefunction(does))

    async def call(self, operation: Operation, ask: Any, who: Principal) -> Any:
        """Do it, if `who` may. The rights are checked here, once for both doors."""
        if who is not ANYBODY:
            _demand(operation, ask, who)
        try:
            return await self._do(operation, ask, who)
        except QueueNotFound as error:
            name = getattr(ask, "queue", None)
            raise await self.run(self._handles.with_hint, error, name) from None

    async def _do(self, operation: Operation, ask: Any, who: Principal) -> Any:
        does, is_async = self._does[operation.name]
        if operation.name in _TOLD_WHO:
            does = partial(does, who=who)
        if is_async:
            return await does(ask)
        if operation.right == "admin":
            does = partial(self._actions.does, operation, does, who)
        pool = self._slow if operation.name in SLOW else self._threads
        return await self.run(does, ask, pool=pool)

    def still(self, who: Principal) -> Callable[[], None] | None:
        """Asked again and again while somebody waits; None where there are no keys."""
        return None if self._authority is None else partial(self._authority.check_again, who)

    async def run(
        self, does: Callable[..., T], *args: Any, pool: ThreadPoolExecutor | None = None
    ) -> T:
        loop = asyncio.get_running_loop()
        carried = partial(copy_context().run, does, *args)  # with the span that is under way
        return await loop.run_in_executor(pool or self._threads, carried)

    async def stop(self) -> None:
        """No more waiting; what is under way may end."""
        await self.polls.stop()
        self.seats.close_all()
        self._slow.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._threads.shutdown)  # what was not handed out is given back


_LISTS = {
    "ListQueues",
    "ListStats",
    "ListTopics",
    "ListRedrives",
    "GetRedrive",
    "CancelRedrive",
    "GetHistory",
    "ListActions",
    "ListPipelines",
}
"""They show or touch only what a key may see, which its ask need not name."""
_TOLD_WHO = _LISTS | {
    *("LeaseBatch", "GetIdentity", "Enqueue", "EnqueueBatch", "Publish", "PublishBatch"),
    "DeleteTopic",
}


def _demand(operation: Operation, ask: Any, who: Principal) -> None:
    if operation.right is None:
        return
    for field in operation.guards:
        name = getattr(ask, field)
        if name:
            who.demand(operation.right, name)
    if operation.name in ("Bind", "Unbind"):  # the group's queue is what they change
        who.demand(operation.right, f"{ask.topic}@{ask.group}")
    if operation.name in _LISTS:
        who.demand_anywhere(operation.right)
    elif not operation.guards:
        who.demand(operation.right, None)
