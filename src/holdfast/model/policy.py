"""What a queue does with its messages. Every field may be left open; the nearest one wins."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import msgspec

from holdfast.errors import InvalidArgument, did_you_mean, shown
from holdfast.model.backoff import SECONDS_MAX, Backoff
from holdfast.model.errortext import TRACEBACK_MAX

Exhausted = Literal["dead", "complete"]
OnFailure = Literal["block", "skip"]
OnMisfit = Literal["dead", "retry"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Per connection, per queue, per message: field by field, the nearest one that is set wins."""

    ack_timeout: float | None = None
    """Seconds a lease holds before the message is overdue. Default 30."""
    max_attempts: int | None = None
    """Deliveries before a message is dead. Default 3."""
    backoff: Backoff | None = None
    """The wait after a failed attempt. Default Backoff()."""
    overdue_backoff: bool | None = None
    """Whether a message whose lease ran out also waits its backoff. Default False."""
    exhausted: Exhausted | None = None
    """Out of attempts: "dead" letters, or "complete" into the log with errors. Default "dead"."""
    log: bool | None = None
    """Whether finished messages are kept in the log. Default True."""
    retention: float | None = None
    """Seconds a finished message stays in the log; 0 keeps it for ever. Default 7 days."""
    retention_count: int | None = None
    """Finished messages the log keeps at most; 0 is no limit. Default 0."""
    duplicate_window: float | None = None
    """Seconds after it finished for which a message's id is refused as a duplicate, as long as the
    log holds it; 0 turns that off. Only ids that the caller gave are looked up. Default one day."""
    payload_max: int | None = None
    """Bytes a payload may have. Default 1 MiB."""
    on_failure: OnFailure | None = None
    """In an ordered queue, while a failed message waits for its next attempt: "block" holds back
    what follows of its key, "skip" lets it pass. Default "block"."""
    on_misfit: OnMisfit | None = None
    """A payload that does not fit the type its handler annotates: "dead" at once, or "retry" like
    any other error. Default "dead"."""
    traceback_max: int | None = None
    """Characters of a traceback kept with each error of a handler; 0 keeps none. Default 16384."""

    def __post_init__(self) -> None:
        positive("ack_timeout", self.ack_timeout)
        whole("max_attempts", self.max_attempts, low=1)
        if self.backoff is not None and not isinstance(cast(object, self.backoff), Backoff):
            raise InvalidArgument("backoff", f"must be a Backoff, not {shown(self.backoff)}")
        for field in ("overdue_backoff", "log"):
            if getattr(self, field) not in (None, True, False):
                raise InvalidArgument(
                    field, f"must be True or False, not {shown(getattr(self, field))}"
                )
        if self.exhausted not in (None, "dead", "complete"):
            raise InvalidArgument(
                "exhausted", f'must be "dead" or "complete", not {shown(self.exhausted)}'
            )
        if self.on_failure not in (None, "block", "skip"):
            raise InvalidArgument(
                "on_failure", f'must be "block" or "skip", not {shown(self.on_failure)}'
            )
        if self.on_misfit not in (None, "dead", "retry"):
            raise InvalidArgument(
                "on_misfit", f'must be "dead" or "retry", not {shown(self.on_misfit)}'
            )
        whole("traceback_max", self.traceback_max, low=0, high=TRACEBACK_MAX)
        seconds("retention", self.retention)
        whole("retention_count", self.retention_count, low=0)
        seconds("duplicate_window", self.duplicate_window)
        whole("payload_max", self.payload_max, low=1)

    @classmethod
    def of(cls, **fields: Any) -> Policy:
        """A policy from keywords, refusing an unknown one with the near one suggested."""
        for name in fields:
            if name not in cls.__struct_fields__:
                hint = did_you_mean(name, cls.__struct_fields__)
                raise InvalidArgument(name, f"no such policy field; {hint}")
        return cls(**fields)

    def over(self, outer: Policy) -> Policy:
        """This policy, with what it leaves open taken from `outer`."""
        merged = {**outer._given(), **self._given()}
        if self.backoff is not None:
            merged["backoff"] = self.backoff.over(outer.backoff)
        return Policy(**merged)

    def _given(self) -> dict[str, Any]:
        fields = msgspec.structs.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """What was given, and only that: the form that is stored."""
        given = self._given()
        if self.backoff is not None:
            given["backoff"] = self.backoff.to_dict()
        return given

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Policy:
        backoff = stored.get("backoff")
        given = None if backoff is None else Backoff(**backoff)  # one that says nothing is {}
        fields: dict[str, Any] = {**stored, "backoff": given}
        return cls(**fields)


def positive(field: str, value: Any) -> None:
    seconds(field, value)
    if value is not None and value == 0:
        raise InvalidArgument(field, "must be more than 0 seconds")


def seconds(field: str, value: Any) -> None:
    """A length of time: a finite number of seconds, zero or more, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(field, f"must be a number of seconds, not {shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(field, f"must be a number of seconds, not {shown(value)}")
    if value < 0:
        raise InvalidArgument(field, f"must not be negative, not {shown(value)}")
    if value > SECONDS_MAX:
        raise InvalidArgument(field, f"must be at most {SECONDS_MAX} seconds, not {shown(value)}")


def whole(field: str, value: Any, *, low: int, high: int = 2**31 - 1) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(field, f"must be a whole number, not {shown(value)}")
    if not low <= value <= high:
        raise InvalidArgument(field, f"must be {low} to {high}, not {shown(value)}")


DEFAULTS = Policy(
    ack_timeout=30.0,
    max_attempts=3,
    backoff=Backoff(),
    overdue_backoff=False,
    exhausted="dead",
    log=True,
    retention=7 * 24 * 3600.0,
    retention_count=0,
    duplicate_window=24 * 3600.0,
    payload_max=1024 * 1024,
    on_failure="block",
    on_misfit="dead",
    traceback_max=16 * 1024,
)
