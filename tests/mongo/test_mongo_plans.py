"""Every question to the server is answered by its index, at any depth.

The commands are those that the store sends: a listener of the driver notes them, and each is then
explained as it was. Work is counted in keys and documents, not in time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient, monitoring
from pymongo.database import Database

import holdfast
from holdfast import Holdfast, Outgoing, Queue
from holdfast.model.moves import State
from holdfast.model.queues import partition_claim
from holdfast.stores.contract import (
    BatchEnd,
    ByPartition,
    Cut,
    LeaseAsk,
    OtherQueue,
    ReserveAsk,
    View,
    batch_in,
    held_in,
    overdue_in,
)
from holdfast.testing import ManualClock
from servers import mongo
from tests.plugins.stores import OwnServer

READY, DELAYED, LEASED, BATCH, LOGGED = 20_000, 2_000, 300, 100, 200
SMALL = 100
GONE = 1000
LATER = 3600


@pytest.fixture(params=["mongo"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


class Sent(monitoring.CommandListener):
    """Of what a store sends while it is watched: each command, as it was."""

    KINDS = ("find", "aggregate", "update", "delete", "count", "distinct", "findAndModify")
    NOISE = ("lsid", "txnNumber", "autocommit", "startTransaction", "writeConcern", "readConcern")

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] | None = None

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self.commands is None or event.command_name not in self.KINDS:
            return
        asked = {
            name: value
            for name, value in event.command.items()
            if not name.startswith("$") and name not in self.NOISE
        }
        self.commands.append(asked)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@pytest.fixture(scope="module")
def mongo_server(own_server: OwnServer) -> str:
    """Its tests read the server's counters."""
    return own_server(mongo.running(options=mongo.FAST))


@pytest.fixture(scope="module")
def sent() -> Iterator[Sent]:
    listener = Sent()
    monitoring.register(listener)
    yield listener
    monitoring._LISTENERS.command_listeners.remove(listener)


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def hf(sent: Sent, mongo_server: str, clock: ManualClock) -> Iterator[Holdfast]:
    """Three queues in one store: of one partition, of eight, and a shallow one."""
    name = f"plans_{secrets.token_hex(4)}"
    with holdfast.connect(mongo.with_database(mongo_server, name), clock=clock) as hf:
        for queue, deep, partitions in (("one", True, 1), ("eight", True, 8), ("small", False, 1)):
            fill(hf, hf.queue(queue, partitions=partitions), deep)
        yield hf
    mongo.drop_database(mongo_server, name)


def fill(hf: Holdfast, queue: Queue, deep: bool) -> None:
    size = READY if deep else SMALL
    queue.enqueue_many([f"{queue.name} log {n}" for n in range(LOGGED)])
    queue.settle(queue.lease(LOGGED))
    queue.enqueue_many([f"{queue.name} leased {n}" for n in range(LEASED + BATCH)])
    queue.lease(LEASED)
    hf.store.lease(reserve_ask(queue, BATCH, f"batch of {queue.name}"), hf.context.clock.now())
    for start in range(0, size, 5000):
        queue.enqueue_many(
            Outgoing(n, key=str(n), priority=n % 3) for n in range(start, min(size, start + 5000))
        )
    queue.enqueue_many([Outgoing(n, delay=LATER) for n in range(DELAYED if deep else SMALL)])


def reserve_ask(queue: Queue, limit: int, batch: str) -> ReserveAsk:
    return ReserveAsk(queue.name, limit, "me", secrets.token_hex(8), batch)


@pytest.fixture(scope="module")
def db(hf: Holdfast) -> Iterator[Database[Any]]:
    with MongoClient(hf.store._where.uri) as client:
        yield client.get_default_database()


class Plan:
    """What the server says it did: of every part of it, also of a $unionWith."""

    def __init__(self, command: dict[str, Any], said: dict[str, Any]) -> None:
        self.command = command
        self.said = said

    def _every(self, name: str) -> Iterator[Any]:
        left: list[Any] = [self.said]
        while left:
            here = left.pop()
            if isinstance(here, dict):
                yield from (value for key, value in here.items() if key == name)
                left += [value for key, value in here.items() if key != "rejectedPlans"]
            elif isinstance(here, list):
                left += here

    @property
    def is_of_what_came_due(self) -> bool:
        """Delayed messages whose time has come, and no lease yet: they are sorted one by one."""
        asked = self.command.get("filter") or self.command.get("pipeline", [{}])[0].get("$match")
        return bool(asked) and asked.get("st") == 1 and "$lte" in asked.get("av", {})

    @property
    def stages(self) -> set[str]:
        return {stage for stage in self._every("stage") if isinstance(stage, str)}

    @property
    def indexes(self) -> set[str]:
        return {name for name in self._every("indexName") if name != "_id_"}

    @property
    def docs(self) -> int:
        return max(self._every("totalDocsExamined"), default=0)

    @property
    def keys(self) -> int:
        return max(self._every("totalKeysExamined"), default=0)

    def __repr__(self) -> str:
        return f"{str(self.command)[:400]}: {self.stages} {self.indexes} {self.keys}/{self.docs}"


def watched(sent: Sent, db: Database[Any], act: Callable[[], Any]) -> list[Plan]:
    """The plans of all that it sends. They are asked for after it: what it moves is moved then,
    and what is examined is what is there still."""
    sent.commands = []
    try:
        act()
        commands, sent.commands = sent.commands, None
    finally:
        sent.commands = None
    plans: list[Plan] = []
    for command in commands:
        asked = dict(command)
        if "updates" in asked or "deletes" in asked:
            kind = "updates" if "updates" in asked else "deletes"
            for one in command[kind]:
                part = {**asked, kind: [one]}
                plans.append(Plan(part, db.command("explain", part, verbosity="executionStats")))
            continue
        if "find" in asked:  # a page ends with the first answer, and is not read further
            asked.setdefault("limit", asked.get("batchSize", 0))
        plans.append(Plan(asked, db.command("explain", asked, verbosity="executionStats")))
    return plans


ACTS: dict[str, tuple[Callable[[Holdfast, Queue], Any], set[str], int]] = {
    "lease": (lambda hf, queue: queue.lease(50), {"ready", "delayed"}, 50),
    "lease and ack": (lambda hf, queue: queue.settle(queue.lease(50)), {"ready", "delayed"}, 50),
    "lease and nack": (
        lambda hf, queue: [queue.nack(lease, "no", delay=LATER) for lease in queue.lease(5)],
        {"ready", "delayed"},
        5,
    ),
    "enqueue": (lambda hf, queue: queue.enqueue_many(range(50)), set(), 50),
    "overdue": (
        lambda hf, queue: overdue_in(hf.store, queue.name, hf.context.clock.now() + 60_000, 100),
        {"leased"},
        100,
    ),
    "batch": (
        lambda hf, queue: batch_in(hf.store, queue.name, f"batch of {queue.name}", None, 40),
        {"batch"},
        40,
    ),
    "hold and finish": (
        lambda hf, queue: hold_and_finish(hf, queue),  # noqa: PLW0108
        {"ready", "delayed", "batch"},
        50,
    ),
    "wait": (
        lambda hf, queue: hf.store.wait([queue.name], hf.context.clock.now(), 0.001),
        {"ready", "delayed"},
        1,
    ),
    "ready": (lambda hf, queue: look(hf, queue, State.READY), {"ready", "delayed"}, 41),
    "delayed": (lambda hf, queue: look(hf, queue, State.DELAYED), {"delayed"}, 41),
    "leased": (lambda hf, queue: look(hf, queue, State.LEASED), {"leased"}, 41),
    "log": (lambda hf, queue: look(hf, queue, State.LOG), {"finished"}, 41),
    "get": (
        lambda hf, queue: held_in(
            hf.store, queue.name, [entry.message.id for entry in page(hf, queue)]
        ),
        {"ready", "delayed"},
        20,
    ),
    "trim": (
        lambda hf, queue: hf.store.drop([Cut(queue.name, 100, before=1)]),
        {"finished"},
        1,
    ),
    "queues with something overdue": (
        lambda hf, queue: hf.store.queues(overdue=hf.context.clock.now() + 60_000),
        {"leased"},
        3,
    ),
    "stats": (lambda hf, queue: queue.stats(), {"ready", "delayed", "queue"}, 64),
    "depths": (
        lambda hf, queue: hf.store.stats(ByPartition(queue.name), hf.context.clock.now()),
        {"ready", "delayed", "queue"},
        64,
    ),
    "fenced lease": (
        lambda hf, queue: lease_fenced(hf, queue),  # noqa: PLW0108
        {"ready", "delayed", "fenced"},
        50,
    ),
    "lease from many queues": (
        lambda hf, queue: lease_many(hf, queue),  # noqa: PLW0108
        {"ready", "delayed"},
        50,
    ),
    "wait for many queues": (
        lambda hf, queue: hf.store.wait(
            [queue.name, queue.dlq.name], hf.context.clock.now(), 0.001
        ),
        {"ready", "delayed"},
        2,
    ),
    "wait for a partition": (
        lambda hf, queue: hf.store.wait([queue.name], hf.context.clock.now(), 0.001, [0]),
        {"ready", "delayed"},
        1,
    ),
}


def lease_fenced(hf: Holdfast, queue: Queue) -> None:
    now, parts = hf.context.clock.now(), tuple(range(queue.spec.partitions))
    claims = [hf.store.claim(partition_claim(queue.name, n), "me", 60_000, now) for n in parts]
    epochs = tuple(claim.epoch for claim in claims)
    token = secrets.token_hex(8)
    ask = LeaseAsk(queue.name, 50, "me", token, 30_000, parts, None, epochs)
    assert len(hf.store.lease(ask, now)) == 50


def lease_many(hf: Holdfast, queue: Queue) -> None:
    others = (OtherQueue(queue.dlq.name, 30_000),)
    ask = LeaseAsk(queue.name, 50, "me", secrets.token_hex(8), 30_000, others=others)
    assert len(hf.store.lease(ask, hf.context.clock.now())) == 50


def hold_and_finish(hf: Holdfast, queue: Queue) -> None:
    batch, now = secrets.token_hex(8), hf.context.clock.now()
    assert hf.store.lease(reserve_ask(queue, 50, batch), now) == 50
    assert hf.store.settle(BatchEnd(queue.name, batch, 100, "COMPLETED"), now) == 50


def look(hf: Holdfast, queue: Queue, state: State) -> None:
    now = hf.context.clock.now()
    first = hf.store.browse(View(queue.name, state), None, 20, now)
    second = hf.store.browse(View(queue.name, state), first.after, 20, now)
    assert len(first.entries) == len(second.entries) == 20


def page(hf: Holdfast, queue: Queue) -> list[Any]:
    return hf.store.browse(View(queue.name), None, 20, hf.context.clock.now()).entries


@pytest.mark.promise("OVERDUE-4")
@pytest.mark.parametrize("name", ["one", "eight"])
@pytest.mark.parametrize("act", ACTS)
def test_it_is_answered_by_an_index(
    hf: Holdfast, db: Database[Any], sent: Sent, name: str, act: str, store_name: str
) -> None:
    run, indexes, size = ACTS[act]
    queue = hf.queue(name)
    plans = watched(sent, db, lambda: run(hf, queue))
    assert plans
    used: set[str] = set()
    for plan in plans:
        at = next(iter(plan.command.values()))
        if at in ("holdfast.messages", "holdfast.log"):
            assert "COLLSCAN" not in plan.stages, plan
            assert "SORT" not in plan.stages or plan.is_of_what_came_due, plan
            walks = 8 if name == "eight" else 1
            assert plan.docs <= size + 3, plan
            assert plan.keys <= 2 * size + 2 * walks * 8 + 10, plan
        used |= plan.indexes
    assert used == indexes, plans


@pytest.mark.parametrize("act", ["lease", "ready"])
def test_partitions_are_merged_by_the_server(
    hf: Holdfast, db: Database[Any], sent: Sent, act: str
) -> None:
    plans = watched(sent, db, lambda: ACTS[act][0](hf, hf.queue("eight")))
    assert any("SORT_MERGE" in plan.stages for plan in plans), plans


@pytest.mark.promise("LIFE-12")
def test_stats_cost_the_same_at_any_depth(
    hf: Holdfast, db: Database[Any], sent: Sent, store_name: str
) -> None:
    costs: list[tuple[int, int]] = []
    for name in ("small", "one"):
        plans = watched(sent, db, hf.queue(name).stats)
        costs.append((sum(plan.keys for plan in plans), sum(plan.docs for plan in plans)))
    (small_keys, small_docs), (deep_keys, deep_docs) = costs
    assert deep_keys <= small_keys + 10
    assert deep_docs <= small_docs + 10


@pytest.mark.promise("LIFE-12")
def test_stats_do_not_walk_over_what_has_left_the_next_queue(
    mongo_url: str, clock: ManualClock, store_name: str
) -> None:
    """What is gone stays in an index for minutes; whoever comes by steps over it, one by one. No
    plan tells that, but the engine counts it."""
    with holdfast.connect(mongo_url, clock=clock) as hf, MongoClient(mongo_url) as client:
        queue, beside = hf.queue("orders"), hf.queue("payments")
        queue.enqueue(1)
        beside.enqueue_many(range(GONE))
        beside.settle(beside.lease(GONE))
        before = stepped_over(client)
        assert queue.stats().ready == 1
        assert stepped_over(client) - before < GONE
        beside.stats()  # its own line is walked
        assert stepped_over(client) - before >= GONE


def stepped_over(client: MongoClient[Any]) -> int:
    engine = client.admin.command("serverStatus")["wiredTiger"]
    return engine["cursor"]["Total number of entries skipped by cursor next calls"]


@pytest.mark.promise("LIFE-12")
def test_the_counts_equal_a_full_count(hf: Holdfast, db: Database[Any], store_name: str) -> None:
    for doc in db["holdfast.queues"].find():
        stats = hf.store.stats([doc["_id"]], hf.context.clock.now())[0]
        found = [
            db["holdfast.messages"].count_documents({"q": doc["qid"], "st": n}) for n in range(3)
        ]
        assert [stats.ready, stats.delayed, stats.leased] == found


def test_what_was_asked_first_while_all_was_empty_is_answered_well_later(
    mongo_url: str, clock: ManualClock, sent: Sent
) -> None:
    """The server keeps the plan that it found first: that is seen by what it really did."""
    with (
        holdfast.connect(mongo_url, clock=clock) as hf,
        MongoClient(mongo_url) as client,
    ):
        db, queue = client.get_default_database(), hf.queue("orders")
        for _ in range(12):
            queue.enqueue_many([1, Outgoing(2, delay=1)])
            clock.advance(1)
            queue.settle(queue.lease(1))
            queue.lease(1)
            hold = reserve_ask(queue, 1, secrets.token_hex(4))
            hf.store.lease(hold, clock.now())
            batch_in(hf.store, "orders", hold.batch, None, 10)
            overdue_in(hf.store, "orders", clock.now() + 60_000, 10)
            queue.purge()
        fill(hf, queue, deep=True)
        db.command("profile", 2)
        try:
            for _ in range(3):
                queue.settle(queue.lease(50))
                hold_and_finish(hf, queue)
                batch_in(hf.store, "orders", "batch of orders", None, 40)
                overdue_in(hf.store, "orders", clock.now() + 60_000, 100)
                queue.stats()
        finally:
            db.command("profile", 0)
        ran = list(db["system.profile"].find({"ns": {"$regex": r"\.holdfast\.(messages|log)$"}}))
        assert ran
        for one in ran:
            assert one.get("docsExamined", 0) <= 210, one
            assert one.get("keysExamined", 0) <= 400, one
            assert not one.get("hasSortStage") or not one.get("docsExamined"), one
