"""Handlers in processes of their own: one that hangs or dies takes only itself."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from holdfast.errors import InvalidArgument
from holdfast.handlers import Handler, Problem, Registry, Verdict, run
from holdfast.message import Lease

START_LIMIT_S = 120.0


class Child:
    """One process that runs one handler call at a time. Used by one thread."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self._handlers = handlers
        self._process: Any = None
        self._pipe: Any = None

    def run(self, lease: Lease, limit: float | None) -> Verdict:
        """The verdict; or, past `limit` seconds or when the process dies, a problem instead."""
        try:
            pipe = self._started()
        except (EOFError, OSError, RuntimeError) as error:
            self.kill()
            return _problem(f"its process did not start: {error!r}", "ProcessDied")
        try:
            pipe.send(lease)
            if not pipe.poll(limit):
                self.kill()
                return _problem(f"ran longer than {limit} s", "TimeLimitExceeded")
            return pipe.recv()
        except (EOFError, OSError):
            code = self._exit_code()
            self.kill()
            return _problem(f"its process died (exit code {code})", "ProcessDied")

    def _started(self) -> Connection:
        if self._pipe is not None:
            return self._pipe
        context = multiprocessing.get_context("spawn")  # fork does not mix with threads
        pipes: tuple[Any, Any] = context.Pipe()
        ours, theirs = pipes
        process = context.Process(
            target=_main, args=(theirs, self._handlers), daemon=True, name="holdfast-handler"
        )
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        if not ours.poll(START_LIMIT_S) or ours.recv() != "ready":
            raise RuntimeError(f"not ready after {START_LIMIT_S} s")
        return ours

    def _exit_code(self) -> int | None:
        self._process.join(1)
        return self._process.exitcode

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def time_for(handlers: Sequence[Handler], limit: float | None) -> float | None:
    """How long these may run one after the other; None if one of them has no limit."""
    limits = [handler.time_limit or limit for handler in handlers]
    known = [each for each in limits if each is not None]
    return sum(known) if len(known) == len(limits) else None


def check_picklable(handlers: Sequence[Handler]) -> None:
    for handler in handlers:
        try:
            pickle.dumps(handler)
        except Exception as error:
            raise InvalidArgument(
                f"handler {handler.name}",
                "must be a function at the top of a module to run in a process of its own",
            ) from error


def _problem(message: str, code: str) -> Verdict:
    return Verdict(problems=(Problem(message, code),))


def _main(pipe: Connection, handlers: Sequence[Handler]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    registry = Registry()
    for handler in handlers:
        registry.add(handler)
    pipe.send("ready")
    while True:
        try:
            lease: Lease = pipe.recv()
        except EOFError:
            return
        pipe.send(run(registry.due(lease.message), lease))
