"""The browser that runs the tests of the dashboard: the Chromium or Chrome of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from holdfast.demo.camera import FLAGS, find_browser
from servers.base import Missing, skipping


def find() -> Path:
    found = find_browser()
    if found is None:
        raise Missing(
            "no browser: put Chromium or Chrome on the PATH (Debian: apt-get install chromium)"
        )
    return found


@contextmanager
def running() -> Iterator[Any]:
    """A browser for a fixture."""
    with ExitStack() as stack:
        with skipping():
            browser = _start(find(), stack)
        yield browser


def _start(program: Path, stack: ExitStack) -> Any:
    from playwright.sync_api import Error, sync_playwright

    playwright = stack.enter_context(sync_playwright())
    try:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
    except Error as error:
        raise Missing(f"{program} does not start: {_reason(str(error))}") from error
    stack.callback(browser.close)
    return browser


def _reason(said: str) -> str:
    """What the browser itself wrote last, out of playwright's long report."""
    own = [line.partition("[err]")[2].strip() for line in said.splitlines() if "[err]" in line]
    return (own or said.splitlines())[0][:500]
