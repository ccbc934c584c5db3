"""The Redis that is measured on: its file synced every second, a fresh database per sample."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from servers.redis import EVERYSEC, RedisServer

SERVER = {**EVERYSEC, "auto-aof-rewrite-percentage": "0"}
"""To write the file anew is work for the second core: between samples, not in one."""
DATABASES = 16
FILE_BYTES = 512 * 1024 * 1024


class Databases:
    """A numbered database for every sample, emptied afterwards."""

    def __init__(self, client: Redis, url: str, version: str) -> None:
        self.version = tuple(int(part) for part in version.split("."))
        self._client = client
        self._url = url.rpartition("/")[0]
        self._free = list(range(DATABASES))

    @contextmanager
    def __call__(self) -> Iterator[str]:
        number = self._free.pop()
        url = f"{self._url}/{number}"
        try:
            yield url
        finally:
            with Redis.from_url(url) as client:
                client.flushdb()
            self._shorten_file()
            self._free.append(number)

    def _shorten_file(self) -> None:
        if self._client.info("persistence")["aof_current_size"] < FILE_BYTES:
            return
        self._client.bgrewriteaof()
        while self._client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.05)


@contextmanager
def stage(folder: Path) -> Iterator[tuple[Databases, dict[str, str]]]:
    """One server for the whole run. One on the PATH goes first: the wheel's is an old one."""
    found = shutil.which("redis-server")
    server = RedisServer(SERVER, folder=folder, program=Path(found) if found else None)
    try:
        server.start()
        with Redis.from_url(server.url, decode_responses=True) as client:
            yield Databases(client, server.url, server.version), _facts(client, server.version)
    finally:
        server.close()


def _facts(client: Redis, version: str) -> dict[str, str]:
    """As the server itself says, not as it was told."""
    said = {name: client.config_get(name)[name] for name in (*SERVER, "save")}
    settings = ", ".join(f"{name}={value or 'off'}" for name, value in said.items())
    return {"Redis": f"{version} on the loopback: {settings}"}
