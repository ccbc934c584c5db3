"""The browser that the dashboard's journeys are run in: Chromium, as the system has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.demo.camera import FLAGS, find_browser
from servers.base import Missing, skipping


def find() -> Path:
    found = find_browser()
    if found is None:
        raise Missing("no chromium, chromium-browser or google-chrome on the PATH")
    return found


@contextmanager
def running() -> Iterator[Any]:
    """A browser for a fixture."""
    with skipping():
        program = find()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
