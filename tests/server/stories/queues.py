"""Queues: made, changed, paused, purged, deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import (
    Backoff,
)
from tests.server.stories.scene import (
    Scene,
    refused,
    story,
)


@story
def a_queue_is_made_and_changed(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue(
        "orders",
        partitions=2,
        ack_timeout=12.5,
        max_attempts=7,
        backoff=Backoff(base=1, factor=3, max=60, jitter="none"),
        overdue_backoff=True,
        exhausted="complete",
        log=True,
        retention=0,
        retention_count=5,
        payload_max=2000,
        on_failure="skip",
        duplicate_window=90.0,
    )
    seen: list[Any] = [queue.spec, queue.policy, queue.dlq.spec]
    scene.clock.advance(1)
    again = hf.queue("orders", max_attempts=8, backoff=Backoff(max=30), log=False)
    seen += [again.spec, again.policy, hf.queue("orders", create=False).spec]
    seen += [hf.queue("orders", partitions=4).spec, hf.queue("orders.dlq").spec]
    seen += [hf.queue("lone.dlq").spec, hf.queue("kept", ordered=True, partitions=3).spec]
    return seen, [of.name for of in hf.queues()], hf.stats()


@story
def what_a_queue_refuses(scene: Scene) -> Any:
    hf = scene.hf
    hf.queue("orders", partitions=4)
    tries: list[Callable[[], Any]] = [
        lambda: hf.queue("ordres", create=False),
        lambda: hf.queue("ordres", create=False, max_attempts=3),
        lambda: hf.queue("orders", max_atempts=3),
        lambda: hf.queue("orders", max_attempts=0),
        lambda: hf.queue("orders", ack_timeout=-1),
        lambda: hf.queue("orders", retention=-1),
        lambda: hf.queue("orders", exhausted="gone"),
        lambda: hf.queue("orders", on_failure="maybe"),
        lambda: hf.queue("orders", backoff=Backoff(factor=0.5)),
        lambda: hf.queue("orders", partitions=2),
        lambda: hf.queue("orders", partitions=0),
        lambda: hf.queue("orders", partitions=257),
        lambda: hf.queue("orders", ordered=True),
        lambda: hf.queue("orders.dlq", partitions=8),
        lambda: hf.queue("new.dlq", ordered=True),
        lambda: hf.queue("orders.dlq").delete(),
        lambda: hf.queue("a b"),
        lambda: hf.queue("x" * 129),
        lambda: hf.queue("x.dlq.dlq"),
        lambda: hf.queue(""),
    ]
    return [refused(one) for one in tries], [of.name for of in hf.queues()]


@story
def pause_resume_purge_delete(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    queue.enqueue_many(range(5))
    queue.pause()
    seen: list[Any] = [queue.spec.paused, queue.stats(), queue.lease(5), queue.enqueue("late")]
    queue.resume()
    held = queue.lease(2)
    seen += [queue.stats(), refused(queue.delete), queue.purge(), queue.purge(), queue.stats()]
    queue.fail(held[0])
    queue.ack(held[1])
    seen += [refused(queue.delete), queue.dlq.purge(), queue.delete(), hf.queues()]
    gone: list[Callable[[], Any]] = [
        queue.delete,
        queue.pause,
        queue.resume,
        queue.purge,
        queue.stats,
        queue.partitions,
        queue.lease,
        lambda: queue.spec,
        lambda: queue.policy,
        lambda: queue.enqueue(1),
        lambda: queue.enqueue_many([1, 2]),
        lambda: queue.ack(held[0]),
        lambda: queue.settle(held),
        lambda: queue.get(held[0].id),
        lambda: list(queue.browse()),
        lambda: list(queue.log()),
        lambda: queue.replay(held[0].id),
    ]
    seen += [_without_hint(refused(one)) for one in gone]
    hf.queue("full").enqueue(1)
    hf.queue("full").delete(force=True)
    return seen, [of.name for of in hf.queues()]


def _without_hint(told: dict[str, Any]) -> dict[str, Any]:
    """A server is given a name with every call, and says which one may be meant; a handle that the
    library gave out was good once."""
    return {**told, "text": str(told.get("text")).partition(";")[0]}
