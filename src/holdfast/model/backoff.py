"""How long to wait before the next try. Pure: the random source is an argument."""

from __future__ import annotations

import math
from random import Random
from typing import Any, Literal, get_args

from holdfast.errors import InvalidArgument, did_you_mean, shown

Jitter = Literal["none", "full", "decorrelated"]
JITTERS: tuple[str, ...] = get_args(Jitter)
SECONDS_MAX = 100 * 365 * 24 * 3600
"""The longest time that may be asked for: stores count milliseconds in 64 bits, or in doubles."""


class Backoff:
    """raw(n) = min(base * factor^(n-1), max) seconds for attempt n, then jittered.

    A field that is not given is inherited: from the queue, then from the connection, then the
    default (base 5 s, factor 2.0, max 1800 s, jitter "full").
    """

    __slots__ = ("_given", "base", "factor", "jitter", "max")

    def __init__(
        self,
        base: float | None = None,
        factor: float | None = None,
        max: float | None = None,
        jitter: Jitter | None = None,
    ) -> None:
        given = {"base": base, "factor": factor, "max": max, "jitter": jitter}
        self._given: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        self.base = _number("backoff.base", base, 5.0, low=0.0, high=SECONDS_MAX)
        self.factor = _number("backoff.factor", factor, 2.0, low=1.0)
        self.max = _number("backoff.max", max, 1800.0, low=0.0, high=SECONDS_MAX)
        self.jitter: Jitter = _jitter(jitter)

    def raw(self, attempt: int) -> float:
        """Seconds before jitter. No attempt number overflows."""
        if attempt < 1:
            raise InvalidArgument("attempt", f"must be 1 or more, not {attempt}")
        if self.base == 0:
            return 0.0
        try:
            return min(self.base * self.factor ** (attempt - 1), self.max)
        except OverflowError:
            return self.max

    def delay(self, attempt: int, previous: float | None, rng: Random) -> float:
        """Seconds to wait after failed attempt `attempt`; `previous` is the last delay."""
        match self.jitter:
            case "none":
                return self.raw(attempt)
            case "full":
                return rng.uniform(0.0, self.raw(attempt))
            case "decorrelated":
                last = self.base if previous is None else previous
                return min(self.max, rng.uniform(self.base, max(self.base, 3 * last)))

    def over(self, outer: Backoff | None) -> Backoff:
        """This backoff, with what it leaves open taken from `outer`."""
        return self if outer is None else Backoff(**{**outer._given, **self._given})

    def to_dict(self) -> dict[str, Any]:
        """What was given, and only that: the form that is stored."""
        return dict(self._given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backoff) and self._given == other._given

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._given.items())))

    def __repr__(self) -> str:
        text = f"base={self.base}, factor={self.factor}, max={self.max}, jitter={self.jitter!r}"
        return f"Backoff({text})"

    def __reduce__(self) -> tuple[Any, ...]:
        given = self._given
        return Backoff, tuple(given.get(k) for k in ("base", "factor", "max", "jitter"))


def _number(field: str, value: Any, default: float, low: float, high: float = math.inf) -> float:
    if value is None:
        return default
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidArgument(field, f"must be a finite number, not {shown(value)}")
    if value < low:
        raise InvalidArgument(field, f"must be {low:g} or more, not {shown(value)}")
    if value > high:
        raise InvalidArgument(field, f"must be at most {high}, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgument(field, f"must be a finite number, not {shown(value)}") from None


def _jitter(value: Any) -> Jitter:
    if value is None:
        return "full"
    if value not in JITTERS:
        given = shown(value)
        near = did_you_mean(value if isinstance(value, str) else given, JITTERS)
        raise InvalidArgument("backoff.jitter", f"{given}; {near}")
    return value
