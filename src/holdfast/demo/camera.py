"""Pictures of the dashboard, where there is a browser to take them with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.demo.screen import Screen

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    # Its sandbox needs another user than root; what is looked at here is our own page.
    *(["--no-sandbox"] if os.geteuid() == 0 else []),
]
SIZE = {"width": 1280, "height": 760}
PATIENCE_MS = 10_000
STOP_S = 10.0


class NoPictures(Exception):
    """Says why."""


def tell(screen: Screen, url: str, folder: Path, id: str) -> None:
    """Serve the store for a moment, and keep what the dashboard shows. Nothing hangs on it."""
    screen.act("The same in the dashboard")
    try:
        program = _ready()
        with _serving(url) as address:
            taken = _photograph(program, address, folder, id)
    except NoPictures as why:
        screen.say(f"No pictures: {why}")
    else:
        screen.say(f"Pictures of it: {', '.join(taken)} in {folder}")


def find_browser() -> Path | None:
    for name in BROWSERS:
        if found := shutil.which(name):
            return Path(found)
    return None


def _ready() -> Path:
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise NoPictures("a server needs: pip install 'holdfast[server]'")
    from holdfast.server.pages import Pages

    if not Pages().is_built:
        raise NoPictures("the dashboard is not built: script/setup builds it, with Node.js")
    program = find_browser()
    if program is None or find_spec("playwright") is None:
        raise NoPictures("no browser here (chromium, with the Python package playwright)")
    return program


@contextmanager
def _serving(url: str) -> Generator[str, None, None]:
    command = [sys.executable, "-P", "-m", "holdfast", "--url", url, "serve", "--no-grpc"]
    process = subprocess.Popen(
        [*command, "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://[\d.:]+", process.stdout.readline())
        if found is None:
            raise NoPictures("the server did not start")
        yield found.group()
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _photograph(program: Path, address: str, folder: Path, id: str) -> list[str]:
    from playwright.sync_api import Error, sync_playwright  # not a dependency: for who has it

    pages = {
        "overview.png": ("", "[data-testid=queue-orders]"),
        "log.png": ("queues/orders/log", "[data-testid^=row-]"),
        "message.png": (f"queues/orders/messages/{id}", "[data-testid=moment]"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with sync_playwright() as playwright:
            browser: Any = playwright.chromium.launch(executable_path=program, args=FLAGS)
            page = browser.new_page(viewport=SIZE)
            page.set_default_timeout(PATIENCE_MS)
            for name, (way, sign) in pages.items():
                page.goto(f"{address}/#/{way}")
                page.locator(sign).first.wait_for()
                page.screenshot(path=folder / name, animations="disabled")
            browser.close()
    except Error as error:
        raise NoPictures(f"the browser failed: {str(error).splitlines()[0]}") from error
    return list(pages)
