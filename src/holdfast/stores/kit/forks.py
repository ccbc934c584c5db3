"""What a process that was forked off must not share with its parent: sockets, files and threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.errors import StoreUnavailable

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that is made again in a forked process. The parent's is forgotten, never closed."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made = (os.getpid(), make())

    def get(self) -> T:
        pid, value = self._made
        if pid != os.getpid():
            value = self._make()
            self._made = (os.getpid(), value)
        return value


class Opening:
    """Opens the connections of a store at their first use in a process; closed is closed for good.

    The connections of a parent process are its own: `open` replaces them, and `close` runs only in
    the process that has opened them.
    """

    def __init__(self, shown: str, open: Callable[[], None], close: Callable[[], None]) -> None:
        self._shown = shown
        self._open = open
        self._close = close
        self._pid = 0
        self._closed = False
        self.lock = threading.Lock()
        """Held while they are opened or closed."""

    def ensure(self) -> None:
        if self._pid == os.getpid():
            return
        with self.lock:
            if self._closed:
                raise StoreUnavailable(f"{self._shown}: this connection was closed")
            if self._pid != os.getpid():
                self._open()
                self._pid = os.getpid()

    def close(self) -> None:
        with self.lock:
            self._closed = True
            if self._pid == os.getpid():
                self._pid = 0
                self._close()
