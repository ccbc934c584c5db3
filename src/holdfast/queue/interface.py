"""What can be done with a queue, a topic and an ordered queue's consumer.

Each is implemented twice: on a store (`queue.py`, `topic.py`, `holdfast.work.ownership`) and over
HTTP or gRPC (`holdfast.client.remote`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Protocol

import msgspec

from holdfast.model.backoff import Backoff
from holdfast.model.message import Finished, Lease, Message, Outgoing, check_queue_name
from holdfast.model.moves import Settled, State
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.queue.checks import check_items, check_text
from holdfast.rules.outcome import Done, Extend, Fail, Outcome, Release, Retry
from holdfast.stores.contract import Entry, QueueStats

Start = Literal["now", "earliest"]


class PartitionStats(msgspec.Struct, frozen=True):
    """What one partition holds, and who works it."""

    partition: int
    ready: int
    delayed: int
    leased: int
    lag: int
    """All of these: what is not finished."""
    oldest_age: float | None
    """Seconds since the oldest message at the head of a lane was enqueued; None: none is ready."""
    owner: str | None
    """Of an ordered queue: who holds its claim now."""
    epoch: int
    """How many owners it has had."""


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    groups: dict[str, QueueStats]
    filling: list[str]
    """Those of them whose binding has not come to its end."""
    retained: int
    oldest_age: float | None
    """Seconds since the oldest message that is retained was published."""
    log: bool
    retention: float


class Queue(ABC):
    """A handle on one queue. Cheap, thread-safe, good for the life of its connection."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    @property
    @abstractmethod
    def dlq(self) -> Queue:
        """Its dead letters: a queue like any other."""

    @property
    @abstractmethod
    def spec(self) -> QueueSpec:
        """How the queue is set up."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The rules in force for messages that bring none of their own."""

    def enqueue(
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
        """Store one message; returns when the store has it.

        `delay` seconds or a time `at` hold it back. `within` is your own open transaction on the
        same store. An `id` that the queue still holds, or that finished within the policy's
        `duplicate_window` and is still in the log, changes nothing: the message that is there comes
        back, as it is or as it finished, with `duplicate` set.
        """
        outgoing = Outgoing(
            payload=payload,
            id=id,
            key=key,
            type=type,
            priority=priority,
            delay=delay,
            at=at,
            headers=headers,
            ack_timeout=ack_timeout,
            max_attempts=max_attempts,
            backoff=backoff,
            content_type=content_type,
        )
        return self._enqueue([outgoing], within)[0]

    def enqueue_many(
        self, items: Iterable[Any], *, within: Any = None, receipt: str | None = None
    ) -> list[Message]:
        """Store all or none of them: payloads, or `Outgoing(payload, key=..., ...)`.

        A bad one is named by the `index` of the error; nothing is stored then. A `receipt` names
        the call on this queue: repeated with the same name it stores nothing, also when the
        messages were finished meanwhile. Receipts are kept for a week.
        """
        return self._enqueue(check_items(items), within, check_text("receipt", receipt))

    @abstractmethod
    def _enqueue(
        self, items: list[Any], within: Any, receipt: str | None = None
    ) -> list[Message]: ...

    @abstractmethod
    def lease(
        self,
        limit: int = 1,
        wait: float = 0.0,
        *,
        owner: str | None = None,
        partitions: Sequence[int] | None = None,
        batch: str | None = None,
    ) -> list[Lease]:
        """Up to `limit` messages, for you alone until their deadline.

        On an empty queue: an empty list at once, or after up to `wait` seconds.
        """

    def ack(self, lease: Lease, *, result: Any = None, within: Any = None) -> None:
        """Finished: the message goes to the log, with its result if it has one.

        This and the other verbs may be repeated: a lease that the same verb has ended already is
        fine, and `LeaseLost` says that the message moved on for another reason. `within` your own
        transaction a repeated ack is `LeaseLost` as well, so that it rolls back your writes.
        """
        self._settle_one(lease, Done(result), within)

    def nack(self, lease: Lease, error: Any = None, *, delay: float | None = None) -> None:
        """It did not work: back after `delay` seconds or its backoff; dead if out of attempts."""
        self._settle_one(lease, Retry(error, delay=delay))

    def fail(self, lease: Lease, error: Any = "failed", *, code: str | None = None) -> None:
        """It will never work: to the dead letters at once."""
        self._settle_one(lease, Fail(error, code=code))

    def release(self, lease: Lease, *, delay: float | None = None) -> None:
        """Give it back, at once or after `delay` seconds; this delivery does not count."""
        self._settle_one(lease, Release(delay=delay))

    def extend(self, lease: Lease, seconds: float | None = None) -> Lease:
        """Hold it for `seconds` from now, or for its own time-out. Returns the longer lease."""
        settled = self._settle_one(lease, Extend(seconds))
        return msgspec.structs.replace(lease, deadline=settled.deadline)

    @abstractmethod
    def settle(
        self, items: Iterable[Lease | tuple[Lease, Outcome]], *, within: Any = None
    ) -> list[Settled]:
        """End many leases in one write; a bare lease is acked. One answer per item, in order."""

    @abstractmethod
    def _settle_one(self, lease: Lease, outcome: Outcome, within: Any = None) -> Any:
        """Raise LeaseLost if the lease has ended. After an Extend, the answer has a `deadline`."""

    @abstractmethod
    def stats(self) -> QueueStats:
        """How many are ready, delayed, leased, dead and done, and the age of the oldest."""

    @abstractmethod
    def partitions(self) -> list[PartitionStats]:
        """Of each partition in use: the newest ones, and older ones that still hold something."""

    @abstractmethod
    def get(self, id: Any) -> Message:
        """A message that the queue or its dead-letter queue holds."""

    @abstractmethod
    def browse(
        self,
        state: State | str = State.READY,
        *,
        since: int | None = None,
        until: int | None = None,
    ) -> Iterator[Entry]:
        """Look at messages in lease order without touching them: ready, delayed, leased or log."""

    def log(self, *, since: int | None = None, until: int | None = None) -> Iterator[Finished]:
        """What is finished, oldest first."""
        entries = self.browse(State.LOG, since=since, until=until)
        return (entry.finished for entry in entries if entry.finished is not None)

    @abstractmethod
    def replay(
        self, id: Any = None, *, since: int | None = None, until: int | None = None
    ) -> list[Message]:
        """Enqueue finished messages again, as new ones that name their origin.

        By `id`, or all that finished at or after `since` and before `until` (milliseconds).
        """

    @abstractmethod
    def pause(self) -> None:
        """Lease nothing any more; messages are still accepted, leases still settled."""

    @abstractmethod
    def resume(self) -> None:
        """Lease again."""

    @abstractmethod
    def purge(self) -> int:
        """Drop every waiting message, without a trace; leased ones stay. Says how many."""

    @abstractmethod
    def delete(self, *, force: bool = False) -> None:
        """Delete the queue with its dead letters and its log; `force` if either holds messages."""


class Topic(ABC):
    """A handle on one topic. Cheap, thread-safe, good for the life of its connection."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    def _queue_of(self, group: str) -> str:
        return check_queue_name(f"{self.name}@{group}", "group")

    @abstractmethod
    def bind(
        self,
        group: str,
        *,
        start: Start = "now",
        partitions: int | None = None,
        ordered: bool | None = None,
        **policy: Any,
    ) -> Queue:
        """The group's queue, which gets all that is published from now on; made if it is new.

        `start="earliest"` fills it first with all that the topic still retains, in order; it is
        paused until that is done. A group that is bound is not filled again. When a binder dies in
        the middle the group stays paused and loses nothing, and who binds it again starts over:
        what the first one had copied is still there under its id, so nothing comes twice.
        """

    @abstractmethod
    def group(self, group: str) -> Queue:
        """The queue of a group that is bound."""

    @abstractmethod
    def groups(self) -> list[str]:
        """The names of the groups that are bound."""

    @abstractmethod
    def unbind(self, group: str, *, force: bool = False) -> None:
        """Delete a group with its queue, dead letters and log; `force` if they hold messages."""

    @abstractmethod
    def delete(self, *, force: bool = False) -> None:
        """Delete the topic with what it retains and its groups; `force` if they hold messages."""

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

        The fields are those of `Queue.enqueue`, the id is the same in every group. One that every
        group holds, or finished lately, changes nothing: `duplicate` is set. With your own
        transaction (`within`), groups that are bound before it is committed may miss the message.
        """
        outgoing = Outgoing(
            payload=payload,
            id=id,
            key=key,
            type=type,
            priority=priority,
            delay=delay,
            at=at,
            headers=headers,
            ack_timeout=ack_timeout,
            max_attempts=max_attempts,
            backoff=backoff,
            content_type=content_type,
        )
        return self._publish([outgoing], within)[0]

    def publish_many(self, items: Iterable[Any], *, within: Any = None) -> list[Message]:
        """Like `Queue.enqueue_many`: all or none of them (on Redis each of them), in each group."""
        return self._publish(check_items(items), within)

    @abstractmethod
    def _publish(self, items: list[Any], within: Any) -> list[Message]: ...

    @abstractmethod
    def stats(self) -> TopicStats:
        """What each group holds, and what is retained for those to come."""


class Consumer(Protocol):
    """An ordered queue by hand: one message of each partition at a time, in order."""

    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> list[int]:
        """The partitions that it owns now."""
        ...

    def tick(self) -> None:
        """Keep its partitions; needed only where no thread does that."""
        ...

    def lease(self, limit: int = 1, wait: float = 0.0) -> list[Lease]:
        """Up to `limit` messages, at most one of each partition that is owned."""
        ...

    def ack(self, lease: Lease, *, result: Any = None) -> None: ...

    def nack(self, lease: Lease, error: Any = None, *, delay: float | None = None) -> None: ...

    def fail(self, lease: Lease, error: Any = "failed", *, code: str | None = None) -> None: ...

    def release(self, lease: Lease, *, delay: float | None = None) -> None: ...

    def settle(self, lease: Lease, outcome: Done | Retry | Fail | Release) -> None:
        """Any of these, as a value."""
        ...

    def close(self, *, keep: bool = False) -> None:
        """Give back what was not settled, and the partitions. `keep`: what was handed out stays
        leased, and its partitions are free when their claims run out."""
        ...

    def __enter__(self) -> Consumer: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
