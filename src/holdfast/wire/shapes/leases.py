"""Leasing messages and settling the leases."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, UnsetType

from holdfast.queue.queue import LEASE_MAX
from holdfast.wire.shapes.base import BATCH_MAX, Ask, Doc, Id, Name, Time, Token, Whole, says
from holdfast.wire.shapes.messages import LeaseDoc


class LeaseAsk(Ask, frozen=True):
    queue: Name
    limit: Annotated[int, Meta(ge=-(2**31), le=2**31), says(f"1 to {LEASE_MAX}.")] = 1
    wait: Annotated[float, says("Seconds to wait for the first.", minimum=0)] = 0.0
    owner: Annotated[
        str | None,
        says(
            "Your name, for people. An ordered queue needs it, the same each time.", maxLength=1024
        ),
    ] = None
    partitions: Annotated[list[Whole] | None, says("Only these.")] = None


class LeasesDoc(Doc, frozen=True):
    leases: list[LeaseDoc]


class LeaseStreamAsk(Ask, frozen=True):
    """A stream of leases. No more than `max_in_flight` are out at a time: the next is sent when
    one was settled through this server, or has run out."""

    queue: Name
    max_in_flight: Annotated[int, Meta(ge=1, le=LEASE_MAX)] = 10
    owner: str | None = None
    partitions: list[Whole] | None = None


class ErrorAsk(Ask, frozen=True):
    message: str = ""
    code: str | None = None
    traceback: Annotated[str | None, says("Where it was raised; shortened by policy.")] = None


class SettleItem(Ask, frozen=True):
    """How one lease ends."""

    id: Id
    token: Token
    outcome: Annotated[
        Literal["done", "retry", "fail", "release", "extend"], says("What became of it.")
    ] = "done"
    result: Annotated[Raw | UnsetType, says("done: JSON for the log.")] = msgspec.UNSET
    error: ErrorAsk | None = None
    delay: Annotated[float | None, says("retry, release: seconds until it comes again.")] = None
    seconds: Annotated[float | None, says("extend: from now; else its own time.")] = None
    owner: Annotated[str | None, says("Whose error it is.")] = None


class SettleAsk(Ask, frozen=True):
    queue: Name
    items: Annotated[list[SettleItem], Meta(max_length=BATCH_MAX)]


class SettledDoc(Doc, frozen=True, omit_defaults=False):
    id: Id
    status: Annotated[str, says("applied, already or stale.")]
    deadline: Time | None = None


class SettledsDoc(Doc, frozen=True):
    results: list[SettledDoc]


class AckAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    result: Annotated[Raw | UnsetType, says("JSON for the log.")] = msgspec.UNSET
    owner: str | None = None


class NackAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    error: ErrorAsk | None = None
    delay: Annotated[float | None, says("Seconds, instead of the backoff.", minimum=0)] = None
    owner: str | None = None


class FailAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    error: ErrorAsk | None = None
    owner: str | None = None


class ReleaseAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    owner: str | None = None
    delay: Annotated[float | None, says("Seconds until it comes again.", minimum=0)] = None


class ExtendAsk(Ask, frozen=True):
    queue: Name
    id: Id
    token: Token
    seconds: Annotated[float | None, says("From now; else its own time-out.")] = None
    owner: str | None = None
