"""The dashboard in a real browser, before a real server."""

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
"""No journey takes that long; a machine that has much else to do may."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for the whole run: while it is there, its loop is that of the thread, and tests of async
    code in the same process could have none."""
    if not Pages().is_built:
        reason = "the dashboard is not built: script/setup says why"
        if "CI" in os.environ:
            raise AssertionError(reason)
        pytest.skip(reason)
    with browsers.running() as made:
        yield made


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Pages that fail their test when a script of theirs fails."""
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
