"""A queue as it is set up, and what one of its partitions holds."""

from __future__ import annotations

import msgspec

from holdfast.model.policy import Policy


class QueueSpec(msgspec.Struct, frozen=True):
    """A queue as it is set up. `policy` holds only what was given for this queue."""

    name: str
    partitions: int = 1
    policy: Policy = Policy()
    paused: bool = False
    created_at: int = 0
    revision: int = 0
    """Goes up with every change; 0 is a queue that is not stored yet."""
    ordered: bool = False
    """Each partition is worked by one owner at a time, in order (see work/ownership)."""
    starts: tuple[int, ...] = (0,)
    """The first partition of each generation. Adding partitions begins a new generation behind the
    old ones, so that a key's older messages can be told from its newer ones."""

    @property
    def spread(self) -> int:
        """Over how many partitions new messages are spread: those of the newest generation."""
        return self.partitions - self.starts[-1]


def partition_claim(queue: str, partition: int) -> str:
    """The name of the claim that an owner of a partition holds."""
    return f"{queue}#{partition}"


class Depth(msgspec.Struct, frozen=True):
    """What one partition of a queue holds."""

    partition: int
    ready: int
    delayed: int
    leased: int
    oldest_at: int | None
    """When the oldest message at the head of one of its lanes was enqueued; None: none is ready."""
