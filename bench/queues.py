"""What it costs one worker to have many queues.

    script/bench --queues [--store NAME] [--count N] [--messages N] [--rounds N] [--idle SECONDS]
                          [--no-sweep]

One worker with concurrency 16 and a handler that does nothing works off the same number of
messages from one queue, and then from many queues that hold equally many. Then the queues are
empty, and the worker waits: what that costs it and the server, in percent of a core, and how long
after its enqueue a message in one of the queues is being handled. The ratio is the median of some
rounds, each with both drains. --no-sweep: the idle worker does not look for overdue messages.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import holdfast
from bench import machine
from bench.partitions import STORES, store
from bench.timing import payload, timed
from holdfast import Holdfast

QUEUES, MESSAGES, ROUNDS = 1000, 20_000, 3
IDLE_S, PROBES, REST_S = 10.0, 50, 0.1
SETTLE_S = 3.0


@dataclass(frozen=True)
class Outcome:
    """Of one store: messages a second, percent of a core, and milliseconds."""

    store: str
    one: list[float]
    many: list[float]
    worker_cpu: float
    server_cpu: float
    latencies: list[float]

    def __str__(self) -> str:
        half, late = median(self.latencies), max(self.latencies)
        ratios = [many / one for one, many in zip(self.one, self.many, strict=True)]
        return (
            f"{self.store:>9}: one queue {median(self.one):7,.0f}/s, "
            f"many {median(self.many):7,.0f}/s, ratio {median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}); idle {self.worker_cpu:.1f} % of a core, "
            f"server {self.server_cpu:.1f} %; a message starts after {half:.1f} ms, "
            f"at most {late:.1f} ms"
        )


def names_of(count: int) -> list[str]:
    return [f"queue-{n:04d}" for n in range(count)]


def do_nothing(sent: object) -> None: ...


def drain(hf: Holdfast, names: list[str], messages: int) -> float:
    """Messages a second, by one worker, all queues being equally full."""
    each = messages // len(names)
    for name in names:
        hf.queue(name).enqueue_many(payload(i) for i in range(each))
    worker = hf.worker(queues=names, until_empty=True, sweep=False)
    before = finished(hf, names)
    with timed() as watch:
        worker.run()
    done = finished(hf, names) - before
    if done != each * len(names):
        raise SystemExit(f"{done} of {each * len(names)} messages were done")
    return done / watch.seconds


def finished(hf: Holdfast, names: list[str]) -> int:
    return sum(stats.done for stats in hf.store.stats(names, hf.context.clock.now()))


def cpu_s(pid: int) -> float:
    """Of a process and all that it started."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0.0
    own = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_s(int(child)) for child in children)


def idle(
    hf: Holdfast, producer: Holdfast, names: list[str], seconds: float, *, sweep: bool
) -> tuple[float, float, list[float]]:
    """Percent of a core of the worker and of the server; milliseconds until a message starts."""
    started = threading.Event()
    at = [0.0]

    def note(sent: dict[str, object]) -> None:
        at[0] = time.perf_counter()
        started.set()

    for name in names:
        hf.handler(name)(note)
    worker = hf.worker(queues=names, sweep=sweep)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        time.sleep(SETTLE_S)
        began, mine, all_of_it = time.perf_counter(), time.process_time(), cpu_s(os.getpid())
        time.sleep(seconds)
        took = time.perf_counter() - began
        worker_s = time.process_time() - mine
        server_s = cpu_s(os.getpid()) - all_of_it - worker_s
        found: list[float] = []
        for name in random.Random(24).choices(names, k=PROBES):
            queue = producer.queue(name)
            started.clear()
            queue.enqueue(payload(0))
            sent = time.perf_counter()
            if not started.wait(60):
                raise SystemExit(f"a message in {name} did not start within a minute")
            found.append(max(0.0, (at[0] - sent) * 1000))
            time.sleep(REST_S)
    finally:
        worker.stop()
        running.join()
    return 100 * worker_s / took, 100 * max(0.0, server_s) / took, found


def measure(name: str, options: argparse.Namespace) -> Outcome:
    names = names_of(options.count)
    with store(name) as url, ExitStack() as opened:

        def connect() -> Holdfast:
            return opened.enter_context(holdfast.connect(url))

        hf, handled = connect(), ["one", *names]
        for each in handled:
            hf.handler(each)(do_nothing)
        one, many = list[float](), list[float]()
        for _ in range(options.rounds):
            one.append(drain(hf, ["one"], options.messages))
            many.append(drain(hf, names, options.messages))
        found = idle(connect(), connect(), names, options.idle, sweep=options.sweep)
        return Outcome(name, one, many, *found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__)
    parser.add_argument("--queues", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--count", type=int, default=QUEUES)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sweep", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    for what, value in machine.facts(Path.cwd()).items():
        print(f"{what}: {value}")
    for name in [options.store] if options.store else STORES:
        print(measure(name, options), flush=True)


if __name__ == "__main__":
    sys.exit(main())
