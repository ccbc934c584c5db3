"""Dead letters and redrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import DeadFilter, Edit, Outgoing
from holdfast.queue import failures
from holdfast.wire import shapes as s
from tests.server.stories.scene import (
    ID,
    Scene,
    everything,
    kill,
    refused,
    story,
)


@story
def redrive_with_every_option(scene: Scene) -> Any:
    hf = scene.hf
    queue, other = hf.queue("orders"), hf.queue("repair", partitions=3)
    kill(queue, {"n": 1, "c": {"id": 7}}, Outgoing({"n": 2}, key="k", type="t"), code="Slow")
    scene.clock.advance(100)
    sent = kill(
        queue, Outgoing({"n": 3}, key="c", headers={"h": "x"}), {"n": 4}, {"n": 5}, {"n": 6}, [7]
    )
    held = queue.dlq.lease(1, owner="me")
    dlq = "orders.dlq"
    seen: list[Any] = [
        hf.redrive(dlq, dry_run=True),
        hf.redrive(dlq, 2, dry_run=True, to="repair"),
        hf.redrive(dlq, ids=[]),
        hf.redrive(dlq, ids=[sent[1].id, ID.format(9)]),
        hf.redrive(dlq, where=DeadFilter(code="Slow", older_than=50)),
        hf.redrive(dlq, where=DeadFilter(newer_than=0.0)),
        hf.redrive(dlq, where={"headers": {"h": "x"}, "reason": "failed"}, to="repair"),
        hf.redrive(dlq, where=DeadFilter(fields={"n": 5}), edit=Edit(merge={"n": None, "m": [1]})),
        hf.redrive(dlq, 1, rate=1000, edit=Edit(payload=None)),
        queue.dlq.stats(),
        hf.redrive(dlq, 1),
        hf.redrive(dlq),
    ]
    queue.dlq.release(held[0])
    seen += [hf.redrive(dlq, where=DeadFilter(key="nobody", type="t")), hf.redrive(dlq)]
    return seen, everything(queue), everything(other)


@story
def the_five_errors_of_a_redrive(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    hf.queue("lone.dlq")
    names = ["", "a b", "nowhere", "nowhere.dlq", "orders", "lone.dlq"]
    seen = [refused(lambda name=name: hf.redrive(name, to="nowhere")) for name in names]
    seen += [refused(lambda name=name: hf.start_redrive(name, to="nowhere")) for name in names]
    kill(queue, *range(250))
    with scene.store_breaks("settle", 2):
        seen += [refused(lambda: hf.redrive("orders.dlq"))]
    return seen, queue.stats(), queue.dlq.stats()


@story
def the_five_errors_past_the_client(scene: Scene) -> Any:
    """By the server itself, whatever a client checks before it sends."""
    scene.hf.queue("orders")
    scene.hf.queue("lone.dlq")

    def redrive(name: str, operation: str) -> Any:
        does = "start_redrive" if operation == "StartRedrive" else "redrive"
        return scene.asks(operation, s.RedriveAsk(name), lambda _: getattr(scene.hf, does)(name))

    names = ["", "a b", "nowhere", "nowhere.dlq", "orders", "lone.dlq"]
    return [
        refused(lambda name=name, operation=operation: redrive(name, operation))
        for operation in ("Redrive", "StartRedrive")
        for name in names
    ]


@story
def what_else_a_redrive_refuses(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders", payload_max=100)
    kill(queue, {"a": 1}, Outgoing(b"png", content_type="image/png"))
    dlq = "orders.dlq"
    tries: list[dict[str, Any]] = [
        {"count": -1},
        {"rate": 0},
        {"rate": float("nan")},
        {"ids": "one"},
        {"ids": ["nonsense"]},
        {"where": {"colour": "red"}},
        {"where": {"older_than": -1}},
        {"where": 7},
        {"edit": {"payload": 1, "merge": {}}},
        {"edit": {"colour": "red"}},
        {"edit": {"payload": 1j}},
        {"edit": 7},
        {"to": "nowhere"},
        {"to": "orders.dlq"},
        {"to": "a b"},
        {"edit": Edit(payload="x" * 200)},
    ]
    told = [refused(lambda one=one: hf.redrive(dlq, **one)) for one in tries]
    told += [refused(lambda one=one: hf.start_redrive(dlq, **one)) for one in tries[:-1]]
    told += [refused(lambda: hf.redrive(dlq, edit=Edit(merge={"b": 2})))]
    return told, everything(queue)


@story
def redrives_in_the_background(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    hf.queue("repair")
    kill(queue, *range(230))
    started = hf.start_redrive("orders.dlq", 210, to="repair")
    first = _job(scene.worked(started.id))
    bad = hf.start_redrive("orders.dlq", edit=Edit(merge={"b": 2}))
    second = _job(scene.worked(bad.id))
    listed = [_job(job) for job in hf.list_redrives()]
    tries: list[Callable[[], Any]] = [
        lambda: hf.get_redrive(ID.format(7)),
        lambda: hf.cancel_redrive(ID.format(7)),
        lambda: hf.get_redrive("nonsense"),
        lambda: hf.cancel_redrive("nonsense"),
    ]
    told = [refused(one) for one in tries]
    return _job(started), first, second, listed, told, queue.dlq.stats(), hf.stats()


@story
def a_redrive_is_cancelled(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    kill(queue, *range(20))
    slow = hf.start_redrive("orders.dlq", rate=0.001)
    hf.cancel_redrive(slow.id)
    ended = scene.worked(slow.id)
    stays = hf.cancel_redrive(slow.id).state
    return ended.state, stays, ended.total, queue.stats().ready + queue.stats().dead


def _job(job: Any) -> dict[str, Any]:
    """What every door tells of a redrive."""
    return {name: getattr(job, name) for name in s.RedriveDoc.__struct_fields__}


@story
def dead_letters_by_what_they_died_of(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    kill(queue, *range(5), code="Declined")
    scene.clock.advance(100)
    kill(queue, "x", "y", code="Slow")
    found = scene.asks(
        "ListFailures",
        s.FailuresAsk("orders"),
        lambda at: failures.failure_groups(at, "orders.dlq"),
    )
    fields = ("fingerprint", "reason", "code", "error", "count", "examples", "first_dead_at")
    causes = [[getattr(group, name) for name in fields] for group in found.groups]
    return found.dlq, causes, found.looked, found.total, found.bucket_ms
