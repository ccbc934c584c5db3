"""The plan for Redis: which parties meet in which measure, and what we aim at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
from redis import Redis

from bench.contenders import limit_redis as limit
from bench.contenders import peers_redis as peers
from bench.contenders.ours import CONCURRENCY, DELIVERY, VERSION, Ours
from bench.contenders.peer import Peer
from bench.measures import depth, scripts, trickle
from bench.measures import memory as remembering
from bench.measures.throughput import Entrant
from bench.measures.trickle import Setup
from bench.plan import (
    DRAIN_LIMIT,
    Measure,
    Setting,
    best_peer_target,
    compared,
    limit_target,
    of_limit,
    soonest_target,
    with_fleets,
)
from bench.results import Result, Target, Who
from bench.server_redis import stage as stage  # the plan's own

OURS = Ours(
    Who(
        name="holdfast",
        kind="ours",
        version=VERSION,
        settings=f"{limit.DRIVER}, log on; worker of {CONCURRENCY} threads",
        durability=limit.DURABLE,
        delivery=DELIVERY,
        acks=True,
    ),
    lambda url: f"{url}?prefix=hf",
)
PARTIES: list[Who] = [OURS.who, limit.WHO, *(peer.who for peer in peers.PEERS)]

SIZES = (100, 1_000)
FAST = 20_000
ONE_BY_ONE = 2_000
PEER_FAST = 5_000
MESSAGES = 200


def enqueue_bulk(at: Setting) -> list[Result]:
    return [result for size in SIZES for result in _enqueue_bulk(at, size)]


def _enqueue_bulk(at: Setting, size: int) -> list[Result]:
    once = "one by one: it has no bulk, like those that are not here"
    entrants = [
        Entrant(OURS.who, OURS.enqueue_bulk(size), FAST),
        Entrant(limit.WHO, limit.enqueue_bulk(size), FAST),
        *(
            Entrant(peer.who, peer.enqueue_bulk(size), PEER_FAST)
            for peer in _fit(at)
            if hasattr(peer.app, "enqueue_many")
        ),
        Entrant(peers.HUEY.who, peers.HUEY.enqueue_one, PEER_FAST, once),
    ]

    def judge(result: Result) -> list[Target]:
        return [*limit_target(result, 0.5), *best_peer_target(result, 5.0)]

    return compared(at, f"enqueue-bulk-{size}", f"Enqueue, batches of {size:,}", entrants, judge)


def enqueue_one(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.enqueue_one, ONE_BY_ONE),
        Entrant(limit.WHO, limit.enqueue_one, ONE_BY_ONE),
        *(Entrant(peer.who, peer.enqueue_one, ONE_BY_ONE) for peer in _fit(at)),
    ]

    def judge(result: Result) -> list[Target]:
        return list(best_peer_target(result, 0.8))

    return compared(at, "enqueue-one", "Enqueue, one by one", entrants, judge)


def lease_ack(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.lease_ack_bulk, FAST),
        Entrant(limit.WHO, limit.lease_ack_bulk, FAST),
    ]
    return compared(at, "lease-ack", "Lease and ack, batches of 100", entrants, of_limit(0.35))


def drain(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.drain, FAST, "hf.work(until_empty=True), start and stop included"),
        Entrant(limit.WHO, limit.lease_ack_bulk, FAST, "lease and ack in batches, no handlers"),
        *(
            Entrant(
                peer.who, peer.drain, peer.drained, f"{peer.drained:,} tasks, from first to last"
            )
            for peer in _fit(at)
        ),
    ]

    def judge(result: Result) -> list[Target]:
        return [*limit_target(result, DRAIN_LIMIT), *best_peer_target(result, 10.0)]

    return compared(at, "drain", "Drain by one worker process, no-op handlers", entrants, judge)


def latency(at: Setting) -> list[Result]:
    result = trickle.latency(_setups(at), at.fresh, at.repeats, MESSAGES, at.tell)
    return [msgspec.structs.replace(result, targets=list(soonest_target(result)))]


def idle(at: Setting) -> list[Result]:
    return [trickle.idle(_setups(at), at.fresh, at.tell)]


def at_depth(at: Setting) -> list[Result]:
    return depth.measure(OURS, at.fresh, at.repeats, at.tell, backlogs=depth.backlogs(at.quick))


def memory(at: Setting) -> list[Result]:
    parties: list[remembering.Party] = [
        (OURS.who, partial(remembering.ours_filling, OURS)),
        (limit.WHO, _limit_filling),
    ]
    return [
        remembering.waiting(
            parties, _used, at.fresh, at.repeats, at.tell, most=remembering.BYTES_MAX
        ),
        remembering.worked_off(OURS, _used, at.fresh, at.tell, quick=at.quick),
    ]


def longest_script(at: Setting) -> list[Result]:
    return [scripts.longest(OURS, at.fresh, at.repeats, at.tell)]


def _fit(at: Setting) -> list[Peer]:
    """streaq is written in functions, which Redis has had since 7."""
    has_functions = at.fresh.version >= (7,)
    return [peer for peer in peers.PEERS if has_functions or peer is not peers.STREAQ]


def _setups(at: Setting) -> list[Setup]:
    return [Setup(OURS.who, OURS.worker), *(Setup(peer.who, peer.worker) for peer in _fit(at))]


@contextmanager
def _limit_filling(url: str) -> Iterator[remembering.Filled]:
    with limit.opened(url) as client:
        yield partial(limit.fill, client)


def _used(url: str) -> int:
    with Redis.from_url(url) as client:
        info: dict[str, Any] = client.info("memory")
    return info["used_memory"]


MEASURES: dict[str, Measure] = {
    "enqueue-bulk": enqueue_bulk,
    "lease-ack": lease_ack,
    "drain": drain,
    "enqueue-one": enqueue_one,
    "latency": latency,
    "idle": idle,
    "depth": at_depth,
    "memory": memory,
    "scripts": longest_script,
    **with_fleets(OURS, [peer.party() for peer in peers.PEERS], FAST),
}
