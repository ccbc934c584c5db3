"""A party with workers: what the measures with several, failing or killed ones ask of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from bench.processes import Child
from bench.results import Who

Environment = dict[str, str]
Send = Callable[[list[dict[str, Any]]], Any]


class Party(msgspec.Struct, frozen=True):
    who: Who
    n: int
    """How many messages a drain is given: a second or a few of work."""
    fill: Callable[[Any, int], Any]
    """In a home: n messages for the task that does nothing."""
    start: Callable[[Any, Environment], Child]
    """Its worker in a process of its own, on what was filled in."""
    noting: Callable[[Any, Environment], AbstractContextManager[tuple[Send, Child]]]
    """The way to send some at once, and the worker that notes how long they were on their way."""
    retries: str = "at once"
    """When what failed runs again; nothing if it never does."""
    recovers: str = ""
    """The setting by which what a dead worker held runs again; nothing if there is none."""
    several: bool = True
    """Whether two of its workers can share a queue."""


def one_by_one(send: Callable[[dict[str, Any]], Any]) -> Send:
    """For those that have no bulk, or none from where we stand: each leaves with its own time."""

    def run(items: list[dict[str, Any]]) -> None:
        for item in items:
            send({**item, "sent": time.monotonic()})

    return run
