"""A process that forks with an open store, its connections in use.

    python forked.py ACTION URL

The child uses the same Holdfast object. What is wrong ends in a traceback and exit code 1.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import holdfast
from holdfast import Holdfast
from holdfast.queue import queue
from holdfast.testing import wait_until


def connect(url: str) -> Holdfast:
    """With its listening connection open. Nobody looks by himself: only a notice wakes him."""
    queue.WAIT_STEP_S = 600.0
    if is_redis(url):
        from holdfast.stores.redis import waiting

        waiting.LOOK_S = 600.0  # and no longer than half the time-out of the URL
    else:
        from holdfast.stores.postgres import wake

        wake.LOOK_S = wake.BLIND_LOOK_S = 600.0
    hf = holdfast.connect(url)
    hf.store.wait([hf.queue("orders").name], hf.context.clock.now(), 0.001)
    wait_until(lambda: listener(hf))
    return hf


def is_redis(url: str) -> bool:
    return url.startswith("redis")


def listener(hf: Holdfast) -> int:
    """What the server calls the connection that hears notices; 0 while there is none."""
    if is_redis(hf.store._where.shown):
        return hf.store._db.run("CLIENT", "ID")
    db = hf.store._wake._listening
    return db.info.backend_pid if db is not None and hf.store._wake._hearing else 0


def in_child(act: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        act()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def must_succeed(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def both_enqueue(url: str) -> None:
    hf = connect(url)
    orders = hf.queue("orders")
    orders.enqueue("before")
    must_succeed(in_child(lambda: orders.enqueue("child") and None))
    orders.enqueue("parent")
    hf.close()


def child_closes(url: str) -> None:
    """The sockets of a parent are its own: a child that closes its store leaves them alone."""
    hf = connect(url)
    before = listener(hf)
    must_succeed(in_child(hf.close))
    with holdfast.connect(url) as other:
        other.queue("orders").enqueue("news")
    assert [lease.message.payload for lease in hf.queue("orders").lease(wait=20)] == ["news"]
    assert listener(hf) == before, "the child cut the listening connection of its parent"
    hf.close()


def child_waits(url: str) -> None:
    hf = connect(url)

    def consume() -> None:
        began = time.monotonic()
        (lease,) = hf.queue("orders").lease(wait=30)
        assert time.monotonic() - began < 20, "not told: it looked once more at the end"
        hf.queue("orders").ack(lease)

    ours = listener(hf)
    child = in_child(consume)
    with holdfast.connect(url) as other:
        # Two listen: the parent and its child. Only then there is somebody to be told.
        wait_until(lambda: len(set(listeners(other)) - {ours}) == 1)
        other.queue("orders").enqueue("news")
    must_succeed(child)
    assert hf.queue("orders").stats().done == 1
    hf.close()


def mixed(url: str) -> None:
    """Both at once; a thread of the parent waits on a connection that was open at the fork."""
    hf = connect(url)
    orders = hf.queue("orders")
    later = hf.queue("later")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(later.lease, wait=30)
        wait_until(lambda: listeners(hf))
        child = in_child(lambda: ask_and_compare(orders, "child"))
        ask_and_compare(orders, "parent")
        must_succeed(child)
        later.enqueue("news")
        assert [lease.message.payload for lease in waiting.result(20)] == ["news"]
    hf.close()


def ask_and_compare(orders: queue.Queue, who: str) -> None:
    for n in range(300):
        sent = orders.enqueue(f"{who} {n}")
        assert orders.get(sent.id).payload == f"{who} {n}"


def listeners(hf: Holdfast) -> list[int]:
    if is_redis(hf.store._where.shown):
        clients = hf.store._db.run("CLIENT", "LIST").decode().splitlines()
        pairs = [dict(part.split("=", 1) for part in client.split()) for client in clients]
        return [int(client["id"]) for client in pairs if client["cmd"] == "blpop"]
    said = "SELECT pid FROM pg_stat_activity WHERE query = %(listen)s"
    listen = {"listen": f'LISTEN "{hf.store._where.schema}"'}
    return [pid for (pid,) in hf.store._db.execute(said, listen)]


if __name__ == "__main__":
    actions = {
        "enqueue": both_enqueue,
        "close": child_closes,
        "wait": child_waits,
        "mixed": mixed,
    }
    actions[sys.argv[1]](sys.argv[2])
