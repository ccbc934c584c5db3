"""The browser that the dashboard's journeys are run in: Chromium, as the system has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.demo.camera import FLAGS, find_browser


class Missing(Exception):
    """There is none here."""


def find() -> Path:
    found = find_browser()
    if found is None:
        raise Missing("no chromium, chromium-browser or google-chrome on the PATH")
    return found


@contextmanager
def running() -> Iterator[Any]:
    """For fixtures. Without a browser, tests are skipped with the reason; in CI, where nobody would
    read that, they fail."""
    try:
        program = find()
    except Missing as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
