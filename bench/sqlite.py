"""The plan for SQLite: which parties meet in which measure, and what we aim at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bench.contenders import limit, ours, peers
from bench.measures import depth, trickle
from bench.measures.throughput import Entrant, compare
from bench.results import Result, Target, Who

PARTIES: list[Who] = [ours.WHO, limit.WHO, *peers.WHO]

FAST = 20_000
ONE_BY_ONE = 3_000
PEER = 1_500
PEER_FAST = 5_000


class Setting(msgspec.Struct, frozen=True):
    folder: Path
    repeats: int
    tell: Callable[[str], None]


def enqueue_bulk(at: Setting) -> list[Result]:
    once = "one by one: it has no bulk"
    entrants = [
        Entrant(ours.WHO, ours.enqueue_bulk, FAST),
        Entrant(limit.WHO, limit.enqueue_bulk, FAST),
        Entrant(peers.LITEQUEUE, peers.litequeue_enqueue_bulk, PEER_FAST),
        Entrant(peers.PERSIST_ACK, peers.persist_ack_enqueue_one, PEER, once),
        Entrant(peers.HUEY, peers.huey_enqueue_one("default"), PEER, once),
        Entrant(peers.HUEY_OFF, peers.huey_enqueue_one("off"), PEER_FAST, once),
    ]
    return _compare(at, "enqueue-bulk", "Enqueue, batches of 100", entrants, _of_limit(0.5))


def enqueue_one(at: Setting) -> list[Result]:
    entrants = [
        Entrant(ours.WHO, ours.enqueue_one, ONE_BY_ONE),
        Entrant(limit.WHO, limit.enqueue_one, ONE_BY_ONE),
        Entrant(peers.LITEQUEUE, peers.litequeue_enqueue_one, ONE_BY_ONE),
        Entrant(peers.PERSIST_ACK, peers.persist_ack_enqueue_one, PEER),
        Entrant(peers.PERSIST, peers.persist_enqueue_one, PEER),
        Entrant(peers.HUEY, peers.huey_enqueue_one("default"), PEER),
        Entrant(peers.HUEY_OFF, peers.huey_enqueue_one("off"), ONE_BY_ONE),
    ]
    return _compare(at, "enqueue-one", "Enqueue, one by one", entrants, _no_target)


def lease_ack(at: Setting) -> list[Result]:
    entrants = [
        Entrant(ours.WHO, ours.lease_ack_bulk, FAST),
        Entrant(limit.WHO, limit.lease_ack_bulk, FAST),
        Entrant(peers.PERSIST_CURSOR, peers.persist_cursor_drain, PEER),
    ]
    return _compare(at, "lease-ack", "Lease and ack, batches of 100", entrants, _of_limit(0.4))


def lease_ack_one(at: Setting) -> list[Result]:
    entrants = [
        Entrant(ours.WHO, ours.lease_ack_one, PEER),
        Entrant(limit.WHO, limit.lease_ack_one, ONE_BY_ONE),
        Entrant(peers.LITEQUEUE, peers.litequeue_drain, PEER),
        Entrant(peers.PERSIST_ACK, peers.persist_ack_drain, PEER),
        Entrant(peers.PERSIST, peers.persist_drain, PEER),
    ]
    return _compare(at, "lease-ack-one", "Lease and ack, one by one", entrants, _no_target)


def drain(at: Setting) -> list[Result]:
    loop = "get and ack in a loop: it has no worker"
    entrants = [
        Entrant(ours.WHO, ours.drain, FAST, "hf.work(until_empty=True), start and stop included"),
        Entrant(limit.WHO, limit.lease_ack_bulk, FAST, "lease and ack in batches, no handlers"),
        Entrant(peers.LITEQUEUE, peers.litequeue_drain, PEER, loop),
        Entrant(peers.PERSIST_ACK, peers.persist_ack_drain, PEER, loop),
        Entrant(peers.PERSIST, peers.persist_drain, PEER, "get in a loop"),
        Entrant(peers.PERSIST_CURSOR, peers.persist_cursor_drain, PEER, "get in a loop"),
        Entrant(peers.HUEY, peers.huey_drain("default"), PEER, "its consumer, first to last task"),
        Entrant(peers.HUEY_OFF, peers.huey_drain("off"), PEER, "its consumer, first to last task"),
    ]
    return _compare(at, "drain", "Drain by one worker process, no-op handlers", entrants, _drained)


def at_depth(at: Setting) -> list[Result]:
    return depth.measure(at.folder, at.repeats, at.tell)


def latency(at: Setting) -> list[Result]:
    return [trickle.latency(at.folder, at.repeats, 200, at.tell)]


def idle(at: Setting) -> list[Result]:
    return [trickle.idle(at.folder, at.tell)]


MEASURES: dict[str, Callable[[Setting], list[Result]]] = {
    "enqueue-bulk": enqueue_bulk,
    "lease-ack": lease_ack,
    "drain": drain,
    "enqueue-one": enqueue_one,
    "lease-ack-one": lease_ack_one,
    "latency": latency,
    "idle": idle,
    "depth": at_depth,  # stats are measured with it, on the same files
}


def _compare(
    at: Setting,
    name: str,
    title: str,
    entrants: list[Entrant],
    judge: Callable[[Result], list[Target]],
) -> list[Result]:
    return [
        compare(name, title, entrants, judge, folder=at.folder, repeats=at.repeats, tell=at.tell)
    ]


def _of_limit(share: float) -> Callable[[Result], list[Target]]:
    def judge(result: Result) -> list[Target]:
        return list(_limit_target(result, share))

    return judge


def _limit_target(result: Result, share: float) -> Iterator[Target]:
    figure = result.ratio(result.row("holdfast"), result.first("limit"))
    yield Target(f"{result.title}: share of the hand-written limit", figure or 0.0, share, True)


def _drained(result: Result) -> list[Target]:
    """Ten times the best peer is said twice: what keeps no promise to keep a message is cheaper."""
    row = result.row("holdfast")
    targets = list(_limit_target(result, 0.25))
    for acks, which in ((True, "the best peer with acks"), (False, "the best peer of any kind")):
        for best in result.peers(acks=acks)[:1]:
            text = f"Drain: times {which} ({best.name})"
            targets.append(Target(text, result.ratio(row, best) or 0.0, 10.0, True))
    return targets


def _no_target(result: Result) -> list[Target]:
    return []
