"""Who may settle: the token is the truth, not the timer and not the name."""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from holdfast import (
    Done,
    Extend,
    Fail,
    Holdfast,
    InvalidArgument,
    Lease,
    LeaseLost,
    Queue,
    Release,
    Retry,
    Settled,
)
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import whereabouts

VERBS: dict[str, Callable[[Queue, Lease], Any]] = {
    "ack": lambda queue, lease: queue.ack(lease),
    "nack": lambda queue, lease: queue.nack(lease, "no"),
    "fail": lambda queue, lease: queue.fail(lease, "never"),
    "extend": lambda queue, lease: queue.extend(lease, 60),
    "release": lambda queue, lease: queue.release(lease),
}

VERB_THAT_ENDED_IT = {"released": "release", "nacked": "nack", "settled": "ack", "dead": "fail"}
"""Of these, the one that may be repeated."""

SINCE: dict[str, Callable[[Holdfast, Queue, Lease, ManualClock], Any]] = {
    "requeued": lambda hf, queue, lease, clock: (clock.advance(30), hf.sweep()),
    "leased again": lambda hf, queue, lease, clock: (clock.advance(30), hf.sweep(), queue.lease()),
    "released": lambda hf, queue, lease, clock: queue.release(lease),
    "nacked": lambda hf, queue, lease, clock: queue.nack(lease, "no"),
    "settled": lambda hf, queue, lease, clock: queue.ack(lease),
    "dead": lambda hf, queue, lease, clock: queue.fail(lease, "never"),
    "redriven": lambda hf, queue, lease, clock: (queue.fail(lease), hf.redrive("orders.dlq")),
    "redriven and leased": lambda hf, queue, lease, clock: (
        queue.fail(lease),
        hf.redrive("orders.dlq"),
        queue.lease(),
    ),
    "looked at in the dlq": lambda hf, queue, lease, clock: (queue.fail(lease), queue.dlq.lease()),
    "purged": lambda hf, queue, lease, clock: (queue.release(lease), queue.purge()),
    "deleted": lambda hf, queue, lease, clock: (queue.delete(force=True), hf.queue("orders")),
}


def everything(queue: Queue) -> list[Any]:
    """Whole rows of everything the store holds about a queue."""
    rows: list[Any] = [queue.stats(), queue.dlq.stats()]
    for each in (queue, queue.dlq):
        for state in ("ready", "delayed", "leased", "log"):
            rows += list(each.browse(state))
    return rows


@pytest.mark.promise("FENCE-1")
def test_every_delivery_has_a_token_of_its_own(
    queue: Queue, hf: Holdfast, clock: ManualClock
) -> None:
    queue.enqueue_many([1, 2, 3])
    tokens: list[str] = []
    for _ in range(3):
        leases = queue.lease(10)
        tokens += [lease.token for lease in leases]
        for lease in leases:
            queue.release(lease)
    assert len(tokens) == 9 == len(set(tokens))


@pytest.mark.promise("FENCE-2")
@pytest.mark.parametrize("since", SINCE)
def test_a_stale_token_changes_nothing(
    hf: Holdfast, queue: Queue, clock: ManualClock, since: str
) -> None:
    queue.enqueue({"id": 1})
    (lease,) = queue.lease()
    SINCE[since](hf, queue, lease, clock)
    is_refused(queue, lease, but=VERB_THAT_ENDED_IT.get(since))


REPEATED: dict[str, tuple[dict[str, Any], Callable[[Queue, Lease], Any]]] = {
    "ack": ({}, lambda queue, lease: queue.ack(lease)),
    "ack with a result": ({}, lambda queue, lease: queue.ack(lease, result={"id": 1})),
    "nack": ({}, lambda queue, lease: queue.nack(lease, "no", delay=0)),
    "nack that waits": ({}, lambda queue, lease: queue.nack(lease, "no", delay=60)),
    "last nack": ({"max_attempts": 1}, lambda queue, lease: queue.nack(lease, "no")),
    "last nack to the log": (
        {"max_attempts": 1, "exhausted": "complete"},
        lambda queue, lease: queue.nack(lease, "no"),
    ),
    "fail": ({}, lambda queue, lease: queue.fail(lease, "never")),
    "release": ({}, lambda queue, lease: queue.release(lease)),
}


@pytest.mark.promise("FENCE-2")
@pytest.mark.parametrize("how", REPEATED)
def test_a_repeated_verb_is_fine_and_changes_nothing(hf: Holdfast, how: str) -> None:
    policy, verb = REPEATED[how]
    queue = hf.queue("orders", **policy)
    queue.enqueue({"id": 1})
    (lease,) = queue.lease()
    queue.extend(lease, 60)  # nor is a lease lost that was extended
    verb(queue, lease)
    before = everything(queue)
    for _ in range(3):
        verb(queue, lease)
        assert everything(queue) == before
    is_refused(queue, lease, but=how.removeprefix("last ").partition(" ")[0])


@pytest.mark.promise("FENCE-2")
@pytest.mark.parametrize("verb", ["ack", "nack", "release"])
def test_a_repeated_verb_in_the_dead_letter_queue_is_fine(queue: Queue, verb: str) -> None:
    queue.enqueue(1)
    queue.fail(queue.lease()[0])
    (lease,) = queue.dlq.lease()
    VERBS[verb](queue.dlq, lease)
    before = everything(queue)
    VERBS[verb](queue.dlq, lease)
    assert everything(queue) == before


@pytest.mark.promise("FENCE-2", "FENCE-3")
def test_a_repeated_extend_extends_again(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    assert queue.extend(lease, 60).deadline == clock.now() + 60_000
    clock.advance(1)
    assert queue.extend(lease, 60).deadline == clock.now() + 60_000
    queue.ack(lease)
    with pytest.raises(LeaseLost):
        queue.extend(lease, 60)


@pytest.mark.promise("FENCE-2")
def test_a_verb_after_the_message_moved_on_again_is_refused(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    """The same verb ended the lease, but it is not the last thing that happened any more."""
    queue.enqueue(1)
    (first,) = queue.lease()
    queue.release(first)
    (second,) = queue.lease()
    is_refused(queue, first)
    queue.release(second)
    is_refused(queue, first)
    queue.release(second)


@pytest.mark.promise("FENCE-1", "FENCE-2")
def test_an_unknown_token_changes_nothing(queue: Queue) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    for token in ["", "x", "x.1", "1", "..", "é.²", "a." + "9" * 30]:
        is_refused(queue, msgspec.structs.replace(lease, token=token))


@pytest.mark.promise("FENCE-1")
def test_a_token_is_good_for_its_own_message_only(queue: Queue) -> None:
    queue.enqueue_many([1, 2])
    first, second = queue.lease(2)
    is_refused(queue, msgspec.structs.replace(first, token=second.token))


def is_refused(queue: Queue, lease: Lease, *, but: str | None = None) -> None:
    """No verb but that accepts this lease, and none changes anything."""
    before = everything(queue)
    for name, verb in VERBS.items():
        with nullcontext() if name == but else pytest.raises(LeaseLost):
            verb(queue, lease)
        assert everything(queue) == before, name


def test_a_lease_of_another_queue_is_refused(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    with pytest.raises(InvalidArgument, match="lease"):
        hf.queue("bills").ack(lease)
    assert queue.stats().leased == 1


@pytest.mark.promise("FENCE-2")
def test_an_ack_after_the_deadline_counts_until_somebody_swept(
    queue: Queue, hf: Holdfast, clock: ManualClock
) -> None:
    sent = queue.enqueue(1)
    (lease,) = queue.lease()
    clock.advance(3600)
    queue.ack(lease)
    assert hf.sweep().requeued == 0
    assert whereabouts(queue) == {"log": [sent.id]}


@pytest.mark.promise("FENCE-3")
def test_extend_moves_the_deadline_from_now(queue: Queue, hf: Holdfast, clock: ManualClock) -> None:
    queue.enqueue("own", ack_timeout=100)
    queue.enqueue("queue's")
    own, plain = queue.lease(2)
    clock.advance(20)
    longer = queue.extend(plain, 60)
    assert longer.deadline == clock.now() + 60_000
    assert longer.token == plain.token
    assert queue.extend(own).deadline == clock.now() + 100_000
    clock.advance(59.999)
    assert hf.sweep().requeued == 0
    clock.advance(0.001)
    assert hf.sweep().requeued == 1
    (held,) = queue.browse("leased")
    assert held.lease is not None and held.lease.deadline == clock.now() + 40_000


@pytest.mark.promise("FENCE-3")
def test_extend_may_also_shorten(queue: Queue, hf: Holdfast, clock: ManualClock) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    queue.extend(lease, 1)
    clock.advance(1)
    assert hf.sweep().requeued == 1


@pytest.mark.promise("FENCE-4")
def test_a_released_message_is_back_at_once_and_uncounted(queue: Queue) -> None:
    sent = queue.enqueue_many([1, 2])
    for _ in range(5):
        first, _second = leases = queue.lease(2)
        assert first.message.attempts == 1
        for lease in leases:
            queue.release(lease)
    assert whereabouts(queue) == {"ready": [m.id for m in sent]}  # in their old places
    assert queue.get(sent[0].id).attempts == 0


@pytest.mark.promise("FENCE-5")
def test_a_batch_answers_item_by_item(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many(range(8))
    leases = queue.lease(8)
    queue.release(leases[1])
    queue.ack(leases[3])
    unknown = msgspec.structs.replace(leases[5], token="nobody.5")
    answers = queue.settle(
        [
            leases[0],
            leases[1],
            (leases[2], Retry("later", delay=5)),
            leases[3],
            (leases[4], Fail("never")),
            unknown,
            (leases[6], Release()),
            (leases[7], Extend(99)),
        ]
    )
    applied, already, stale = Settled.APPLIED, Settled.ALREADY, Settled.STALE
    assert answers == [applied, stale, applied, already, applied, stale, applied, applied]
    assert {place: len(found) for place, found in whereabouts(queue).items()} == {
        "ready": 2,
        "delayed": 1,
        "leased": 2,
        "log": 2,
        "dead": 1,
    }


@pytest.mark.promise("FENCE-5")
@pytest.mark.parametrize("outcome", [Done(), Retry("no"), Fail("never"), Release()], ids=str)
def test_a_repeated_batch_is_told_from_a_lost_one(queue: Queue, outcome: Any) -> None:
    queue.enqueue_many(range(3))
    moves = [(lease, outcome) for lease in queue.lease(3)]
    assert queue.settle(moves) == [Settled.APPLIED] * 3
    before = everything(queue)
    assert queue.settle(moves) == [Settled.ALREADY] * 3
    assert everything(queue) == before
    other = Done() if not isinstance(outcome, Done) else Release()
    assert queue.settle([(lease, other) for lease, _ in moves]) == [Settled.STALE] * 3
    assert everything(queue) == before


@pytest.mark.promise("FENCE-5")
def test_one_message_twice_in_a_batch(queue: Queue) -> None:
    queue.enqueue_many([1, 2])
    first, second = queue.lease(2)
    answers = queue.settle([(first, Extend(5)), first, (first, Release()), second, second])
    assert answers == [
        Settled.APPLIED,
        Settled.APPLIED,
        Settled.STALE,
        Settled.APPLIED,
        Settled.ALREADY,
    ]
    assert queue.stats().done == 2
    assert queue.settle([]) == []


@pytest.mark.no_store
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "60"])
def test_a_bad_extension_is_refused(queue: Queue, seconds: Any) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    with pytest.raises(InvalidArgument, match="seconds"):
        queue.extend(lease, seconds)
    with pytest.raises(InvalidArgument, match="delay"):
        queue.nack(lease, "no", delay=-1)
    assert queue.stats().leased == 1
