"""The command line as its users have it: in this process, as a process, on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast import Holdfast
from holdfast.cli import root
from holdfast.testing import wait_until

HOLDFAST = [sys.executable, "-m", "holdfast"]


class Cli:
    """Commands in this process, on the store of the test."""

    def __call__(self, *args: str, input: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(root, list(args), input=input, prog_name="holdfast")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def ok(self, *args: str, input: str | bytes | None = None) -> str:
        """What a command that works prints; it says nothing on stderr."""
        result = self(*args, input=input)
        assert (result.stderr, result.exit_code) == ("", 0)
        return result.stdout

    def docs(self, *args: str, input: str | bytes | None = None) -> list[dict]:
        return [json.loads(line) for line in self.ok(*args, "--json", input=input).splitlines()]

    def fails(self, code: int, *args: str, input: str | bytes | None = None) -> str:
        """The error of a command that fails with this code and prints nothing else."""
        result = self(*args, input=input)
        assert (result.stdout, result.exit_code) == ("", code), result.output
        return result.stderr


class Process:
    """A command as a process of its own, its output in files."""

    def __init__(self, args: tuple[str, ...], folder: Path, number: int) -> None:
        self._out = folder / f"out{number}"
        self._err = folder / f"err{number}"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._popen = subprocess.Popen(
                [*HOLDFAST, *args], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        self.pid = self._popen.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def says(self, text: str) -> None:
        """Wait until it has said so on stderr."""
        wait_until(lambda: re.search(text, self.err) or self.ended, 30)
        assert re.search(text, self.err), f"{text!r} is not in {self.err!r}"

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def ends(self) -> int:
        return self._popen.wait(30)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/test.db"
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url


@pytest.fixture
def cli(url: str) -> Cli:
    return Cli()


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as hf:
        yield hf


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Callable[..., Process]]:
    """Start commands; what still runs at the end of the test is killed."""
    started: list[Process] = []

    def start(*args: str) -> Process:
        started.append(Process(args, tmp_path, len(started)))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def on_terminal(url: str) -> Callable[..., tuple[str, int]]:
    """Run a command on a terminal; what it showed and its exit code.

    `keys` are typed when `when` is seen; with `insist`, again after every silence. Python overlooks
    a Ctrl-C in the instant before it waits for a line: so would you press it again. A worker must
    not get it twice, however long it takes to stop.
    """

    def run(
        *args: str, columns: int = 80, when: str = "", keys: bytes = b"", insist: bool = False
    ) -> tuple[str, int]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        process = subprocess.Popen(
            [*HOLDFAST, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # no locks
        )
        os.close(theirs)
        try:
            return _read_all(ours, when, keys, insist), process.wait(30)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    return run


def _read_all(terminal: int, when: str, keys: bytes, insist: bool) -> str:
    shown, typed = "", False
    until = time.monotonic() + 30
    while True:
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                shown += os.read(terminal, 65536).decode()
            except OSError:  # Linux says EIO when the other end is closed
                return shown.replace("\r\n", "\n")
        elif typed and insist:
            os.write(terminal, keys)
        if keys and when in shown and not typed:
            typed = bool(os.write(terminal, keys))
        assert time.monotonic() < until, f"still running after {shown!r}"


@pytest.fixture
def steady() -> Callable[[str], str]:
    """A text with its times replaced by T and its columns moved together."""

    def steady(text: str) -> str:
        text = re.sub(r"\bnow\b|\b\d+ (s|min|h) ago\b|\bin \d+ (s|min|h)\b", "T", text)
        return re.sub(r" {2,}", "  ", text)

    return steady
