"""What a redrive of many dead letters costs, and what others feel of it (DEAD-9).

    script/bench --redrive [--store NAME | --url URL] [--count N] [--direct] [--fresh] [--write]

One process redrives; another leases and acks messages of a queue of its own, now and then, in
quiet, while the redrive runs, and in quiet again. Both go by gRPC to one server, whose memory is
measured; with --direct both are on the store themselves. --write makes docs/benchmarks-redrive.md;
with --store it changes only that row of it.

A virtual machine stands still when its host runs another one. The kernel counts that as steal; what
the core that lost most lost during the longest call is told with it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg

import holdfast
from bench import machine
from bench.partitions import STORES, store
from bench.processes import ROOT, Child, peak_mib
from bench.timing import payload, timed
from bench.wire.serving import serving
from holdfast import Holdfast, Queue

COUNT, CHUNK = 1_000_000, 5000
QUIET_S = 30.0
OTHERS = 100_000
WAL_FILES = 64
"""Of 16 MiB: what max_wal_size is by default."""
MEMORY_MIB, STOPPED_MS, SLOWER = 200, 100, 2
PAGE = ROOT / "docs" / "benchmarks-redrive.md"


@dataclass(frozen=True, order=True)
class Call:
    """Milliseconds by the clock, how many of them the host took, and when it ended."""

    ms: float
    stolen: float
    at: float


@dataclass(frozen=True)
class Outcome:
    """Of one store."""

    store: str
    rate: float
    peak_mib: float
    quiet: list[Call]
    busy: list[Call]

    @property
    def slower(self) -> float:
        return percentile(self.busy, 0.99) / percentile(self.quiet, 0.99)

    def but_for_the_host(self) -> Outcome:
        """Of the calls during which the host took nothing from any core."""
        quiet, busy = ([c for c in calls if not c.stolen] for calls in (self.quiet, self.busy))
        return replace(self, quiet=quiet, busy=busy)


def fill(hf: Holdfast, n: int) -> None:
    """Dead letters, put where they lie: dying one by one would take longer than all the rest."""
    hf.queue("orders")
    put(hf.queue("orders.dlq"), n)


def put(queue: Queue, n: int) -> None:
    for start in range(0, n, CHUNK):
        queue.enqueue_many(payload(i) for i in range(start, min(n, start + CHUNK)))


def calling(queue: Queue, going: Callable[[], bool]) -> list[Call]:
    """Each lease and each ack, at moments of its own, while it goes on."""
    found: list[Call] = []
    while going():
        time.sleep(random.uniform(0.001, 0.02))
        with stopwatch(found):
            leases = queue.lease()
        time.sleep(random.uniform(0.001, 0.02))
        with stopwatch(found):
            queue.ack(leases[0])
    return found


def for_a_while() -> Callable[[], bool]:
    until = time.perf_counter() + QUIET_S
    return lambda: time.perf_counter() < until


@contextmanager
def stopwatch(found: list[Call]) -> Iterator[None]:
    before, started = machine.stolen_ms(), time.perf_counter()
    yield
    ended = time.perf_counter()
    taken = 1000 * (ended - started)
    stolen = max(b - a for a, b in zip(before, machine.stolen_ms(), strict=True))
    found.append(Call(taken, min(stolen, taken), ended))


def percentile(found: list[Call], part: float) -> float:
    return sorted(found)[int(len(found) * part)].ms


def told(found: list[Call]) -> str:
    p50, p99 = (percentile(found, part) for part in (0.5, 0.99))
    return f"{p50:.1f} / {p99:.1f} / {max(found).ms:.1f}"


def redrive(url: str) -> None:
    """In a process of its own, which is measured if it is on the store itself; says what it did."""
    with holdfast.connect(url) as hf, timed() as watch:
        moved = hf.redrive("orders.dlq").redriven
    peak = peak_mib("self")  # ru_maxrss would begin with what the parent holds
    print(json.dumps({"redriven": moved, "seconds": watch.seconds, "peak_mib": peak}))


@contextmanager
def place(url: str, *, direct: bool) -> Iterator[tuple[str, Child | None]]:
    """Where those who are measured connect to: the store, or a server on it."""
    if direct:
        yield url, None
        return
    with serving(url) as (server, _, grpc):
        yield grpc, server


def measure(name: str, url: str, n: int, *, direct: bool, fresh: bool) -> Outcome:
    with holdfast.connect(url) as hf:
        fill(hf, n)
        put(hf.queue("other"), OTHERS)
    if not fresh:
        rested(url)
    with place(url, direct=direct) as (at, server), holdfast.connect(at) as hf:
        other = hf.queue("other")
        quiet = calling(other, for_a_while())
        command = [sys.executable, "-m", "bench.redrive", "--url", at, "--only-redrive"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        began = time.perf_counter()
        busy = calling(other, lambda: process.poll() is None)
        longest = sorted(busy, reverse=True)[:5]
        own = sorted(busy, key=lambda call: call.stolen - call.ms)[:5]
        for call in dict.fromkeys(longest + own):
            when = f"{call.at - began:.0f} s after it began, at {call.at:.3f} of the system's clock"
            print(f"{call.ms:.0f} ms ({call.stolen:.0f} stolen) {when}", file=sys.stderr)
        said = json.loads(process.communicate()[0])
        quiet += calling(other, for_a_while())
        if server is not None:
            said["peak_mib"] = server.peak_mib()
    assert said["redriven"] == n
    return Outcome(name, n / said["seconds"], said["peak_mib"], quiet, busy)


def rested(url: str) -> None:
    """PostgreSQL as a server that has been at work: it has the files of its log, and uses them
    again.

    A new one makes each when it is needed, 16 MiB of zeros, and all who commit wait for that: in
    traces of a new server (--fresh) its longest calls waited for WalInitWrite.
    """
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as db:
            _set_wal_size(db, "SET max_wal_size = '4GB'")  # all are kept
            for _ in range(WAL_FILES):
                db.execute("SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
            db.execute("CHECKPOINT")
            _set_wal_size(db, "RESET max_wal_size")


def _set_wal_size(db: psycopg.Connection[Any], change: LiteralString) -> None:
    db.execute(f"ALTER SYSTEM {change}")
    db.execute("SELECT pg_reload_conf()")


def row(of: Outcome) -> list[str]:
    return [
        of.store,
        f"{of.rate:,.0f}",
        met(of.peak_mib < MEMORY_MIB, f"{of.peak_mib:.0f}"),
        told(of.quiet),
        told(of.busy),
        longest(of.busy),
        slower(of),
    ]


def longest(found: list[Call]) -> str:
    """Where the host took what is too much of it, no program could have done anything about it."""
    most = max(found)
    if most.ms < STOPPED_MS:
        return f"{most.ms:.0f} of {len(found):,}: met"
    own = max(call.ms - call.stolen for call in found)
    verdict = f"met but for the host; without it {own:.0f}" if own < STOPPED_MS else "MISSED"
    return f"{most.ms:.0f} ({most.stolen:.0f} stolen) of {len(found):,}: {verdict}"


def slower(of: Outcome) -> str:
    """As with the longest: a host that runs others for minutes makes any program's p99."""
    alone = of.but_for_the_host()
    if of.slower <= SLOWER or alone.slower > SLOWER:
        return met(of.slower <= SLOWER, f"{of.slower:.2f}")
    stolen = 1 - len(alone.busy) / len(of.busy)
    return (
        f"{of.slower:.2f}: met but for the host; {alone.slower:.2f} "
        f"without the {100 * stolen:.0f} % of the calls that it took time from"
    )


def met(is_met: bool, figure: str) -> str:
    return f"{figure}: {'met' if is_met else 'MISSED'}"


def table(rows: list[list[str]]) -> list[str]:
    head = [
        "store",
        "messages/s",
        f"MiB, < {MEMORY_MIB}",
        "a lease or an ack in quiet: p50 / p99 / longest, ms",
        "meanwhile",
        f"the longest, < {STOPPED_MS} ms",
        f"p99 of quiet's, <= {SLOWER}",
    ]
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]


def joined(rows: list[list[str]]) -> list[list[str]]:
    """With those of the page that were not measured now."""
    old = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()]
    by_store = {cells[0]: cells for cells in [*old, *rows] if cells[0] in STORES}
    return [by_store[name] for name in STORES if name in by_store]


def page(rows: list[list[str]], n: int, facts: dict[str, str], load: str) -> str:
    lines = [
        "# What others feel of a redrive",
        "",
        f"Written by `script/bench --redrive --write`; do not edit. {n:,} dead letters are "
        "redriven through gRPC, while a consumer leases and acks messages of another queue through "
        f"the same server, and before and after ({QUIET_S:.0f} s each). The memory is the "
        "server's. "
        "Every store waits for its disk as it does by default. All times are by the clock. Where "
        "the longest call is over its bound, it says how much of it the host of this virtual "
        "machine took from the core that lost most (steal), and how long the longest call is "
        "without that; where the p99 is, what it is of the calls from which the host took nothing, "
        "meanwhile and in quiet.",
        "",
        "PostgreSQL is measured as a server that has been at work for a while: it uses the files "
        "of its log (WAL) again. A new one (`--fresh`) makes each of them when it is needed, 16 "
        "MiB of zeros, and all who commit wait meanwhile, whatever it was that wrote so much: "
        "[what to set](postgres.md#settings-of-the-server).",
        "",
        *table(rows),
        "",
        f"Measured on: {'; '.join(f'{name} {value}' for name, value in facts.items())}. {load}",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench --redrive", description=__doc__)
    parser.add_argument("--redrive", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--store", choices=STORES, default=None)
    parser.add_argument("--url", help="a store that is there, and empty")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--direct", action="store_true", help="on the store, without a server")
    parser.add_argument("--fresh", action="store_true", help="PostgreSQL as a new server")
    parser.add_argument("--write", action="store_true", help=f"make {PAGE.relative_to(ROOT)}")
    parser.add_argument("--only-redrive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_redrive:
        return redrive(options.url)
    facts, steal = machine.facts(Path.cwd()), machine.Steal()
    rows: list[list[str]] = []
    for name in [options.store or "given"] if options.url or options.store else STORES:
        print(f"{name}: filling, then {options.count:,} are redriven", file=sys.stderr, flush=True)
        with nullcontext(options.url) if options.url else store(name) as url:
            fresh = options.fresh or options.url is not None  # somebody else's server
            outcome = measure(name, url, options.count, direct=options.direct, fresh=fresh)
            rows.append(row(outcome))
        print("  ".join(rows[-1]), flush=True)
    load = f"Others took {steal.percent():.1f} % of the processors meanwhile."
    if options.write:
        if options.store:
            load += f" That is of {options.store}, which was measured last, by itself."
            rows = joined(rows)
        PAGE.write_text(page(rows, options.count, facts, load))
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return None


if __name__ == "__main__":
    main()
