"""The peers that keep a queue in MongoDB, each by its own documentation, at its best setting."""

from __future__ import annotations

from importlib.metadata import version

import pymongo

from bench.contenders import celery_app, find_loop_app, mongodb_queue_app
from bench.contenders.elsewhere import Elsewhere
from bench.contenders.limit_mongo import DRIVER, DURABLE
from bench.contenders.peer import Peer
from bench.results import Who

THREADS = 8
"""Where more no longer drain faster, on two cores."""

DRAMATIQ_APP = Elsewhere("dramatiq_mongodb_app", "bench-dramatiq-mongodb")

LOOP = Peer(
    Who(
        "find_one_and_update loop", "peer", DRIVER,
        "as teams write it: $or over pending and due retries, index on status and _id, delete_one; "
        f"one thread, asks again after {find_loop_app.POLL_S * 1000:.0f} ms", DURABLE,
        "taken by token, deleted when done; stays taken if its worker dies; no log", acks=True,
    ),
    find_loop_app, 500, ("1",),
)  # fmt: skip
LOOPS = Peer(
    Who(
        f"{THREADS} find_one_and_update loops", "peer", DRIVER,
        f"the same in {THREADS} threads of one process; drains only: it enqueues like one", DURABLE,
        LOOP.who.delivery, acks=True,
    ),
    find_loop_app, 1_000, (str(THREADS),),
)  # fmt: skip
MONGODB_QUEUE = Peer(
    Who(
        "mongodb-queue", "peer", version("mongodb-queue"),
        f"pymongo {pymongo.version}; it has no worker: get and ack in {THREADS} threads, each asks "
        f"again after {mongodb_queue_app.POLL_S * 1000:.0f} ms", DURABLE,
        "hidden until it is acked or its time is up; stays when done", acks=True,
    ),
    mongodb_queue_app, 1_000, (str(THREADS),),
    retries="when it is visible again, after 2 s: it has no nack", recovers="visibility",
)  # fmt: skip
CELERY = Peer(
    Who(
        "celery", "peer", f"{version('celery')}, kombu {version('kombu')}",
        f"acks_late, no results; {celery_app.CONCURRENCY} {celery_app.POOL}, "
        f"worker_prefetch_multiplier={celery_app.PREFETCH}, "
        f"polling_interval={celery_app.POLL_S}, no gossip, mingle, heartbeat", DURABLE,
        "deleted when read: lost if its worker dies", acks=False,
    ),
    celery_app, 500, retries="at once (autoretry_for)",
)  # fmt: skip
DRAMATIQ = Peer(
    Who(
        "dramatiq-mongodb", "peer",
        f"{DRAMATIQ_APP.version('dramatiq-mongodb')}, dramatiq {DRAMATIQ_APP.version('dramatiq')}",
        f"worker of {THREADS} threads, no Prometheus; makes no index; in an environment of its "
        "own, as it asks for a dramatiq below 2", DURABLE,
        "marked when read, and when done; stays marked if its worker dies; its retries fail: the "
        "same _id is inserted again", acks=True,
    ),
    DRAMATIQ_APP, 500, (str(THREADS),), retries="",
)  # fmt: skip
PEERS = [LOOP, MONGODB_QUEUE, DRAMATIQ, CELERY]
DRAINING = [LOOP, LOOPS, MONGODB_QUEUE, DRAMATIQ, CELERY]
