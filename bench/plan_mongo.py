"""The plan for MongoDB: which parties meet in which measure, and what we aim at."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from pymongo import MongoClient

from bench.contenders import find_loop_app
from bench.contenders import limit_mongo as limit
from bench.contenders import peers_mongo as peers
from bench.contenders.ours import CONCURRENCY, DELIVERY, VERSION, Ours
from bench.measures import depth, trickle
from bench.measures import memory as remembering
from bench.measures.throughput import Entrant
from bench.measures.trickle import Setup
from bench.plan import (
    BULK_LIMIT,
    DRAIN_LIMIT,
    Measure,
    Setting,
    best_peer_target,
    compared,
    limit_target,
    no_target,
    peer_target,
    soonest_target,
    with_fleets,
)
from bench.results import Result, Target, Who
from bench.server_mongo import stage as stage  # the plan's own

OURS = Ours(
    Who(
        name="holdfast",
        kind="ours",
        version=VERSION,
        settings=f"{limit.DRIVER}, log on; worker of {CONCURRENCY} threads",
        durability=f"{limit.DURABLE}; w:1 for marks beside its counts, wake-ups, and what is due",
        delivery=DELIVERY,
        acks=True,
    ),
    lambda url: url,
)
PARTIES: list[Who] = [OURS.who, limit.WHO, *(peer.who for peer in peers.DRAINING)]
SETUPS = [Setup(OURS.who, OURS.worker), *(Setup(peer.who, peer.worker) for peer in peers.PEERS)]

SIZES = (100, 1_000)
FAST = 20_000
ONE_BY_ONE = 1_000
PEER_FAST = 5_000
PEER_SLOW = 500
MESSAGES = 200


def enqueue_bulk(at: Setting) -> list[Result]:
    return [result for size in SIZES for result in _enqueue_bulk(at, size)]


def _enqueue_bulk(at: Setting, size: int) -> list[Result]:
    once = "one by one: it has no bulk"
    entrants = [
        Entrant(OURS.who, OURS.enqueue_bulk(size), FAST),
        Entrant(limit.WHO, limit.enqueue_bulk(size), FAST),
        Entrant(peers.LOOP.who, peers.LOOP.enqueue_bulk(size), PEER_FAST),
        Entrant(peers.MONGODB_QUEUE.who, peers.MONGODB_QUEUE.enqueue_bulk(size), PEER_FAST),
        Entrant(peers.DRAMATIQ.who, peers.DRAMATIQ.enqueue_one, PEER_SLOW, once),
        Entrant(peers.CELERY.who, peers.CELERY.enqueue_one, PEER_SLOW, once),
    ]

    def judge(result: Result) -> list[Target]:
        return list(limit_target(result, BULK_LIMIT))

    return compared(at, f"enqueue-bulk-{size}", f"Enqueue, batches of {size:,}", entrants, judge)


def enqueue_one(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.enqueue_one, ONE_BY_ONE),
        Entrant(limit.WHO, limit.enqueue_one, ONE_BY_ONE),
        *(Entrant(peer.who, peer.enqueue_one, ONE_BY_ONE) for peer in peers.PEERS),
    ]
    return compared(at, "enqueue-one", "Enqueue, one by one", entrants, no_target)


def lease_ack(at: Setting) -> list[Result]:
    return [result for size in SIZES for result in _lease_ack(at, size)]


def _lease_ack(at: Setting, size: int) -> list[Result]:
    loop = "one by one, whatever the batch"
    entrants = [
        Entrant(OURS.who, OURS.lease_ack(size), FAST),
        Entrant(limit.WHO, limit.lease_ack(size), FAST),
        Entrant(peers.LOOP.who, find_loop_app.take_and_delete, PEER_SLOW, loop),
    ]

    def judge(result: Result) -> list[Target]:
        return [*limit_target(result, 0.4), peer_target(result, peers.LOOP.who.name, 10.0)]

    return compared(at, f"lease-ack-{size}", f"Lease and ack, batches of {size:,}", entrants, judge)


def drain(at: Setting) -> list[Result]:
    most = SIZES[-1]  # as many as our worker leases at once, when it is this fast
    by_hand = f"lease and ack in batches of {most:,}, no handlers"
    entrants = [
        Entrant(OURS.who, OURS.drain, FAST, "hf.work(until_empty=True), start and stop included"),
        Entrant(limit.WHO, limit.lease_ack(most), FAST, by_hand),
        *(
            Entrant(
                peer.who, peer.drain, peer.drained, f"{peer.drained:,} tasks, from first to last"
            )
            for peer in peers.DRAINING
        ),
    ]

    def judge(result: Result) -> list[Target]:
        return [
            *limit_target(result, DRAIN_LIMIT),
            peer_target(result, peers.LOOP.who.name, 10.0),
            *best_peer_target(result, 10.0),
        ]

    return compared(at, "drain", "Drain by one worker process, no-op handlers", entrants, judge)


def latency(at: Setting) -> list[Result]:
    result = trickle.latency(SETUPS, at.fresh, at.repeats, MESSAGES, at.tell)
    return [msgspec.structs.replace(result, targets=list(soonest_target(result)))]


def idle(at: Setting) -> list[Result]:
    return [trickle.idle(SETUPS, at.fresh, at.tell)]


def at_depth(at: Setting) -> list[Result]:
    return depth.measure(OURS, at.fresh, at.repeats, at.tell, backlogs=depth.backlogs(at.quick))


def memory(at: Setting) -> list[Result]:
    parties: list[remembering.Party] = [(OURS.who, partial(remembering.ours_filling, OURS))]
    return [remembering.waiting(parties, _used, at.fresh, at.repeats, at.tell, of="Disk")]


def _used(url: str) -> int:
    with MongoClient[dict[str, Any]](url) as client:
        client.admin.command("fsync")  # what is in its cache has no size on the disk yet
        return int(client.get_default_database().command("dbStats")["totalSize"])


MEASURES: dict[str, Measure] = {
    "enqueue-bulk": enqueue_bulk,
    "lease-ack": lease_ack,
    "drain": drain,
    "enqueue-one": enqueue_one,
    "latency": latency,
    "idle": idle,
    "depth": at_depth,  # stats are measured with it, on the same collections
    "memory": memory,
    **with_fleets(OURS, [peer.party() for peer in peers.DRAINING], FAST),
}
