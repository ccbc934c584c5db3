"""Dead letters that come back changed: another queue, another partition, a new payload."""

# pyright: basic

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import Fail, Holdfast, Lease, Outgoing, Queue, State
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.model.payload import BYTES, JSON
from holdfast.rules.lifecycle import redriven
from holdfast.stores.contract import ByPartition, Entry, LeaseAsk, Store, held_in
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import ids

APPLIED, ALREADY, STALE = Settled.APPLIED, Settled.ALREADY, Settled.STALE
WAITING = (State.READY, State.DELAYED, State.LEASED)


def die(hf: Holdfast, queue: str, n: int = 1) -> list[Entry]:
    """Let the next `n` messages of a queue die; the entries of all its dead letters."""
    of = hf.queue(queue)
    of.settle([(lease, Fail("poison")) for lease in of.lease(n)])
    return list(of.dlq.browse())


def move(dead: Entry, to: str, now: int, **changes: Any) -> Transition:
    return msgspec.structs.replace(redriven(dead.message, dead.place, to, now), **changes)


def lease(store: Store, queue: str, now: int, *partitions: int) -> list[Lease]:
    token, only = secrets.token_hex(8), partitions or None
    return store.lease(LeaseAsk(queue, 100, "me", token, 30_000, partitions=only), now)


def counted(hf: Holdfast, queue: str) -> dict[int, tuple[int, int, int]]:
    """Ready, delayed and leased of each partition that has any."""
    now = hf.context.clock.now()
    found = {
        d.partition: (d.ready, d.delayed, d.leased) for d in hf.store.stats(ByPartition(queue), now)
    }
    return {part: counts for part, counts in found.items() if any(counts)}


def everything(hf: Holdfast, *queues: str) -> list[Any]:
    """All that can be seen of queues: whole rows, and the counts."""
    now, seen = hf.context.clock.now(), list[Any]()
    for name in queues:
        rows = [list(hf.queue(name).browse(state)) for state in WAITING]
        seen += [rows, hf.store.stats(ByPartition(name), now), hf.queue(name).stats()]
    return seen


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("was", [{"a": 1}, "text", b"\x00\xff"])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b'{"b":2}', JSON), (b"", BYTES), (b"\x00new\xff", BYTES), (b"new", "text/plain")],
)
def test_a_new_payload_is_what_is_leased(
    hf: Holdfast, queue: Queue, clock: ManualClock, was: Any, body: bytes, content_type: str
) -> None:
    sent = queue.enqueue(was, content_type="text/plain" if was == "text" else None)
    (dead,) = die(hf, "orders")
    edited = move(dead, "orders", clock.now(), body=body, content_type=content_type)
    assert hf.store.settle([edited], clock.now()) == [APPLIED]
    (held,) = lease(hf.store, "orders", clock.now())
    assert (held.id, held.message.body, held.message.content_type) == (sent.id, body, content_type)
    queue.ack(held)
    (done,) = queue.log()
    assert (done.message.body, done.message.content_type) == (body, content_type)


@pytest.mark.promise("DEAD-7")
def test_what_a_move_does_not_name_stays(hf: Holdfast, clock: ManualClock) -> None:
    """A partition without a payload, a payload without a partition, neither."""
    queue, now = hf.queue("orders", partitions=4), clock.now()
    sent = queue.enqueue_many(
        [Outgoing(b"old", content_type="image/png", key=f"k{n}") for n in range(3)]
    )
    dead = {entry.message.id: entry for entry in die(hf, "orders", 3)}
    changes: list[dict[str, Any]] = [
        {"partition": (sent[0].partition + 1) % 4},
        {"body": b"[]", "content_type": JSON},
        {},
    ]
    moves = [move(dead[m.id], "orders", now, **c) for m, c in zip(sent, changes, strict=True)]
    assert hf.store.settle(moves, now) == [APPLIED] * 3
    assert [queue.get(m.id) for m in sent] == [
        msgspec.structs.replace(
            dead[m.id].message, queue="orders", attempts=0, history=step.history, **c
        )
        for m, c, step in zip(sent, changes, moves, strict=True)
    ]


@pytest.mark.promise("DEAD-7", "LIFE-12")
def test_a_new_partition_is_where_it_is_found_and_counted(hf: Holdfast, clock: ManualClock) -> None:
    queue, now = hf.queue("orders", partitions=4), clock.now()
    queue.enqueue_many([Outgoing(n, key="same") for n in range(4)])
    dead = die(hf, "orders", 4)
    assert counted(hf, "orders.dlq") == {dead[0].message.partition: (4, 0, 0)}
    moves = [move(entry, "orders", now, partition=n) for n, entry in enumerate(dead)]
    moves[3] = msgspec.structs.replace(moves[3], available_at=now + 5000)
    assert hf.store.settle(moves, now) == [APPLIED] * 4
    assert counted(hf, "orders.dlq") == {}
    assert counted(hf, "orders") == {0: (1, 0, 0), 1: (1, 0, 0), 2: (1, 0, 0), 3: (0, 1, 0)}
    assert [d.oldest_at for d in hf.store.stats(ByPartition("orders"), now)] == [
        now,
        now,
        now,
        None,
    ]
    assert lease(hf.store, "orders", now, 3) == []
    clock.advance(5)
    for part in range(4):
        (held,) = lease(hf.store, "orders", clock.now(), part)
        assert (held.id, held.message.partition) == (dead[part].message.id, part)
        assert counted(hf, "orders")[part] == (0, 0, 1)
        queue.ack(held)
    assert counted(hf, "orders") == {}
    assert (queue.stats().done, queue.stats().dead) == (4, 0)


@pytest.mark.promise("DEAD-7", "LIFE-12")
def test_it_moves_to_another_queue_with_all_it_has(hf: Holdfast, clock: ManualClock) -> None:
    queue, archive = hf.queue("orders", partitions=2), hf.queue("archive", partitions=3)
    empty = everything(hf, "orders", "orders.dlq")
    queue.enqueue(
        {"id": 1}, key="k", type="t", priority=7, headers={"h": "v"}, max_attempts=9, ack_timeout=77
    )
    queue.enqueue({"id": 2}, priority=2)
    clock.advance(3)
    dead = die(hf, "orders", 2)
    clock.advance(4)
    now = clock.now()
    moves = [move(entry, "archive", now, partition=2) for entry in dead]
    assert hf.store.settle(moves, now) == [APPLIED] * 2
    assert everything(hf, "orders", "orders.dlq") == empty
    assert counted(hf, "archive") == {2: (2, 0, 0)}
    assert archive.stats().oldest_age == 7.0
    expected = [
        msgspec.structs.replace(
            entry.message,
            queue="archive",
            partition=2,
            available_at=now,
            attempts=0,
            history=step.history,
        )
        for entry, step in zip(dead, moves, strict=True)
    ]
    assert (expected[0].errors[0].message, expected[0].redriven) == ("poison", 1)
    assert [entry.message for entry in archive.browse()] == expected
    assert held_in(hf.store, "orders", ids(expected)) == []
    held = lease(hf.store, "archive", now, 2)  # by their priority
    assert [one.message.payload for one in held] == [{"id": 1}, {"id": 2}]
    assert held[0].deadline == now + 77_000
    archive.ack(held[0])
    archive.fail(held[1])
    assert counted(hf, "archive") == {}
    assert (archive.stats().done, archive.stats().dead, queue.stats().done) == (1, 1, 0)
    assert not queue.enqueue("anew", id=expected[0].id).duplicate  # its old home is rid of it


@pytest.mark.promise("DEAD-7")
def test_the_line_in_another_queue(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    """In the order in which they were first enqueued, or at its end."""
    archive, now = hf.queue("archive"), clock.now()
    sent = queue.enqueue_many(range(4))
    there = archive.enqueue("there")
    dead = {entry.message.id: entry for entry in die(hf, "orders", 4)}
    order = [dead[sent[n].id] for n in (2, 1, 3, 0)]
    moves = [move(entry, "archive", now, partition=0, tail=n > 1) for n, entry in enumerate(order)]
    assert hf.store.settle(moves, now) == [APPLIED] * 4
    line = [entry.message.id for entry in archive.browse()]
    assert line[-2:] == [sent[3].id, sent[0].id]
    assert line.index(sent[1].id) < line.index(sent[2].id)
    assert line.index(there.id) < 3
    assert ids(archive.lease(5)) == line


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("why", ["held", "dead there", "leased there", "gone", "moved on"])
def test_what_cannot_move_stays_as_it_is(
    hf: Holdfast, queue: Queue, clock: ManualClock, why: str
) -> None:
    archive, now = hf.queue("archive", partitions=2), clock.now()
    sent = queue.enqueue({"id": 1}, key="k", priority=3, headers={"h": "v"})
    (dead,) = die(hf, "orders")
    changed = move(dead, "archive", now, partition=1, body=b"x", content_type="text/plain")
    names = ["orders", "orders.dlq", "archive", "archive.dlq"]
    if why in ("held", "dead there", "leased there"):
        archive.enqueue("mine", id=sent.id)
    if why == "dead there":
        die(hf, "archive")
    elif why == "leased there":
        archive.lease()
    elif why == "gone":
        archive.delete()
        names = names[:2]
    elif why == "moved on":
        changed = msgspec.structs.replace(changed, place=dead.place + 1)
    before = everything(hf, *names)
    assert hf.store.settle([changed], now) == [STALE]
    assert everything(hf, *names) == before
    assert queue.dlq.get(sent.id) == dead.message
    assert hf.store.settle([move(dead, "orders", now)], now) == [APPLIED]


@pytest.mark.promise("DEAD-7", "LIFE-12")
def test_a_mixed_batch_answers_one_by_one(hf: Holdfast, clock: ManualClock) -> None:
    queue, now = hf.queue("orders", partitions=2), clock.now()
    archive = hf.queue("archive", partitions=3)
    queue.enqueue_many([Outgoing(n, key="same") for n in range(9)])
    entries = die(hf, "orders", 6)
    a, b, c, d, e, f = entries
    held = lease(hf.store, "orders", now)
    archive.enqueue("mine", id=d.message.id)
    new = {"body": b'"new"', "content_type": JSON}
    back = Transition(
        Verb.RELEASE, "orders", held[0].id, Target.WAITING, held[0].token, to_queue="orders",
        available_at=now, **new,
    )  # fmt: skip
    finished = Transition(
        Verb.ACK, "orders", held[1].id, Target.DONE, held[1].token, status="COMPLETED"
    )
    moves = [
        move(a, "orders", now),
        move(b, "archive", now, partition=2, **new),
        back,
        move(c, "orders", now, **new),
        move(d, "archive", now, partition=1),
        move(e, "nowhere", now, **new),
        finished,
        move(f, "archive", now, partition=0),
        move(b, "orders", now),
    ]
    wanted = [APPLIED, APPLIED, APPLIED, APPLIED, STALE, STALE, APPLIED, APPLIED, STALE]
    assert hf.store.settle(moves, now) == wanted
    found = {entry.message.id: entry.message for entry in [*queue.browse(), *archive.browse()]}
    assert {id: (m.queue, m.partition, m.payload) for id, m in found.items()} == {
        a.message.id: ("orders", a.message.partition, 0),
        b.message.id: ("archive", 2, "new"),
        held[0].id: ("orders", a.message.partition, "new"),
        c.message.id: ("orders", a.message.partition, "new"),
        d.message.id: ("archive", archive.get(d.message.id).partition, "mine"),
        f.message.id: ("archive", 0, 5),
    }
    assert [entry.message for entry in queue.dlq.browse()] == [d.message, e.message]
    depths = [sum(map(sum, counted(hf, name).values())) for name in ("orders", "orders.dlq")]
    assert depths == [4, 2]  # of the first one is leased
    assert counted(hf, "orders") == {a.message.partition: (3, 0, 1)}
    assert hf.store.settle([back], now) == [ALREADY]
    assert hf.store.settle(moves[:2], now) == [STALE, STALE]


@pytest.mark.promise("DEAD-7")
def test_two_of_one_id_do_not_both_come_to_a_queue(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    other, archive, now = hf.queue("other"), hf.queue("archive"), clock.now()
    sent = queue.enqueue("first")
    other.enqueue("second", id=sent.id)
    (first,), (second,) = die(hf, "orders"), die(hf, "other")
    moves = [move(entry, "archive", now, partition=0) for entry in (first, second)]
    assert hf.store.settle(moves, now) == [APPLIED, STALE]
    assert [entry.message.payload for entry in archive.browse()] == ["first"]
    assert [entry.message for entry in other.dlq.browse()] == [second.message]
    assert (counted(hf, "archive"), counted(hf, "orders.dlq")) == ({0: (1, 0, 0)}, {})


@pytest.mark.promise("DEAD-7", "LIFE-12")
def test_who_moves_them_at_once_moves_each_once(
    hf: Holdfast, queue: Queue, clock: ManualClock, another: Callable[[], Holdfast]
) -> None:
    """To different queues, while a consumer takes some: none is in two places, none is lost."""
    names, now = ["north", "south"], clock.now()
    for name in names:
        hf.queue(name, partitions=2)
    queue.enqueue_many(range(60))
    dead, answers = die(hf, "orders", 60), dict[str, list[Settled]]()
    barrier, held = threading.Barrier(3, timeout=60), list[Lease]()

    def go(mine: Holdfast, name: str) -> None:
        barrier.wait(30)
        for start in range(0, 60, 10):
            moves = [move(entry, name, now, partition=1) for entry in dead[start : start + 10]]
            answers.setdefault(name, []).extend(mine.store.settle(moves, now))

    def take(mine: Queue) -> None:
        barrier.wait(30)
        for _ in range(5):
            held.extend(mine.lease(2))

    threads = [threading.Thread(target=go, args=(another(), name)) for name in names]
    threads.append(threading.Thread(target=take, args=(another().queue("orders").dlq,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = ids(held)
    for name in names:
        here = [entry.message.id for entry in hf.queue(name).browse()]
        assert len(here) == answers[name].count(APPLIED)
        assert counted(hf, name) == ({1: (len(here), 0, 0)} if here else {})
        seen += here
    assert sorted(seen) == sorted(entry.message.id for entry in dead)
    assert sum(map(sum, counted(hf, "orders.dlq").values())) == len(held)


@pytest.mark.promise("DEAD-7", "DEAD-4")
def test_who_waits_for_the_other_queue_is_woken(
    hf: Holdfast, queue: Queue, clock: ManualClock, another: Callable[[], Holdfast]
) -> None:
    hf.queue("archive", partitions=2)
    queue.enqueue("x")
    (dead,) = die(hf, "orders")
    waiter, now, got = another(), clock.now(), list[Lease]()

    def wait() -> None:
        while not got:  # it may come back for nothing; but not for good
            waiter.store.wait(["archive"], now, 600)
            got.extend(lease(waiter.store, "archive", now, 1))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()  # by now it has looked, found nothing and gone to sleep
    changed = move(dead, "archive", now, partition=1, body=b'"y"', content_type=JSON)
    assert hf.store.settle([changed], now) == [APPLIED]
    waiting.join(30)
    assert [held.message.payload for held in got] == ["y"]
