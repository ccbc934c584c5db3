"""Queues as a store keeps them: their settings in text, a short memory of them, their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec

from holdfast.errors import QueueNotFound, SchemaTooNew
from holdfast.model import clock
from holdfast.model.message import DLQ_SUFFIX, home_of, is_dlq
from holdfast.model.policy import Policy

SPEC_S = 0.25
"""How long a queue's settings are remembered: another process's change arrives that late. Whether
it is paused, and whether it exists, is read by every lease and every enqueue."""

T = TypeVar("T")


def write_policy(policy: Policy) -> str:
    return msgspec.json.encode(policy.to_dict()).decode()


@lru_cache(maxsize=1000)
def read_policy(stored: str | bytes) -> Policy:
    return Policy.from_dict(msgspec.json.decode(stored))


def write_starts(starts: tuple[int, ...]) -> str:
    return msgspec.json.encode(starts).decode()


@lru_cache(maxsize=1000)
def read_starts(stored: str | bytes) -> tuple[int, ...]:
    return msgspec.json.decode(stored, type=tuple[int, ...])


def no_queue(name: str) -> QueueNotFound:
    return QueueNotFound(f"no queue {name!r}")


def must_exist(name: str, found: T | None) -> T:
    if found is None:
        raise no_queue(name)
    return found


def all_exist(names: Iterable[str], found: Iterable[str]) -> None:
    """Raise for the first of the names that was not found."""
    there = set(found)
    for name in names:
        if name not in there:
            raise no_queue(name)


class Remembered(Generic[T]):
    """What was read of queues, by name, for SPEC_S. Thread-safe: a lost update costs a read."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[T, float]] = {}

    def get(self, name: str, *, late_s: float = 0.0) -> T | None:
        """None if it is not remembered. `late_s`: how much longer than others to trust it."""
        known = self._known.get(name)
        if known is None or known[1] + late_s <= clock.monotonic():
            return None
        return known[0]

    def last(self, name: str) -> T | None:
        """However old it is."""
        known = self._known.get(name)
        return known[0] if known else None

    def put(self, name: str, value: T | None) -> T | None:
        """What was just read; None if there is no such queue."""
        if value is None:
            self._known.pop(name, None)
        else:
            self._known[name] = (value, clock.monotonic() + SPEC_S)
        return value

    def forget(self, *names: str) -> None:
        """These, or all of them."""
        if not names:
            self._known.clear()
        for name in names:
            self._known.pop(name, None)


def number_of(name: str, known: Callable[[str], int | None], new: Callable[[], int]) -> int:
    """A queue's number; a new one lies beside that of its source or its dead-letter queue.

    `known` is the number of a queue that is stored, `new` that of a home that is not taken.
    """
    sibling = home_of(name) if is_dlq(name) else name + DLQ_SUFFIX
    for other in (name, sibling):
        number = known(other)
        if number is not None:
            return number // 2 * 2 + is_dlq(name)
    return new() * 2 + is_dlq(name)


def check_version(shown: str, version: int, newest: int, *, what: str = "schema") -> None:
    if version > newest:
        raise SchemaTooNew(
            f"{shown} has {what} {version}, this Holdfast knows {newest}: "
            "pip install --upgrade holdfast"
        )
