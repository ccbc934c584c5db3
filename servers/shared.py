"""Servers that all test processes share. The process that hands out the tests starts each one when
the first test asks for it, and stops them at the end."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from multiprocessing.managers import BaseManager
from typing import Any

from servers import base, mongo, postgres, redis
from servers.base import Missing

VARIABLE = "HOLDFAST_TEST_SERVERS"
"""How test processes reach the one that has the servers: the name of a socket, and its key."""

NO_HISTORY = {"minSnapshotHistoryWindowInSeconds": "0"}
"""Or what one test deleted would be in the way of the next ones for five minutes."""

KINDS: dict[str, Callable[[], Any]] = {
    "postgres": lambda: postgres.PostgresServer(settings=postgres.FAST),
    "redis": lambda: redis.RedisServer(settings=redis.EVERYSEC),
    "redis-cluster": redis.RedisCluster,
    "mongo": lambda: mongo.MongoServer(NO_HISTORY, options=mongo.FAST),
}
YOURS = {
    "postgres": postgres.URL_VARIABLE,
    "redis": redis.URL_VARIABLE,
    "mongo": mongo.URL_VARIABLE,
}


class Servers:
    """Starts a server of each kind once, however many threads ask for it."""

    def __init__(self) -> None:
        self._locks = {kind: threading.Lock() for kind in KINDS}
        self._found: dict[str, Any] = {}

    def url(self, kind: str) -> str:
        """Raises Missing, each time, if there is none."""
        if given := os.environ.get(YOURS.get(kind, "")):
            return given
        with self._locks[kind]:
            if kind not in self._found:
                try:
                    self._found[kind] = base.started(KINDS[kind])
                except Missing as missing:
                    self._found[kind] = missing
        found = self._found[kind]
        if isinstance(found, Missing):
            raise found
        return found.url

    def close(self) -> None:
        for found in self._found.values():
            if not isinstance(found, Missing):
                found.close()
        self._found.clear()


class _Manager(BaseManager):
    pass


def offer(servers: Servers) -> None:
    """Let the processes that this one starts from now on use its servers."""
    _Manager.register("servers", callable=lambda: servers, exposed=["url"])
    address, key = f"\0holdfast-{secrets.token_hex(8)}", secrets.token_hex(16)
    served = _Manager(address=address, authkey=key.encode()).get_server()
    threading.Thread(target=served.serve_forever, daemon=True).start()
    os.environ[VARIABLE] = f"{address[1:]} {key}"


def offered() -> Any:
    """The servers of the process that started this one; None if it offers none."""
    if VARIABLE not in os.environ:
        return None
    address, key = os.environ[VARIABLE].split()
    _Manager.register("servers")
    manager = _Manager(address=f"\0{address}", authkey=key.encode())
    manager.connect()
    return manager.servers()  # pyright: ignore
