"""Clients that cost little: prebuilt requests on raw sockets, in a process of their own.

python -m bench.wire.load post PORT CONNECTIONS SECONDS PATH BODY    # requests a second
python -m bench.wire.load poll PORT CONNECTIONS QUEUE                # wait, until SIGINT
python -m bench.wire.load watch PORT CONNECTIONS EVENTS              # when each one had it
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from typing import Any

import uvloop

WARM_S = 0.5
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
NUMBER = re.compile(rb'"bench":(\d+)')


def request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


class Repeat(asyncio.Protocol):
    """Sends the same again as soon as the answer is there."""

    def __init__(self, sent: bytes, count: Counter[int]) -> None:
        self._sent = sent
        self._count = count
        self._had = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        self._had += data
        end = self._had.find(b"\r\n\r\n")
        if end < 0:
            return
        found = LENGTH.search(self._had, 0, end)
        assert found is not None, self._had
        if len(self._had) >= end + 4 + int(found[1]):
            self._count[int(self._had[9:12])] += 1
            self._had = b""
            self._transport.write(self._sent)


async def post(port: int, connections: int, seconds: float, path: str, body: str) -> None:
    loop, count = asyncio.get_running_loop(), Counter[int]()
    sent = request("POST", path, body.encode())
    for _ in range(connections):
        await loop.create_connection(lambda: Repeat(sent, count), "127.0.0.1", port)
    await asyncio.sleep(WARM_S)
    before, started = count[201], time.perf_counter()
    await asyncio.sleep(seconds)
    taken = time.perf_counter() - started
    assert set(count) == {201}, count
    print((count[201] - before) / taken, flush=True)


async def poll(port: int, connections: int, queue: str) -> None:
    sent = request("POST", f"/v1/queues/{queue}/leases", b'{"wait": 60}')
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
    for _, writer in streams:
        writer.write(sent)
    print("sent", flush=True)
    await asyncio.sleep(3600)


async def watch(port: int, connections: int, events: int) -> None:
    """A line for each event: when the last of them had it, by the clock of this machine."""
    had: dict[int, list[float]] = {n: [] for n in range(events)}
    arrived = asyncio.Event()

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("GET", "/events"))
        await reader.readuntil(b"event: ping")
        ready.append(True)
        async for line in reader:
            if found := NUMBER.search(line):
                had[int(found[1])].append(time.monotonic())
                arrived.set()

    ready: list[bool] = []
    tasks = [asyncio.create_task(one()) for _ in range(connections)]
    while len(ready) < connections:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    for n in range(events):
        while len(had[n]) < connections:
            arrived.clear()
            await arrived.wait()
        print(max(had[n]), flush=True)
    for task in tasks:
        task.cancel()


async def main(does: str, *words: str) -> None:
    port, connections = int(words[0]), int(words[1])
    match does:
        case "post":
            await post(port, connections, float(words[2]), words[3], words[4])
        case "poll":
            await poll(port, connections, words[2])
        case _:
            await watch(port, connections, int(words[2]))


if __name__ == "__main__":
    try:
        uvloop.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(0)
