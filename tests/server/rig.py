"""A server to test against: in a thread of this process, or as the real program."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.server.run import Address, Server

ANY = "127.0.0.1:0"


@dataclass
class Doors:
    """Where a server is."""

    http: str
    grpc: str
    server: Server
    loop: asyncio.AbstractEventLoop

    def url(self, door: str) -> str:
        return self.http if door == "http" else self.grpc


@contextmanager
def serving(hf: Holdfast, **options: Any) -> Iterator[Doors]:
    """A server on this connection, on free ports, in a thread; ends gracefully."""
    ready, ended = threading.Event(), asyncio.Event()
    made: dict[str, Any] = {}

    async def run() -> None:
        made["loop"] = asyncio.get_running_loop()
        server = made["server"] = Server(
            hf, http=Address.parse("http", ANY), grpc=Address.parse("grpc", ANY), **options
        )
        await server.start()
        ready.set()
        await ended.wait()
        await server.stop()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            made["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="server under test")
    thread.start()
    ready.wait()
    try:
        if "error" in made:
            raise made["error"]
        server: Server = made["server"]
        secure = "s" if server.is_secure else ""
        yield Doors(
            f"http{secure}://{server.http}", f"grpc{secure}://{server.grpc}", server, made["loop"]
        )
    finally:
        if "error" not in made:
            made["loop"].call_soon_threadsafe(ended.set)
        thread.join()
    if "error" in made:
        raise made["error"]


class Program:
    """`holdfast serve` as a process of its own."""

    def __init__(self, url: str, *options: str, **env: str) -> None:
        command = [sys.executable, "-m", "holdfast", "serve", "--url", url]
        self.process = subprocess.Popen(
            [*command, "--http", ANY, "--grpc", ANY, *options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        said = self._said_until("key is needed")
        self.http = re.search(r"(https?://\S+?),", said).group(1)  # type: ignore[union-attr]
        self.grpc = re.search(r"(grpcs?://\S+)", said).group(1)  # type: ignore[union-attr]

    def _said_until(self, words: str) -> str:
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if words in line:
                return said
        raise AssertionError(f"the server ended: {said}")

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def stop(self) -> int:
        """As an operator would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def _ended(self) -> int:
        assert self.process.stdout is not None
        code = self.process.wait()
        self.process.stdout.close()
        return code

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """A certificate for loopback, its key, and who signed it."""
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    chain, key, ca = folder / "chain.pem", folder / "key.pem", folder / "ca.pem"
    for n, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(chain, append=n > 0)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    return chain, key, ca
