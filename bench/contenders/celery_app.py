"""celery; as a program, its worker in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from bench.contenders import tasks
from bench.timing import timed

POOL, CONCURRENCY, PREFETCH = "threads", 2, 64
SETTINGS = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "worker_prefetch_multiplier": PREFETCH,
    "worker_enable_remote_control": False,
    "worker_redirect_stdouts": False,
}
RETRIED = {"autoretry_for": (tasks.FailedOnce,), "default_retry_delay": 0}
POLL_S = 0.01
POLLED = {"polling_interval": POLL_S, "calc_queue_size": False}
"""For MongoDB, where kombu asks again and again: once a second, unless it is told."""
WATCHFUL = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
"""On Redis, kombu gives back what is not acked in time once in 100 s, unless it is told."""


def make(url: str) -> tuple[Celery, Any, Any]:
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(SETTINGS)
    if url.startswith("mongodb:"):
        app.conf.broker_transport_options = POLLED
    elif seconds := tasks.recover_s():
        app.conf.broker_transport_options = {"visibility_timeout": seconds, **WATCHFUL}
    nothing = app.task(tasks.nothing, name="nothing", **RETRIED)
    return app, nothing, app.task(tasks.note, name="note")


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    app, nothing, _ = make(url)
    with timed() as watch:
        for item in items:
            nothing.delay(item)
    app.close()
    return watch.seconds


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    app, _, note = make(url)
    yield note.delay
    app.close()


def work(url: str) -> None:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    pool = [f"--pool={POOL}", f"--concurrency={CONCURRENCY}"]
    make(url)[0].start(["--quiet", "worker", *pool, *quiet])


if __name__ == "__main__":
    work(sys.argv[1])
