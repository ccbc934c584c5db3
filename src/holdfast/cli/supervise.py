"""Several workers as processes of their own: started, restarted when they die, stopped together."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from holdfast.model import clock

PAUSE_S = (0.5, 30.0)
"""Before a worker that died is started again; doubles each time."""
STEADY_S = 60.0
"""One that lived so long starts with the short pause again."""
HOPELESS = (2, 5)
"""Exit codes that the next start would give again: wrong arguments, something not installed."""

logger = logging.getLogger("holdfast.supervisor")


class Supervisor:
    """Keeps `processes` copies of a command alive until SIGTERM or SIGINT, or until all ended."""

    def __init__(self, command: Sequence[str], processes: int, *, restart: bool) -> None:
        self._command = command
        self._children = [_Child(number) for number in range(1, processes + 1)]
        self._restart = restart
        self._signals = 0
        self._passed_on = 0
        self._code = 0

    def run(self) -> int:
        """0 when every process ended cleanly."""
        self._lifeline, held_open = os.pipe()  # closes when this process dies, however it dies
        with self._woken() as wakeup:
            for child in self._children:
                self._start(child)
            while any(child.process or child.start_at for child in self._children):
                select.select([wakeup], [], [], self._time_to_next_start())
                _empty(wakeup)
                for child in self._children:
                    self._look_after(child)
                while self._passed_on < self._signals:
                    self._passed_on += 1
                    self._stop_all()
        os.close(held_open)
        os.close(self._lifeline)
        return self._code

    def _look_after(self, child: _Child) -> None:
        if child.process is not None and child.process.poll() is not None:
            self._ended(child, child.process.returncode)
        if child.start_at is not None and clock.monotonic() >= child.start_at:
            self._start(child)  # even with a signal on its way: it is passed on right after

    def _start(self, child: _Child) -> None:
        child.start_at = None
        child.started = clock.monotonic()
        # A session of its own: a Ctrl-C on the terminal reaches it once, through us.
        child.process = subprocess.Popen(
            [*self._command, "--lifeline", str(self._lifeline)],
            pass_fds=[self._lifeline],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        logger.info("worker %d started as process %d", child.number, child.process.pid)

    def _ended(self, child: _Child, code: int) -> None:
        child.process = None
        if self._signals or (code == 0 and not self._restart):
            # Killed by our signal: it had not begun to work, so it leaves nothing behind.
            if code not in (0, -signal.SIGTERM):
                self._code = self._code or 1
            logger.info("worker %d ended: %s", child.number, _how(code))
        elif code in HOPELESS:
            logger.error("worker %d ended: %s; not started again", child.number, _how(code))
            self._code = code
            self._signals += 1
        else:
            pause = child.next_pause()
            child.start_at = clock.monotonic() + pause
            logger.error("worker %d died: %s; again in %.1f s", child.number, _how(code), pause)

    def _stop_all(self) -> None:
        for child in self._children:
            child.start_at = None
            if child.process is not None and child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)

    def _time_to_next_start(self) -> float | None:
        waits = [child.start_at for child in self._children if child.start_at is not None]
        return max(0.0, min(waits) - clock.monotonic()) if waits else None

    @contextmanager
    def _woken(self) -> Generator[int, None, None]:
        """A pipe that any signal of interest makes readable, also one that comes before a wait."""
        wakeup, write = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(write, False)
        ours = {signal.SIGTERM: self._on_signal, signal.SIGINT: self._on_signal}
        before: dict[signal.Signals, Any] = {
            number: signal.signal(number, handler)
            for number, handler in {**ours, signal.SIGCHLD: _ignore}.items()
        }
        old_fd = signal.set_wakeup_fd(write)
        try:
            yield wakeup
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(wakeup)
            os.close(write)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1  # passed on from the loop: here a process may just be starting


class _Child:
    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.start_at: float | None = None
        self._pause = PAUSE_S[0]

    def next_pause(self) -> float:
        if clock.monotonic() - self.started >= STEADY_S:
            self._pause = PAUSE_S[0]
        pause, self._pause = self._pause, min(self._pause * 2, PAUSE_S[1])
        return pause


def _ignore(number: int, frame: FrameType | None) -> None:
    """SIGCHLD only has to wake us up."""


def _empty(pipe: int) -> None:
    try:
        while os.read(pipe, 4096):
            pass
    except BlockingIOError:
        pass


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
