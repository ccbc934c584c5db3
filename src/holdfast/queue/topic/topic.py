"""A handle on one topic: bind and unbind groups, publish, read counts.

A topic fans out: what is published reaches every group bound to it, and a group is a queue. What
the topic itself retains, for groups that are bound later, waits in a hidden queue that nobody
leases from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.errors import (
    InvalidArgument,
    QueueNotEmpty,
    QueueNotFound,
    shown,
)
from holdfast.model.message import Message, dlq_of
from holdfast.model.policy import Policy
from holdfast.queue.context import Context
from holdfast.queue.interface import Start, Topic, TopicStats
from holdfast.queue.queue import LocalQueue
from holdfast.queue.topic.filling import Filling, new_stage
from holdfast.queue.topic.publishing import Publisher
from holdfast.queue.topic.record import (
    HIDDEN,
    Group,
    Setup,
    TopicRecord,
    check_group_name,
    check_topic_name,
    log_of,
    setups,
)
from holdfast.stores.contract import QueueStats

MakeQueue = Callable[..., LocalQueue]


class LocalTopic(Topic):
    """A topic of a store."""

    def __init__(self, context: Context, make_queue: MakeQueue, name: str) -> None:
        super().__init__(name)
        self._at = context
        self._make_queue = make_queue
        self._record = TopicRecord(context, name)
        self._publisher = Publisher(context, self._record)

    def bind(
        self,
        group: str,
        *,
        start: Start = "now",
        partitions: int | None = None,
        ordered: bool | None = None,
        **policy: Any,
    ) -> LocalQueue:
        name = self._queue_of(check_group_name(group))
        if start not in ("now", "earliest"):
            raise InvalidArgument("start", f'must be "now" or "earliest", not {shown(start)}')
        record = self._record
        record.read()
        queue = self._make_queue(name, partitions=partitions, ordered=ordered, **policy)
        stage = None
        while group not in (setup := record.read()).groups:
            bound = Group(setup.revision + 1, start)
            if start == "earliest" and setup.log:
                stage = stage or new_stage(record, group)
                bound = replace(bound, stage=stage, paused=queue.spec.paused)
            if record.write_group(setup, group, bound):
                break
        else:
            if stage is not None:  # another binder was faster
                self._at.store.delete_queues([stage], only_empty=False)
        Filling(self._at, record, group, queue).run()
        return queue

    def group(self, group: str) -> LocalQueue:
        name = self._queue_of(check_group_name(group))
        self._record.group(group)
        return LocalQueue(self._at, name)

    def groups(self) -> list[str]:
        return sorted(self._record.read().groups)

    def unbind(self, group: str, *, force: bool = False) -> None:
        queue = self._queue_of(check_group_name(group))
        bound = self._record.group(group)
        if not self._at.store.delete_queues([queue, dlq_of(queue)], only_empty=not force):
            raise _not_empty(queue)
        self._record.remove_group(group, bound)
        if bound.stage is not None:
            self._at.store.delete_queues([bound.stage], only_empty=False)

    def delete(self, *, force: bool = False) -> None:
        setup, store = self._record.read(), self._at.store
        while True:
            if not force:
                self._refuse_if_held(setup)
            names = [name for group in setup.groups for name in _both(self._queue_of(group))]
            if names and not store.delete_queues(names, only_empty=not force):
                continue  # it holds one now: say so
            if self._record.delete(setup):
                break
            setup = self._record.read()
        hidden = self.name + HIDDEN
        names = [spec.name for spec in store.queues() if spec.name.startswith(hidden)]
        store.delete_queues(names, only_empty=False)

    def stats(self) -> TopicStats:
        setup, now = self._record.read(), self._at.clock.now()
        log = self._stats_of(log_of(self.name), now) if setup.log else None
        groups = {name: self._stats_of(self._queue_of(name), now) for name in sorted(setup.groups)}
        return TopicStats(
            self.name,
            {name: stats for name, stats in groups.items() if stats is not None},
            sorted(name for name, group in setup.groups.items() if group.stage is not None),
            log.ready if log else 0,
            log.oldest_age if log else None,
            setup.log,
            setup.retention,
        )

    def _stats_of(self, queue: str, now: int) -> QueueStats | None:
        try:
            return self._at.store.stats([queue], now)[0]
        except QueueNotFound:
            return None

    def _publish(self, items: list[Any], within: Any) -> list[Message]:
        return self._publisher.publish(items, within)

    def _refuse_if_held(self, setup: Setup) -> None:
        now = self._at.clock.now()
        for group in setup.groups:
            queue = self._queue_of(group)
            stats = self._stats_of(queue, now)
            if stats and stats.ready + stats.delayed + stats.leased + stats.dead:
                raise _not_empty(queue)


def _not_empty(queue: str) -> QueueNotEmpty:
    return QueueNotEmpty(f"{queue} or its dead letters hold messages; force=True deletes")


def _both(queue: str) -> tuple[str, str]:
    return queue, dlq_of(queue)


def open_topic(
    at: Context,
    make_queue: MakeQueue,
    name: str,
    *,
    create: bool,
    log: bool | None,
    retention: float | None,
) -> LocalTopic:
    """Make the topic, or change what is given of an existing one."""
    record = TopicRecord(at, check_topic_name(name))
    Policy(log=log, retention=retention)  # which checks them
    given = {"log": log, "retention": retention}
    changes = {field: value for field, value in given.items() if value is not None}
    while True:
        setup = record.find() if create else record.read()
        wanted = replace(setup or Setup(created_at=at.clock.now()), **changes)
        if wanted == setup:
            break
        if wanted.log:
            record.make_hidden(log_of(name))
        if record.write(wanted):
            if not wanted.log:
                at.store.delete_queues([log_of(name)], only_empty=False)
            break
    return LocalTopic(at, make_queue, name)


def topics(at: Context, make_queue: MakeQueue) -> list[LocalTopic]:
    return [LocalTopic(at, make_queue, name) for name, _ in setups(at)]
