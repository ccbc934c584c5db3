"""Every rule about what may happen to a message. Pure: no clock, no I/O, no store.

A `policy` here is complete: the queue's, over the connection's, over the defaults.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from hashlib import blake2b
from random import Random

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model.errortext import TRACEBACK_MAX
from holdfast.model.message import (
    ERRORS_MAX,
    ErrorInfo,
    History,
    Lease,
    Message,
    Status,
    dlq_of,
    home_of,
    is_dlq,
    starting_again,
)
from holdfast.model.moves import Target, Transition, Verb
from holdfast.model.policy import Policy
from holdfast.model.queues import Depth, QueueSpec

ACK_TIMEOUT_REASON = "ack timeout exceeded"
EXHAUSTED_REASON = "max attempts exceeded"
FAILED_REASON = "failed"
NO_HANDLER_REASON = "no handler"
NO_HANDLER_CODE = "NO_HANDLER"
ACK_TIMEOUT_CODE = "ACK_TIMEOUT"
OWNER_LOST_REASON = "the owner of its partition was lost"
OWNER_LOST_CODE = "OWNER_LOST"


def acked(lease: Lease, policy: Policy, result: bytes | None = None) -> Transition:
    """Finished: into the log. From a dead-letter queue: looked at and discarded."""
    message = lease.message
    return Transition(
        Verb.ACK,
        message.queue,
        message.id,
        Target.DONE,
        lease.token,
        status=ack_status(message.queue, policy),
        result=result,
    )


def ack_status(queue: str, policy: Policy) -> Status | None:
    """How an ack ends a message in the log; None where no log is kept."""
    if not policy.log:
        return None
    return "COMPLETED_WITH_ERRORS" if is_dlq(queue) else "COMPLETED"


def moved_away(queue: str, id: str, place: int) -> Transition:
    """It is in another store now: it leaves this one without a trace, if it still waits there."""
    return Transition(Verb.ACK, queue, id, Target.DONE, place=place)


def nacked(
    lease: Lease,
    errors: Sequence[ErrorInfo],
    policy: Policy,
    now: int,
    rng: Random,
    *,
    delay: float | None = None,
    handled: dict[str, object] | None = None,
) -> Transition:
    """It did not work this time: again after the backoff, or dead when out of attempts."""
    if is_dlq(lease.message.queue):
        return _back(Verb.NACK, lease, now + ms(delay or 0.0), lease.message.attempts - 1, None)
    rules = for_message(lease.message, policy)
    history = _with_errors(lease.message.history, errors, handled)
    if lease.message.attempts >= (rules.max_attempts or 1):
        reason = EXHAUSTED_REASON
        if errors and all(error.code == NO_HANDLER_CODE for error in errors):
            reason = NO_HANDLER_REASON
        return _exhausted(Verb.NACK, lease, history, rules, now, reason)
    return _later(Verb.NACK, lease, history, rules, now, rng, delay)


def failed(
    lease: Lease,
    errors: Sequence[ErrorInfo],
    now: int,
    *,
    handled: dict[str, object] | None = None,
) -> Transition:
    """It will never work: dead at once, whatever attempts are left."""
    if is_dlq(lease.message.queue):
        return _back(Verb.FAIL, lease, now, lease.message.attempts - 1, None)
    history = _with_errors(lease.message.history, errors, handled)
    return _dead(Verb.FAIL, lease, history, now, FAILED_REASON)


def released(
    lease: Lease,
    now: int,
    *,
    delay: float | None = None,
    handled: dict[str, object] | None = None,
) -> Transition:
    """Given back, for `delay` seconds or at once: this delivery does not count."""
    history = _with_errors(lease.message.history, [], handled) if handled else None
    available_at = now + ms(delay or 0.0)
    return _back(Verb.RELEASE, lease, available_at, lease.message.attempts - 1, history)


def parked(lease: Lease, available_at: int) -> Transition:
    """Given back untouched, to wait until then: what holds its key comes again at that time."""
    return _back(Verb.RELEASE, lease, available_at, lease.message.attempts - 1, None)


def kept(lease: Lease, dead: Transition, now: int) -> Transition:
    """One that should have died, but its dead-letter queue is gone: it stays in its own."""
    history = dead.history and msgspec.structs.replace(
        dead.history, source=None, dead_at=None, reason=None
    )
    return _back(Verb.RELEASE, lease, now, dead.attempts, history)


def extended(lease: Lease, policy: Policy, now: int, seconds: float | None = None) -> Transition:
    """Held for `seconds` from now, else for the message's own (or the queue's) time-out."""
    if seconds is None:
        seconds = for_message(lease.message, policy).ack_timeout
    return Transition(
        Verb.EXTEND,
        lease.message.queue,
        lease.message.id,
        Target.LEASED,
        lease.token,
        deadline=now + ms(seconds or 0.0),
    )


def expired(lease: Lease, policy: Policy, now: int, rng: Random) -> Transition:
    """The holder went silent: back at once, or dead when out of attempts.

    Applies only while the deadline is still past, so that an extend that came between wins.
    """
    message = lease.message
    if is_dlq(message.queue):
        move = _back(Verb.EXPIRE, lease, now, message.attempts - 1, None)
    else:
        rules = for_message(message, policy)
        move = _silent(lease, rules, now, ACK_TIMEOUT_REASON, ACK_TIMEOUT_CODE)
        if rules.overdue_backoff and move.to_queue == message.queue and move.history is not None:
            move = _later(Verb.EXPIRE, lease, move.history, rules, now, rng, None)
    return msgspec.structs.replace(move, overdue_at=now)


def abandoned(lease: Lease, policy: Policy, now: int) -> Transition:
    """The owner of its partition is gone: back to its place at once, or dead when out of attempts.

    Its successor alone says so, whatever the deadline is.
    """
    rules = for_message(lease.message, policy)
    return _silent(lease, rules, now, OWNER_LOST_REASON, OWNER_LOST_CODE)


def _silent(lease: Lease, rules: Policy, now: int, reason: str, code: str) -> Transition:
    message = lease.message
    error = ErrorInfo(reason, code, now, message.attempts, lease.owner)
    history = _with_errors(message.history, [error], None)
    if message.attempts >= (rules.max_attempts or 1):
        return _exhausted(Verb.EXPIRE, lease, history, rules, now, reason)
    return _back(Verb.EXPIRE, lease, now, message.attempts, history)


def redriven(
    message: Message,
    place: int,
    to_queue: str,
    now: int,
    *,
    elsewhere: QueueSpec | None = None,
    payload: tuple[bytes, str] | None = None,
) -> Transition:
    """A dead letter starts over: attempts at 0; id, key, headers, payload and errors stay.

    `elsewhere` is the queue it goes to when that is not its own: there it gets the partition of
    its key. A new `payload` is a body with its content type.
    """
    body, content_type = payload or (None, None)
    history = msgspec.structs.replace(
        message.history,
        dead_at=None,
        reason=None,
        source=None,
        delay=None,
        redriven=message.history.redriven + 1,
    )
    return Transition(
        Verb.REDRIVE,
        message.queue,
        message.id,
        Target.WAITING,
        place=place,
        to_queue=to_queue,
        lane=message.priority,
        available_at=now,
        attempts=0,
        history=history,
        partition=elsewhere and home_partition(message.key, message.id, elsewhere),
        body=body,
        content_type=content_type,
    )


def replayed(message: Message, id: str, now: int) -> Message:
    """A finished message as a new one that names where it came from."""
    return msgspec.structs.replace(
        message,
        id=id,
        queue=home_of(message.queue),  # a discarded dead letter goes back to where it came from
        enqueued_at=now,
        available_at=now,
        attempts=0,
        first_leased_at=None,
        history=starting_again(message.history, origin=message.id),
    )


def finished_since(
    messages: Sequence[Message], given: Set[str], policy: Policy, now: int
) -> dict[int, int] | None:
    """Which messages are duplicates if their id finished since when (see `Store.enqueue`). An id
    that the library made is new, and needs no look-up; without a log there is nothing to look up.
    """
    if not given or not policy.log or not policy.duplicate_window:
        return None
    since = now - ms(policy.duplicate_window)
    return {n: since for n, message in enumerate(messages) if message.id in given}


def partition_of(key: str | None, id: str, partitions: int) -> int:
    """The first 8 bytes of BLAKE2b of the key (else of the id), big-endian, mod `partitions`.

    A promise to every other process, version and store: it never changes.
    """
    if partitions == 1:
        return 0
    digest = blake2b((id if key is None else key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


def home_partition(key: str | None, id: str, spec: QueueSpec) -> int:
    """Where a message that is new to a queue belongs: in the newest generation."""
    return partition_of(key, id, spec.spread) + spec.starts[-1]


def in_use(spec: QueueSpec, depths: Sequence[Depth]) -> list[int]:
    """The partitions of the newest generation, and older ones that still hold something.

    Depths may be newer than the spec: partitions that it does not know of are none of its own.
    """
    newest, known = spec.starts[-1], depths[: spec.partitions]
    return [d.partition for d in known if d.partition >= newest or d.ready or d.delayed or d.leased]


def for_message(message: Message, policy: Policy) -> Policy:
    """The rules for one message: its own fields first."""
    if message.ack_timeout is None and message.max_attempts is None and message.backoff is None:
        return policy
    try:
        own = Policy(
            ack_timeout=message.ack_timeout,
            max_attempts=message.max_attempts,
            backoff=message.backoff,
        )
        return own.over(policy)
    except InvalidArgument:
        # Its row was damaged: nobody could have enqueued it so. An error would stop every sweep.
        return policy


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def _later(
    verb: Verb,
    lease: Lease,
    history: History,
    rules: Policy,
    now: int,
    rng: Random,
    delay: float | None,
) -> Transition:
    if delay is None and rules.backoff is not None:
        attempt = max(1, lease.message.attempts)
        delay = rules.backoff.delay(attempt, history.delay, rng)
        history = msgspec.structs.replace(history, delay=delay)
    return _back(verb, lease, now + ms(delay or 0.0), lease.message.attempts, history)


def _back(
    verb: Verb, lease: Lease, available_at: int, attempts: int, history: History | None
) -> Transition:
    message = lease.message
    return Transition(
        verb,
        message.queue,
        message.id,
        Target.WAITING,
        lease.token,
        to_queue=message.queue,
        lane=0 if is_dlq(message.queue) else message.priority,
        available_at=available_at,
        attempts=attempts,
        history=history,
    )


def _exhausted(
    verb: Verb, lease: Lease, history: History, rules: Policy, now: int, reason: str
) -> Transition:
    if rules.exhausted != "complete":
        return _dead(verb, lease, history, now, reason)
    return Transition(
        verb,
        lease.message.queue,
        lease.message.id,
        Target.DONE,
        lease.token,
        history=msgspec.structs.replace(history, reason=reason),
        status="COMPLETED_WITH_ERRORS" if rules.log else None,
    )


def _dead(verb: Verb, lease: Lease, history: History, now: int, reason: str) -> Transition:
    message = lease.message
    return Transition(
        verb,
        message.queue,
        message.id,
        Target.WAITING,
        lease.token,
        to_queue=dlq_of(message.queue),
        tail=True,
        available_at=now,
        attempts=message.attempts,
        history=msgspec.structs.replace(history, source=message.queue, dead_at=now, reason=reason),
    )


def _with_errors(
    history: History, errors: Sequence[ErrorInfo], handled: dict[str, object] | None
) -> History:
    kept = (*history.errors, *errors)[-ERRORS_MAX:]
    return msgspec.structs.replace(
        history,
        errors=_without_old_tracebacks(kept),
        handled={**history.handled, **(handled or {})},
    )


def _without_old_tracebacks(errors: tuple[ErrorInfo, ...]) -> tuple[ErrorInfo, ...]:
    """A message is written again at each retry: all its tracebacks together stay bounded."""
    room, kept = TRACEBACK_MAX, list[ErrorInfo]()
    for error in reversed(errors):
        room -= len(error.traceback or "")
        kept.append(error if room >= 0 else msgspec.structs.replace(error, traceback=None))
    return tuple(reversed(kept))
