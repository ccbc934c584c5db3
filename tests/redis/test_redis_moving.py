"""A move to a queue that may lie on another node takes several steps: whoever dies between two of
them, each message is in one place, and is delivered once."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from redis import Redis
from redis.crc import key_slot

import holdfast
from holdfast import (
    Fail,
    Holdfast,
    Lease,
    Outgoing,
    QueueNotEmpty,
    State,
    StoreFull,
    StoreUnavailable,
)
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.model.payload import JSON
from holdfast.queue.queue import LocalQueue
from holdfast.rules.lifecycle import redriven
from holdfast.stores.contract import ByPartition, Entry, held_in
from holdfast.stores.redis import moving
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.moves import MOVES
from holdfast.stores.redis.moving import LEFT_MS
from holdfast.stores.redis.scripts import ENQUEUE, SETTLE, Script
from holdfast.testing import ManualClock
from servers.redis import running
from tests.redis.test_redis_keys import watching

APPLIED, STALE = Settled.APPLIED, Settled.STALE
STEPS: dict[str, Script] = {
    "expect": moving.EXPECT,
    "depart": moving.DEPART,
    "arrive": ENQUEUE,
    "conclude": moving.CONCLUDE,
}
POINTS = [(when, step) for step in STEPS for when in ("before", "after")]
GONE = POINTS.index(("after", "depart"))
"""From here on the messages have left."""
THERE = POINTS.index(("after", "arrive"))


class Killed(BaseException):
    """What a process does no more once it is killed."""


@pytest.fixture(params=["redis", "redis-cluster"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(store_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(store_url, clock=clock) as opened:
        opened.queue("orders", partitions=2)
        opened.queue("archive", partitions=3)
        yield opened


@pytest.fixture
def other(hf: Holdfast, store_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    """Another process."""
    with holdfast.connect(store_url, clock=clock) as opened:
        yield opened


Hook = Callable[[str, str, Callable[[], None]], None]


@pytest.fixture
def at(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> Hook:
    """Lets something happen before or after a step of the first move of `hf`."""
    return hook_of(hf, monkeypatch)


def hook_of(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> Hook:
    def hook(when: str, step: str, act: Callable[[], None]) -> None:
        db = db_of(hf)
        run, done = db.script, list[bool]()

        def script(called: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
            mine = called is STEPS[step] and not done
            if mine and when == "before":
                done.append(True)
                act()
            answer = run(called, keys, args)
            if mine and when == "after" and answer[0] != b"parts":  # else it is asked again
                done.append(True)
                act()
            return answer

        monkeypatch.setattr(db, "script", script)

    return hook


def db_of(hf: Holdfast) -> Connections:
    store: Any = hf.store
    return store._db


def kill() -> None:
    raise Killed


def dead_letters(hf: Holdfast, n: int, payload: Any = None) -> list[Entry]:
    queue = hf.queue("orders")
    queue.enqueue_many(
        Outgoing(payload or i, key=f"k{i}", priority=i % 3, headers={"n": str(i)}) for i in range(n)
    )
    queue.settle([(lease, Fail("poison")) for lease in queue.lease(n)])
    return list(queue.dlq.browse())


def move(hf: Holdfast, entries: list[Entry], **changes: Any) -> list[Settled]:
    now = hf.context.clock.now()
    steps = [
        msgspec.structs.replace(
            redriven(entry.message, entry.place, "archive", now), **{"partition": 1, **changes}
        )
        for entry in entries
    ]
    return hf.store.settle(steps, now)


def move_and_die(hf: Holdfast, entries: list[Entry], **changes: Any) -> None:
    with pytest.raises(Killed):
        move(hf, entries, **changes)


def tidy(hf: Holdfast, clock: ManualClock) -> None:
    clock.advance(LEFT_MS / 1000 + 1)
    hf.store.tidy(clock.now(), log_before=None)


def everywhere(hf: Holdfast) -> dict[str, list[str]]:
    """The ids in every line of every queue that has any, and in every log."""
    places: dict[str, list[str]] = {}
    for spec in hf.store.queues():
        for state in State:
            found = [entry.message.id for entry in LocalQueue(hf.context, spec.name).browse(state)]
            if found:
                places[f"{spec.name} {state.value}"] = found
    return places


def counts(hf: Holdfast) -> Counter[str]:
    """What the counters say: of the queues, and of their partitions."""
    told: Counter[str] = Counter()
    now = hf.context.clock.now()
    for spec in hf.store.queues():
        (stats,) = hf.store.stats([spec.name], now)
        depths = hf.store.stats(ByPartition(spec.name), now)
        assert stats.ready == sum(depth.ready for depth in depths)
        assert stats.leased == sum(depth.leased for depth in depths)
        for state, n in (("ready", stats.ready), ("leased", stats.leased)):
            if n:
                told[f"{spec.name} {state}"] = n
    return told


def ids(entries: list[Entry]) -> list[str]:
    return [entry.message.id for entry in entries]


def by_priority(entries: list[Entry]) -> list[str]:
    """In the order in which a queue gives them that were first enqueued in this one."""
    ordered = sorted(entries, key=lambda entry: (-entry.message.priority, entry.message.id))
    return ids(ordered)


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize(("when", "step"), POINTS)
def test_after_a_crash_each_message_is_in_one_place(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook, when: str, step: str
) -> None:
    entries = dead_letters(hf, 5)
    at(when, step, kill)
    move_and_die(hf, entries, body=b'"new"', content_type=JSON)
    point = POINTS.index((when, step))
    if point >= THERE:  # they are there already, and are not delivered twice
        taken = LocalQueue(other.context, "archive").lease(2)
        assert len(taken) == 2
        LocalQueue(other.context, "archive").settle(taken)
    else:
        taken = list[Lease]()
    tidy(other, clock)
    finished = [lease.id for lease in taken]
    if point < GONE:
        assert everywhere(other) == {"orders.dlq ready": ids(entries)}
        assert counts(other) == {"orders.dlq ready": 5}
        assert list(other.queue("orders").dlq.browse()) == entries
        return
    left = [id for id in by_priority(entries) if id not in finished]
    found = everywhere(other)
    assert sorted(found.pop("archive log", [])) == sorted(finished)
    assert found == {"archive ready": left}
    assert counts(other) == {"archive ready": len(left)}
    tidy(other, clock)
    leases = LocalQueue(other.context, "archive").lease(10)
    assert [lease.id for lease in leases] == left
    assert {(lease.message.payload, lease.message.partition) for lease in leases} == {("new", 1)}
    assert LocalQueue(other.context, "orders").stats().dead == 0


@pytest.mark.promise("DEAD-7", "LIFE-4")
def test_on_its_way_it_is_with_the_queue_it_came_from(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook
) -> None:
    (entry,) = dead_letters(hf, 1)
    at("after", "depart", kill)
    move_and_die(hf, [entry])
    queue = LocalQueue(other.context, "orders")
    assert held_in(other.store, "orders", [entry.message.id]) == [entry.message]
    assert queue.enqueue("again", id=entry.message.id).duplicate
    assert (queue.stats().dead, queue.dlq.stats().leased, queue.dlq.stats().ready) == (1, 1, 0)
    assert everywhere(other) == {}
    assert queue.dlq.purge() == 0
    assert move(other, [entry]) == [STALE]
    with pytest.raises(QueueNotEmpty):
        queue.delete()
    tidy(other, clock)
    assert everywhere(other) == {"archive ready": [entry.message.id]}
    assert not queue.enqueue("again", id=entry.message.id).duplicate


def test_who_is_still_at_it_is_not_disturbed(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook
) -> None:
    entries = dead_letters(hf, 2)

    def look() -> None:
        other.store.tidy(clock.now(), log_before=None)
        clock.advance(LEFT_MS / 1000)
        other.store.tidy(clock.now(), log_before=None)
        assert everywhere(other) == {}

    at("after", "depart", look)
    assert move(hf, entries) == [APPLIED] * 2


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize(("when", "step"), POINTS[GONE:])
def test_who_was_thought_dead_and_goes_on_does_no_harm(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook, when: str, step: str, finish: bool
) -> None:
    entries = dead_letters(hf, 3)
    archive = LocalQueue(other.context, "archive")

    def meanwhile() -> None:
        tidy(other, clock)
        if finish:
            archive.settle(archive.lease(3))

    at(when, step, meanwhile)
    assert move(hf, entries) == [APPLIED] * 3
    place = "archive log" if finish else "archive ready"
    assert {name: sorted(found) for name, found in everywhere(other).items()} == {
        place: sorted(ids(entries))
    }
    assert counts(other) == ({} if finish else {"archive ready": 3})


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("step", ["depart", "arrive"])
def test_several_that_carry_out_one_move(
    hf: Holdfast, store_url: str, clock: ManualClock, at: Hook, step: str
) -> None:
    entries = dead_letters(hf, 20)
    at("after", step, kill)
    move_and_die(hf, entries)
    clock.advance(LEFT_MS / 1000 + 1)
    barrier, failed = threading.Barrier(4, timeout=60), list[BaseException]()

    def carry() -> None:
        try:
            with holdfast.connect(store_url, clock=clock) as mine:
                barrier.wait(30)
                mine.store.tidy(clock.now(), log_before=None)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=carry) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert everywhere(hf) == {"archive ready": by_priority(entries)}
    assert counts(hf) == {"archive ready": 20}


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("by", ["the mover", "another"])
def test_what_comes_to_a_queue_that_is_gone_goes_back_to_its_place(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook, by: str, again: bool
) -> None:
    """For good: a queue that is made again is another one."""
    entries = dead_letters(hf, 3)

    def gone() -> None:
        LocalQueue(other.context, "archive").delete()
        if by == "another":
            tidy(other, clock)
        if again:
            other.queue("archive", partitions=3)

    at("after", "depart", gone)
    assert move(hf, entries) == [STALE] * 3
    assert list(LocalQueue(other.context, "orders").dlq.browse()) == entries
    assert counts(other) == {"orders.dlq ready": 3}
    tidy(other, clock)
    assert everywhere(other) == {"orders.dlq ready": ids(entries)}
    other.queue("archive", partitions=3)
    assert move(other, entries) == [APPLIED] * 3


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("by", ["the mover", "another", "both"])
def test_what_the_other_queue_holds_by_now_goes_back_to_its_place(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook, by: str
) -> None:
    entries = dead_letters(hf, 3)
    archive = LocalQueue(other.context, "archive")

    def taken() -> None:
        archive.enqueue("mine", id=entries[1].message.id)
        if by != "the mover":
            tidy(other, clock)
            archive.settle([one for one in archive.lease(9) if one.message.payload == "mine"])
        if by == "another":
            raise Killed

    at("after", "depart", taken)
    if by == "another":
        move_and_die(hf, entries)
    else:
        assert move(hf, entries) == [APPLIED, STALE, APPLIED]
    assert list(LocalQueue(other.context, "orders").dlq.browse()) == entries[1:2]
    assert counts(other)["orders.dlq ready"] == 1
    tidy(other, clock)
    rest = everywhere(other)
    assert rest.pop("orders.dlq ready") == [entries[1].message.id]
    assert move(other, entries[1:2]) == [STALE if by == "the mover" else APPLIED]


@pytest.mark.promise("DEAD-7")
def test_a_delayed_one_that_is_refused_stays_delayed(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook
) -> None:
    queue = hf.queue("orders")
    sent = queue.enqueue("later", delay=60, key="k")
    at("after", "depart", lambda: LocalQueue(other.context, "archive").delete())
    (entry,) = queue.browse(State.DELAYED)
    assert move(hf, [entry]) == [STALE]
    (again,) = queue.browse(State.DELAYED)
    assert again == entry
    depths = hf.store.stats(ByPartition("orders"), clock.now())
    assert [depth.delayed for depth in depths].count(1) == 1
    clock.advance(60)
    assert [lease.id for lease in queue.lease(5)] == [sent.id]


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("again", [False, True])
def test_what_arrived_does_not_come_back_when_its_queue_is_deleted(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook, again: bool
) -> None:
    entries = dead_letters(hf, 3)
    at("after", "arrive", kill)
    move_and_die(hf, entries)
    archive = LocalQueue(other.context, "archive")
    archive.settle(archive.lease(3))
    archive.delete()
    if again:
        other.queue("archive", partitions=3)
    tidy(other, clock)
    assert everywhere(other) == {}
    assert LocalQueue(other.context, "orders").stats().dead == 0


@pytest.mark.promise("DEAD-7")
@pytest.mark.parametrize("step", ["depart", "arrive"])
def test_a_queue_may_be_deleted_while_some_of_it_is_on_its_way(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook, step: str
) -> None:
    entries = dead_letters(hf, 3)
    at("after", step, kill)
    move_and_die(hf, entries)
    LocalQueue(other.context, "orders").delete(force=True)
    assert everywhere(other) == {"archive ready": by_priority(entries)}
    other.queue("orders")
    tidy(other, clock)
    assert counts(other) == {"archive ready": 3}
    assert db_of(other).run("SMEMBERS", Keys(db_of(other).where.prefix).moving) == []


@pytest.mark.parametrize("first", [True, False])
def test_a_leased_one_moves_with_its_token(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook, first: bool
) -> None:
    queue, now = hf.queue("orders"), clock.now()
    queue.enqueue("x", ack_timeout=77)
    (held,) = queue.lease()
    if not first:
        queue.settle([(held, holdfast.Release())])
        (held,) = queue.lease()
    step = Transition(
        Verb.RELEASE, "orders", held.id, Target.WAITING, held.token, to_queue="archive",
        available_at=now, attempts=held.message.attempts, partition=2,
    )  # fmt: skip
    stale = msgspec.structs.replace(step, token=held.token + "x")
    assert hf.store.settle([stale, step, step], now) == [STALE, APPLIED, STALE]
    assert counts(hf) == {"archive ready": 1}
    (there,) = LocalQueue(other.context, "archive").lease()
    assert (there.id, there.message.attempts, there.deadline) == (held.id, 2, now + 77_000)
    assert there.message.first_leased_at == now


def test_a_leased_one_that_is_refused_on_its_way_is_there_to_be_leased(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook
) -> None:
    queue, now = hf.queue("orders"), clock.now()
    queue.enqueue("x", ack_timeout=77)
    (held,) = queue.lease()
    step = Transition(
        Verb.RELEASE, "orders", held.id, Target.WAITING, held.token, to_queue="archive",
        available_at=now, attempts=1, partition=2,
    )  # fmt: skip
    at("after", "depart", lambda: LocalQueue(other.context, "archive").delete())
    assert hf.store.settle([step], now) == [STALE]
    assert counts(hf) == {"orders ready": 1}
    (again,) = queue.lease()
    assert (again.id, again.message.attempts, again.deadline) == (held.id, 2, now + 77_000)
    assert queue.settle([(held, holdfast.Done())]) == [STALE]


def test_a_partition_that_is_not_there_is_refused(hf: Holdfast, clock: ManualClock) -> None:
    """Nobody would ever look for it there."""
    entries = dead_letters(hf, 2)
    assert move(hf, entries, partition=3) == [STALE] * 2
    assert list(hf.queue("orders").dlq.browse()) == entries
    now = clock.now()
    back = [
        msgspec.structs.replace(redriven(e.message, e.place, "orders", now), partition=n + 1)
        for n, e in enumerate(entries)
    ]
    assert hf.store.settle(back, now) == [APPLIED, STALE]


def test_who_edits_what_another_has_just_edited_is_too_late(
    hf: Holdfast, other: Holdfast, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = dead_letters(hf, 1)
    db, now, done = db_of(hf), clock.now(), list[bool]()
    run = db.script
    step = msgspec.structs.replace(
        redriven(entry.message, entry.place, "orders.dlq", now), body=b"1", content_type=JSON
    )

    def script(called: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if called is SETTLE and not done:
            done.append(True)
            theirs = msgspec.structs.replace(step, body=b"2")
            assert other.store.settle([theirs], now) == [APPLIED]
        return run(called, keys, args)

    monkeypatch.setattr(db, "script", script)
    assert hf.store.settle([step], now) == [STALE]
    (found,) = hf.queue("orders").dlq.browse()
    assert (found.message.payload, found.place) == (2, entry.place)
    assert hf.store.settle([step], now) == [APPLIED]


class Calls:
    def __init__(self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scripts: Counter[str] = Counter()
        self.bytes: list[int] = []
        db = db_of(hf)
        run, names = db.script, {script.sha: name for name, script in STEPS.items()}

        def script(called: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
            self.scripts[names.get(called.sha, "other")] += 1
            self.bytes.append(sum(len(arg) for arg in args if isinstance(arg, bytes)))
            return run(called, keys, args)

        monkeypatch.setattr(db, "script", script)


def test_many_take_few_steps(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = dead_letters(hf, 3 * MOVES)
    assert hf.store.stats(ByPartition("archive"), 0)  # it knows of its partitions
    calls = Calls(hf, monkeypatch)
    assert set(move(hf, entries)) == {APPLIED}
    assert calls.scripts == dict.fromkeys(STEPS, 3)
    assert counts(hf) == {"archive ready": 3 * MOVES}


@pytest.mark.parametrize("edited", [False, True])
def test_a_step_carries_a_bounded_amount(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, edited: bool
) -> None:
    large = "x" * 900_000
    entries = dead_letters(hf, 12, "small" if edited else large)
    calls = Calls(hf, monkeypatch)
    changes = {"body": large.encode(), "content_type": "text/plain"} if edited else {}
    assert move(hf, entries, **changes) == [APPLIED] * 12
    assert calls.scripts["arrive"] in (3, 4)
    assert max(calls.bytes) < 6 * 2**20
    archive = hf.queue("archive")
    assert {entry.message.payload for entry in archive.browse()} == {large}


def test_receipts_outlive_moves_that_are_not_concluded(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook
) -> None:
    entries = dead_letters(hf, 3)
    at("after", "arrive", kill)
    move_and_die(hf, entries)
    archive = LocalQueue(other.context, "archive")
    archive.settle(archive.lease(3))
    assert len(other.store.records("receipt", prefix="move/")) == 1
    clock.advance(LEFT_MS / 1000 + 1)
    assert other.store.drop_records("receipt", before=clock.now(), limit=10) == 1
    assert other.store.records("receipt") == []
    tidy(other, clock)
    assert {*everywhere(other)} == {"archive log"}
    assert LocalQueue(other.context, "orders").stats().dead == 0


def test_a_move_that_cannot_be_finished_keeps_its_receipts_and_no_other_waiting(
    hf: Holdfast, other: Holdfast, clock: ManualClock, at: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of one queue is away."""
    entries = dead_letters(hf, 2)
    at("after", "depart", kill)
    move_and_die(hf, entries[:1])
    other.queue("zebra")
    one = entries[1]
    away = redriven(one.message, one.place, "zebra", clock.now())
    at("after", "depart", kill)
    with pytest.raises(Killed):
        hf.store.settle([msgspec.structs.replace(away, partition=0)], clock.now())
    db = db_of(other)
    run = db.script

    def script(called: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if "{archive}" in keys[0]:
            raise StoreUnavailable("archive: its node is away")
        return run(called, keys, args)

    with monkeypatch.context() as patch:
        patch.setattr(db, "script", script)
        with pytest.raises(StoreUnavailable):
            tidy(other, clock)
        assert other.store.drop_records("receipt", before=clock.now(), limit=10) == 0
    assert everywhere(hf) == {"zebra ready": [one.message.id]}
    tidy(other, clock)
    assert everywhere(hf)["archive ready"] == ids(entries[:1])


def test_a_server_that_is_full_loses_nothing(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        running(settings={"maxmemory-policy": "noeviction"}) as server,
        holdfast.connect(server.url, clock=clock) as hf,
        Redis.from_url(server.url) as client,  # pyright: ignore[reportUnknownMemberType]
    ):
        admin: Any = client
        hf.queue("archive", partitions=3)
        hf.queue("orders", partitions=2)
        entries = dead_letters(hf, 3)
        admin.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            move(hf, entries)
        assert list(hf.queue("orders").dlq.browse()) == entries
        admin.config_set("maxmemory", 0)
        hook = hook_of(hf, monkeypatch)
        hook("after", "depart", lambda: admin.config_set("maxmemory", 1))
        with pytest.raises(StoreFull):
            move(hf, entries)
        with pytest.raises(StoreFull):
            tidy(hf, clock)
        assert everywhere(hf) == {}
        admin.config_set("maxmemory", 0)
        hook("after", "arrive", lambda: admin.config_set("maxmemory", 1))
        tidy(hf, clock)  # what has arrived can be forgotten
        assert everywhere(hf) == {"archive ready": by_priority(entries)}
        assert counts(hf) == {"archive ready": 3}


def test_the_steps_touch_no_key_but_those_they_name_in_one_slot(
    hf: Holdfast, other: Holdfast, at: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, int]] = set()
    for name, script in STEPS.items():
        text = watching(script.text)
        monkeypatch.setattr(script, "text", text)
        monkeypatch.setattr(
            script, "sha", hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        )
        seen.add((name, 1))
    shas = {script.sha: name for name, script in STEPS.items()}
    run, slots = Connections.script, set[tuple[str, int]]()

    def noted(self: Connections, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if script.sha in shas:
            slots.add((shas[script.sha], len({key_slot(key.encode()) for key in keys})))
        return run(self, script, keys, args)

    monkeypatch.setattr(Connections, "script", noted)
    queue = hf.queue("orders")
    entries = dead_letters(hf, 4)
    assert move(hf, entries[:2]) == [APPLIED] * 2
    queue.enqueue_many([Outgoing(1), Outgoing(2, delay=5)])
    waiting = [*queue.browse(), *queue.browse(State.DELAYED)]
    assert move(hf, waiting) == [APPLIED] * 2
    at("after", "depart", lambda: LocalQueue(other.context, "archive").delete(force=True))
    assert move(hf, entries[2:]) == [STALE] * 2
    assert slots == seen
