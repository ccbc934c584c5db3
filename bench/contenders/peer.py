"""A peer that is a module: what the measures ask of it, whichever store it keeps its queue in.

The module has `enqueue`, perhaps `enqueue_many`, `noting`, and a worker when it runs as a program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import msgspec

from bench.contenders import tasks
from bench.contenders.elsewhere import Elsewhere
from bench.contenders.party import Environment, Party, Send, one_by_one
from bench.processes import Child
from bench.results import Who
from bench.timing import BATCH, batches, payloads


class Peer(msgspec.Struct, frozen=True):
    """What its module can do, as the measures ask for it."""

    who: Who
    app: ModuleType | Elsewhere
    drained: int
    """How many tasks its worker is given: a few seconds of work."""
    options: tuple[str, ...] = ()
    """Of its worker, after the URL."""
    retries: str = "at once"
    recovers: str = ""
    """As a Party has them."""

    def enqueue_one(self, url: str, n: int) -> float:
        return self.app.enqueue(url, payloads(n))

    def enqueue_bulk(self, size: int) -> Callable[[str, int], float]:
        app = self.app
        assert isinstance(app, ModuleType), f"{self.who.name} has no bulk"
        return lambda url, n: app.enqueue_many(url, batches(payloads(n), size))

    def drain(self, url: str, n: int) -> float:
        """From the first task's start to the last one's: the start of the process is not in it."""
        self._fill(url, n)
        with self._working(url, last=n) as worker:
            first, last = (float(line) for line in worker.lines(2))
        return last - first

    @contextmanager
    def worker(self, url: str) -> Iterator[tuple[Callable[[dict[str, Any]], Any], Child]]:
        """The way to send, and its worker, which notes what it gets."""
        with self.app.noting(url) as send, self._working(url) as child:
            yield send, child

    def party(self, most: int | None = None) -> Party:
        n = self.drained if most is None else min(most, self.drained)
        return Party(
            self.who, n, self._fill, self._start, self._noting, self.retries, self.recovers
        )

    @contextmanager
    def _noting(self, url: str, environment: Environment) -> Iterator[tuple[Send, Child]]:
        with self.app.noting(url) as send, self._start(url, environment) as child:
            yield one_by_one(send), child

    def _fill(self, url: str, n: int) -> None:
        if hasattr(self.app, "enqueue_many"):
            self.enqueue_bulk(BATCH)(url, n)
        else:
            self.enqueue_one(url, n)

    def _working(self, url: str, last: int = 0) -> Child:
        return self._start(url, {tasks.LAST: str(last)})

    def _start(self, url: str, environment: Environment) -> Child:
        python = self.app.python if isinstance(self.app, Elsewhere) else sys.executable
        command = [python, "-m", self.app.__name__, url, *self.options]
        return Child(command, environment)
