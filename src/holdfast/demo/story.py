"""The acts of the demo, in order. Each waits for what it needs to see, and says what it saw."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import IO

import msgspec

from holdfast import Finished, Lease, Message, QueueStats
from holdfast.demo import plan, shop
from holdfast.demo.screen import Screen
from holdfast.demo.shop import Order, hf, orders

PATIENCE_S = 25.0
HANDS_OF_A = 4
HANDS_OF_B = 8


class Stuck(Exception):
    """Something that must happen did not."""


class Seen(msgspec.Struct):
    """What happened, as the acts saw it; the checks compare it with the plan and the log."""

    accepted: dict[str, Order] = {}
    """By message id."""
    pid_a: int = 0
    done_by_a: int = 0
    in_dead_hands: dict[str, Lease] = {}
    requeued: int = 0
    dead: list[Message] = []
    redriven: int = 0
    last: QueueStats | None = None
    log: list[Finished] = []


def tell(screen: Screen) -> Seen:
    seen = Seen()
    orders_come_in(screen, seen)
    worker_a_dies(screen, seen)
    with worker_b(screen) as log:
        worker_b_takes_over(screen, seen, log)
        dead_letters(screen, seen)
        fix_and_redrive(screen, seen)
    seen.last = orders.stats()
    seen.log = list(orders.log())
    return seen


def orders_come_in(screen: Screen, seen: Seen) -> None:
    todo = plan.make_orders()
    screen.act(f"{len(todo)} orders come in")
    began = time.monotonic()
    messages = orders.enqueue_many(todo)
    took = (time.monotonic() - began) * 1000
    seen.accepted = {message.id: order for message, order in zip(messages, todo, strict=True)}
    screen.say(f"One enqueue_many, all or none: {took:.0f} ms. What the workers do not know yet:")
    kinds = plan.count_kinds(todo)
    timeouts = sum(order.payment_timeouts for order in todo)
    screen.facts(
        {
            f"{kinds['plain']} plain": "nothing wrong with them",
            f"{kinds['bank times out']} slow banks": f"{timeouts} time-outs between them",
            f"{kinds['express']} express": "their carrier cannot be reached from one host",
            f"{kinds['no VAT rate']} to Liechtenstein": "the shop has no VAT rate for it: a bug",
            f"{kinds['out of stock']} hourglasses": "not in stock",
        }
    )


def worker_a_dies(screen: Screen, seen: Seen) -> None:
    screen.act("Worker A starts, and dies with orders in its hands")
    stuck: list[str] = []
    said: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.demo.shop"],
        env={**os.environ, "SHOP_CARRIER": "hangs"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        seen.pid_a = process.pid
        for pipe, lines in ((process.stdout, stuck), (process.stderr, said)):
            threading.Thread(target=_listen, args=(pipe, lines), daemon=True).start()
        screen.say(f"A is a process of its own, pid {process.pid}, with {HANDS_OF_A} threads.")
        with screen.live(_depth(screen)):
            until("worker A hangs", lambda: len(stuck) == HANDS_OF_A, process, said)
        _renewed(screen, [int(line.split()[1]) for line in stuck])
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
        process.wait()
    seen.in_dead_hands = _leases()
    seen.done_by_a = orders.stats().done
    screen.bad(
        f"kill -9 {process.pid}. It shipped {seen.done_by_a} orders and still holds the lease on "
        f"{len(seen.in_dead_hands)}. Nobody told the queue."
    )


def _listen(pipe: IO[str], lines: list[str]) -> None:
    with pipe:
        for line in pipe:
            lines.append(line)  # noqa: PERF402  # one by one: somebody else looks at them


def _renewed(screen: Screen, stuck: list[int]) -> None:
    """While a worker lives its leases are renewed, however long a handler takes."""
    numbers = ", ".join(map(str, sorted(stuck)))
    screen.say(f"The carrier does not answer: all {HANDS_OF_A} threads hang, on orders {numbers}.")
    first = _leases()
    moved: list[int] = []

    def later() -> bool:
        now = _leases()
        moved[:] = [now[id].deadline - lease.deadline for id, lease in first.items() if id in now]
        return min(moved) > 0

    until("the leases are renewed", later)
    screen.say(
        f"Their leases hold {orders.policy.ack_timeout:g} s, but A lives and renews them from "
        f"outside the handlers: the deadlines just moved by {min(moved) / 1000:.1f} s."
    )


@contextmanager
def worker_b(screen: Screen) -> Generator[list[str], None, None]:
    """In this process: `hf.work()` is the same with signals."""
    worker = hf.worker(concurrency=HANDS_OF_B)
    thread = threading.Thread(target=worker.run, name="worker-b")
    with _worker_log() as log:
        thread.start()
        try:
            yield log
        finally:
            worker.stop()
            thread.join()


def worker_b_takes_over(screen: Screen, seen: Seen, log: list[str]) -> None:
    screen.act("Worker B takes over")
    events = hf.subscribe(after=0)
    total = len(seen.accepted)
    deadline = max((lease.deadline for lease in seen.in_dead_hands.values()), default=0)
    requeued_at: list[int] = []

    def all_done_or_dead() -> bool:
        for event in events.next(0):
            if event.type == "requeue":
                seen.requeued += event.payload["count"] + event.payload["dlq_count"]
                requeued_at.append(event.timestamp)
        stats = orders.stats()
        return stats.done + stats.dead == total

    with screen.live(_depth(screen, log)):
        until("every order is done or dead", all_done_or_dead)
    if requeued_at:
        late = (requeued_at[-1] - deadline) / 1000
        screen.good(
            f"Overdue: the {seen.requeued} orders of the dead worker were back in the queue "
            f"{late:.1f} s after their leases ran out."
        )
    retries = [line for line in log if "again in" in line]
    screen.say(f"{len(retries)} deliveries failed and came back later. One order in B's log:")
    screen.lines(_of_one(log, seen))


def dead_letters(screen: Screen, seen: Seen) -> None:
    screen.act("Dead letters")
    seen.dead = [entry.message for entry in orders.dlq.browse()]
    screen.bad(f"{len(seen.dead)} orders will not ship as things are. Nothing of them is lost:")
    groups: Counter[tuple[str, str, str]] = Counter()
    tries: dict[tuple[str, str, str], set[int]] = {}
    for message in seen.dead:
        last = message.errors[-1]
        group = (last.code, last.message, message.reason or "")
        groups[group] += 1
        tries.setdefault(group, set()).add(message.attempts)
    screen.table(
        ("orders", "error", "what it said", "why it is dead", "attempts"),
        [
            (str(n), code, said, reason, "-".join(map(str, _ends(tries[code, said, reason]))))
            for (code, said, reason), n in groups.most_common()
        ],
        right=(0, 4),
    )


def fix_and_redrive(screen: Screen, seen: Seen) -> None:
    screen.act("A fix, and a redrive")
    shop.deploy_fix()
    screen.say("Somebody read that table, added a VAT rate for LI and restocked hourglasses.")
    seen.redriven = hf.redrive("orders.dlq").redriven
    screen.say(f'hf.redrive("orders.dlq").redriven == {seen.redriven}')
    with screen.live(_depth(screen)):
        until("all are done", lambda: orders.stats().done == len(seen.accepted))
    screen.good("All of them shipped, at the first attempt after the redrive.")


def until(
    what: str,
    condition: Callable[[], bool],
    process: subprocess.Popen[str] | None = None,
    said: Sequence[str] = (),
) -> None:
    """Look again and again until it is so; say what is missing if it never is."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if process is not None and process.poll() is not None:
            problem = f"its process ended by itself, exit code {process.returncode}"
        elif time.monotonic() > end:
            problem = f"not within {PATIENCE_S:g} s"
        else:
            time.sleep(0.02)
            continue
        raise Stuck("\n".join([f"{what}: {problem}", *(line.rstrip() for line in said[-10:])]))


def _leases() -> dict[str, Lease]:
    entries = orders.browse("leased")
    return {entry.message.id: entry.lease for entry in entries if entry.lease is not None}


def _depth(screen: Screen, log: list[str] | None = None) -> Callable[[], object]:
    return lambda: screen.depth(orders.stats(), (log or [])[-5:])


def _of_one(log: list[str], seen: Seen) -> list[str]:
    """The lines about the order with the most of them, its number for its long id."""
    mentions = Counter(id for line in log for id in line.split()[1:2] if id in seen.accepted)
    id = max(mentions, key=mentions.__getitem__)
    number = seen.accepted[id].number
    return [line.replace(f"orders {id}", f"order {number}") for line in log if id in line]


def _ends(numbers: set[int]) -> list[int]:
    return sorted({min(numbers), max(numbers)})


@contextmanager
def _worker_log() -> Generator[list[str], None, None]:
    """What the worker logs, kept instead of printed."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("holdfast")
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
