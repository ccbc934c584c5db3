"""A leased message on its way through a worker."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.model.message import Lease
from holdfast.model.moves import Settled, Transition
from holdfast.model.policy import Policy
from holdfast.work.verdict import decide

if TYPE_CHECKING:
    from holdfast.work.ownership.line import Work


class Delivery:
    """One message that depends on no other. Those of ordered queues override the questions below
    (see `InLine`)."""

    __slots__ = ("deadline", "ended", "lease", "refused", "verdict")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.deadline = lease.deadline
        self.verdict: Any = None
        """What came of it; None if it never started: it is given back."""
        self.refused = 0
        """How often the store refused its outcome."""
        self.ended = False
        """It is settled, or given up."""

    def may_start(self) -> bool:
        """Asked at the last moment before its handlers run."""
        return True

    def handled(self) -> Work | None:
        """Its handlers have run, or will not. Returns what may be done next because of that."""
        return None

    def is_ours(self, now: int) -> bool:
        """Whether its outcome may still be settled."""
        return True

    def decide(self, policy: Policy, now: int, rng: Random) -> Transition:
        """What its verdict means for the message."""
        return decide(self.lease, self.verdict, policy, now, rng)

    def settled(self, answer: Settled | None) -> Work | None:
        """The store has answered; None if nothing was asked of it. Returns what to do next."""
        return None
