"""Queues, their policies and numbers, and topics."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from holdfast.model.backoff import Backoff
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.queue.interface import PartitionStats
from holdfast.stores.contract import QueueStats
from holdfast.wire.shapes.base import Ask, Doc, Name, Time, Whole, says
from holdfast.wire.shapes.messages import BackoffDoc


class PolicyDoc(Ask, frozen=True):
    """Rules of a queue. What is left out is inherited."""

    ack_timeout: Annotated[float | None, says("Seconds a lease lasts.")] = None
    max_attempts: Annotated[Whole | None, says("Deliveries before it is dead.")] = None
    backoff: BackoffDoc | None = None
    overdue_backoff: Annotated[bool | None, says("Overdue ones wait their backoff.")] = None
    exhausted: Annotated[str | None, says("dead or complete.")] = None
    log: Annotated[bool | None, says("Keep what is finished.")] = None
    retention: Annotated[float | None, says("Seconds it is kept; 0: for ever.")] = None
    retention_count: Annotated[Whole | None, says("How many are kept; 0: no limit.")] = None
    payload_max: Annotated[Whole | None, says("Bytes a payload may have.")] = None
    on_failure: Annotated[str | None, says("Ordered queues: block or skip.")] = None
    on_misfit: Annotated[str | None, says("Payload of another type: dead or retry.")] = None
    traceback_max: Annotated[Whole | None, says("Characters of a traceback; 0: none.")] = None
    duplicate_window: Annotated[
        float | None, says("Seconds after it finished for which an id is a duplicate; 0: none.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """As keywords of `Holdfast.queue`: what was given."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        given["backoff"] = self.backoff and self.backoff.value()
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def of(cls, policy: Policy) -> PolicyDoc:
        given: dict[str, Any] = {**policy.to_dict(), "backoff": BackoffDoc.of(policy.backoff)}
        return cls(**given)

    def value(self) -> Policy:
        return Policy(**self.fields())


class QueueDoc(Doc, frozen=True):
    """A queue as it is set up. `policy` is what was given, `in_force` is all of it."""

    queue: Name
    partitions: Annotated[int, says("Over which new messages are spread.")]
    total_partitions: Annotated[int, says("With those from before it grew.")]
    starts: Annotated[list[int], says("The first partition of each generation.")]
    ordered: bool
    paused: bool
    created_at: Time
    revision: int
    policy: PolicyDoc
    in_force: PolicyDoc

    @classmethod
    def of(cls, spec: QueueSpec, complete: Policy) -> QueueDoc:
        return cls(
            queue=spec.name,
            partitions=spec.spread,
            total_partitions=spec.partitions,
            starts=list(spec.starts),
            ordered=spec.ordered,
            paused=spec.paused,
            created_at=spec.created_at,
            revision=spec.revision,
            policy=PolicyDoc.of(spec.policy),
            in_force=msgspec.structs.replace(
                PolicyDoc.of(complete), backoff=BackoffDoc.complete(complete.backoff or Backoff())
            ),
        )

    def value(self) -> QueueSpec:
        return QueueSpec(
            self.queue,
            self.total_partitions,
            self.policy.value(),
            self.paused,
            self.created_at,
            self.revision,
            self.ordered,
            tuple(self.starts) or (0,),
        )


class StatsDoc(Doc, frozen=True, omit_defaults=False):
    queue: Name
    ready: int
    delayed: int
    leased: int
    dead: int
    done: int
    oldest_age: Annotated[float | None, says("Seconds; null when none is ready.")]
    paused: bool
    lag: Annotated[int, says("All that is not finished, dead letters apart.")] = 0

    @classmethod
    def of(cls, stats: QueueStats) -> StatsDoc:
        return cls(**msgspec.structs.asdict(stats), lag=stats.lag)

    def value(self) -> QueueStats:
        given = msgspec.structs.asdict(self)
        del given["lag"]  # the library adds it up by itself
        return QueueStats(**given)


class PartitionDoc(Doc, frozen=True, omit_defaults=False):
    partition: int
    ready: int
    delayed: int
    leased: int
    lag: int
    oldest_age: float | None
    owner: str | None
    epoch: int

    @classmethod
    def of(cls, part: PartitionStats) -> PartitionDoc:
        return cls(**msgspec.structs.asdict(part))

    def value(self) -> PartitionStats:
        return PartitionStats(**msgspec.structs.asdict(self))


class QueueAsk(Ask, frozen=True):
    queue: Name


class PutQueueAsk(Ask, frozen=True):
    queue: Name
    partitions: Annotated[Whole | None, says("1 to 256; more can be added.")] = None
    ordered: Annotated[bool | None, says("Set when it is made.")] = None
    policy: PolicyDoc = PolicyDoc()


class DeleteQueueAsk(Ask, frozen=True):
    queue: Name
    force: Annotated[bool, says("Also when it holds messages.")] = False


class QueuesDoc(Doc, frozen=True):
    queues: list[QueueDoc]


class StatsListDoc(Doc, frozen=True):
    stats: list[StatsDoc]


class PartitionsDoc(Doc, frozen=True):
    partitions: list[PartitionDoc]


class ConsumerDoc(Doc, frozen=True):
    """Who holds what of a queue now."""

    owner: str
    leases: int = 0
    oldest_leased_at: Time | None = None
    next_deadline: Time | None = None
    partitions: list[int] = []


class ConsumersDoc(Doc, frozen=True):
    consumers: list[ConsumerDoc]
    looked: int = 0
    now: int = 0


class TopicAsk(Ask, frozen=True):
    topic: Name


class PutTopicAsk(Ask, frozen=True):
    topic: Name
    log: Annotated[bool | None, says("Keep what is published, for later groups.")] = None
    retention: Annotated[float | None, says("Seconds it is kept; 0: for ever.")] = None


class DeleteTopicAsk(Ask, frozen=True):
    topic: Name
    force: bool = False


class BindAsk(Ask, frozen=True):
    topic: Name
    group: Annotated[str, says("The group's name.")]
    start: Annotated[str, says("now or earliest.")] = "now"
    partitions: Whole | None = None
    ordered: bool | None = None
    policy: PolicyDoc = PolicyDoc()


class UnbindAsk(Ask, frozen=True):
    topic: Name
    group: str
    force: bool = False


class TopicDoc(Doc, frozen=True, omit_defaults=False):
    topic: Name
    groups: dict[str, StatsDoc]
    filling: list[str]
    retained: int
    oldest_age: float | None
    log: bool
    retention: float


class TopicsDoc(Doc, frozen=True):
    topics: list[TopicDoc]
