"""Leases, and every way to end one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast import (
    Backoff,
    Done,
    Extend,
    Fail,
    Lease,
    Outgoing,
    Queue,
    Release,
    Retry,
)
from tests.server.stories.scene import (
    Scene,
    everything,
    plain,
    refused,
    story,
)


@story
def leases_in_their_order(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", ack_timeout=20)
    for n, priority in enumerate([0, 9, 0, 5, 9]):
        queue.enqueue(n, priority=priority)
    queue.enqueue("later", delay=10, priority=9)
    queue.enqueue("long", ack_timeout=100)
    first = queue.lease(4, owner="me")
    scene.clock.advance(10)
    rest = queue.lease(10, wait=5, owner="you")
    held = list(queue.browse("leased"))
    return first, rest, queue.lease(), queue.lease(wait=0.02), held, queue.stats()


@story
def what_a_lease_refuses(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    tries: list[Callable[[], Any]] = [
        lambda: queue.lease(0),
        lambda: queue.lease(10_001),
        lambda: queue.lease(wait=-1),
        lambda: queue.lease(wait=float("nan")),
        lambda: queue.lease(owner="x" * 2000),
    ]
    return [refused(one) for one in tries]


@story
def partitions(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", partitions=4)
    sent = queue.enqueue_many([Outgoing(n, key=f"k{n % 6}") for n in range(24)])
    parts = queue.partitions()
    some = queue.lease(100, partitions=[0, 3], owner="me")
    bad = [refused(lambda one=one: queue.lease(partitions=one)) for one in ([], [-1], [0, 999])]
    scene.clock.advance(3)
    grown = scene.hf.queue("orders", partitions=5)
    more = grown.enqueue_many([Outgoing(n, key=f"k{n % 6}") for n in range(6)])
    return [m.partition for m in sent], parts, some, bad, more, grown.partitions()


@story
def the_next_leases_as_they_come(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    queue.enqueue_many([Outgoing({"n": n}, key="k") for n in range(3)])
    with scene.streams("orders", 3) as leases:
        settled = queue.settle(leases)
    return leases, settled, everything(queue)


@story
def every_way_to_end_a_lease(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", max_attempts=3, backoff=Backoff(base=10))
    queue.enqueue_many(range(9))
    a, b, c, d, e, f, g, h, i = queue.lease(9, owner="me")
    scene.clock.advance(1)
    queue.ack(a)
    queue.ack(b, result={"sum": [1, 2, None]})
    queue.nack(c)
    queue.nack(d, "not now", delay=4)
    queue.nack(e, ValueError("of the caller"))
    queue.nack(f, {"message": "mapped", "code": "E42"}, delay=0)
    queue.fail(g, "never", code="Declined")
    queue.release(h)
    longer = [queue.extend(i, 100), queue.extend(i)]
    return longer, everything(queue), list(queue.log()), queue.get(g.id)


@story
def a_batch_of_ends(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", backoff=Backoff(base=2))
    queue.enqueue_many(range(9))
    a, b, c, d, e, f, g, h, i = queue.lease(9, owner="me")
    queue.ack(h)
    ends = [
        a,
        (b, Done({"result": True})),
        (c, Retry("again", code="Busy")),
        (d, Retry(KeyError("k"), delay=7)),
        (e, Fail("no", code="Never")),
        (f, Release()),
        (g, Extend(90)),
        h,
        (msgspec.structs.replace(i, token="nonsense"), Done()),
    ]
    answers = [queue.settle(ends), queue.settle(ends), queue.settle([])]
    return answers, everything(queue)


@story
def leases_that_are_lost(scene: Scene) -> Any:
    """Every verb after everything that may have happened since."""
    seen: list[Any] = []
    for n, since in enumerate(SINCE):
        queue = scene.hf.queue(f"orders-{n}", ack_timeout=30)
        queue.enqueue(n)
        (lease,) = queue.lease(owner="me")
        since(scene, queue, lease)
        before = everything(queue)
        seen += [refused(partial(verb, queue, lease)) for verb in VERBS]
        seen += [queue.settle([(lease, outcome)]) for outcome in OUTCOMES]
        assert plain(everything(queue)) == plain(before)
    return seen


VERBS: list[Callable[[Queue, Lease], Any]] = [
    lambda queue, lease: queue.ack(lease),
    lambda queue, lease: queue.nack(lease, "no"),
    lambda queue, lease: queue.fail(lease, "never"),
    lambda queue, lease: queue.release(lease),
    lambda queue, lease: queue.extend(lease, 60),
]
OUTCOMES = [Done(), Retry("no"), Fail("never"), Release(), Extend(60)]
SINCE: list[Callable[[Scene, Queue, Lease], Any]] = [
    lambda scene, queue, lease: queue.ack(lease),
    lambda scene, queue, lease: queue.nack(lease, "no"),
    lambda scene, queue, lease: queue.fail(lease),
    lambda scene, queue, lease: queue.release(lease),
    lambda scene, queue, lease: (queue.release(lease), queue.lease(owner="you")),
    lambda scene, queue, lease: (scene.clock.advance(30), scene.hf.sweep()),
    lambda scene, queue, lease: (queue.fail(lease), scene.hf.redrive(queue.dlq.name)),
    lambda scene, queue, lease: (queue.fail(lease), queue.dlq.lease(owner="you")),
    lambda scene, queue, lease: (queue.release(lease), queue.purge()),
]


@story
def what_ending_a_lease_refuses(scene: Scene) -> Any:
    queue, other = scene.hf.queue("orders"), scene.hf.queue("bills")
    queue.enqueue_many(range(2))
    lease, second = queue.lease(2)
    tries: list[Callable[[], Any]] = [
        lambda: other.ack(lease),
        lambda: other.settle([lease]),
        lambda: queue.ack(lease, result=1j),
        lambda: queue.ack(lease, result="x" * 70_000),
        lambda: queue.settle([second, (lease, Done("x" * 70_000))]),
        lambda: queue.nack(lease, "no", delay=-1),
        lambda: queue.nack(lease, 42),
        lambda: queue.extend(lease, 0),
        lambda: queue.extend(lease, -5),
        lambda: queue.extend(lease, float("inf")),
        lambda: queue.ack(msgspec.structs.replace(lease, token="")),
        lambda: queue.nack(msgspec.structs.replace(lease, token="x.1")),
    ]
    return [refused(one) for one in tries], everything(queue)


@story
def out_of_attempts(scene: Scene) -> Any:
    dead = scene.hf.queue("orders", max_attempts=2, backoff=Backoff(base=1))
    done = scene.hf.queue("bills", max_attempts=1, exhausted="complete")
    dead.enqueue("a")
    done.enqueue("b")
    for _ in range(2):
        for queue in (dead, done):
            for lease in queue.lease(5, owner="me"):
                queue.nack(lease, RuntimeError("broken"))
        scene.clock.advance(5)
    (looked_at,) = dead.dlq.lease(owner="you")
    before = dead.dlq.get(looked_at.id)
    dead.dlq.nack(looked_at, "leave it")
    dead.dlq.ack(dead.dlq.lease()[0])
    return before, everything(dead), everything(done)


@story
def sweeps(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders", ack_timeout=10, max_attempts=2, retention_count=1)
    done = hf.queue("bills", ack_timeout=10, max_attempts=1, exhausted="complete")
    queue.enqueue_many(range(4))
    done.enqueue("b")
    queue.settle(queue.lease(2))
    leases = [queue.lease(5, owner="me"), done.lease(owner="me")]
    seen: list[Any] = [hf.sweep()]
    scene.clock.advance(10)
    seen += [list(queue.browse("leased")), hf.sweep(), queue.lease(5, owner="you")]
    scene.clock.advance(10)
    return leases, seen, hf.sweep(), hf.sweep(), everything(queue), everything(done)
