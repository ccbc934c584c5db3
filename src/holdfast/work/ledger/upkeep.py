"""Looks after queries from outside: stops them, and gives back what no query will come for."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from holdfast.errors import QueueNotFound
from holdfast.model.message import Lease
from holdfast.model.moves import Transition
from holdfast.queue.context import Context
from holdfast.rules import lifecycle
from holdfast.work.ledger.parts import part_name, release
from holdfast.work.ledger.query import (
    QUERY,
    Query,
    is_alive,
    put,
    read_all,
    update,
    without_hold,
)
from holdfast.work.ledger.verdicts import VERDICT

RECEIPT = "receipt"
"""The kind of record that says that a call of `enqueue_many` was applied."""
FORGET_MS = 30 * 86_400_000
LEFTOVER_MS = 7 * 86_400_000

logger = logging.getLogger("holdfast.batches")


def ask_to_stop(at: Context, query_id: str) -> Query:
    """Let a query settle what it holds and reserve no more. Returns the query as it is now; ask
    again until it holds nothing."""
    return update(at, query_id, lambda query: replace(query, stopping=True))


def abandon(at: Context, query_id: str) -> int:
    """Give back what a query holds and fence off the process that runs it; returns how many
    messages.

    If the query had passed the batch on before it died, these are delivered a second time.
    """

    def fenced(query: Query) -> Query:
        return replace(without_hold(query, at.clock.now()), run=query.run + 1)

    return release_strays(at, update(at, query_id, fenced))


def sweep(at: Context, now: int) -> int:
    """Give back what no query will come for: batches never sealed and, where the query says so,
    those of a query that is gone. Returns how many messages."""
    n, held_since = 0, now
    for query, revision in read_all(at):
        if query.hold:
            held_since = min(held_since, query.reserved_at)
        n += release_strays(at, query)
        lost = query.sealed and query.on_lost == "redeliver" and not is_alive(query, now)
        unsealed = query.hold and not query.sealed and query.expires_at <= now
        if unsealed or lost:
            changed = without_hold(query, now)
            if put(at, changed, revision):
                logger.warning(
                    "query %s: batch %d is given back: %s",
                    query.id,
                    query.batch,
                    "its query is gone" if lost else "it was never sealed",
                )
                n += release_strays(at, changed, counted=bool(lost))
        elif not query.hold and query.strays and all(s.until <= now for s in query.strays):
            put(at, replace(query, strays=()), revision)
        elif not query.hold and not query.strays and _is_old(query, now):
            at.store.put_record(QUERY, query.id, None, revision, now)
    old = now - LEFTOVER_MS
    at.store.drop_records(VERDICT, before=min(old, held_since), limit=1000)
    at.store.drop_records(RECEIPT, before=old, limit=1000)
    return n


def _is_old(query: Query, now: int) -> bool:
    unused = not query.taken and not is_alive(query, now)
    return unused or query.seen_at + FORGET_MS <= now


def release_strays(at: Context, query: Query, *, counted: bool = False) -> int:
    """Give back what turned up under the names of batches that were given back.

    `counted`: as a delivery that failed.
    """
    spec = at.spec(query.queue)
    if spec is None:
        return 0
    policy = at.complete(spec)

    def move(lease: Lease, now: int) -> Transition:
        if counted:
            return replace(lifecycle.expired(lease, policy, now, at.rng), overdue_at=None)
        return lifecycle.released(lease, now)

    n = 0
    for stray in query.strays:
        for part in range(stray.parts):
            try:
                n += release(at, query.queue, part_name(stray.hold, part), move)
            except QueueNotFound:
                return n  # deleted meanwhile
    return n
