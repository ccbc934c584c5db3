"""A peer that cannot be installed beside the others: its module runs in an environment of its own.

Here, `Elsewhere` stands for the module. Run by the interpreter of that environment, this file is
the other end: it imports the module and does what the lines on its standard input ask for.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.processes import ROOT, Child


class Elsewhere:
    """What a Peer asks of its module, by way of a process. For those that have no bulk."""

    def __init__(self, module: str, environment: str) -> None:
        self.__name__ = f"bench.contenders.{module}"
        self.python = str(ROOT / f".venv-{environment}/bin/python")
        self._lock = ROOT / f"requirements/{environment}.txt"

    def version(self, package: str) -> str:
        """By the lock: the environment itself is made when its store is measured."""
        found = re.search(rf"^{re.escape(package)}==(\S+)", self._lock.read_text(), re.MULTILINE)
        assert found is not None, f"{package} is not in {self._lock}"
        return found[1]

    def enqueue(self, url: str, items: list[dict[str, Any]]) -> float:
        """As long as it took over there: neither the start of the process nor the pipe is in it."""
        with self._other_end("enqueue", url) as other:
            other.say(json.dumps(items))
            return float(other.lines(1)[0])

    @contextmanager
    def noting(self, url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
        with self._other_end("noting", url) as other:
            other.lines(1)  # it is there

            def send(item: dict[str, Any]) -> None:
                other.say(json.dumps(item))
                other.lines(1)

            yield send

    def _other_end(self, task: str, url: str) -> Child:
        return Child([self.python, "-m", __name__, self.__name__, task, url], spoken_to=True)


def _enqueue(app: Any, url: str) -> None:
    for line in sys.stdin:
        print(app.enqueue(url, json.loads(line)), flush=True)


def _note(app: Any, url: str) -> None:
    """A message is on its way from here on: the pipe is ours, not the peer's."""
    with app.noting(url) as send:
        print("ready", flush=True)
        for line in sys.stdin:
            send({**json.loads(line), "sent": time.monotonic()})
            print("sent", flush=True)


if __name__ == "__main__":
    _name, _task, _url = sys.argv[1:]
    {"enqueue": _enqueue, "noting": _note}[_task](importlib.import_module(_name), _url)
