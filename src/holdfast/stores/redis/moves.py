"""Messages and transitions as the scripts take them, in chunks small enough not to block Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import msgspec

from holdfast.model.message import Message
from holdfast.model.moves import Settled, Target, Transition
from holdfast.stores.kit.batches import are_different
from holdfast.stores.redis.connections import Arg
from holdfast.stores.redis.keys import LANES, Home, Keys, flag_of
from holdfast.stores.redis.rows import ID, own_timeout, read_message, write_body
from holdfast.stores.rows import write_history

CHUNK = 250
"""Messages that one script moves: while it runs, Redis serves nobody else."""
MOVES = 100
"""The same for transitions of every kind, which cost more."""
CHUNK_BYTES = 4 * 2**20
SEQ, REST = 15, 51
"""Where the id in a token begins and ends (see lua/include/rows.lua)."""

Row = tuple[str, str, bytes]
"""A message as enqueue.lua takes it: its id, where it goes, its body."""


def keys_of(
    keys: Keys, name: str, flags: str, rows: Sequence[Row], *, receipt: bool
) -> Sequence[str]:
    """What enqueue.lua touches of a home to store these; `flags` are its queues."""
    heads = frozenset(head for _, head, _ in rows)
    looked_up = any(len(id) > ID for id, _, _ in rows)
    if len(heads) == 1 and not receipt and not looked_up and flags == "0":
        (head,) = heads
        if head[0] == "F":  # by far the most frequent
            return keys.plain(name, head[1:].partition(" ")[0])
    home = keys.home(name, 1)
    found = [*home.keys("c m"), *(home.key("w" + flag) for flag in flags)]
    found += home.of_lanes(sorted({h[1:].partition(" ")[0] for h in heads if h[0] == "F"}))
    others = sorted({tuple(h.split(" ", 3)[1:3]) for h in heads if h[0] == "W"})
    if others:
        found += home.keys("x e")
        found += [key for flag in flags for key in home.of("z v", flag)]
        found += [home.key(f"r{flag}.{part}") for flag, part in others]
    if looked_up:
        found += home.logged
    return [*found, *home.receipts] if receipt else found


R = TypeVar("R", bound=tuple[str, Any, bytes])

ANSWERS = {b"a": Settled.APPLIED, b"r": Settled.ALREADY, b"s": Settled.STALE}
_TARGETS = {Target.WAITING: "W", Target.LEASED: "L", Target.DONE: "D"}


def alike(moves: Sequence[Transition]) -> bool:
    """Acks that end alike, each of another message: what finish.lua takes."""
    first = moves[0]
    return all(
        move.target is Target.DONE
        and move.token is not None
        and move.overdue_at is None
        and move.history is None
        and move.verb is first.verb
        and move.status == first.status
        and move.queue == first.queue
        and move.token[SEQ:REST] == move.id
        for move in moves
    ) and are_different(moves)


Edit = tuple[str, bytes]
"""The SHA-1 of a body as it was read, and what it shall be."""
UNCHANGED: Edit = ("", b"")


def edits(move: Transition) -> bool:
    return move.partition is not None or move.body is not None


def edit(move: Transition, blob: bytes | None) -> Edit:
    """Another process may change the body before the move: so the script compares its SHA-1."""
    if blob is None or not edits(move):
        return UNCHANGED
    message = read_message(blob, move.id, move.queue)
    if move.body is None and move.partition == message.partition:
        return UNCHANGED
    was = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    return was, write_body(changed(message, move), move.lane, own_timeout(message))


def changed(message: Message, move: Transition) -> Message:
    """As it shall be in `to_queue`."""
    return msgspec.structs.replace(
        message,
        queue=move.to_queue,
        available_at=move.available_at,
        attempts=move.attempts,
        history=message.history if move.history is None else move.history,
        partition=message.partition if move.partition is None else move.partition,
        body=message.body if move.body is None else move.body,
        content_type=move.content_type or message.content_type,
    )


def written(move: Transition, change: Edit = UNCHANGED) -> tuple[Arg, ...]:
    """A transition as settle.lua takes it."""
    return (
        move.id,
        move.token or "",
        flag_of(move.queue),
        move.verb.value,
        _TARGETS[move.target],
        "" if move.overdue_at is None else move.overdue_at,
        "" if move.place is None else move.place,
        flag_of(move.to_queue),
        int(move.tail),
        move.lane,
        move.available_at,
        move.deadline,
        move.attempts,
        write_history(move.history) or "",
        move.status or "",
        b"" if move.result is None else b"=" + move.result,
        *change,
    )


def _lane_in(rest: str) -> str:
    """The part.lane in a token after its id; one that is none of ours names any."""
    part, _, further = rest[1:].partition(".")
    lane = further.partition(".")[0]
    return f"{part}.{lane}" if part.isdecimal() and lane.isdecimal() else "0.0"


def lanes_of(moves: Sequence[Transition], home: Home) -> list[str]:
    if any(move.token is None for move in moves):
        return [f"{part}.{lane}" for part in range(home.parts) for lane in range(LANES)]
    return sorted({_lane_in(rest) for rest in {cast(str, move.token)[REST:] for move in moves}})


def chunks(written: Sequence[R]) -> Iterator[list[R]]:
    """Those of one id that follow each other stay together."""
    chunk: list[R] = []
    size = 0
    for each in written:
        full = len(chunk) >= CHUNK or size + len(each[2]) > CHUNK_BYTES
        if full and chunk and each[0] != chunk[-1][0]:
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += len(each[2])
    if chunk:
        yield chunk
