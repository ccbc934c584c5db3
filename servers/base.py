"""What all servers here share: free ports, skipping without one, and a guard against orphans."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

START_S = 60.0
HOST = "127.0.0.1"
PORTS = range(10_000, 22_000)
"""Below the ports that the kernel gives to outgoing connections: one of those could take the port
of a server that is about to start, or that a test restarts. Cluster nodes use port + 10,000 too."""
GUARD = 'read -r _; kill -9 "$0"; rm -rf "$1"'


class Missing(Exception):
    """The server is not installed here, or it did not start; the message says why."""


class Startable(Protocol):
    def start(self) -> None: ...
    def close(self) -> None: ...


Server = TypeVar("Server", bound=Startable)


def started(make: Callable[[], Server]) -> Server:
    """A running server. One that does not start leaves nothing behind."""
    server = make()
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


@contextmanager
def running(make: Callable[[], Server]) -> Iterator[Server]:
    """A server for a fixture, closed afterwards."""
    with skipping():
        server = started(make)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def skipping() -> Iterator[None]:
    """Skip the test whose server is missing, with the reason; fail in CI, where nobody reads it."""
    import pytest

    try:
        yield
    except Missing as missing:
        if "CI" in os.environ:
            pytest.fail(str(missing))
        pytest.skip(str(missing))


def free_port(is_fit: Callable[[int], bool] = lambda port: True) -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        if is_free(port) and is_fit(port):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


class Guard:
    """Kills a server and removes its folder when this process is gone, however it ended: the
    guard's standard input ends with it."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", GUARD, str(pid), str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        self._process.kill()
        self._process.communicate()
