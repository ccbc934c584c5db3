"""Leases for a worker from all of its queues, in a few round trips however many there are.

A turn is one call of the store, and a second one if there is room left and some queue may have
more. A queue gives its share at a turn, and the next turn begins behind the queue that was served
last: a deep queue delays the others by its share and no more.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from holdfast.errors import QueueNotFound, StoreUnavailable
from holdfast.model.message import Lease
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.queue.context import Context
from holdfast.queue.expiry import LOOK_MS
from holdfast.queue.queue import Queue
from holdfast.rules.lifecycle import ms
from holdfast.stores.contract import LeaseAsk, OtherQueue

SHARE = 16
"""What a queue gives at a turn, at least, while others wait: taking several messages from one
queue costs a store much less than taking one from each of several."""
SERVED = 16
"""Of a longer turn a queue gives one part in this many."""
FEW = 10
"""Up to this many queues are read one by one: the stores remember them, or read them fast."""
LOOKS = 8
"""Queues whose overdue messages are put back at a turn."""
SPEC_S = 0.25
READ_SHARE = 50
"""Reading the settings of many queues takes at most one part in this many of the time."""

logger = logging.getLogger("holdfast.worker")


class Specs:
    """The settings of a worker's queues, read at once and remembered for a moment."""

    def __init__(self, context: Context, names: Sequence[str]) -> None:
        self._at = context
        self._names = frozenset(names)
        self._known: dict[str, QueueSpec] = {}
        self._policies: dict[str, tuple[Policy, Policy]] = {}
        self._until = float("-inf")

    def read(self) -> Mapping[str, QueueSpec]:
        """Of those that exist."""
        if len(self._names) <= FEW:
            self._known = self._one_by_one(self._names)
        elif (begun := self._at.clock.monotonic()) >= self._until:
            specs = self._at.store.queues()
            self._known = {spec.name: spec for spec in specs if spec.name in self._names}
            end = self._at.clock.monotonic()
            self._until = end + max(SPEC_S, (end - begun) * READ_SHARE)
        return self._known

    def policies(self, names: Collection[str]) -> Mapping[str, Policy]:
        """The rules in force for these, some of the worker's queues."""
        if len(self._names) <= FEW:
            self._known = {**self._known, **self._one_by_one(names)}
        else:
            self.read()
        return {name: self.policy(name) for name in names}

    def _one_by_one(self, names: Collection[str]) -> dict[str, QueueSpec]:
        return {spec.name: spec for spec in self._at.store.queues([*names])}

    def policy(self, name: str) -> Policy:
        """As it was last read; the connection's own for a queue that is gone."""
        spec = self._known.get(name)
        if spec is None:
            return self._at.policy
        stored, complete = self._policies.get(name, (None, self._at.policy))
        if stored is not spec.policy:
            complete = self._at.complete(spec)
            self._policies[name] = (spec.policy, complete)
        return complete

    def forget(self) -> None:
        self._until = float("-inf")


class Leaser:
    """Of one worker; called by one thread."""

    def __init__(self, context: Context, specs: Specs) -> None:
        self._at = context
        self._specs = specs
        self._last = ""
        self._late: deque[str] = deque()
        self._looked_at: int | None = None

    def lease(self, queues: Sequence[Queue], limit: int) -> list[Lease]:
        """Up to `limit` messages of these plain queues, which exist."""
        if not queues or limit <= 0:
            return []
        if len(queues) == 1:
            return queues[0].lease(limit=limit)
        names = self._in_turn([queue.name for queue in queues])
        self._look(names)
        share = max(SHARE, limit // SERVED, -(-limit // len(names)))
        leases = self._ask(names, limit, share)
        if len(leases) >= limit:
            self._last = leases[-1].message.queue
            return leases
        given = Counter(lease.message.queue for lease in leases)
        deep = [name for name, n in given.items() if n >= share]
        return leases + self._ask(deep, limit - len(leases), None)

    def _look(self, names: Sequence[str]) -> None:
        """Put back what is overdue, a few queues at a turn; nothing where this process sweeps."""
        now = self._at.clock.now()
        if self._at.looks.covered(now):
            return
        if not self._late:
            self._late.extend(self._find_late(set(names), now))
        for _ in range(min(LOOKS, len(self._late))):
            name = self._late.popleft()
            with suppress(QueueNotFound):  # deleted since it was found
                self._at.look(name, self._specs.policy(name))
                if self._at.looks.due(name, now):  # there may be more
                    self._late.append(name)

    def _find_late(self, names: Collection[str], now: int) -> list[str]:
        """Those with overdue messages. One question to the store for all of them, once a second."""
        last = self._looked_at
        if last is not None and last <= now < last + LOOK_MS:
            return []
        self._looked_at = now
        try:
            found = self._at.store.queues(overdue=now)
        except StoreUnavailable:
            raise
        except Exception:  # must not keep anything from being leased
            logger.exception("overdue messages could not be looked for")
            return []
        return [spec.name for spec in found if spec.name in names]

    def _in_turn(self, names: list[str]) -> list[str]:
        """Those behind the queue that was served last come first."""
        if self._last not in names:
            return names
        first = names.index(self._last) + 1
        return names[first:] + names[:first]

    def _ask(self, names: Sequence[str], limit: int, share: int | None) -> list[Lease]:
        if not names:
            return []
        first, *others = (
            OtherQueue(name, ms(self._specs.policy(name).ack_timeout or 0.0)) for name in names
        )
        ask = LeaseAsk(
            first.queue,
            limit,
            self._at.owner,
            secrets.token_hex(8),
            first.timeout_ms,
            others=tuple(others),
            share=share,
        )
        return self._at.store.lease(ask, self._at.clock.now())
