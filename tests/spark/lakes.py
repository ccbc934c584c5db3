"""What the tests of the lake share: a queue with a past, and the ledger of what a lake holds."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from holdfast import Backoff, Holdfast, Outgoing, Queue

SLOW = 97
"""Every so many-th message fails once, every so many-th of SLOW // 2 for ever."""


def shop(hf: Holdfast, name: str = "orders", **policy: Any) -> Queue:
    given = {"max_attempts": 2, "backoff": Backoff(base=0, max=0), **policy}
    return hf.queue(name, **given)


def send(queue: Queue, n: int, first: int = 0) -> list[str]:
    items = [
        Outgoing({"n": k, "customer": {"id": k % 7}}, key=f"customer-{k % 7}", priority=k % 3)
        for k in range(first, first + n)
    ]
    return [message.id for message in queue.enqueue_many(items)]


def work(queue: Queue, most: int = 10**9) -> int:
    """Like a worker whose handler knows no number that is divided by 10, and at first none by 7."""
    done = 0
    while done < most and (leases := queue.lease(min(200, most - done))):
        for lease in leases:
            n = lease.message.payload["n"]
            if n % 10 == 0:
                queue.fail(lease, f"no rate for order {n} of 'LI'")
            elif n % 7 == 0 and lease.message.attempts == 1:
                queue.nack(lease, f"connection to 10.0.0.{n % 250} refused", delay=0)
            else:
                queue.ack(lease)
        done += len(leases)
    return done


def lake_ids(spark: Any, lake: str, table: str = "log") -> Counter[str]:
    from holdfast import spark as hs

    rows = hs.archived(lake, table, spark).groupBy("id").count().collect()
    return Counter({row["id"]: row["count"] for row in rows})


def once(ids: Any) -> Counter[str]:
    return Counter(dict.fromkeys(ids, 1))


DICE = Random(5)
