"""Every store beside the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from tests.model.side_by_side import Lend, check
from tests.plugins.stores import LentUrl

HISTORIES = {
    "memory": (10, 100, 300),
    "sqlite": (15, 150, 500),
    "postgres": (3, 20, 60),
    "redis": (10, 50, 120),
    "redis-cluster": (3, 12, 30),
    "mongo": (2, 10, 30),
    "mongo-standalone": (1, 4, 12),
}
"""By store: how many are played, how many with --all, and with --soak."""
LENGTHS: list[Any] = [
    "short",
    pytest.param("long", marks=pytest.mark.extended),
    pytest.param("longer", marks=pytest.mark.soak),
]


@pytest.mark.promise(
    "LIFE-1", "LIFE-4", "LIFE-6", "LIFE-7", "LIFE-10", "LIFE-12", "FENCE-2", "FENCE-3", "FENCE-4",
    "FENCE-5", "FENCE-6", "RETRY-4", "RETRY-5", "OVERDUE-1", "OVERDUE-2", "DEAD-3", "DEAD-5",
    "LOG-1", "LOG-2", "LOG-3",
)  # fmt: skip
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("store_name", list(HISTORIES))
def test_the_store_behaves_like_the_model(store_name: str, length: str, lend: Lend) -> None:
    histories = HISTORIES[store_name][("short", "long", "longer").index(length)]
    if store_name == "memory":  # the model beside itself: shows that the machine is fair
        check(lend, histories, memory_stores())
    else:
        check(lend, histories)


@pytest.fixture
def lend(store_name: str, lent_url: LentUrl, request: pytest.FixtureRequest) -> Lend:
    match store_name:
        case "memory" | "sqlite":
            return new_file
        case "redis-cluster" | "mongo-standalone":
            server = request.getfixturevalue(store_name.replace("-", "_"))
        case _:
            server = request.getfixturevalue(f"{store_name}_server")
    return lambda: lent_url(store_name, server)


@contextmanager
def new_file() -> Iterator[str]:
    with TemporaryDirectory(prefix="holdfast-model-") as folder:
        yield f"sqlite:///{Path(folder) / 'model.db'}"


def memory_stores():
    kept: dict[str, Store] = {}
    return lambda url: kept.setdefault(url, MemoryStore())
