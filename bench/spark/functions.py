"""What runs in Spark's Python workers: imported there by name, so it imports nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def nothing(payload: object) -> None:
    """A handler."""


def same(batches: Iterable[Any]) -> Iterator[Any]:
    """For mapInArrow: every row through Python and back."""
    yield from batches
