"""Finished messages, pages and consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast import (
    Outgoing,
    State,
)
from holdfast.wire import shapes as s
from tests.server.stories.scene import (
    HOUR,
    ID,
    Scene,
    everything,
    kill,
    refused,
    story,
)


@story
def log_and_replay(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", partitions=2)
    sent = []
    for n in range(4):
        sent.append(queue.enqueue({"n": n}, key=f"k{n}", headers={"h": "1"}, priority=n))
        queue.ack(queue.lease(owner="me")[0], result=n)
        scene.clock.advance(60)
    since, until = sent[1].enqueued_at, sent[3].enqueued_at
    seen: list[Any] = [
        list(queue.log()),
        list(queue.log(since=since, until=until)),
        queue.replay(sent[0].id),
        queue.replay(since=since, until=until),
        queue.replay(since=until + HOUR),
    ]
    tries: list[Callable[[], Any]] = [
        queue.replay,
        lambda: queue.replay(ID.format(7)),
        lambda: queue.replay("nonsense"),
        lambda: queue.get(sent[0].id),
        lambda: queue.get("nonsense"),
        lambda: queue.get(ID.format(7)),
    ]
    read = scene.asks("ReadLog", s.LogAsk("orders"), lambda _: None)
    seen += [list(queue.log()) if read is None else [doc.value() for doc in read.finished]]
    return seen, [refused(one) for one in tries], everything(queue)


@story
def looking_around(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    queue.enqueue_many([Outgoing(n, delay=n % 3, priority=n % 2) for n in range(12)])
    queue.settle(queue.lease(2, owner="me"))
    kill(queue, "dead")
    queue.lease(1, owner="me")
    scene.clock.advance(1)
    now = scene.clock.now()
    ranges = [{"since": now}, {"until": now}, {"since": now - 1000, "until": now + 5000}]
    seen = [list(queue.browse(state, **one)) for state in State for one in ranges]
    return seen, everything(queue), refused(lambda: list(queue.browse("nowhere")))


@story
def more_than_a_page(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    queue.enqueue_many([Outgoing(n, priority=n % 3) for n in range(1100)])
    payloads = [entry.message.payload for entry in queue.browse()]
    return payloads, queue.purge(), queue.stats()


@story
def who_holds_what(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    queue.enqueue_many(range(5))
    queue.lease(2, owner="me")
    queue.lease(1, owner="you")
    found = scene.asks("ListConsumers", s.QueueAsk("orders"), lambda _: None)
    if found is not None:
        return {one.owner: one.leases for one in found.consumers}
    return dict(Counter(entry.lease.owner for entry in queue.browse("leased") if entry.lease))
