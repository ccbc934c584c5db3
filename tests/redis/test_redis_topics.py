"""The groups of a topic, `topic@group`, lie in one slot: a message goes to all in one step."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from redis import Redis
from redis.crc import key_slot

import holdfast
from holdfast import Holdfast, Message, QueueNotFound, StoreFull, StoreUnavailable
from holdfast.model.message import new_ids
from holdfast.model.moves import Enqueued
from holdfast.model.queues import QueueSpec
from holdfast.stores.contract import held_in, spec_of
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.moves import CHUNK
from holdfast.stores.redis.scripts import ENQUEUE, Script
from holdfast.testing import ManualClock
from servers.redis import running

GROUPS = ("orders@.log", "orders@billing", "orders@shipping", "orders@audit")


@pytest.fixture(params=["redis", "redis-cluster"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(store_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(store_url, clock=clock) as opened:
        made(opened)
        yield opened


def made(hf: Holdfast) -> None:
    for name in GROUPS:
        hf.store.put_queues([QueueSpec(name), QueueSpec(name + ".dlq")])
    hf.queue("orders")
    hf.queue("plain")


def messages(hf: Holdfast, n: int, queues: Sequence[str] = GROUPS) -> list[Message]:
    """As a topic's are: of each message a copy for each group."""
    now = hf.context.clock.now()
    plain = Message("", "", 0, 0, None, None, b"1", "application/json", {}, now, now, 0)
    return [
        msgspec.structs.replace(plain, id=id, queue=queue)
        for id in new_ids(n, now)
        for queue in queues
    ]


def found(hf: Holdfast, queue: str, copies: list[Message]) -> set[str]:
    ids = sorted({message.id for message in copies})
    return {message.id for message in held_in(hf.store, queue, ids)}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each script that stores messages, how many it was given."""
    given, run = list[int](), Connections.script

    def noted(self: Connections, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        answer = run(self, script, keys, args)
        if script is ENQUEUE:
            given.append(len(answer[1]))
        return answer

    monkeypatch.setattr(Connections, "script", noted)
    return given


def test_the_groups_of_a_topic_lie_in_one_slot() -> None:
    keys = Keys("p")
    names = [*GROUPS, *(f"{name}.dlq" for name in GROUPS), "orders"]
    slots = {key_slot(key.encode()) for name in names for key in keys.of(name, 3).everything}
    assert len(slots) == 1
    assert keys.of("orders").key("c") == "p:{orders}:c"
    assert keys.of("orders@billing.dlq").key("c") == "p:{orders}@billing:c"
    assert len({keys.of(name).key("c") for name in names}) == len(GROUPS) + 1


@pytest.mark.parametrize("n", [0, 1])
def test_settings_of_several_queues_are_written_together_or_not_at_all(
    hf: Holdfast, store_name: str, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """As far as one script reaches: any queues of one server, in a cluster those of a slot. Another
    process writes the settings of one of them right before."""
    names = ("a", "b") if store_name == "redis" else ("orders@a", "orders@b")
    run, done = Connections.script, list[bool]()

    def late(self: Connections, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if not done:
            done.append(True)
            assert hf.store.put_queues([QueueSpec(names[n], partitions=3)])
        return run(self, script, keys, args)

    monkeypatch.setattr(Connections, "script", late)
    assert not hf.store.put_queues([QueueSpec(name) for name in names])
    found = [spec_of(hf.store, name) for name in names]
    assert [spec and (spec.partitions, spec.revision) for spec in found] == [
        (3, 1) if n == at else None for at in (0, 1)
    ]


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "b", "a")])
def test_settings_that_are_out_of_date_keep_those_of_other_slots_from_being_written(
    hf: Holdfast, names: tuple[str, ...]
) -> None:
    assert hf.store.put_queues([QueueSpec("b", partitions=3)])
    assert not hf.store.put_queues([QueueSpec(name) for name in names])
    found = {name: spec_of(hf.store, name) for name in names}
    assert [name for name, spec in found.items() if spec] == ["b"]
    assert hf.store.put_queues([QueueSpec(name, revision=int(name == "b")) for name in names])


def test_a_message_goes_to_all_groups_in_one_step(hf: Holdfast, scripts: list[int]) -> None:
    copies = messages(hf, 20)
    assert hf.store.enqueue(copies, hf.context.clock.now()) == [Enqueued.STORED] * 80
    assert scripts == [80]
    assert hf.store.enqueue(copies[:6], hf.context.clock.now()) == [Enqueued.HELD] * 6
    ids = {message.id for message in copies}
    for name in GROUPS:
        assert found(hf, name, copies) == ids
        (stats,) = hf.store.stats([name], hf.context.clock.now())
        assert stats.ready == 20


def test_the_answers_stand_where_the_messages_stand(hf: Holdfast, scripts: list[int]) -> None:
    """Of several slots, in any order, with dead letters and with some that are held."""
    queues = ("plain", "orders@shipping", "orders@billing.dlq", "orders", "orders@billing")
    copies = messages(hf, 3, queues)
    copies = [m for q in queues for m in copies if m.queue == q]  # queue by queue
    first = [m for m in copies if m.queue in ("plain", "orders@shipping")]
    hf.store.enqueue(first[1:], hf.context.clock.now())
    del scripts[:]
    answers = hf.store.enqueue(copies, hf.context.clock.now())
    assert scripts == [12, 3]
    held = {(m.queue, m.id) for m in first[1:]}
    held |= {("orders@billing", m.id) for m in copies if m.queue == "orders@billing.dlq"}
    assert answers == [
        Enqueued.HELD if (m.queue, m.id) in held else Enqueued.STORED for m in copies
    ]


@pytest.mark.parametrize("n", [1, CHUNK])
@pytest.mark.parametrize("gone", GROUPS)
def test_if_one_group_is_gone_nothing_is_stored(hf: Holdfast, gone: str, n: int) -> None:
    hf.store.delete_queues([gone, gone + ".dlq"], only_empty=False)
    copies = messages(hf, n)
    late = [m for m in copies if m.queue != gone] + [m for m in copies if m.queue == gone][-1:]
    for some in (copies, late):
        with pytest.raises(QueueNotFound, match=gone):
            hf.store.enqueue(some, hf.context.clock.now(), receipt="once")
        for name in {*GROUPS} - {gone}:
            assert found(hf, name, copies) == set()
    assert hf.store.records("receipt") == []


def test_a_long_batch_is_cut_between_messages(hf: Holdfast, scripts: list[int]) -> None:
    copies = messages(hf, 200, GROUPS[:3])
    by_group = sorted(copies, key=lambda m: m.queue)
    assert hf.store.enqueue(by_group, hf.context.clock.now()) == [Enqueued.STORED] * 600
    assert len(scripts) == 3 and sum(scripts) == 600
    assert [n % 3 for n in scripts] == [0, 0, 0] and max(scripts) < CHUNK + 3


def test_what_broke_off_is_whole_and_can_be_repeated(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, calls, run = messages(hf, 200, GROUPS[:3]), list[int](), Connections.script

    def once(self: Connections, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise StoreUnavailable("away")
        return run(self, script, keys, args)

    with monkeypatch.context() as patch:
        patch.setattr(Connections, "script", once)
        with pytest.raises(StoreUnavailable):
            hf.store.enqueue(copies, hf.context.clock.now(), receipt="r")
    stored = [found(hf, name, copies) for name in GROUPS[:3]]
    assert 0 < len(stored[0]) < 200
    assert stored == [stored[0]] * 3
    answers = hf.store.enqueue(copies, hf.context.clock.now(), receipt="r")
    assert sum(answer is Enqueued.HELD for answer in answers) == 3 * len(stored[0])
    assert [len(found(hf, name, copies)) for name in GROUPS[:3]] == [200] * 3


def test_a_receipt_covers_all_groups(hf: Holdfast) -> None:
    now = hf.context.clock.now()
    assert {*hf.store.enqueue(messages(hf, 2, GROUPS[:2]), now, receipt="r")} == {Enqueued.STORED}
    more = messages(hf, 2)  # also those that came later
    assert hf.store.enqueue(more, now, receipt="r") == [Enqueued.HELD] * 8
    assert [found(hf, name, more) for name in GROUPS] == [set()] * 4


def test_a_full_server_stores_it_for_no_group() -> None:
    with running(settings={"maxmemory": "20mb", "maxmemory-policy": "noeviction"}) as server:
        url = f"{server.url}?prefix=t{secrets.token_hex(4)}"
        with holdfast.connect(url) as hf, Redis.from_url(server.url) as admin:  # pyright: ignore
            made(hf)
            copies = messages(hf, 3)
            admin.config_set("maxmemory", 1)  # pyright: ignore
            with pytest.raises(StoreFull):
                hf.store.enqueue(copies, hf.context.clock.now())
            admin.config_set("maxmemory", "20mb")  # pyright: ignore
            assert [found(hf, name, copies) for name in GROUPS] == [set()] * 4
            hf.store.enqueue(copies, hf.context.clock.now())
            assert [len(found(hf, name, copies)) for name in GROUPS] == [3] * 4


def test_groups_are_waited_for_together(hf: Holdfast) -> None:
    names, now = list(GROUPS[1:]), hf.context.clock.now()
    hf.store.wait(names, now, 0.01)
    hf.store.enqueue(messages(hf, 1), now)
    hf.store.wait(names, now, 30)
