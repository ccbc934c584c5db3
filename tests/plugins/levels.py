"""Two levels of tests: what `script/test` runs, and what `script/test --all` adds to it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from servers import SHARED, STORES
from tests.plugins.parts import folder_of, part_of

EXTENDED, SOAK, NO_STORE = "extended", "soak", "no_store"
CLUSTER = "redis-cluster"
SLOTS_MATTER = {
    "test_dead", "test_moving", "test_ordering", "test_owning", "test_redis_keys",
    "test_redis_moving", "test_redis_topics", "test_redriving", "test_topics",
}  # fmt: skip
"""Files whose tests touch several queues or partitions at once: on a cluster, several slots."""
SERVERS = ("postgres", "redis", "mongo")
LONG = (
    "test_setup_fresh_clone", "spark", "test_cli_spark", "test_cli_docs", "ordered", "web", "model",
)  # fmt: skip
"""Folders and files of tests that take many seconds each, in the order in which they are begun:
Spark's early, so that one process has done most of them, with one JVM, before others help."""
IN_TURN = {
    "conformance": SERVERS,
    "spark": SHARED,
    "batches": SERVERS,
    "ordered": SHARED,
    "test_events": SHARED,
    "test_ordered_wire": SHARED,
    "test_polling": SHARED,
    "test_scenarios": SHARED,
}
"""Folders and files of tests that do the same on every store, and the stores that take turns."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the extended tests")
    parser.addoption("--rest", action="store_true", help="run only what --all adds")
    parser.addoption("--soak", action="store_true", help="also run the soak tests, for hours")
    parser.addoption("--repeat", type=int, default=1, metavar="N", help="run each test N times")
    parser.addoption("--pictures", action="store_true", help="write docs/img/dashboard-*.png")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What nobody asked for is not even collected where that takes seconds."""
    is_soak = collection_path.name.endswith("_soak.py")
    return True if is_soak and not config.getoption("--soak") else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("--repeat")
    if times > 1:
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(1, times + 1), ids=lambda n: f"run{n}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _is_same_elsewhere(item)]
    _sample_the_cluster(items)
    proven: set[tuple[str, str]] = set()
    placed: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        for name in _names(item) & IN_TURN.keys():
            placed[name].append(item)
    for name, stores in IN_TURN.items():
        _sample_stores(placed[name], stores, proven)
    left_out = {item for item in items if not _is_asked_for(item, config)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=_turn)
    ids = Counter(item.nodeid for item in items)
    if twice := [id for id, n in ids.items() if n > 1]:  # xdist would run one of them
        raise pytest.UsageError(f"several tests are called {', '.join(twice)}")


def _turn(item: pytest.Item) -> int:
    """Long tests first: begun last, they would end alone."""
    return next((n for n, name in enumerate(LONG) if name in _names(item)), len(LONG))


def _names(item: pytest.Item) -> set[str]:
    return {folder_of(item), item.path.stem}


def _is_same_elsewhere(item: pytest.Item) -> bool:
    """Whether a test never reaches its store, and runs on another one as well."""
    is_pure = item.get_closest_marker(NO_STORE) is not None
    return is_pure and part_of(item) in STORES and part_of(item) != "memory"


def _sample_stores(
    items: list[pytest.Item], stores: Sequence[str], proven: set[tuple[str, str]]
) -> None:
    """Run each test on one of these stores, in turn, and what else it takes to prove each promise
    on each of them; --all runs the rest."""
    some = [item for item in items if part_of(item) in stores and not _is_extended(item)]
    tests: dict[str, list[pytest.Item]] = {}
    for item in some:
        name, _, params = item.nodeid.partition("[")
        tests.setdefault(name + params.replace(part_of(item), "", 1), []).append(item)
    chosen = {on[turn % len(on)] for turn, on in enumerate(tests.values())}
    proven.update(proof for item in chosen for proof in _proofs(item))
    for item in reversed(some):  # the later files have the smaller tests
        if item not in chosen and _proofs(item) <= proven:
            item.add_marker(EXTENDED)
        proven |= _proofs(item)


def _sample_the_cluster(items: list[pytest.Item]) -> None:
    """Run on a cluster what depends on slots, and one test for each promise."""
    proven: set[tuple[str, str]] = set()
    for item in items:
        if part_of(item) != CLUSTER or item.path.stem in SLOTS_MATTER or _is_extended(item):
            continue
        if _proofs(item) <= proven:
            item.add_marker(EXTENDED)
        proven |= _proofs(item)


def _proofs(item: pytest.Item) -> set[tuple[str, str]]:
    return {(id, part_of(item)) for mark in item.iter_markers("promise") for id in mark.args}


def _is_extended(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker(EXTENDED) or item.get_closest_marker(SOAK))


def _is_asked_for(item: pytest.Item, config: pytest.Config) -> bool:
    if any("::" in argument for argument in config.args):  # a test that was named
        return True
    if item.get_closest_marker(SOAK):
        return bool(config.getoption("--soak"))
    if config.getoption("--rest"):
        return _is_extended(item)
    return not _is_extended(item) or bool(config.getoption("--all"))
