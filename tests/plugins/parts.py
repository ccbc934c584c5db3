"""Which part of the project a test belongs to."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def part_of(item: pytest.Item) -> str:
    """The store a test ran on, else the part of the project its folder names."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("store_name") or folder_of(item)


def folder_of(item: pytest.Item) -> str:
    return _folder(item.path)


@cache
def _folder(path: Path) -> str:
    return path.relative_to(ROOT / "tests").parts[0]
