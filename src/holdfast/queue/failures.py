"""Dead letters grouped by what they died of: a thousand of them are seldom more than five causes.

What one cause is: rules/causes.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import msgspec

from holdfast.errors import InvalidArgument, QueueNotFound, did_you_mean
from holdfast.model.message import Message, is_dlq
from holdfast.model.moves import State
from holdfast.model.policy import whole
from holdfast.queue.context import Context
from holdfast.queue.queue import Queue
from holdfast.rules.causes import Cause, cause_of, fingerprint, normalise
from holdfast.stores.contract import Entry

SCAN = 10_000
SCAN_MAX = 1_000_000
EXAMPLES = 3
EXAMPLES_MAX = 100
BUCKETS_MAX = 60
BUCKETS_MS = (
    *(1000, 10_000, 60_000, 300_000, 900_000, 3_600_000),
    *(4 * 3_600_000, 86_400_000, 7 * 86_400_000, 28 * 86_400_000),
)
"""How long a bucket of `by_time` may be: the shortest with which all fit into BUCKETS_MAX."""


__all__ = ["FailureGroup", "FailureGroups", "failure_groups", "fingerprint", "normalise"]


class FailureGroup(msgspec.Struct, frozen=True):
    """Dead letters that died of the same thing, by their last error."""

    fingerprint: str
    reason: str | None
    """Why they are dead: "failed", "max attempts exceeded", ..."""
    code: str | None
    error: str
    """What its errors have in common (see `normalise`)."""
    handler: str | None
    count: int
    first_dead_at: int
    last_dead_at: int
    examples: list[str]
    """Ids; those who stand first in line."""
    by_time: list[tuple[int, int]]
    """When a bucket begins, and how many died in it; buckets without any are left out."""


class FailureGroups(msgspec.Struct, frozen=True):
    dlq: str
    groups: list[FailureGroup]
    """The largest first."""
    looked: int
    """Dead letters that were looked at: those who stand first in line."""
    total: int
    bucket_ms: int
    """Of `by_time`, the same for all groups."""


Read = Callable[[Queue, State], Iterable[Entry]]


def failure_groups(
    at: Context,
    dlq: str,
    *,
    scan: int = SCAN,
    examples: int = EXAMPLES,
    read: Read = Queue.browse,
) -> FailureGroups:
    """What the dead letters of a queue died of, from the first `scan` of them. Changes nothing.

    `read` walks the messages of one state; a server passes one that bounds what is read at a time.
    """
    whole("scan", scan, low=1, high=SCAN_MAX)
    whole("examples", examples, low=0, high=EXAMPLES_MAX)
    letters = _dead_letters(at, dlq)
    causes: dict[Cause, list[tuple[int, str]]] = {}
    looked = 0
    for message in islice(_browse(letters, read), scan):
        causes.setdefault(cause_of(message), []).append((_died(message), message.id))
        looked += 1
    bucket_ms = _bucket_ms(died for deaths in causes.values() for died, _ in deaths)
    found = [_group(cause, deaths, examples, bucket_ms) for cause, deaths in causes.items()]
    found.sort(key=lambda group: (-group.count, -group.last_dead_at, group.fingerprint))
    stats = letters.stats()
    total = max(looked, stats.ready + stats.delayed + stats.leased)
    return FailureGroups(dlq, found, looked, total, bucket_ms)


def _died(message: Message) -> int:
    """What somebody put among the dead by hand has been there since then."""
    return message.enqueued_at if message.dead_at is None else message.dead_at


def _group(
    cause: Cause, deaths: list[tuple[int, str]], examples: int, bucket_ms: int
) -> FailureGroup:
    times = [died for died, _ in deaths]
    return FailureGroup(
        fingerprint(cause.reason, cause.code, cause.handler, cause.error),
        cause.reason,
        cause.code,
        cause.error,
        cause.handler,
        len(deaths),
        min(times),
        max(times),
        [id for _, id in deaths[:examples]],
        sorted(Counter(died - died % bucket_ms for died in times).items()),
    )


def _bucket_ms(deaths: Iterable[int]) -> int:
    times = sorted(deaths)
    if not times:
        return BUCKETS_MS[0]
    span = times[-1] - times[0]
    fitting = (size for size in BUCKETS_MS if span // size + 2 <= BUCKETS_MAX)
    return next(fitting, span // (BUCKETS_MAX - 2) + 1)


def _dead_letters(at: Context, dlq: Any) -> Queue:
    if not isinstance(dlq, str) or not dlq:
        raise InvalidArgument("dlq", f"name a dead-letter queue, not {dlq!r}")
    if at.spec(dlq) is None:
        known = [spec.name for spec in at.store.queues() if is_dlq(spec.name)]
        raise QueueNotFound(f"no queue {dlq!r}; {did_you_mean(dlq, known)}")
    if not is_dlq(dlq):
        raise InvalidArgument("dlq", f"{dlq!r} is not a dead-letter queue; did you mean {dlq}.dlq?")
    return Queue(at, dlq)


def _browse(letters: Queue, read: Read) -> Iterator[Message]:
    """A dead letter may also be leased by somebody who looks at it, or put back for later.

    One that moves on while this looks may come by twice, and counts once.
    """
    states = (read(letters, state) for state in (State.READY, State.DELAYED, State.LEASED))
    seen = set[str]()
    for entry in chain.from_iterable(states):
        if entry.message.id not in seen:
            seen.add(entry.message.id)
            yield entry.message
