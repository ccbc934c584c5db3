"""Processes to be killed, each forked off a parent that has loaded everything and opened nothing.

    python mongo_victims.py URL

For each line [action, queue, now, nth] of its input a child prepares the queue, does the action,
and ends itself by SIGKILL before the nth command that it would send for that: which is after the
answer to the one before. Says how it ended, and what it sent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from pymongo import monitoring

import holdfast
from holdfast import Done, Fail, Holdfast, Lease, Outgoing, Queue, Retry
from holdfast.model.payload import JSON
from holdfast.model.queues import partition_claim
from holdfast.rules.lifecycle import redriven
from holdfast.rules.outcome import Outcome
from holdfast.stores.contract import BatchEnd, LeaseAsk, ReserveAsk
from holdfast.stores.mongo import MongoStore
from holdfast.telemetry.observe import unobserved
from holdfast.testing import ManualClock

N = 5
HEARD = ("hello", "ping", "getMore", "killCursors", "endSessions")
"""Commands that move nothing; and whoever listens is another thread."""


class Death(monitoring.CommandListener):
    def __init__(self) -> None:
        self.left = 0
        self.who: int | None = None
        self.told = -1

    def arm(self, nth: int, told: int) -> None:
        self.who, self.left, self.told = threading.get_ident(), nth, told

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if threading.get_ident() != self.who or event.command_name in HEARD:
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        what = event.command.get(event.command_name)
        where = f" {what.removeprefix('holdfast.')}" if isinstance(what, str) else ""
        os.write(self.told, f"{event.command_name}{where}\n".encode())

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def ids(queue: str) -> list[str]:
    """The same each time."""
    return [str(uuid.uuid5(uuid.NAMESPACE_OID, f"{queue} {n}")) for n in range(N)]


def batch(queue: Queue, **options: Any) -> list[Outgoing]:
    return [Outgoing(n, id=id, **options) for n, id in enumerate(ids(queue.name))]


def leased(queue: Queue, **options: Any) -> list[Lease]:
    queue.enqueue_many(batch(queue))
    return queue.lease(N, **options)


Prepared = Callable[[], object]


def settling(queue: Queue, outcome: Outcome) -> Prepared:
    moves = [(lease, outcome) for lease in leased(queue)]
    return lambda: queue.settle(moves)


def acking_some(queue: Queue) -> Prepared:
    """Each in a way of its own, all in one batch."""
    outcomes = [Done(), Done(1), Retry("x"), Retry("x", delay=0), Fail("x")]
    moves = [(lease, outcomes[n % 5]) for n, lease in enumerate(leased(queue))]
    return lambda: queue.settle(moves)


def leasing(queue: Queue) -> Prepared:
    queue.enqueue_many(batch(queue))
    return lambda: queue.lease(N)


def leasing_again(queue: Queue) -> Prepared:
    queue.settle([(lease, Retry("x", delay=0)) for lease in leased(queue)])
    return lambda: queue.lease(N)


def promoting(queue: Queue, clock: ManualClock) -> Prepared:
    queue.enqueue_many(batch(queue, delay=5))
    clock.advance(6)
    return lambda: queue.lease(N)


def sweeping(hf: Holdfast, queue: Queue, clock: ManualClock) -> Prepared:
    leased(queue)
    clock.advance(61)
    return hf.sweep


def exhausting(hf: Holdfast, queue: Queue, clock: ManualClock) -> Prepared:
    queue.enqueue_many(batch(queue, max_attempts=1))
    queue.lease(N)
    clock.advance(61)
    return hf.sweep


def redriving(hf: Holdfast, queue: Queue) -> Prepared:
    queue.settle([(lease, Fail("x")) for lease in leased(queue)])
    return lambda: hf.redrive(queue.dlq.name)


def moving(hf: Holdfast, queue: Queue) -> Prepared:
    """Dead letters to another queue, edited."""
    queue.settle([(lease, Fail("x")) for lease in leased(queue)])
    now, to = hf.context.clock.now(), hf.queue(f"{queue.name}-to").name
    moves = [
        replace(
            redriven(entry.message, entry.place, to, now),
            partition=0,
            body=b"0",
            content_type=JSON,
        )
        for entry in queue.dlq.browse()
    ]
    return lambda: hf.store.settle(moves, now)


def purging(queue: Queue) -> Prepared:
    queue.enqueue_many(batch(queue))
    return queue.purge


def deleting(queue: Queue) -> Prepared:
    queue.enqueue_many(batch(queue))
    queue.settle(queue.lease(2))
    return lambda: queue.delete(force=True)


def finishing(hf: Holdfast, queue: Queue) -> Prepared:
    leased(queue, batch="b")
    now = hf.context.clock.now()
    return lambda: hf.store.settle(BatchEnd(queue.name, "b", N, "COMPLETED"), now)


def holding(hf: Holdfast, queue: Queue) -> Prepared:
    queue.enqueue_many(batch(queue))
    ask = ReserveAsk(queue.name, N, "x", uuid.uuid4().hex, "b")
    return lambda: hf.store.lease(ask, hf.context.clock.now())


def fenced(hf: Holdfast, queue: Queue, name: str | None) -> Prepared:
    """By the owner of the only partition, whose claim will have run out."""
    queue.settle([(lease, Retry("x", delay=1)) for lease in leased(queue)])
    now = hf.context.clock.now() + 1000
    claim = hf.store.claim(partition_claim(queue.name, 0), "x", 1, now)
    assert claim is not None
    token, epochs = uuid.uuid4().hex, (claim.epoch,)
    if name:
        reserve = ReserveAsk(queue.name, N, "x", token, name, (0,), epochs)
        return lambda: hf.store.lease(reserve, now)
    ask = LeaseAsk(queue.name, N, "x", token, 60_000, (0,), epochs=epochs)
    return lambda: hf.store.lease(ask, now)


def folding(hf: Holdfast, queue: Queue, clock: ManualClock) -> Prepared:
    """What a process counted that is gone for long."""
    queue.enqueue_many(batch(queue))
    clock.advance(3600)
    return lambda: hf.store.tidy(clock.now(), log_before=None)


def repairing(hf: Holdfast, queue: Queue, clock: ManualClock) -> Prepared:
    """What a process did not count that died when it had moved messages."""
    queue.enqueue_many(batch(queue))
    counts = hf.store._db.get("counts")
    died = {"do": "x", "ds": clock.now(), "r": 3}
    known = {"q": hf.store._queues.must_exist(queue.name).q, "u": {"$gt": 0}}
    assert counts.update_one(known, {"$set": died}).modified_count == 1
    clock.advance(60)
    return lambda: hf.store.tidy(clock.now(), log_before=None)


ACTIONS: dict[str, Callable[[Holdfast, Queue, ManualClock], Prepared]] = {
    "enqueue": lambda hf, queue, clock: lambda: queue.enqueue_many(batch(queue)),
    "lease": lambda hf, queue, clock: leasing(queue),
    "lease again": lambda hf, queue, clock: leasing_again(queue),
    "hold": lambda hf, queue, clock: holding(hf, queue),
    "fenced lease": lambda hf, queue, clock: fenced(hf, queue, None),
    "fenced hold": lambda hf, queue, clock: fenced(hf, queue, "b"),
    "promote": lambda hf, queue, clock: promoting(queue, clock),
    "ack": lambda hf, queue, clock: settling(queue, Done()),
    "ack with result": lambda hf, queue, clock: settling(queue, Done({"a": 1})),
    "nack": lambda hf, queue, clock: settling(queue, Retry("x")),
    "nack at once": lambda hf, queue, clock: settling(queue, Retry("x", delay=0)),
    "fail": lambda hf, queue, clock: settling(queue, Fail("x")),
    "mixed": lambda hf, queue, clock: acking_some(queue),
    "finish": lambda hf, queue, clock: finishing(hf, queue),
    "sweep": sweeping,
    "exhaust": exhausting,
    "redrive": lambda hf, queue, clock: redriving(hf, queue),
    "move": lambda hf, queue, clock: moving(hf, queue),
    "purge": lambda hf, queue, clock: purging(queue),
    "delete": lambda hf, queue, clock: deleting(queue),
    "fold": folding,
    "repair": repairing,
}


def do(url: str, action: str, name: str, now: int, nth: int, told: int) -> None:
    death, clock = Death(), ManualClock(now)
    monitoring.register(death)
    hf = holdfast.connect(url, clock=clock)
    assert isinstance(unobserved(hf.store), MongoStore)
    act = ACTIONS[action](hf, hf.queue(name), clock)
    death.arm(nth, told)
    act()


def main(url: str) -> None:
    for line in sys.stdin:
        action, name, now, nth = json.loads(line)
        read, told = os.pipe()
        child = os.fork()
        if not child:
            try:
                do(url, action, name, now, nth, told)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(told)
        with os.fdopen(read) as said:
            sent = said.read().splitlines()
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status) * -1, sent]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
