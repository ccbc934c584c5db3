"""Comparing and grouping the transitions of `Store.settle`."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from typing import Any

from holdfast.model.moves import Settled, Target, Transition

Wave = list[tuple[int, Transition]]
"""Transitions of different messages, each with its index in the batch."""


def ends_alike(moves: Sequence[Transition]) -> bool:
    """Whether all of them are acks with a token that end alike: same verb and status, no result,
    no new history. Their queues and messages may differ, and a message may occur twice."""
    first = moves[0]
    verb, status = first.verb, first.status
    for move in moves:
        if (
            move.token is None
            or move.target is not Target.DONE
            or move.result is not None
            or move.history is not None
            or move.overdue_at is not None
            or move.verb is not verb
            or move.status != status
        ):
            return False
    return True


def are_different(moves: Sequence[Transition]) -> bool:
    """Whether no id occurs twice."""
    return len({move.id for move in moves}) == len(moves)


def waves(moves: Sequence[Transition], key: Callable[[Transition], Hashable]) -> Iterator[Wave]:
    """Cut a batch where a message comes up again: its second transition must see what the first
    one did. `key` identifies a message."""
    if are_different(moves):
        yield list(enumerate(moves))
        return
    wave: dict[Hashable, tuple[int, Transition]] = {}
    for n, move in enumerate(moves):
        message = key(move)
        if message in wave:
            yield list(wave.values())
            wave = {}
        wave[message] = (n, move)
    yield list(wave.values())


def fits(move: Transition, *, leased: bool, place: Any, same_token: bool, deadline: Any) -> bool:
    """Whether a transition still applies to a message that is as described (see `Transition`)."""
    if move.token is None:
        return not leased and place == move.place
    if not leased or not same_token:
        return False
    return move.overdue_at is None or deadline <= move.overdue_at


def lost(move: Transition, token: Any, ends: Container[tuple[Any, Any]]) -> Settled:
    """The answer for a transition that does not fit: stale, unless the last thing that happened to
    the message was this very move. `ends`: the token and verb of how its leases ended; `token`: the
    move's, as it is written there."""
    if move.token is None:
        return Settled.STALE
    return Settled.ALREADY if (token, move.verb.value) in ends else Settled.STALE
