"""What a wire costs: HTTP beside a bare endpoint, batches beside the library, and who only waits.

    script/bench --server [--quick] [--write]

The server is `holdfast serve` on SQLite, as a process of its own; so are those who load it. --write
puts the table into docs/benchmarks-server.md.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import msgspec

import holdfast
from bench import machine
from bench.console import folder_on_disk
from bench.processes import Child
from bench.timing import payload, timed
from bench.wire.load import request
from bench.wire.serving import serving
from holdfast import Holdfast
from holdfast.stores.contract import Event
from holdfast.wire import shapes as s
from holdfast.wire.operations import BY_NAME
from holdfast.wire.proto import service_name, to_proto

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-server.md"
REPEATS, QUICK_REPEATS = 5, 2
POST_S, QUICK_POST_S = 4.0, 1.0
CONNECTIONS = (32, 1)
BATCH, BATCHES, QUICK_BATCHES = 1000, 30, 6
POLLS, IDLE_S, QUICK_IDLE_S = 1000, 30.0, 5.0
WATCHERS, EVENTS, QUICK_EVENTS = 100, 50, 10
CONSUME, QUICK_CONSUME = 10_000, 1000

Row = tuple[str, str, str, str]
"""Measure, figures with their spread, ratio, and what we aim at."""


def load(*words: Any) -> Child:
    return Child([sys.executable, "-m", "bench.wire.load", *map(str, words)])


# One message a call


def singles(port: int, at: Scale) -> Iterator[Row]:
    body = msgspec.json.encode({"payload": payload(0)}).decode()
    with Child([sys.executable, "-m", "bench.wire.bare"]) as bare:
        bare_port = int(bare.lines(1)[0].rpartition(":")[2])
        for connections in CONNECTIONS:
            ours: list[float] = []
            limit: list[float] = []
            for _ in range(at.repeats):
                for where, found in ((port, ours), (bare_port, limit)):
                    path = "/v1/queues/orders/messages"
                    with load("post", where, connections, at.post_s, path, body) as child:
                        found.append(float(child.lines(1)[0]))
            ratio = median(a / b for a, b in zip(ours, limit, strict=True))
            figures = f"{spread(ours, RATE)}; bare {spread(limit, RATE)}"
            plural = "s" if connections > 1 else ""
            text = f"HTTP, one message a call, {connections} connection{plural}, messages/s"
            # One alone waits for each commit in turn; only many can share it.
            aim = met(ratio >= 0.5, ">= 0.5") if connections > 1 else ""
            yield text, figures, f"{ratio:.2f}", aim


# A thousand a call


def batches(hf: Holdfast, port: int, target: str, at: Scale) -> Iterator[Row]:
    """By turns: the library on the same file, and each door with requests that are ready to send;
    then our own client, which makes them and reads the answers."""
    ways: dict[str, Callable[[], None]] = {}
    queue, items = hf.queue("library"), [payload(i) for i in range(BATCH)]
    with (
        raw_http(port) as over_http,
        raw_grpc(target) as over_grpc,
        holdfast.connect(f"http://127.0.0.1:{port}") as http_client,
        holdfast.connect(f"grpc://{target}") as grpc_client,
    ):
        ways["library"] = lambda: void(queue.enqueue_many(items))
        ways["HTTP"] = over_http
        ways["gRPC"] = over_grpc
        remote = {"HTTP": http_client.queue("client"), "gRPC": grpc_client.queue("client")}
        ways["HTTP, our client"] = lambda: void(remote["HTTP"].enqueue_many(items))
        ways["gRPC, our client"] = lambda: void(remote["gRPC"].enqueue_many(items))
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(at.repeats):
            for name, way in ways.items():
                with timed() as watch:
                    for _ in range(at.batches):
                        way()
                rates[name].append(at.batches * BATCH / watch.seconds)
    for name in list(ways)[1:]:
        pairs = zip(rates[name], rates["library"], strict=True)
        ratio = median(a / b for a, b in pairs)
        figures = f"{spread(rates[name], RATE)}; library {spread(rates['library'], RATE)}"
        target_text = "" if "client" in name else met(ratio >= 0.5, ">= 0.5")
        yield f"{BATCH:,} messages a call, {name}, messages/s", figures, f"{ratio:.2f}", target_text


def batch_ask() -> s.EnqueueBatchAsk:
    docs = [s.OutgoingDoc(payload=msgspec.Raw(encoded(payload(i)))) for i in range(BATCH)]
    return s.EnqueueBatchAsk("orders", docs)


@contextmanager
def raw_http(port: int) -> Iterator[Callable[[], None]]:
    body = encoded({"messages": batch_ask().messages})
    sent = request("POST", "/v1/queues/orders/messages:batch", body)
    with socket.create_connection(("127.0.0.1", port)) as sock, sock.makefile("rb") as answer:

        def call() -> None:
            sock.sendall(sent)
            assert b" 201 " in answer.readline()
            length = 0
            while (line := answer.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            assert len(answer.read(length)) == length

        yield call


@contextmanager
def raw_grpc(target: str) -> Iterator[Callable[[], None]]:
    operation = BY_NAME["EnqueueBatch"]
    sent = to_proto(batch_ask()).SerializeToString()
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(target, unlimited) as channel:
        call = channel.unary_unary(f"/{service_name(operation)}/{operation.name}")
        yield lambda: void(call(sent))


# Lease and ack


def consuming(hf: Holdfast, port: int, target: str, at: Scale) -> Iterator[Row]:
    """Ten at a time, one after the other, by our client: what a simple consumer gets."""
    rates: dict[str, list[float]] = {"library": [], "HTTP": [], "gRPC": []}
    urls = {"HTTP": f"http://127.0.0.1:{port}", "gRPC": f"grpc://{target}"}
    for _ in range(at.repeats):
        for name, found in rates.items():
            hf.queue("work").enqueue_many(payload(i) for i in range(at.consume))
            with holdfast.connect(urls[name]) if name in urls else plain(hf) as consumer:
                queue = consumer.queue("work", create=False)
                with timed() as watch:
                    while leases := queue.lease(10):
                        queue.settle(leases)
            found.append(at.consume / watch.seconds)
    for name in urls:
        ratio = median(a / b for a, b in zip(rates[name], rates["library"], strict=True))
        figures = f"{spread(rates[name], RATE)}; library {spread(rates['library'], RATE)}"
        yield f"lease ten and settle them, {name}, messages/s", figures, f"{ratio:.2f}", ""


@contextmanager
def plain(hf: Holdfast) -> Iterator[Holdfast]:
    yield hf


# Who only waits


def idle(hf: Holdfast, server: Child, port: int, at: Scale) -> Iterator[Row]:
    hf.queue("empty")
    quiet = cpu_share(server, at.idle_s)
    with load("poll", port, POLLS, "empty") as child:
        child.lines(1)
        time.sleep(2.0)  # until all of them wait
        share = cpu_share(server, at.idle_s)
    figures = f"{share:.3f} of a core; with nobody {quiet:.3f}"
    yield f"{POLLS:,} long polls that wait", figures, f"{share:.3f}", met(share < 0.05, "< 0.05")


def cpu_share(server: Child, seconds: float) -> float:
    before, started = server.cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (server.cpu_seconds() - before) / (time.perf_counter() - started)


def events(hf: Holdfast, port: int, at: Scale) -> Iterator[Row]:
    """From before the publish, by another process on the store, until the last one has it."""
    taken: list[float] = []
    with load("watch", port, WATCHERS, at.events) as child:
        child.lines(1)
        for n in range(at.events):
            time.sleep(0.1)
            sent = time.monotonic()
            hf.store.publish([Event("requeue", hf.context.clock.now(), {"bench": n})])
            taken.append(1000 * (float(child.lines(1)[0]) - sent))
    figures = f"{spread(taken, '{:.0f}'.format)} ms of {len(taken)}"
    text = f"an event to all of {WATCHERS} watchers"
    yield text, figures, f"{max(taken):.0f} ms", met(max(taken) < 200, "< 200 ms")


# The run


class Scale(msgspec.Struct, frozen=True):
    """How much of each."""

    repeats: int = REPEATS
    post_s: float = POST_S
    batches: int = BATCHES
    idle_s: float = IDLE_S
    events: int = EVENTS
    consume: int = CONSUME


QUICK = Scale(QUICK_REPEATS, QUICK_POST_S, QUICK_BATCHES, QUICK_IDLE_S, QUICK_EVENTS, QUICK_CONSUME)
RATE = "{:,.0f}".format


def measure(folder: Path, at: Scale) -> Iterator[Row]:
    url = f"sqlite:///{folder}/bench.db"
    with serving(url) as (server, http, grpc_), holdfast.connect(url) as hf:
        port, target = int(http.rpartition(":")[2]), grpc_.removeprefix("grpc://")
        hf.queue("orders")
        yield from idle(hf, server, port, at)
        yield from events(hf, port, at)
        yield from singles(port, at)
        yield from batches(hf, port, target, at)
        yield from consuming(hf, port, target, at)


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def void(_: Any) -> None:
    """For what is only done."""


def spread(values: list[float], text: Callable[[float], str]) -> str:
    return f"{text(median(values))} ({text(min(values))} to {text(max(values))})"


def met(is_met: bool, target: str) -> str:
    return f"{target}: {'met' if is_met else 'MISSED'}"


def page(rows: list[Row], facts: dict[str, str], load: str) -> str:
    lines = [
        "# What a wire costs",
        "",
        "Written by `script/bench --server --write`; do not edit. One `holdfast serve` on SQLite "
        "(`synchronous=NORMAL`), without keys and TLS; those who load it are another process on "
        "the same cores, and the library works on the same file. Payloads of 100 bytes. The bare "
        "endpoint is Starlette on the same uvicorn settings: it parses the same body into the "
        "same type, answers 201, and stores nothing. Requests are ready to send, except where our "
        "own client makes them and reads the answers. By turns, in one run; each figure is the "
        "median with the least and the most, the ratio is the median of the ratios of the turns.",
        "",
        "| measure | figures | | target |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"Measured on: {'; '.join(f'{name} {value}' for name, value in facts.items())}. {load}",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    quick, write = "--quick" in arguments, "--write" in arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or children would outlive it
    rows: list[Row] = []
    with folder_on_disk() as folder:
        facts, steal = machine.facts(folder), machine.Steal()
        for row in measure(folder, QUICK if quick else Scale()):
            print("  ".join(row), flush=True)
            rows.append(row)
    taken = f"Others took {steal.percent():.1f} % of the processors meanwhile."
    if write:
        PAGE.write_text(page(rows, facts, taken))
        print(f"wrote {os.path.relpath(PAGE)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
