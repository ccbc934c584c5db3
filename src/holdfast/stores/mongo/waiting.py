"""Waits until there may be something to lease."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import QueueNotFound
from holdfast.model import clock
from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.consuming import Consuming
from holdfast.stores.mongo.leasing import Leasing
from holdfast.stores.mongo.queues import LATE_S, Queues, there
from holdfast.stores.mongo.wake import Wake


class Waiting:
    def __init__(
        self,
        db: Connections,
        queues: Queues,
        leasing: Leasing,
        consuming: Consuming,
        wake: Wake,
    ) -> None:
        self._db = db
        self._queues = queues
        self._leasing = leasing
        self._consuming = consuming
        self._wake = wake

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None,
    ) -> bool:
        if len(queues) > 1:
            return self._wait_many(queues, now, timeout)
        until = clock.monotonic() + timeout
        while (left := until - clock.monotonic()) > 0:
            begun = clock.monotonic()
            found, news = self._wait(queues, now, left, partitions)
            if found or partitions is None:
                return found or news
            now += round((clock.monotonic() - begun) * 1000)
        return False

    def _wait_many(self, queues: Sequence[str], now: int, timeout: float) -> bool:
        found = self._queues.look_up_all(queues, late_s=LATE_S)
        known = [there(name, queue) for name, queue in found.items()]
        seen = self._wake.watch([queue.q for queue in known])
        with self._db.translated():
            ready, due = self._leasing.ready(known)
        full = [q.spec.name for q in known if q.q in ready or due.get(q.q, now + 1) <= now]
        if full:
            fresh = [there(name, queue) for name, queue in self._queues.read(full).items()]
            if not all(queue.spec.paused for queue in fresh):
                return True
        ahead = [(at - now) / 1000 for at in due.values() if at > now]
        seconds = min([timeout, *ahead])
        return self._wake.wait(seen, seconds) or seconds < timeout

    def _wait(
        self, queues: Sequence[str], now: int, timeout: float, partitions: Sequence[int] | None
    ) -> tuple[bool, bool]:
        """Whether there is something to lease, else whether there may be after a wait for news."""
        known = [self._queues.must_exist(name) for name in queues]
        seen = self._wake.watch([queue.q for queue in known])
        ahead = [timeout]
        for queue in known:
            with self._db.translated():
                look = self._leasing.anything(queue, partitions)
            if look.spec is None:
                self._queues.forget()
                raise QueueNotFound(f"no queue {queue.spec.name!r}")
            if look.spec["paused"]:
                continue
            if look.docs:
                return True, True
            if partitions is None and look.spec["partitions"] != queue.spec.partitions:
                self._queues.forget()
                return True, True
            if look.due is None:
                continue
            if look.due > now:
                ahead.append((look.due - now) / 1000)
            elif partitions is None:
                return True, True
            else:  # of whichever partition: once they are ready, that is seen
                self._consuming.promote_all(queue, now)
                return False, False
        news = self._wake.wait(seen, min(ahead))
        return False, news or min(ahead) < timeout
