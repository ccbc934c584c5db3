"""Dead letters grouped by what they died of, on every store."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Holdfast, InvalidArgument, Queue, QueueNotFound, State
from holdfast.queue.failures import FailureGroups, failure_groups
from holdfast.stores.contract import LeaseAsk, Page, View
from holdfast.testing import ManualClock, MemoryStore
from holdfast.testing.conformance.fixtures import clock, hf, queue, store

__all__ = ["clock", "hf", "queue", "store"]

MINUTE = 60_000


def die(queue: Queue, error: object, *, code: str | None = None) -> str:
    queue.enqueue({"sku": "A-1"})
    (lease,) = queue.lease()
    queue.fail(lease, error, code=code)
    return lease.id


def counts(found: FailureGroups) -> list[tuple[str | None, str, int]]:
    return [(group.code, group.error, group.count) for group in found.groups]


def test_by_cause(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    start, ids = clock.now(), list[str]()
    clock.advance(3)
    for n in range(5):
        ids.append(die(queue, KeyError(f"order {n}")))
        if n:
            die(queue, f"order {n}: no route to 10.0.0.{n}")
        clock.advance(60)
    odd = die(queue, "order 7: no route to 10.0.0.7", code="ROUTE")
    found = failure_groups(hf.context, "orders.dlq")
    assert counts(found) == [
        ("KeyError", "<text>", 5),
        ("ERROR", "order <n>: no route to <address>", 4),
        ("ROUTE", "order <n>: no route to <address>", 1),
    ]
    assert (found.dlq, found.looked, found.total) == ("orders.dlq", 10, 10)
    keys, _, route = found.groups
    assert (keys.reason, keys.handler) == ("failed", None)
    assert (keys.first_dead_at, keys.last_dead_at) == (
        start + 3000,
        start + 3000 + 4 * MINUTE,
    )
    assert keys.examples == ids[:3]
    assert route.examples == [odd]
    assert len({group.fingerprint for group in found.groups}) == 3
    assert found.bucket_ms == 10_000 and start % 10_000 == 0
    assert keys.by_time == [(start + n * MINUTE, 1) for n in range(5)]


def test_the_last_error_and_the_reason_count(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue(1, max_attempts=2)
    for error in ("first 1", "second 2"):
        (lease,) = queue.lease()
        queue.nack(lease, error, delay=0)
    die(queue, "second 3")
    found = failure_groups(hf.context, "orders.dlq")
    assert {(group.reason, group.error) for group in found.groups} == {
        ("max attempts exceeded", "second <n>"),
        ("failed", "second <n>"),
    }


def test_handlers_are_told_apart(hf: Holdfast, queue: Queue) -> None:
    @hf.handler("orders", name="ship")
    def ship(order: int) -> None:
        raise ValueError(f"order {order}")

    for n in range(3):
        queue.enqueue(n, max_attempts=1)
    hf.worker(until_empty=True, sweep=False).run()
    die(queue, ValueError("order 9"))
    found = failure_groups(hf.context, "orders.dlq").groups
    assert [(g.handler, g.code, g.error, g.count) for g in found] == [
        ("ship", "ValueError", "order <n>", 3),
        (None, "ValueError", "order <n>", 1),
    ]


def test_all_that_is_there_counts_once(hf: Holdfast, queue: Queue) -> None:
    for n in range(6):
        die(queue, f"no {n}")
    queue.dlq.enqueue("by hand")
    held, back = queue.dlq.lease(2)
    queue.dlq.nack(back, "not now", delay=60)
    assert [len(list(queue.dlq.browse(state))) for state in State][:3] == [5, 1, 1]
    found = failure_groups(hf.context, "orders.dlq")
    assert (found.looked, found.total) == (7, 7)
    assert sum(group.count for group in found.groups) == 7
    assert (None, "", 1) in counts(found)
    assert queue.dlq.stats().leased == 1 and held.deadline  # and nothing was changed


def test_within_limits(hf: Holdfast, queue: Queue) -> None:
    ids = [die(queue, f"no {n}") for n in range(8)]
    found = failure_groups(hf.context, "orders.dlq", scan=5, examples=2)
    assert (found.looked, found.total) == (5, 8)
    assert [(group.count, group.examples) for group in found.groups] == [(5, ids[:2])]
    none = failure_groups(hf.context, "orders.dlq", examples=0)
    assert none.groups[0].examples == []


def test_nothing_is_dead(hf: Holdfast, queue: Queue) -> None:
    found = failure_groups(hf.context, "orders.dlq")
    assert found == FailureGroups("orders.dlq", [], 0, 0, 1000)


@pytest.mark.parametrize(
    ("dlq", "given", "error", "problem"),
    [
        ("ordrs.dlq", {}, QueueNotFound, "no queue 'ordrs.dlq'; did you mean 'orders.dlq'"),
        ("orders", {}, InvalidArgument, "dlq: 'orders' is not a dead-letter queue"),
        ("", {}, InvalidArgument, "dlq: name a dead-letter queue"),
        (None, {}, InvalidArgument, "dlq: name a dead-letter queue"),
        ("orders.dlq", {"scan": 0}, InvalidArgument, "scan: must be 1 to 1000000"),
        ("orders.dlq", {"examples": -1}, InvalidArgument, "examples: must be 0 to 100"),
    ],
)
def test_refused(
    hf: Holdfast, queue: Queue, dlq: str, given: dict, error: type, problem: str
) -> None:
    with pytest.raises(error, match=problem):
        failure_groups(hf.context, dlq, **given)


class Moving(MemoryStore):
    """A dead letter is leased after the ready ones were looked at."""

    def browse(self, view: View, after: str | None, limit: int, now: int) -> Page:
        page = super().browse(view, after, limit, now)
        if view.state is State.READY:
            ask = LeaseAsk(view.queue, 1, "somebody", "token", 1000)
            assert len(self.lease(ask, now)) == 1
        return page


def test_one_that_moves_meanwhile_counts_once(clock: ManualClock) -> None:
    hf = holdfast.connect(Moving(), clock=clock)
    queue = hf.queue("orders")
    for n in range(3):
        die(queue, f"no {n}")
    found = failure_groups(hf.context, "orders.dlq")
    assert (found.looked, [group.count for group in found.groups]) == (3, [3])
