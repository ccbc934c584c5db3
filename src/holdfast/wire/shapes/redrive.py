"""Dead letters: groups of failures, and redrives."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, UnsetType

from holdfast.wire.shapes.base import BATCH_MAX, Ask, Doc, Time, Whole, says


class FailuresAsk(Ask, frozen=True):
    queue: Annotated[str, says("A queue, or its dead letters.")]
    scan: Annotated[int, Meta(ge=1, le=100_000, description="Look at so many.")] = 10_000


class BucketDoc(Doc, frozen=True, omit_defaults=False):
    at: Time
    count: int


class FailureDoc(Doc, frozen=True, kw_only=True):
    """Dead letters that died of the same thing."""

    fingerprint: str
    reason: str | None = None
    code: str | None = None
    error: Annotated[str | None, says("Its text, without what differs.")] = None
    handler: str | None = None
    count: int
    first_dead_at: Time | None = None
    last_dead_at: Time | None = None
    examples: list[str] = []
    by_time: list[BucketDoc] = []


class FailuresDoc(Doc, frozen=True):
    dlq: str
    groups: Annotated[list[FailureDoc], says("The largest first.")]
    looked: int
    total: int
    bucket_ms: Annotated[int, says("How long a bucket of `by_time` is.")]


class DeadFilterDoc(Ask, frozen=True):
    """Which dead letters: those that match all that is given."""

    reason: str | None = None
    code: Annotated[str | None, says("Of the last error.")] = None
    key: str | None = None
    type: str | None = None
    older_than: Annotated[float | None, says("Dead for so many seconds.")] = None
    newer_than: Annotated[float | None, says("Dead for less than that.")] = None
    headers: dict[str, str] | None = None
    fields: Annotated[Raw | UnsetType, says('{"path.in.payload": value}')] = msgspec.UNSET
    fingerprint: Annotated[str | None, says("Of a failure group.")] = None


class RedriveAsk(Ask, frozen=True):
    """Dead letters back to their queue, oldest first."""

    dlq_queue: Annotated[str, says("The dead-letter queue.")]
    count: Annotated[Whole, says("At most so many; 0: all.", minimum=0)] = 0
    ids: Annotated[list[str], Meta(max_length=BATCH_MAX)] | None = None
    where: DeadFilterDoc | None = None
    rate: Annotated[float | None, says("Messages a second at most.")] = None
    to: Annotated[str | None, says("To this queue, not to where they came from.")] = None
    payload: Annotated[Raw | UnsetType, says("With this payload.")] = msgspec.UNSET
    merge: Annotated[Raw | UnsetType, says("With this JSON Merge Patch on it.")] = msgspec.UNSET
    dry_run: Annotated[bool, says("Only say how many.")] = False


class RedrivenDoc(Doc, frozen=True, omit_defaults=False):
    dlq: str
    redriven: int
    looked: int = 0
    missing: int = 0
    skipped: int = 0
    cancelled: bool = False
    dry_run: bool = False
    to: str | None = None


class RedriveIdAsk(Ask, frozen=True):
    id: Annotated[str, says("Of the redrive.")]


class RedriveDoc(Doc, frozen=True, omit_defaults=False):
    """A redrive that goes on by itself."""

    id: str
    dlq: str
    state: Annotated[str, says("running, done, cancelled or failed.")]
    redriven: int
    looked: int
    skipped: int
    missing: int
    total: int
    to: str | None
    created_at: Time
    updated_at: Time
    finished_at: Time | None
    error: str | None


class RedrivesDoc(Doc, frozen=True):
    redrives: list[RedriveDoc]
