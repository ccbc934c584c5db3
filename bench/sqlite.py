"""The plan for SQLite: which parties meet in which measure, and what we aim at."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from bench.contenders import limit, litequeue_app, peers
from bench.contenders.ours import CONCURRENCY, DELIVERY, VERSION, Ours
from bench.contenders.peer import Peer
from bench.measures import depth, trickle
from bench.measures import memory as remembering
from bench.measures.throughput import Entrant, Fresh
from bench.measures.trickle import Setup
from bench.plan import (
    DRAIN_LIMIT,
    Measure,
    Setting,
    compared,
    limit_target,
    no_target,
    of_limit,
    soonest_target,
    with_fleets,
)
from bench.results import Result, Target, Who
from bench.timing import fresh

OURS = Ours(
    Who(
        name="holdfast",
        kind="ours",
        version=VERSION,
        settings=f"WAL, synchronous=NORMAL, log on; worker of {CONCURRENCY} threads",
        durability="a process may crash; a power cut may take the last commits",
        delivery=DELIVERY,
        acks=True,
    ),
    lambda folder: f"sqlite:///{folder / 'ours.db'}",
)
PARTIES: list[Who] = [OURS.who, limit.WHO, *peers.WHO]
SETUPS = [Setup(OURS.who, OURS.worker), Setup(peers.HUEY_OFF, peers.huey_worker)]

PARTIES_WITH_WORKERS = [
    peers.huey_party(),
    Peer(
        peers.LITEQUEUE, litequeue_app, 1_500,
        recovers="list_locked and retry every second, in its reader's loop",
    ).party(),
]  # fmt: skip

FAST = 20_000
ONE_BY_ONE = 3_000
PEER = 1_500
PEER_FAST = 5_000


@contextmanager
def stage(folder: Path) -> Iterator[tuple[Fresh, dict[str, str]]]:
    """What a run needs of its store: fresh homes, and what to say about it."""
    yield partial(fresh, folder), {"SQLite": sqlite3.sqlite_version}


def enqueue_bulk(at: Setting) -> list[Result]:
    once = "one by one: it has no bulk"
    entrants = [
        Entrant(OURS.who, OURS.enqueue_bulk(), FAST),
        Entrant(limit.WHO, limit.enqueue_bulk, FAST),
        Entrant(peers.LITEQUEUE, peers.litequeue_enqueue_bulk, PEER_FAST),
        Entrant(peers.PERSIST_ACK, peers.persist_ack_enqueue_one, PEER, once),
        Entrant(peers.HUEY, peers.huey_enqueue_one("default"), PEER, once),
        Entrant(peers.HUEY_OFF, peers.huey_enqueue_one("off"), PEER_FAST, once),
    ]
    return compared(at, "enqueue-bulk", "Enqueue, batches of 100", entrants, of_limit(0.5))


def enqueue_one(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.enqueue_one, ONE_BY_ONE),
        Entrant(limit.WHO, limit.enqueue_one, ONE_BY_ONE),
        Entrant(peers.LITEQUEUE, peers.litequeue_enqueue_one, ONE_BY_ONE),
        Entrant(peers.PERSIST_ACK, peers.persist_ack_enqueue_one, PEER),
        Entrant(peers.PERSIST, peers.persist_enqueue_one, PEER),
        Entrant(peers.HUEY, peers.huey_enqueue_one("default"), PEER),
        Entrant(peers.HUEY_OFF, peers.huey_enqueue_one("off"), ONE_BY_ONE),
    ]
    return compared(at, "enqueue-one", "Enqueue, one by one", entrants, no_target)


def lease_ack(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.lease_ack_bulk, FAST),
        Entrant(limit.WHO, limit.lease_ack_bulk, FAST),
        Entrant(peers.PERSIST_CURSOR, peers.persist_cursor_drain, PEER),
    ]
    return compared(at, "lease-ack", "Lease and ack, batches of 100", entrants, of_limit(0.4))


def lease_ack_one(at: Setting) -> list[Result]:
    entrants = [
        Entrant(OURS.who, OURS.lease_ack_one, PEER),
        Entrant(limit.WHO, limit.lease_ack_one, ONE_BY_ONE),
        Entrant(peers.LITEQUEUE, peers.litequeue_drain, PEER),
        Entrant(peers.PERSIST_ACK, peers.persist_ack_drain, PEER),
        Entrant(peers.PERSIST, peers.persist_drain, PEER),
    ]
    return compared(at, "lease-ack-one", "Lease and ack, one by one", entrants, no_target)


def drain(at: Setting) -> list[Result]:
    loop = "get and ack in a loop: it has no worker"
    entrants = [
        Entrant(OURS.who, OURS.drain, FAST, "hf.work(until_empty=True), start and stop included"),
        Entrant(limit.WHO, limit.lease_ack_bulk, FAST, "lease and ack in batches, no handlers"),
        Entrant(peers.LITEQUEUE, peers.litequeue_drain, PEER, loop),
        Entrant(peers.PERSIST_ACK, peers.persist_ack_drain, PEER, loop),
        Entrant(peers.PERSIST, peers.persist_drain, PEER, "get in a loop"),
        Entrant(peers.PERSIST_CURSOR, peers.persist_cursor_drain, PEER, "get in a loop"),
        Entrant(peers.HUEY, peers.huey_drain("default"), PEER, "its consumer, first to last task"),
        Entrant(peers.HUEY_OFF, peers.huey_drain("off"), PEER, "its consumer, first to last task"),
    ]
    return compared(at, "drain", "Drain by one worker process, no-op handlers", entrants, _drained)


def at_depth(at: Setting) -> list[Result]:
    return depth.measure(OURS, at.fresh, at.repeats, at.tell, backlogs=depth.backlogs(at.quick))


def latency(at: Setting) -> list[Result]:
    result = trickle.latency(SETUPS, at.fresh, at.repeats, 200, at.tell)
    return [msgspec.structs.replace(result, targets=list(soonest_target(result)))]


def memory(at: Setting) -> list[Result]:
    parties: list[remembering.Party] = [(OURS.who, partial(remembering.ours_filling, OURS))]
    return [remembering.waiting(parties, _used, at.fresh, at.repeats, at.tell, of="Disk")]


def _used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("ours.db*"))


def idle(at: Setting) -> list[Result]:
    return [trickle.idle(SETUPS, at.fresh, at.tell)]


MEASURES: dict[str, Measure] = {
    "enqueue-bulk": enqueue_bulk,
    "lease-ack": lease_ack,
    "drain": drain,
    "enqueue-one": enqueue_one,
    "lease-ack-one": lease_ack_one,
    "latency": latency,
    "idle": idle,
    "depth": at_depth,  # stats are measured with it, on the same files
    "memory": memory,
    **with_fleets(OURS, PARTIES_WITH_WORKERS, FAST),
}


def _drained(result: Result) -> list[Target]:
    """Ten times the best peer is said twice: what keeps no promise to keep a message is cheaper."""
    row = result.row("holdfast")
    targets = list(limit_target(result, DRAIN_LIMIT))
    for acks, which in ((True, "the best peer with acks"), (False, "the best peer of any kind")):
        for best in result.peers(acks=acks)[:1]:
            text = f"Drain: times {which} ({best.name})"
            targets.append(Target(text, result.ratio(row, best) or 0.0, 10.0, True))
    return targets
