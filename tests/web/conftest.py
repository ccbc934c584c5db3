"""Fixtures for tests of the dashboard in a real browser, against a real server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.server.pages import Pages
from servers import browser as browsers
from tests.web.world import World

SIZE = {"width": 1280, "height": 800}
PATIENCE_MS = 20_000
"""Far more than any step takes, for machines that are busy with other work."""

NOT_BUILT = (
    "the dashboard is not built: script/setup builds it, which needs the npm registry; "
    ".build/web.log has the error of the last try"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for the whole session: playwright occupies the thread's event loop, and tests of async
    code in the same process could not start one."""
    if not Pages().is_built:
        if "CI" in os.environ:
            pytest.fail(NOT_BUILT)
        pytest.skip(NOT_BUILT)
    with browsers.running() as made:
        yield made


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; an uncaught error in a page's script fails the test."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def opened(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": SIZE, "reduced_motion": "reduce", **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    return open_page()


@pytest.fixture
def open_world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def opened(url: str, *options: str, **env: str) -> World:
        worlds.append(World(url, *options, **env))
        return worlds[-1]

    yield opened
    for world in worlds:
        world.close()


@pytest.fixture
def world(open_world: Callable[..., World], tmp_path: Path) -> World:
    return open_world(f"sqlite:///{tmp_path}/jobs.db")
