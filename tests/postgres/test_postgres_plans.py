"""Lease, settle, overdue and all else keep to their indexes, also where nothing was ever analysed.

Plans are those that run: the statements are prepared, the plan is the generic one, and what the
statistics say must not matter. Work is counted in buffers, not in time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.adapt import PyFormat, Transformer

import holdfast
from holdfast import Holdfast, Outgoing, Queue
from holdfast.model.message import new_ids
from holdfast.model.moves import State
from holdfast.model.queues import partition_claim
from holdfast.stores import open_store
from holdfast.stores.contract import (
    BatchEnd,
    ByPartition,
    Cut,
    LeaseAsk,
    OtherQueue,
    ReserveAsk,
    View,
    batch_in,
    overdue_in,
)
from holdfast.stores.postgres import leasing, settle
from holdfast.stores.postgres import statements as texts
from holdfast.testing import ManualClock
from servers import postgres
from tests.plugins.sampling import more

SHALLOW, DEEP = 1_000, 100_000
ENOUGH = 200
"""Ready messages that two runs of any act find."""
TABLES = ("message", "log", "delta", "record")


@pytest.fixture(params=["postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["newest", *more("older")])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "newest":
        with postgres.own_database(request.getfixturevalue("postgres_server")) as url:
            yield url  # rows that other tests keep from being pruned would count here
        return
    with postgres.running(settings=postgres.FAST, version=postgres.OLDER) as older:
        yield older.url


@pytest.fixture(scope="module", params=["never analysed", "analysed when nearly empty", "analysed"])
def queues(request: pytest.FixtureRequest, server: str) -> Iterator[Holdfast]:
    """Two queues in one schema: `shallow` and, a hundred times as deep, `deep`."""
    kind = re.sub(r"\W", "_", request.param)
    schema = f"plans_{kind}_{secrets.token_hex(4)}"
    mark = "&" if "?" in server else "?"
    opened = open_store(f"{server}{mark}schema={schema}")
    with opened._db.use() as db:
        for table in TABLES:
            db.execute(f"ALTER TABLE {schema}.{table} SET (autovacuum_enabled = off)"
                       if table != "log" else "SELECT 1")  # fmt: skip
    with holdfast.connect(opened, clock=ManualClock()) as hf:
        if request.param == "analysed when nearly empty":
            hf.queue("shallow").enqueue("alone")
            _analyse(hf, schema)
        for name, n in (("shallow", SHALLOW), ("deep", DEEP)):
            queue = hf.queue(name)
            for start in range(0, n, 10_000):
                queue.enqueue_many(
                    Outgoing(i, priority=i % 10, delay=3600 if i % 2 else None)
                    for i in range(min(10_000, n - start))
                )
            for _ in range(0, n // 10, 1000):
                queue.lease(min(1000, n // 10))
            queue.settle(queue.lease(100))
            for i in range(n // 500):
                hf.store.put_record("kind", f"other/{name}/{i}", b"x", 0, 1)
                hf.store.put_record("another kind", f"{name}/{i}", b"x", 0, 1)
        if request.param == "analysed":
            _analyse(hf, schema)
        yield hf
    postgres.drop_schema(server, schema)


def _analyse(hf: Holdfast, schema: str) -> None:
    with hf.store._db.use() as db:
        for table in TABLES:
            db.execute(f"ANALYZE {schema}.{table}")


class Watched:
    """Of everything that a store runs meanwhile: the generic plan, which is the one that counts,
    and what the statement costs, found by running it once more and rolling that back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        """Statement and plan, as one: a store's other threads run statements of their own."""
        self.costs: list[str] = []
        self._patch = monkeypatch

    def __enter__(self) -> Watched:
        run = psycopg.Connection.execute

        def explained(db: Any, query: Any, params: Any = None, **options: Any) -> Any:
            text = query if isinstance(query, str) else bytes(query).decode()
            if re.match(r"\s*(WITH|SELECT|UPDATE|DELETE|INSERT)", text):
                with db.transaction(force_rollback=True):
                    self.seen.append((text, _generic(run, db, text, params)))
                    shown = run(db, "EXPLAIN (ANALYZE, BUFFERS) " + text, params)
                    self.costs.append("\n".join(row[0] for row in shown))
            return run(db, query, params, **options)

        self._patch.setattr(psycopg.Connection, "execute", explained)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    @property
    def buffers(self) -> int:
        """Pages touched by all statements: what an act costs, whatever the machine does."""
        total = 0
        for plan in self.costs:
            top = re.search(r"Buffers: shared (.*)", plan)
            counts = re.findall(r"(?:hit|read)=(\d+)", top[1]) if top else []
            total += sum(map(int, counts))
        return total


def _generic(run: Any, db: Any, text: str, params: Any) -> str:
    """The plan that is made without looking at what is bound, as the store's sessions do it."""
    bound = params or {}
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    values = [bound[name] for name in names] if isinstance(bound, dict) else list(bound)
    transformer = Transformer(db)
    transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
    types = [f"{oid}::regtype" for oid in transformer.types or ()]
    shown = [run(db, f"SELECT ({kind})::text", prepare=False).fetchone()[0] for kind in types]
    shown = ["unknown" if kind == "-" else kind for kind in shown]
    for n, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${n}")
    if not names:
        for n in range(1, len(values) + 1):
            text = text.replace("%s", f"${n}", 1)
    kinds = f" ({', '.join(shown)})" if shown else ""
    run(db, f"PREPARE looked_at{kinds} AS {text.replace('%%', '%')}".encode(), prepare=False)
    nothing = f" ({', '.join(['NULL'] * len(shown))})" if shown else ""
    plan = run(db, f"EXPLAIN EXECUTE looked_at{nothing}".encode(), prepare=False).fetchall()
    run(db, b"DEALLOCATE looked_at", prepare=False)
    return "\n".join(row[0] for row in plan)


def _hold(hf: Holdfast, queue: Queue, batch: str = "") -> str:
    batch = batch or secrets.token_hex(8)
    ask = ReserveAsk(queue.name, 50, "me", secrets.token_hex(8), batch)
    assert hf.store.lease(ask, hf.context.clock.now())
    return batch


def _hold_and_finish(hf: Holdfast, queue: Queue) -> None:
    batch = _hold(hf, queue)
    assert hf.store.settle(BatchEnd(queue.name, batch, 100, "COMPLETED"), hf.context.clock.now())


def _hold_and_release(hf: Holdfast, queue: Queue) -> None:
    leases = batch_in(hf.store, queue.name, _hold(hf, queue), None, 100)
    queue.settle([(lease, holdfast.Release()) for lease in leases])


def _own(hf: Holdfast, queue: Queue) -> int:
    """The epoch of the owner of partition 0."""
    now = hf.context.clock.now()
    claim = hf.store.claim(partition_claim(queue.name, 0), "me", 10_000, now)
    assert claim is not None
    return claim.epoch


def _lease_owned(hf: Holdfast, queue: Queue) -> None:
    token, epochs = secrets.token_hex(8), (_own(hf, queue),)
    ask = LeaseAsk(queue.name, 50, "me", token, 30_000, (0,), epochs=epochs)
    leases = hf.store.lease(ask, hf.context.clock.now())
    assert leases
    queue.settle([(lease, holdfast.Release()) for lease in leases])


def _hold_owned(hf: Holdfast, queue: Queue) -> None:
    batch = secrets.token_hex(8)
    token, epochs = secrets.token_hex(8), (_own(hf, queue),)
    ask = ReserveAsk(queue.name, 50, "me", token, batch, (0,), epochs)
    assert hf.store.lease(ask, hf.context.clock.now())
    leases = batch_in(hf.store, queue.name, batch, None, 100)
    queue.settle([(lease, holdfast.Release()) for lease in leases])


def _lease_many(hf: Holdfast, queue: Queue) -> None:
    others = (OtherQueue(queue.dlq.name, 30_000),)
    ask = LeaseAsk(queue.name, 50, "me", secrets.token_hex(8), 30_000, others=others)
    leases = hf.store.lease(ask, hf.context.clock.now())
    assert leases
    queue.settle([(lease, holdfast.Release()) for lease in leases])
    short = msgspec.structs.replace(ask, queue=queue.dlq.name)  # has room left
    assert hf.store.lease(short, hf.context.clock.now()) == []


def _records(hf: Holdfast, queue: Queue) -> None:
    kept = [f"{queue.name}/{n}" for n in range(3)]
    for name in kept:
        assert hf.store.put_record("kind", name, b"x", 0, 1)
        assert hf.store.put_record("kind", name, b"y", 1, 1)
        assert hf.store.put_record("kind", name, b"z", None, 1)
    assert len(hf.store.records("kind", prefix=f"{queue.name}/", limit=2)) == 2
    assert hf.store.put_record("kind", kept[0], None, 3, 1)
    assert hf.store.drop_records("kind", prefix=f"{queue.name}/", before=2, limit=10) == 2


ACTS: dict[str, Callable[[Holdfast, Queue], Any]] = {
    "lease and ack": lambda hf, queue: queue.settle(queue.lease(50)),
    "lease and ack with results": lambda hf, queue: queue.settle(
        [(lease, holdfast.Done(1)) for lease in queue.lease(50)]
    ),
    "lease and release": lambda hf, queue: [queue.release(lease) for lease in queue.lease(5)],
    "lease and nack": lambda hf, queue: [queue.nack(lease, "no") for lease in queue.lease(5)],
    "extend": lambda hf, queue: [queue.extend(lease, 60) for lease in queue.lease(5)],
    "enqueue": lambda hf, queue: queue.enqueue_many(range(50)),
    "overdue": lambda hf, queue: overdue_in(hf.store, queue.name, 0, 100),
    "stats": lambda hf, queue: queue.stats(),
    "first page": lambda hf, queue: hf.store.browse(View(queue.name), None, 20, 0),
    "a page further on": lambda hf, queue: hf.store.browse(View(queue.name), "4.100", 20, 0),
    "delayed": lambda hf, queue: hf.store.browse(View(queue.name, State.DELAYED), None, 20, 0),
    "leased": lambda hf, queue: hf.store.browse(View(queue.name, State.LEASED), None, 20, 0),
    "lease of an owner": _lease_owned,
    "lease from many queues": _lease_many,
    "hold of an owner": _hold_owned,
    "find": lambda hf, queue: hf.store.find(queue.name, [*new_ids(20, 0)]),
    "depths": lambda hf, queue: hf.store.stats(ByPartition(queue.name), 0),
    "hold and finish": _hold_and_finish,
    "hold and release": _hold_and_release,
    "records": _records,
    "trim": lambda hf, queue: hf.store.drop([Cut(queue.name, 100, before=1, keep=10**6)]),
    "queues with something overdue": lambda hf, queue: hf.store.queues(overdue=0),
}


@pytest.mark.promise("LIFE-12", "OVERDUE-4")
@pytest.mark.parametrize("act", ACTS)
def test_it_costs_the_same_at_any_depth_and_by_an_index(
    queues: Holdfast, act: str, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[int] = []
    for name in ("shallow", "deep"):
        queue = queues.queue(name)
        if queue.stats().ready < ENOUGH:  # other acts may have used them up, in whatever order
            queue.enqueue_many(range(ENOUGH))
        ACTS[act](queues, queue)  # plans are made, pages are seen
        with Watched(monkeypatch) as watched:
            ACTS[act](queues, queue)
        assert watched.seen
        for _, plan in watched.seen:
            assert not re.search(r"Seq Scan on \w*(message|log|queue|record)", plan), plan
            assert not re.search(r"Bitmap|Hash Join.*message", plan), plan
        costs.append(watched.buffers)
    shallow, deep = costs
    told = "\n".join(watched.costs)
    assert deep <= shallow * 2 + 100, f"{shallow} buffers at {SHALLOW}, {deep} at {DEEP}\n{told}"


KEPT_TO: dict[str, set[str]] = {
    leasing.LEASE: {"message_ready", "message_delayed"},
    leasing.HOLD: {"message_ready", "message_delayed"},
    leasing.LEASE_OWNED: {"message_ready", "message_delayed", "message_pkey"},
    leasing.HOLD_OWNED: {"message_ready", "message_delayed", "message_pkey"},
    leasing.LEASE_MANY: {"message_ready", "message_delayed"},
    leasing.PROMOTE_MANY: {"message_delayed"},
    leasing.PROMOTE: {"message_delayed"},
    texts.BATCH: {"message_batch"},
    texts.OVERDUE: {"message_leased"},
    texts.LATE_QUEUES: {"message_leased"},
    texts.HELD: {"message_pkey"},
    texts.LOGGED: set(),  # of the log only that it is not scanned
    settle.FINISH_ALIKE: {"message_pkey"},
    settle.FINISH: {"message_pkey"},
    settle.FINISH_BATCH: {"message_batch"},
    settle.FENCE: {"message_pkey"},
    settle.EXTEND: {"message_pkey"},
    settle.PUT_BACK: {"message_pkey"},
    texts.READY: {"message_ready"},
    texts.DELAYED: {"message_delayed"},
    texts.LEASED: {"message_leased"},
    texts.CHANGE: {"record_pkey"},
    texts.RECORDS: {"record_pkey"},
    texts.DELETE: {"record_pkey"},
    texts.DROP_RECORDS: {"record_pkey"},
}


def test_plans_made_while_all_is_empty_are_the_right_ones_already(
    new_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection keeps the plan it made first, and that may be when there is nothing yet."""
    clock = ManualClock()
    with holdfast.connect(new_postgres_url, clock=clock) as hf, Watched(monkeypatch) as watched:
        queue = hf.queue("orders")
        queue.enqueue("later", delay=5)
        clock.advance(5)
        for act in ACTS.values():
            queue.enqueue("now")
            act(hf, queue)
        queue.get(queue.enqueue("there").id)
        seen = dict(watched.seen)
    for statement, indexes in KEPT_TO.items():
        plan = seen[hf.store._sql(statement)]
        used = re.findall(r"using ((?:message|record)_\w+)", plan)
        assert set(used) == indexes, f"{statement}\n{plan}"
        assert not re.search(r"Seq Scan on \w*(message|log|record)", plan), plan


KEPT_TO_OF_PARTITIONS: dict[str, set[str]] = {
    leasing.LEASE_PARTS: {"message_ready_split", "message_delayed"},
    leasing.LEASE_OWNED_PARTS: {"message_ready_split", "message_delayed", "message_pkey"},
    leasing.HOLD_OWNED_PARTS: {"message_ready_split", "message_delayed", "message_pkey"},
    texts.READY_IN: {"message_ready_split"},
    texts.HEADS: {"message_ready", "message_ready_split"},
    texts.SPLIT[0]: {"message_ready"},
    texts.SPLIT[1]: {"message_delayed"},
}


def test_so_are_those_of_a_queue_with_partitions(
    new_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with holdfast.connect(new_postgres_url, clock=clock) as hf, Watched(monkeypatch) as watched:
        queue = hf.queue("orders")
        queue.enqueue_many(range(100))
        queue = hf.queue("orders", partitions=3)
        for act in (_lease_owned, _hold_owned):
            act(hf, queue)
        queue.enqueue_many(range(100))
        assert queue.lease(10, partitions=[1, 2, 3])
        hf.store.wait(["orders"], clock.now(), 30, partitions=[1, 2, 3])
        hf.store.stats(ByPartition("orders"), clock.now())
        seen = dict(watched.seen)
    for statement, indexes in KEPT_TO_OF_PARTITIONS.items():
        plan = seen[hf.store._sql(statement)]
        assert set(re.findall(r"using (message_\w+)", plan)) == indexes, f"{statement}\n{plan}"
        assert not re.search(r"Seq Scan on \w*(message|claim|queue)", plan), plan


@pytest.mark.promise("LIFE-12")
def test_the_counts_equal_a_full_count(queues: Holdfast, store_name: str) -> None:
    with queues.store._db.use() as db:
        for name in ("shallow", "deep"):
            counted = dict(
                db.execute(
                    queues.store._sql(
                        "SELECT state, count(*) FROM holdfast.message WHERE qid = "
                        "(SELECT qid FROM holdfast.queue WHERE name = %(name)s) GROUP BY state"
                    ),
                    {"name": name},
                ).fetchall()
            )
            stats = queues.queue(name).stats()
            found = [stats.ready, stats.delayed, stats.leased]
            assert [counted.get(n, 0) for n in range(3)] == found
