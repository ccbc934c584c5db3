"""The peers that keep a queue in Redis, each by its own documentation and at its best setting."""

from __future__ import annotations

from importlib.metadata import version

from bench.contenders import (
    celery_app,
    dramatiq_app,
    huey_redis_app,
    rq_app,
    saq_app,
    streaq_app,
    taskiq_app,
)
from bench.contenders.elsewhere import Elsewhere
from bench.contenders.limit_redis import DURABLE
from bench.contenders.peer import Peer
from bench.results import Who

ARQ_APP = Elsewhere("arq_app", "bench-arq")
ARQ_JOBS, ARQ_POLL_S = 20, 0.01
"""Where more no longer drain faster, and as often as the others that poll."""

HUEY = Peer(
    Who(
        "huey", "peer", version("huey"),
        f"RedisHuey, no results; consumer of {huey_redis_app.WORKERS} threads", DURABLE,
        "popped when read: lost if its consumer dies", acks=False,
    ),
    huey_redis_app, 4_000,
)  # fmt: skip
DRAMATIQ = Peer(
    Who(
        "dramatiq", "peer", version("dramatiq"),
        f"RedisBroker; worker of {dramatiq_app.THREADS} threads, "
        f"dramatiq_queue_prefetch={dramatiq_app.PREFETCH}", DURABLE,
        "moved to its worker's set, acked; given back when the worker is not heard of", acks=True,
    ),
    dramatiq_app, 4_000, retries="after its backoff of 1 to 10 ms",
    recovers="heartbeat_timeout, maintenance_chance at its most",
)  # fmt: skip
TASKIQ = Peer(
    Who(
        "taskiq", "peer", f"{version('taskiq')}, taskiq-redis {version('taskiq-redis')}",
        f"RedisStreamBroker, uvloop; receiver of {taskiq_app.CONCURRENCY} tasks, "
        "validate_params=False",
        DURABLE, "pending with its consumer, acked; stays in the stream", acks=True,
    ),
    taskiq_app, 4_000, retries="at once (SimpleRetryMiddleware)",
    recovers="idle_timeout, looked at when a message comes: here after 10 s",
)  # fmt: skip
SAQ = Peer(
    Who(
        "saq", "peer", version("saq"),
        f"uvloop, no results; worker of concurrency={saq_app.CONCURRENCY}; on redis-py "
        f"{version('redis')}, though it asks for one below 8",
        DURABLE, "moved to a list of active jobs, deleted when done", acks=True,
    ),
    saq_app, 2_000, recovers="timeout of the job, swept every second, 5 s for each",
)  # fmt: skip
STREAQ = Peer(
    Who(
        "streaq", "peer", f"{version('streaq')}, coredis {version('coredis')}",
        f"uvloop, no results; worker of concurrency={streaq_app.CONCURRENCY}; needs Redis 7: "
        "takes part where the server is one",
        DURABLE, "pending with its consumer, deleted when done", acks=True,
    ),
    streaq_app, 2_000, retries="at once (StreaqRetry)", recovers="idle_timeout",
)  # fmt: skip
ARQ = Peer(
    Who(
        "arq", "peer", f"{ARQ_APP.version('arq')}, redis {ARQ_APP.version('redis')}",
        f"uvloop, no results; worker of max_jobs={ARQ_JOBS}, poll_delay={ARQ_POLL_S}; in an "
        "environment of its own, as it asks for a redis below 6",
        DURABLE, "stays in the queue, marked by a key that expires; deleted when done", acks=True,
    ),
    ARQ_APP, 1_500, (str(ARQ_JOBS), str(ARQ_POLL_S)), retries="at its next poll (Retry)",
    recovers="job_timeout, and 10 s that it adds",
)  # fmt: skip
CELERY = Peer(
    Who(
        "celery", "peer", f"{version('celery')}, kombu {version('kombu')}",
        f"acks_late, no results; {celery_app.CONCURRENCY} {celery_app.POOL}, "
        f"worker_prefetch_multiplier={celery_app.PREFETCH}, no gossip, mingle, heartbeat",
        DURABLE, "popped into a hash of what is not acked, deleted when done", acks=True,
    ),
    celery_app, 1_500, retries="at once (autoretry_for)",
    recovers="visibility_timeout, unacked_restore_interval=1, acks_late",
)  # fmt: skip
RQ = Peer(
    Who(
        "rq", "peer", version("rq"), "SimpleWorker (no fork for a job), no results", DURABLE,
        "popped into a registry, deleted when done; abandoned ones are failed", acks=True,
    ),
    rq_app, 300, retries="at once (Retry)", recovers="job_timeout, and 60 s that it adds",
)  # fmt: skip
PEERS = [HUEY, DRAMATIQ, TASKIQ, SAQ, STREAQ, ARQ, CELERY, RQ]
