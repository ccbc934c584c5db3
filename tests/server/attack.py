"""Clients that attack a server over HTTP, for as long as this program runs:
`python -m tests.server.attack HOST PORT`. It prints a line when all of them have begun."""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from collections.abc import Awaitable, Callable

IDLE, SLOW, ENDLESS, GIANT = 2000, 50, 8, 8
PAUSE_S = 0.2
HEAD = b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\n"
PAGE = b"GET /v1/queues/giant/messages?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Slowloris: a byte now and then."""
    writer.write(HEAD + b"X: ")
    while not reader.at_eof():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(PAUSE_S)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"X: ")
    while not reader.at_eof():
        writer.write(b"x" * 65536)
        await writer.drain()


async def giant(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Asks for the largest page there is, and reads it slowly."""
    writer.write(PAGE)
    while await reader.read(65536):
        await asyncio.sleep(0.05)


async def for_ever(
    host: str, port: int, does: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable]
) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=65536)
            try:
                await does(reader, writer)
            finally:
                writer.close()
        except OSError:
            pass
        await asyncio.sleep(PAUSE_S + random.random())


async def main(host: str, port: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tasks = [
        asyncio.create_task(for_ever(host, port, does))
        for does, count in ((idle, IDLE), (slow, SLOW), (endless, ENDLESS), (giant, GIANT))
        for _ in range(count)
    ]
    print("begun", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
