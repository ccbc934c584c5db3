"""Two levels of tests: what `script/test` runs, and what `script/test --all` adds to it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.plugins.parts import folder_of

EXTENDED, SOAK = "extended", "soak"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the extended tests")
    parser.addoption("--rest", action="store_true", help="run only what --all adds")
    parser.addoption("--soak", action="store_true", help="also run the soak tests, for hours")
    parser.addoption("--pictures", action="store_true", help="write docs/img/dashboard-*.png")


def is_thorough(config: pytest.Config) -> bool:
    """Whether tests that can do more, such as those that make up histories, should."""
    return bool(config.getoption("--all") or config.getoption("--rest"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not _is_asked_for(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    items.sort(key=lambda item: folder_of(item) != "spark")  # a long line: it should not begin last
    ids = Counter(item.nodeid for item in items)
    if twice := [id for id, n in ids.items() if n > 1]:  # xdist would run one of them
        raise pytest.UsageError(f"several tests are called {', '.join(twice)}")


def _is_asked_for(item: pytest.Item, config: pytest.Config) -> bool:
    if item.get_closest_marker(SOAK):
        return bool(config.getoption("--soak"))
    is_extended = item.get_closest_marker(EXTENDED) is not None
    if config.getoption("--rest"):
        return is_extended
    return not is_extended or bool(config.getoption("--all"))
