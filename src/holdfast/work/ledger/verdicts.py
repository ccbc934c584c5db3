"""Verdicts on the messages of a batch: written down by tasks, applied when the batch is settled.

Each task writes its verdicts as records under its attempt. The batch is settled by the attempt
that was published, and by no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.model.backoff import Backoff
from holdfast.model.message import Lease, is_dlq
from holdfast.model.moves import Settled, Target, Transition
from holdfast.queue.context import Context
from holdfast.queue.records import each_record
from holdfast.rules import lifecycle
from holdfast.stores.contract import BatchEnd
from holdfast.work.ledger.parts import PART_ROWS
from holdfast.work.ledger.query import Query, QueryFenced, QueryNotFound, parts_of, update
from holdfast.work.verdict import Verdict, decide

VERDICT = "verdict"
"""The kind of record."""
JUDGED_ROWS = 1000


class Judged(msgspec.Struct, frozen=True):
    """A verdict on one message of a batch; the lease comes without the body."""

    lease: Lease
    verdict: Verdict | None
    """None: it did not run, and goes back."""


def judge(
    at: Context,
    hold: str,
    attempt: str,
    part: int,
    judged: Iterable[Judged],
    write: Callable[[Callable[[], object]], object] = lambda put: put(),
) -> int:
    """Write down the verdicts on one part of a batch; they count once `publish` has said so.

    Writing them again, for the same attempt and part, replaces them. `write` calls the function
    that writes some of them, and may call it again.
    """
    n = 0
    for number, some in enumerate(_chunks(judged, JUDGED_ROWS)):
        name, value = f"{hold}/{attempt}/{part:06d}/{number:06d}", encode_judged(some)
        write(
            lambda name=name, value=value: at.store.put_record(
                VERDICT, name, value, None, at.clock.now()
            )
        )
        n += len(some)
    return n


def publish(at: Context, query_id: str, hold: str, attempt: str, *, run: int | None = None) -> None:
    """Settle this batch by the verdicts of this attempt and no others.

    `run`: only while the query is in the hands of this process.
    """
    fenced = QueryFenced(f"query {query_id} does not hold this batch any more")

    def published(query: Query) -> Query:
        if query.hold != hold or run not in (None, query.run):
            raise fenced
        return replace(query, judged=attempt)

    try:
        update(at, query_id, published)
    except QueryNotFound:
        raise fenced from None


def apply_verdicts(at: Context, query: Query) -> tuple[int, int]:
    """Apply what was published; returns how many messages are retried, and how many are dead."""
    if query.judged is None:
        return 0, 0
    spec = at.spec(query.queue)
    if spec is None:
        return 0, 0
    policy, retried, dead = at.complete(spec), 0, 0
    prefix = f"{query.hold}/{query.judged}/"
    for record in each_record(at.store, VERDICT, prefix=prefix, page=10):
        now = at.clock.now()
        judged = decode_judged(record.value)
        moves = [decide(each.lease, each.verdict, policy, now, at.rng) for each in judged]
        _apply(at, moves, [each.lease for each in judged], now)
        back = [move for move in moves if move.target is Target.WAITING]
        retried += sum(not is_dlq(move.to_queue) for move in back)  # or held back
        dead += sum(is_dlq(move.to_queue) for move in back)
    return retried, dead


def _apply(at: Context, moves: list[Transition], leases: list[Lease], now: int) -> None:
    """A message whose dead-letter queue is gone stays in its queue."""
    answers = at.store.settle(moves, now)
    stuck = [
        lifecycle.kept(lease, move, now)
        for move, lease, answer in zip(moves, leases, answers, strict=True)
        if answer is Settled.STALE and is_dlq(move.to_queue)
    ]
    at.store.settle(stuck, now)


def finish(at: Context, query: Query) -> None:
    """Ack all that the batch still holds."""
    spec = at.spec(query.queue)
    if spec is None:
        return  # its messages went with the queue
    status = lifecycle.ack_status(query.queue, at.complete(spec))
    for part in parts_of(query):
        while at.store.settle(BatchEnd(query.queue, part.name, PART_ROWS, status), at.clock.now()):
            pass


def forget_verdicts(at: Context, hold: str) -> None:
    while at.store.drop_records(VERDICT, prefix=f"{hold}/", limit=1000) == 1000:
        pass


def _encode_hook(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Backoff) else str(value)


def _decode_hook(kind: type, value: Any) -> Any:
    return Backoff(**value) if kind is Backoff else value


_judged = msgspec.msgpack.Decoder(list[Judged], dec_hook=_decode_hook)


def encode_judged(judged: Sequence[Judged]) -> bytes:
    return msgspec.msgpack.encode(judged, enc_hook=_encode_hook)


def decode_judged(value: bytes) -> list[Judged]:
    return _judged.decode(value)


def _chunks(items: Iterable[Judged], size: int) -> Iterator[list[Judged]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
