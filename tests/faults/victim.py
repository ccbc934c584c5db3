"""A process to be killed: does one thing on a store, and dies at a named point.

    python victim.py ACTION FILE_OR_URL LEDGER [STATEMENT NTH]

With STATEMENT it ends itself by SIGKILL at the NTH time. On a SQLite file: when SQLite is about to
run that statement, between any two of a transaction, before its COMMIT, or before the next BEGIN.
On Redis it is a script or a command and a moment: "lease before" it is sent, "lease sent" when the
server has run it and its answer is unread, "lease after" the answer was read. On MongoDB it is a
command and its collection, if it has one, and a moment: "update:messages before".
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from functools import partialmethod
from itertools import count
from typing import Any

import holdfast
from holdfast import Backoff, Fail, Holdfast, Message, Outgoing, Retry
from holdfast.rules.outcome import Outcome

BACKOFF = Backoff(base=0.01, jitter="none")
BATCH = 20
SIZES = (20, 300)
"""Of the batches of a flood: a store may have a way of its own for large ones."""


def connect(where: str) -> Holdfast:
    url = where if "://" in where else f"sqlite:///{where}"
    hf = holdfast.connect(url, ack_timeout=1, backoff=BACKOFF)
    hf.queue("orders", max_attempts=50)
    return hf


def name_connections(url: str) -> None:
    """After the store's prefix: so that a test sees when the last of them is gone."""
    import redis

    name = url.partition("prefix=")[2].partition("&")[0]
    redis.Connection.__init__ = partialmethod(redis.Connection.__init__, client_name=name)


def register(hf: Holdfast, ledger: str) -> int:
    """The handler, and the open file in which it notes what it finished."""
    out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @hf.handler("orders")
    def handle(n: int, message: Message) -> None:
        if n % 7 == 0 and message.attempts == 1:
            raise ValueError("not at the first try")
        if n % 50 == 49 and not message.redriven:
            raise Fail("poison")
        os.write(out, f"{message.id}\n".encode())

    return out


def work(hf: Holdfast, ledger: str, *, until_empty: bool = False, concurrency: int = 4) -> None:
    register(hf, ledger)
    hf.work(until_empty=until_empty, concurrency=concurrency)


def produce(hf: Holdfast) -> None:
    for n in range(0, 200, BATCH):
        hf.queue("orders").enqueue_many(range(n, n + BATCH))


def flood(hf: Holdfast, ledger: str) -> None:
    """Batch after batch for ever; what was accepted is noted after the call has returned."""
    out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for n in count():
        size = SIZES[n % len(SIZES)]
        batch = f"{os.getpid()}-{n}-{size}"
        hf.queue("orders").enqueue_many([batch] * size)
        os.write(out, f"{batch}\n".encode())


def batch_of(size: int) -> list[Outgoing]:
    """The same ids each time."""
    return [Outgoing(n, id=uuid.UUID(int=n + 1)) for n in range(size)]


def settle(hf: Holdfast, outcome: Outcome) -> None:
    orders = hf.queue("orders")
    orders.settle([(lease, outcome) for lease in orders.lease(10)])


def ack(hf: Holdfast, ledger: str) -> None:
    out = register(hf, ledger)
    leases = hf.queue("orders").lease(10)
    os.write(out, "".join(f"{lease.message.id}\n" for lease in leases).encode())
    hf.queue("orders").settle(leases)


def sweep(hf: Holdfast) -> None:
    hf.sweep()


def redrive(hf: Holdfast) -> None:
    hf.redrive("orders.dlq")


def wait(hf: Holdfast) -> None:
    from holdfast.queue import queue
    from holdfast.stores.redis import waiting

    waiting.LOOK_S = queue.WAIT_STEP_S = 600.0  # so it stays the first in line
    hf.queue("orders").lease(wait=60)


def die_at(hf: Holdfast, statement: str, nth: int) -> None:
    if hasattr(hf.store._db, "tx"):
        die_at_mongo(hf, *statement.split(" "), nth)
        return
    if hasattr(hf.store._db, "client"):
        die_at_redis(hf, *statement.split(" "), nth)
        return
    seen = 0

    def watch(sql: str) -> None:
        nonlocal seen
        if sql.strip().startswith(statement):
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    hf.store._db._writer.set_trace_callback(watch)


def die_at_redis(hf: Holdfast, name: str, moment: str, nth: int) -> None:
    import redis

    from holdfast.stores.redis import scripts

    script = getattr(scripts, name.upper(), None)
    if script is not None:
        hf.store._db.run("SCRIPT", "LOAD", script.text)  # else its first call is not its last
    what = (name.upper() if script is None else script.sha).encode()
    lock, left = threading.Lock(), nth
    send, read = redis.Connection.send_packed_command, redis.Connection.read_response
    asked: set[redis.Connection] = set()

    def die(connection: redis.Connection, here: str) -> None:
        if moment == here and connection in asked:
            os.kill(os.getpid(), signal.SIGKILL)

    def send_and_die(self: redis.Connection, command: Any, *args: Any, **options: Any) -> None:
        nonlocal left
        if what in b"".join(command):
            with lock:
                left -= 1
                if left == 0:
                    asked.add(self)
        die(self, "before")
        send(self, command, *args, **options)
        if moment == "sent" and self in asked:
            while not self.can_read(1.0):
                pass
            die(self, "sent")

    def read_and_die(self: redis.Connection, *args: Any, **options: Any) -> Any:
        answer = read(self, *args, **options)
        die(self, "after")
        return answer

    redis.Connection.send_packed_command = send_and_die
    redis.Connection.read_response = read_and_die


def die_at_mongo(hf: Holdfast, what: str, moment: str, nth: int) -> None:
    from pymongo import monitoring

    lock, left = threading.Lock(), nth

    class Death(monitoring.CommandListener):
        asked: int | None = None

        def started(self, event: monitoring.CommandStartedEvent) -> None:
            nonlocal left
            of = event.command.get(event.command_name)
            name = f"{event.command_name}:{of.split('.')[-1]}" if isinstance(of, str) else ""
            if what in (name, event.command_name):
                with lock:
                    left -= 1
                    if left == 0:
                        self.asked = event.operation_id
                        self.die("before")

        def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
            if event.operation_id == self.asked:
                self.die("after")

        def failed(self, event: monitoring.CommandFailedEvent) -> None:
            """Two who write at once: one of them begins its transaction again."""
            nonlocal left
            if event.operation_id == self.asked:
                with lock:
                    self.asked, left = None, 1

        def die(self, here: str) -> None:
            if moment == here:
                os.kill(os.getpid(), signal.SIGKILL)

    monitoring.register(Death())
    hf.store._db._pid = 0  # it opens a client anew, which has the listener


def main(action: str, where: str, ledger: str, *point: str) -> None:
    if where.startswith("redis"):
        name_connections(where)
    hf = connect(where)
    actions: dict[str, Callable[[], None]] = {
        "work": lambda: work(hf, ledger),
        "finish": lambda: work(hf, ledger, until_empty=True),
        "produce": lambda: produce(hf),
        "flood": lambda: flood(hf, ledger),
        "sweep": lambda: sweep(hf),
        "redrive": lambda: redrive(hf),
        "ack": lambda: ack(hf, ledger),
        "nack": lambda: settle(hf, Retry("x")),
        "exhaust": lambda: settle(hf, Retry("x")),
        "fail": lambda: settle(hf, Fail("poison")),
        "promote": lambda: hf.queue("orders").lease(10) and None,
        "purge": lambda: hf.queue("orders").purge() and None,
        "batch": lambda: hf.queue("orders").enqueue_many(batch_of(1000)) and None,
        "wait": lambda: wait(hf),
    }
    if point:
        die_at(hf, point[0], int(point[1]))
    actions[action]()


if __name__ == "__main__":
    main(*sys.argv[1:])
