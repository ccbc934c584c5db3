"""Claims whole partitions for batches of messages, which Spark reads.

It takes every partition that is free, not a share of them, and gives back what has to wait for a
failed message of the same key.
"""

from __future__ import annotations

import threading

from holdfast.model.moves import Settled
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.queue import LocalQueue
from holdfast.rules import lifecycle
from holdfast.stores.contract import ByPartition, batch_in
from holdfast.work.ownership.line import OwnedPartition
from holdfast.work.ownership.share import PAGE, Share


class BatchOwner:
    """One query's claims on the partitions of one ordered queue."""

    def __init__(self, context: Context, queue: LocalQueue, settings: Settings, name: str) -> None:
        self.queue = queue
        self.name = name
        self._at = context
        self._share = Share(context, queue, settings, name, threading.Event())
        self._waiting: dict[str, int] = {}
        """When the failed messages that held keys at the last `seize` come again."""

    def seize(self) -> list[OwnedPartition]:
        """Claim every partition that is free, or ours; those of them that can be worked now."""
        share = self._share
        depths = self._at.store.stats(ByPartition(self.queue.name), self._at.clock.now())
        share.read_spec()
        with share.lock:
            share.parts.clear()  # nothing is kept between two batches but the claims
        claimed = [share.claim(number) for number in lifecycle.in_use(share.common.spec, depths)]
        fresh = [part for part in claimed if part is not None]
        share.take_over(fresh)
        self._waiting = self._delayed_keys()
        return share.not_barred([part for part in fresh if part.open])

    def _delayed_keys(self) -> dict[str, int]:
        keys: dict[str, int] = {}
        for _, key, blocker in self._share.failed_keys(range(self._share.common.spec.partitions)):
            keys[key] = max(keys.get(key, 0), blocker.until)
        return keys

    def put_off(self, number: int, batch: str, asked_at: int) -> int:
        """Put back those messages of a batch that have to wait; returns how many.

        They wait for a failed message of their key that was delayed when they were leased. It may
        be due by now and no longer count as delayed: so what `seize` saw counts as well.
        """
        store, name, back = self._at.store, self.queue.name, 0
        before = {key: until for key, until in self._waiting.items() if until > asked_at}
        keys = before | self._delayed_keys()
        depths = store.stats(ByPartition(name), self._at.clock.now())
        barred = not self._share.is_clear(number, depths)
        after: str | None = None
        while (keys or barred) and (leases := batch_in(store, name, batch, after, PAGE)):
            now, after = self._at.clock.now(), leases[-1].id
            waiting = [lease for lease in leases if barred or (lease.message.key or "") in keys]
            moves = [
                lifecycle.parked(lease, max(now, keys.get(lease.message.key or "", 0)))
                for lease in waiting
            ]
            back += store.settle(moves, now).count(Settled.APPLIED)
        return back
