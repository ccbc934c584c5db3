"""Pictures of the dashboard, where there is a browser to take them with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

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


def find_browser() -> Path | None:
    for name in BROWSERS:
        if found := shutil.which(name):
            return Path(found)
    return None
