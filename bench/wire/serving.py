"""The server that is measured: `holdfast serve`, as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.processes import Child


@contextmanager
def serving(url: str) -> Iterator[tuple[Child, str, str]]:
    """On this store: the process, and the URLs of its doors."""
    addresses = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    with Child([sys.executable, "-m", "holdfast", "--url", url, "serve", *addresses]) as server:
        http, grpc, _ = server.lines(3)
        yield server, http.split()[2].rstrip(","), grpc.split()[2]
