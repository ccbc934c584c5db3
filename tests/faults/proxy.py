"""A network that can fail: passes bytes between clients and one server, holds them, or cuts."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

CHUNK = 65536


class Proxy:
    """Listens on a free loopback port. `stall` makes every connection half open: it is accepted,
    what is sent is taken and held, and nothing ever comes back. `resume` delivers what was held."""

    def __init__(self, to_port: int) -> None:
        self._to = ("127.0.0.1", to_port)
        self._passing = threading.Event()
        self._passing.set()
        self._stall_when: bytes | None = None
        self._lose: tuple[bytes, bool] | None = None
        self._unheard: socket.socket | None = None
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="proxy-accept")
        self._acceptor.start()

    def stall(self) -> None:
        self._passing.clear()

    def stall_when(self, said: bytes) -> None:
        """From the moment that a client says this."""
        self._stall_when = said

    def lose(self, said: bytes, *, answer: bool) -> None:
        """Once: cut every connection when a client says this. The server has not heard it; or it
        has heard and answered, and the client does not hear that."""
        self._lose = (said, answer)

    def resume(self) -> None:
        self._stall_when = None
        self._passing.set()

    def cut(self) -> None:
        """End every connection; new ones are accepted."""
        with self._lock:
            for each in self._sockets:
                _shut(each)

    def close(self) -> None:
        _shut(self._listener)
        self._acceptor.join()
        self._listener.close()
        self.resume()
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(self._to, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets += [client, server]
                for ends in ((client, server), (server, client)):
                    pump = threading.Thread(target=self._pump, args=ends, name="proxy-pump")
                    self._threads.append(pump)
                    pump.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if self._stall_when is not None and self._stall_when in data:
                    self.stall()
                self._passing.wait()
                if self._is_lost(source, sink, data):
                    self.cut()
                    break
                sink.sendall(data)
        self._passing.wait()
        _shut(source)
        _shut(sink)

    def _is_lost(self, source: socket.socket, sink: socket.socket, data: bytes) -> bool:
        if source is self._unheard:
            self._unheard = None
            return True
        if self._lose is None or self._lose[0] not in data:
            return False
        answer, self._lose = self._lose[1], None
        if answer:
            self._unheard = sink
        return not answer


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
