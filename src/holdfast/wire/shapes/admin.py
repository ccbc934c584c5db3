"""The server itself: settings, events, history, actions, Spark's pipelines and reports."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Raw, UnsetType

from holdfast.wire.shapes.base import Ask, Cursor, Doc, Limit, Name, Time, says
from holdfast.wire.shapes.queues import PolicyDoc


class SweptDoc(Doc, frozen=True, omit_defaults=False):
    requeued: int
    dead: int
    completed: int
    trimmed: int


class SettingsDoc(Doc, frozen=True, omit_defaults=False):
    version: str
    store: Annotated[str, says("Its kind.")]
    auth: bool
    overdue_check_interval_ms: int
    requeue_batch_size: int
    partition_lease_ms: int
    partition_renew_ms: int
    partition_rebalance_ms: int
    policy: PolicyDoc
    limits: dict[str, float]
    now: int


class IdentityDoc(Doc, frozen=True, omit_defaults=False):
    """Who is asking, and what they may."""

    id: Annotated[str, says("Of the key; empty where no key is asked for.")]
    name: str
    rights: list[str]
    queues: Annotated[list[str], says("Patterns of names; * is every queue.")]
    auth: Annotated[bool, says("Whether this server asks for keys.")]


class EventDoc(Doc, frozen=True, omit_defaults=False):
    type: str
    timestamp: Time
    payload: Raw
    seq: int = 0


class WatchAsk(Ask, frozen=True):
    after: Annotated[Time | None, says("The `seq` of the last event that was seen.")] = None


class HistoryAsk(Ask, frozen=True):
    queue: Annotated[str | None, says("One queue in full; else all, the last few minutes.")] = None


class PointDoc(Doc, frozen=True, omit_defaults=False):
    """One look at a queue; the rates are a second, since the look before."""

    at: Time
    ready: int
    delayed: int
    leased: int
    dead: int
    in_rate: float
    out_rate: float
    dead_rate: float


class SpanDoc(Doc, frozen=True, omit_defaults=False):
    """How long messages waited and were worked on, in seconds, of a sample of those that were
    finished in the `span_ms` from `at` on."""

    at: Time
    count: Annotated[int, says("How many were looked at.")]
    wait_p50: float
    wait_p95: float
    handle_p50: float
    handle_p95: float


class QueueHistoryDoc(Doc, frozen=True, omit_defaults=False):
    queue: Name
    points: Annotated[list[PointDoc], says("Oldest first.")]
    spans: Annotated[list[SpanDoc], says("Oldest first; only when one queue is asked for.")]


class HistoryDoc(Doc, frozen=True, omit_defaults=False):
    step_ms: Annotated[int, says("From one point to the next.")]
    span_ms: int
    now: Time
    queues: list[QueueHistoryDoc]


class ActionsAsk(Ask, frozen=True):
    queue: Annotated[str | None, says("Only what was done to this one or its dead.")] = None
    after: Cursor = None
    limit: Limit = 100


class ActionDoc(Doc, frozen=True, omit_defaults=False):
    """Something that an administrator did through a server."""

    id: str
    at: Time
    who: Annotated[str, says("The name of the key.")]
    key_id: str
    what: Annotated[str, says("The operation: pause, purge, redrive, ...")]
    queue: Annotated[str | None, says("Or the topic; null is the whole store.")]
    count: Annotated[int | None, says("How many messages; null where that says nothing.")]
    detail: Annotated[str, says("What was asked for, as JSON.")]


class ActionsDoc(Doc, frozen=True):
    actions: Annotated[list[ActionDoc], says("The newest first.")]
    after: Cursor = None


class BatchDoc(Doc, frozen=True, omit_defaults=False):
    """A batch of a Spark query that was settled."""

    batch: int
    rows: int
    done: int
    retried: int
    dead: int
    ms: Annotated[int, says("From reserving to settling.")]
    settled_at: Time


class PipelineDoc(Doc, frozen=True, omit_defaults=False):
    """A Spark query that reads from a queue."""

    query: str
    name: str
    queue: Name
    state: Annotated[str, says("running, idle, stopped, gone or in doubt.")]
    batch: Annotated[int, says("The batch that is held, or was last.")]
    held: Annotated[int, says("Messages in its hands.")]
    sealed: Annotated[bool, says("The batch was handed to the query.")]
    since: Annotated[int | None, says("When the batch that is held was begun.")]
    backlog: Annotated[int | None, says("Ready and delayed; null: the queue is gone.")]
    done: int
    retried: int
    dead: int
    on_lost: str
    started_at: Time
    seen_at: Time
    settled_at: Time | None
    batch_ms: Annotated[int, says("How long the last batch took.")]
    history: Annotated[list[BatchDoc], says("The last batches, oldest first.")]


class PipelinesDoc(Doc, frozen=True, omit_defaults=False):
    pipelines: list[PipelineDoc]
    now: Time


class ReportsAsk(Ask, frozen=True):
    limit: Limit = 100


class ReportIdAsk(Ask, frozen=True):
    id: Annotated[str, says("Of the report.")]


class ReportDoc(Doc, frozen=True):
    """A report that a Spark job made."""

    id: str
    made_at: Time
    title: str = ""
    lake: Annotated[str, says("Where its tables are.")] = ""
    rows: Annotated[int, says("Log rows that it looked at.")] = 0
    summary: Annotated[Raw | UnsetType, says("Its main numbers.")] = msgspec.UNSET
    html: Annotated[str | None, says("The page itself; of one report only.")] = None


class ReportsDoc(Doc, frozen=True):
    reports: Annotated[list[ReportDoc], says("The newest first.")]
