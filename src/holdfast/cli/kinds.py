"""Kinds of arguments that people write: lengths of time, moments, headers."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import click
import msgspec

_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH = re.compile(r"(-?\d+(?:\.\d+)?) ?(ms|s|min|m|h|d|)")


# Newer clicks make it generic, older ones do not.
_Kind = click.ParamType  # pyright: ignore[reportMissingTypeArgument]


class Seconds(_Kind):
    """A number of seconds, or one with a unit: 30, 1.5, 250ms, 5m, 2h, 7d."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = _LENGTH.fullmatch(value)
        if not found:
            self.fail(f"{value!r}: write seconds, or a number with ms, s, m, h or d", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


class When(msgspec.Struct, frozen=True):
    """A moment, or a while before now; which one is known when the store says what time it is."""

    at: int = 0
    ago: float | None = None

    def ms(self, now: int) -> int:
        return self.at if self.ago is None else now - round(self.ago * 1000)


class Moment(_Kind):
    """10m (ago), 2026-01-31T12:00, or milliseconds since 1970 as --json prints them."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> When:
        if isinstance(value, When):
            return value
        if value.isdecimal():
            return When(int(value))
        if found := _LENGTH.fullmatch(value):
            return When(ago=float(found[1]) * _UNITS[found[2]])
        try:
            return When(int(datetime.fromisoformat(value).timestamp() * 1000))
        except ValueError:
            self.fail(f"{value!r}: write 10m (ago), 2026-01-31T12:00 or milliseconds", param, ctx)


class Header(_Kind):
    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r}: write name=value", param, ctx)
        return name, text


SECONDS = Seconds()
MOMENT = Moment()
HEADER = Header()
LIMIT = click.IntRange(min=1)


def ms_of(when: When | None, now: int) -> int | None:
    return None if when is None else when.ms(now)
