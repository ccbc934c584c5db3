"""The plan for PostgreSQL: which parties meet in which measure, and what we aim at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import msgspec
import psycopg

from bench.contenders import limit_postgres as limit
from bench.contenders import peers_postgres as peers
from bench.contenders.ours import CONCURRENCY, DELIVERY, VERSION, Ours
from bench.measures import depth, trickle
from bench.measures import endurance as enduring
from bench.measures import memory as remembering
from bench.measures.throughput import Entrant
from bench.measures.trickle import Setup
from bench.plan import (
    Measure,
    Setting,
    best_peer_target,
    compared,
    limit_target,
    of_limit,
    peer_target,
    soonest_target,
    with_fleets,
)
from bench.results import Result, Target, Who
from bench.server import stage as stage  # the plan's own

OURS = Ours(
    Who(
        name="holdfast",
        kind="ours",
        version=VERSION,
        settings=f"psycopg {psycopg.__version__}, log on; worker of {CONCURRENCY} threads",
        durability=limit.DURABLE,
        delivery=DELIVERY,
        acks=True,
    ),
    lambda url: f"{url}?schema=holdfast",
)
PARTIES: list[Who] = [OURS.who, limit.WHO, *peers.WHO]
SETUPS = [
    Setup(OURS.who, OURS.worker),
    Setup(peers.PGQUEUER, peers.pgqueuer_worker_in),
    Setup(peers.PROCRASTINATE, peers.procrastinate_worker_in),
]

SIZES = (100, 1_000)
FAST = 20_000
ONE_BY_ONE = 2_000
PEER_FAST = 5_000
PEER_SLOW = 500
MESSAGES = 200
P50_MS, P99_MS = 5.0, 20.0


def enqueue_bulk(at: Setting) -> list[Result]:
    return [result for size in SIZES for result in _enqueue_bulk(at, size)]


def _enqueue_bulk(at: Setting, size: int) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.enqueue_bulk(size), FAST),
        Entrant(limit.WHO, limit.enqueue_bulk(size), FAST, f"{FAST:,} messages by COPY"),
        Entrant(peers.PGQUEUER, peers.pgqueuer_enqueue_bulk(size), PEER_FAST),
        Entrant(peers.PROCRASTINATE, peers.procrastinate_enqueue_bulk(size), PEER_FAST),
    ]

    def judge(result: Result) -> list[Target]:
        return [*limit_target(result, 0.5), *best_peer_target(result, 2.0)]

    return compared(at, f"enqueue-bulk-{size}", f"Enqueue, batches of {size:,}", entrants, judge)


def enqueue_one(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.enqueue_one, ONE_BY_ONE),
        Entrant(limit.WHO, limit.enqueue_one, ONE_BY_ONE),
        Entrant(peers.PGQUEUER, peers.pgqueuer_enqueue_one, ONE_BY_ONE),
        Entrant(peers.PROCRASTINATE, peers.procrastinate_enqueue_one, ONE_BY_ONE),
    ]

    def judge(result: Result) -> list[Target]:
        return list(best_peer_target(result, 0.8))

    return compared(at, "enqueue-one", "Enqueue, one by one", entrants, judge)


def lease_ack(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.lease_ack_bulk, FAST),
        Entrant(limit.WHO, limit.lease_ack_bulk, FAST),
    ]
    return compared(at, "lease-ack", "Lease and ack, batches of 100", entrants, of_limit(0.5))


def drain(at: Setting) -> list[Result]:
    own = "its worker, first to last task"
    entrants = [
        Entrant(OURS.who, OURS.drain, FAST, "hf.work(until_empty=True), start and stop included"),
        Entrant(limit.WHO, limit.lease_ack_bulk, FAST, "lease and ack in batches, no handlers"),
        Entrant(peers.PGQUEUER, peers.pgqueuer_drain, FAST, own),
        Entrant(peers.PROCRASTINATE, peers.procrastinate_drain, PEER_SLOW, own),
    ]
    return compared(at, "drain", "Drain by one worker process, no-op handlers", entrants, _drained)


def _drained(result: Result) -> list[Target]:
    """Twice pgqueuer is what must hold; three times is what we want, and said to be so."""
    name = peers.PGQUEUER.name
    at_least = peer_target(result, name, 2.0)
    goal = msgspec.structs.replace(at_least, text=f"{at_least.text}, the goal", bound=3.0)
    slow = peer_target(result, peers.PROCRASTINATE.name, 20.0)
    return [*limit_target(result, 0.35), at_least, goal, slow]


def latency(at: Setting) -> list[Result]:
    result = trickle.latency(SETUPS, at.fresh, at.repeats, MESSAGES, at.tell)
    targets = [
        Target(f"From enqueue to handler, {word}", result.row(f"holdfast, {word}").median, bound,
               False, " ms")
        for word, bound in (("p50", P50_MS), ("p99", P99_MS))
    ]  # fmt: skip
    return [msgspec.structs.replace(result, targets=[*soonest_target(result), *targets])]


def idle(at: Setting) -> list[Result]:
    return [trickle.idle(SETUPS, at.fresh, at.tell)]


def at_depth(at: Setting) -> list[Result]:
    return depth.measure(OURS, at.fresh, at.repeats, at.tell, backlogs=depth.backlogs(at.quick))


def memory(at: Setting) -> list[Result]:
    parties: list[remembering.Party] = [(OURS.who, partial(remembering.ours_filling, OURS))]
    return [remembering.waiting(parties, _used, at.fresh, at.repeats, at.tell, of="Disk")]


def _used(url: str) -> int:
    with psycopg.connect(url) as db:
        row = db.execute("SELECT pg_database_size(current_database())").fetchone()
    return int(row[0]) if row else 0


def endurance(at: Setting) -> list[Result]:
    holders = enduring.Holders(
        snapshot=_transaction("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"),
        writer=_transaction(
            "CREATE TABLE elsewhere (n int)", "BEGIN", "INSERT INTO elsewhere VALUES (1)"
        ),
    )
    return [
        enduring.measure(
            OURS,
            holders,
            fresh=at.fresh,
            repeats=at.repeats,
            hold=at.hold,
            quick=at.quick,
            tell=at.tell,
        )
    ]


def _transaction(*statements: str) -> Callable[[str], AbstractContextManager[None]]:
    """A connection that has run them and stays as it is: idle in its transaction."""

    @contextmanager
    def held(url: str) -> Iterator[None]:
        with psycopg.connect(url, autocommit=True) as db:
            for statement in statements:
                db.execute(statement.encode())
            yield
            db.execute("ROLLBACK")

    return held


MEASURES: dict[str, Measure] = {
    "enqueue-bulk": enqueue_bulk,
    "lease-ack": lease_ack,
    "drain": drain,
    "enqueue-one": enqueue_one,
    "latency": latency,
    "idle": idle,
    "endurance": endurance,
    "depth": at_depth,
    "memory": memory,
    **with_fleets(OURS, peers.PARTIES, FAST),
}
