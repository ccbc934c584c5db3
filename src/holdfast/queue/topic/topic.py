"""A handle on one topic: bind and unbind groups, publish, read counts.

A topic fans out: what is published reaches every group bound to it, and a group is a queue. What
the topic itself retains, for groups that are bound later, waits in a hidden queue that nobody
leases from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.errors import (
    InvalidArgument,
    QueueNotEmpty,
    QueueNotFound,
    shown,
)
from holdfast.model.backoff import Backoff
from holdfast.model.message import Message, Outgoing, dlq_of
from holdfast.model.policy import Policy
from holdfast.queue.checks import check_items
from holdfast.queue.context import Context
from holdfast.queue.queue import Queue
from holdfast.queue.topic.filling import Filling, new_stage
from holdfast.queue.topic.publishing import Publisher
from holdfast.queue.topic.record import (
    HIDDEN,
    Group,
    Setup,
    Start,
    TopicRecord,
    check_group_name,
    check_topic_name,
    log_of,
    queue_of,
    setups,
)
from holdfast.stores.contract import QueueStats

MakeQueue = Callable[..., Queue]


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    groups: dict[str, QueueStats]
    filling: list[str]
    """Groups that are still being filled."""
    retained: int
    oldest_age: float | None
    """Seconds since the oldest retained message was published."""
    log: bool
    retention: float


class Topic:
    """A handle on one topic. Cheap, thread-safe, good for the life of its connection."""

    def __init__(self, context: Context, make_queue: MakeQueue, name: str) -> None:
        self.name = name
        self._at = context
        self._make_queue = make_queue
        self._record = TopicRecord(context, name)
        self._publisher = Publisher(context, self._record)

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    def bind(
        self,
        group: str,
        *,
        start: Start = "now",
        partitions: int | None = None,
        ordered: bool | None = None,
        **policy: Any,
    ) -> Queue:
        """The group's queue, which gets everything published from now on; created if it is new.

        `start="earliest"` fills it first with everything that the topic still retains, in order,
        and keeps it paused until that is done. A group that is already bound is not filled again.
        If the process dies while it fills the group, the group stays paused and loses nothing;
        binding it again starts over, and adds no copies of messages that are already there.
        """
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

    def group(self, group: str) -> Queue:
        """The queue of a group that is bound."""
        name = self._queue_of(check_group_name(group))
        self._record.group(group)
        return Queue(self._at, name)

    def groups(self) -> list[str]:
        return sorted(self._record.read().groups)

    def unbind(self, group: str, *, force: bool = False) -> None:
        """Delete a group with its queue, dead letters and log; `force` if they hold messages."""
        queue = self._queue_of(check_group_name(group))
        bound = self._record.group(group)
        if not self._at.store.delete_queues([queue, dlq_of(queue)], only_empty=not force):
            raise _not_empty(queue)
        self._record.remove_group(group, bound)
        if bound.stage is not None:
            self._at.store.delete_queues([bound.stage], only_empty=False)

    def delete(self, *, force: bool = False) -> None:
        """Delete the topic with what it retains and its groups; `force` if they hold messages."""
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

    def publish(
        self,
        payload: Any,
        *,
        id: Any = None,
        key: str | bytes | None = None,
        type: str | None = None,
        priority: int = 0,
        delay: float | None = None,
        at: datetime | float | None = None,
        headers: dict[str, str] | None = None,
        ack_timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        content_type: str | None = None,
        within: Any = None,
    ) -> Message:
        """Store one message in every group, or in none; returns when the store has it.

        The fields are those of `Queue.enqueue`; the id is the same in every group. An id that every
        group holds, or finished lately, changes nothing: `duplicate` is set. With your own
        transaction (`within`), groups that are bound before it is committed may miss the message.
        """
        outgoing = Outgoing(
            payload,
            id,
            key,
            type,
            priority,
            delay,
            at,
            headers,
            ack_timeout,
            max_attempts,
            backoff,
            content_type,
        )
        return self._publish([outgoing], within)[0]

    def publish_many(self, items: Iterable[Any], *, within: Any = None) -> list[Message]:
        """Like `Queue.enqueue_many`: all or none of them (on Redis each of them), in each group."""
        return self._publish(check_items(items), within)

    def stats(self) -> TopicStats:
        """What each group holds, and what is retained for groups that are bound later."""
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

    def _queue_of(self, group: str) -> str:
        return queue_of(self.name, group)

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
) -> Topic:
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
    return Topic(at, make_queue, name)


def topics(at: Context, make_queue: MakeQueue) -> list[Topic]:
    return [Topic(at, make_queue, name) for name, _ in setups(at)]
