"""What a run shows while it works, and where it keeps what it measures."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bench.processes import ROOT


@contextmanager
def progress(name: str) -> Iterator[Callable[[str], None]]:
    """Who is running right now, on stderr: one live line, or plain lines where nobody watches."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lambda what: print(f"{name}: {what}", file=sys.stderr, flush=True)
        return
    with err.status(name) as status:
        yield lambda what: status.update(f"{name}: {what}")


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """On the disk of the repository: a temporary folder may be in memory, where syncs are free."""
    folder = ROOT / ".build" / "bench" / str(os.getpid())
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
