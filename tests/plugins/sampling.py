"""For tests with many cases of a kind: which of them run without --all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def one_of_each(cases: Iterable[T], kind: Callable[[T], Hashable]) -> list[Any]:
    """Parameters of a test: the first case of each kind, and the others only with --all."""
    seen: set[Hashable] = set()
    found: list[Any] = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = pytest.mark.extended if kind(case) in seen else ()
        found.append(pytest.param(*values, marks=marks))
        seen.add(kind(case))
    return found


def more(*cases: Any) -> list[Any]:
    """Parameters of a test that run only with --all."""
    return [pytest.param(case, marks=pytest.mark.extended) for case in cases]
