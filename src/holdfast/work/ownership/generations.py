"""Order across generations of partitions: what a key had before partitions were added comes first.

When a queue gets more partitions, its keys move to new ones. A message in a new partition waits
while older partitions hold messages that may be of its key.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.message import Message
from holdfast.model.queues import Depth, QueueSpec


class Barriers(msgspec.Struct, frozen=True):
    """What messages of new partitions have to wait for."""

    spec: QueueSpec
    partitions: set[int] = set()
    """Nothing of these may start now."""
    keys: dict[str, tuple[int, int]] = {}
    """Keys that wait for a failed message in an older partition: which one, and until when."""

    def wait_until(self, message: Message) -> int | None:
        """When the older message of its key comes again; None if there is none."""
        found = self.keys.get(message.key or "")
        if found is None or found[0] >= start_of(self.spec, message.partition):
            return None
        return found[1]


def start_of(spec: QueueSpec, partition: int) -> int:
    """The first partition of its generation."""
    return max(start for start in spec.starts if start <= partition)


def is_clear(spec: QueueSpec, partition: int, depths: Sequence[Depth]) -> bool:
    """Whether the older generations hold nothing that comes first."""
    return not any(d.ready or d.leased for d in depths[: start_of(spec, partition)])
