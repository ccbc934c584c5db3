"""A process that forks with an open store, its connections in use.

    python forked.py ACTION URL

The child uses the same Holdfast object. What is wrong ends in a traceback and exit code 1.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

import holdfast
from holdfast import Holdfast, queue
from holdfast.stores.postgres import wake
from holdfast.testing import wait_until


def connect(url: str) -> Holdfast:
    """With its listening connection open. Nobody looks by himself: only a notice wakes him."""
    wake.LOOK_S = wake.BLIND_LOOK_S = queue.WAIT_STEP_S = 600.0
    hf = holdfast.connect(url)
    hf.store.wait([hf.queue("orders").name], hf.context.clock.now(), 0.001)
    wait_until(lambda: listener(hf))
    return hf


def listener(hf: Holdfast) -> int:
    """The server's process behind the connection that hears notices; 0 while there is none."""
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
        (lease,) = hf.queue("orders").lease(wait=20)
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


def listeners(hf: Holdfast) -> list[int]:
    said = "SELECT pid FROM pg_stat_activity WHERE query = %(listen)s"
    listen = {"listen": f'LISTEN "{hf.store._where.schema}"'}
    return [pid for (pid,) in hf.store._db.execute(said, listen)]


if __name__ == "__main__":
    {"enqueue": both_enqueue, "close": child_closes, "wait": child_waits}[sys.argv[1]](sys.argv[2])
