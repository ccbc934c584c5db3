"""Handlers in processes of their own: one that hangs or dies takes only itself."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from holdfast.errors import FailedPrecondition, InvalidArgument
from holdfast.model.message import Lease
from holdfast.work.calls import CannotRun, run
from holdfast.work.handlers import Handler, Registry
from holdfast.work.verdict import Problem, Verdict

START_LIMIT_S = 120.0
MODULE_LIMIT = (
    "the module that defines the handlers must be importable: guard `hf.work()` with "
    'if __name__ == "__main__":'
)


class Child:
    """One process that runs one handler call at a time. Used by one thread."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self._handlers = handlers
        self._process: Any = None
        self._pipe: Any = None

    def start(self) -> None:
        """Start it if it does not run. Raises CannotRun: that says nothing about any message."""
        if self._process is not None and not self._process.is_alive():
            self.kill()  # it was ended while it had nothing to do
        if self._process is not None:
            return
        try:
            self._start()
        except EOFError:
            why = f"a handler process ended while it started (exit code {self._exit_code()})"
            self.kill()
            raise CannotRun(f"{why}; {MODULE_LIMIT}") from None
        except (OSError, RuntimeError, MemoryError) as error:
            self.kill()
            raise CannotRun(f"a handler process could not be started: {error!r}") from error

    def run(self, lease: Lease, limit: float | None) -> Verdict:
        """The verdict; or, past `limit` seconds or when the process dies, a problem instead."""
        if not self._give(lease) and not self._give(lease):
            return _problem("its process died while it was given the message", "ProcessDied")
        pipe = self._pipe
        try:
            if not pipe.poll(limit):
                self.kill()
                return _problem(f"ran longer than {limit} s", "TimeLimitExceeded")
            return pipe.recv()
        except (EOFError, OSError):
            code = self._exit_code()
            self.kill()
            return _problem(f"its process died (exit code {code})", "ProcessDied")
        except Exception as error:  # a handler wrote to the pipe, or its answer cannot be read
            self.kill()
            return _problem(f"the answer of its process cannot be read: {error!r}", "ProcessDied")

    def _give(self, lease: Lease) -> bool:
        """False if the process is gone: it may have been ended before it had anything to do."""
        self.start()
        try:
            self._pipe.send(lease)
        except OSError:
            self.kill()
            return False
        return True

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # fork does not mix with threads
        pipes: tuple[Any, Any] = context.Pipe()
        ours, theirs = pipes
        self._pipe = ours
        process = context.Process(
            target=_main, args=(theirs, self._handlers), daemon=True, name="holdfast-handler"
        )
        try:
            process.start()
        finally:
            theirs.close()
        self._process = process
        if not ours.poll(START_LIMIT_S) or ours.recv() != "ready":
            raise RuntimeError(f"not ready after {START_LIMIT_S} s")

    def _exit_code(self) -> int | None:
        if self._process is None:
            return None
        self._process.join(1)
        return self._process.exitcode

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def check_not_importing() -> None:
    """A handler process imports the program's main module: a worker that this starts would start
    handler processes of its own, and never let the first one begin."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise FailedPrecondition(f"a handler process is starting a worker: {MODULE_LIMIT}")


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
