"""What every verb of a connection needs."""

from __future__ import annotations

import logging
from random import Random

import msgspec

from holdfast.errors import (
    QueueNotFound,
    StoreUnavailable,
)
from holdfast.model.clock import Clock
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.queue import expiry
from holdfast.rules.lifecycle import ms
from holdfast.stores.contract import Store, spec_of
from holdfast.telemetry.observe import Observer, Safe, observed

logger = logging.getLogger("holdfast.queue")


class Context(msgspec.Struct):
    """Per-connection dependencies: store, clock, random source, default policy, owner's name.

    Nothing in it changes but who observes: handles that were given out before are watched as well.
    """

    store: Store
    clock: Clock
    rng: Random
    policy: Policy
    owner: str
    observers: tuple[Safe, ...] = ()
    requeue_batch_size: int = 100
    looks: expiry.Looks = msgspec.field(default_factory=expiry.Looks)

    def observe(self, observer: Observer) -> None:
        """Tell it of all that goes through this connection from now on. Again changes nothing."""
        if any(known.observer is observer for known in self.observers):
            return
        safe = Safe(observer)
        self.store = observed(self.store, safe)
        self.observers = (*self.observers, safe)

    def spec(self, queue: str) -> QueueSpec | None:
        """The queue of this name; None if there is none."""
        return spec_of(self.store, queue)

    def complete(self, spec: QueueSpec) -> Policy:
        """The queue's policy with every field filled in."""
        return spec.policy.over(self.policy)

    def look(self, queue: str, policy: Policy, ahead_s: float = 0.0) -> bool:
        """Settle overdue leases of a queue, before it is leased from. Whether there were any."""
        try:
            return expiry.look(
                self.store,
                self.looks,
                queue,
                policy,
                self.clock,
                self.rng,
                limit=self.requeue_batch_size,
                ahead_ms=ms(ahead_s),
            )
        except (StoreUnavailable, QueueNotFound):
            raise
        except Exception:  # what cannot be put back must not keep the others from being leased
            logger.exception("%s: overdue messages could not be put back", queue)
            self.looks.looked(queue, self.clock.now(), None)
            return False
