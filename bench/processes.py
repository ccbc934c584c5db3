"""Child processes that report by lines, and what they cost the machine."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
ANSWER_S = 60.0


def peak_mib(pid: int | str) -> float:
    """The most memory that a process held so far; `self` for this one."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM: the process has ended")


class Child:
    """A process whose output is read line by line; asked to stop (SIGINT) at the end of `with`."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str] | None = None,
        *,
        spoken_to: bool = False,
    ) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        path = os.pathsep.join([os.fspath(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
            stdin=subprocess.PIPE if spoken_to else None,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=ROOT,
        )
        self._rest = b""

    def say(self, line: str) -> None:
        """One line to its standard input; an error with what it said on stderr if it has ended."""
        into = self._process.stdin
        assert into is not None
        try:
            into.write(f"{line}\n".encode())
            into.flush()
        except BrokenPipeError as error:
            self._process.wait()
            raise RuntimeError(f"{self._process.args}: {self._complaint(0.0)}") from error

    def lines(self, n: int, *, within: float = ANSWER_S) -> list[str]:
        """The next `n` lines; an error with what it said on stderr if they do not come."""
        out = self._process.stdout
        assert out is not None
        until = time.monotonic() + within
        while self._rest.count(b"\n") < n:
            ready, _, _ = select.select([out], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(out.fileno(), 65536) if ready else b""
            if not chunk:
                raise RuntimeError(f"{self._process.args}: {self._complaint(within)}")
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n", n)
        return [line.decode() for line in lines]

    def cpu_seconds(self) -> float:
        """Of all its threads so far, from /proc/<pid>/stat."""
        after_name = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2]
        user, system = after_name.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        """The most memory that it held so far."""
        return peak_mib(self._process.pid)

    def kill(self) -> None:
        """At once, as a machine that loses power would."""
        self._process.kill()
        self._process.wait()

    def _complaint(self, waited: float) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace") or f"no answer in {waited} s"

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()  # ends who listens, also where SIGINT is ignored
        self._process.send_signal(signal.SIGINT)  # nothing happens to one that has ended
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()
