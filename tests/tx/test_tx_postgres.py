"""Enqueue and ack inside the caller's own transaction, whatever they hold it by, on PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

import holdfast
from holdfast import (
    Fail,
    Holdfast,
    InvalidArgument,
    Lease,
    LeaseLost,
    Outgoing,
    Queue,
    QueueNotFound,
    Retry,
    Settled,
    StoreError,
    aio,
)
from holdfast.testing import drain, wait_until
from holdfast.work.sweeper import Swept


@pytest.fixture(params=["postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def schema(postgres_url: str) -> str:
    return parse_qs(urlsplit(postgres_url).query)["schema"][0]


@pytest.fixture
def hf(postgres_url: str, store_name: str) -> Iterator[Holdfast]:
    with holdfast.connect(postgres_url) as hf:
        yield hf


@pytest.fixture
def queue(hf: Holdfast) -> Queue:
    return hf.queue("orders")


@pytest.fixture
def look(hf: Holdfast, postgres_server: str, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """Sees what is committed. Also makes the table that is the caller's own business."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {schema}.sale (id integer)")
        connection.execute(f"SET search_path = {schema}")
        yield connection


@pytest.fixture
def mine(
    look: psycopg.Connection[Any], postgres_server: str, schema: str
) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection, as psycopg makes them: it begins a transaction by itself."""
    connection = psycopg.connect(postgres_server, options=f"-c search_path={schema}")
    yield connection
    connection.close()


def sales(connection: psycopg.Connection[Any]) -> list[int]:
    return [id for (id,) in connection.execute("SELECT id FROM sale ORDER BY id")]


class Undone(Exception):
    pass


# Callers: one for each thing that people hold a transaction by


class Caller:
    """`begin`, `sell`, `commit` and `rollback` are what the application does; `within` is what it
    gives to Holdfast."""

    within: Any

    def __init__(self, url: str, table: str) -> None:
        self.url = url
        self.insert = f"INSERT INTO {table} VALUES (%s)"
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        """Nothing to do for those who begin with their first statement."""

    def sell(self, id: int) -> None:
        self.within.execute(self.insert, (id,))

    def commit(self) -> None:
        self.within.commit()

    def rollback(self) -> None:
        self.within.rollback()

    def close(self) -> None:
        self.within.close()

    def call(self, verb: Any, *args: Any, **options: Any) -> Any:
        return verb(*args, within=self.within, **options)


class Implicit(Caller):
    def open(self) -> None:
        self.within = psycopg.connect(self.url)


class DictRows(Caller):
    def open(self) -> None:
        self.within = psycopg.connect(self.url, row_factory=dict_row, prepare_threshold=0)


class Explicit(Caller):
    """conn.transaction() on a connection in autocommit mode."""

    def open(self) -> None:
        self.within = psycopg.connect(self.url, autocommit=True)

    def begin(self) -> None:
        self.block = ExitStack()
        self.block.enter_context(self.within.transaction())

    def commit(self) -> None:
        self.block.close()

    def rollback(self) -> None:
        with pytest.raises(Undone), self.block:
            raise Undone


class Async(Caller):
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.within = self.runner.run(psycopg.AsyncConnection.connect(self.url))

    def sell(self, id: int) -> None:
        self.runner.run(self.within.execute(self.insert, (id,)))

    def commit(self) -> None:
        self.runner.run(self.within.commit())

    def rollback(self) -> None:
        self.runner.run(self.within.rollback())

    def close(self) -> None:
        self.runner.run(self.within.close())
        self.runner.close()


class AlchemyConnection(Caller):
    def open(self) -> None:
        url = sqlalchemy.make_url(self.url).set(drivername="postgresql+psycopg")
        self.engine = sqlalchemy.create_engine(url)
        self.within = self.engine.connect()

    def sell(self, id: int) -> None:
        self.within.execute(sqlalchemy.text(self.insert.replace("%s", ":id")), {"id": id})

    def close(self) -> None:
        self.within.close()
        self.engine.dispose()


class AlchemySession(AlchemyConnection):
    def open(self) -> None:
        from sqlalchemy.orm import Session

        super().open()
        self.within.close()
        self.within = Session(self.engine)


class AlchemyAsync(Caller):
    """An AsyncSession, by its run_sync: the way of SQLAlchemy to call what is not async."""

    def open(self) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        url = sqlalchemy.make_url(self.url).set(drivername="postgresql+psycopg")
        self.runner = asyncio.Runner()
        self.engine = create_async_engine(url)
        self.session = AsyncSession(self.engine)

    def sell(self, id: int) -> None:
        statement = sqlalchemy.text(self.insert.replace("%s", ":id"))
        self.runner.run(self.session.execute(statement, {"id": id}))

    def commit(self) -> None:
        self.runner.run(self.session.commit())

    def rollback(self) -> None:
        self.runner.run(self.session.rollback())

    def close(self) -> None:
        self.runner.run(self.session.close())
        self.runner.run(self.engine.dispose())
        self.runner.close()

    def call(self, verb: Any, *args: Any, **options: Any) -> Any:
        def inside(session: Any) -> Any:
            return verb(*args, within=session, **options)

        return self.runner.run(self.session.run_sync(inside))


class Django(Caller):
    def open(self) -> None:
        from django.conf import settings

        if not settings.configured:  # once for the process: one server, one database
            info = conninfo_to_dict(self.url)
            database = {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": info.get("dbname"),
                "USER": info.get("user"),
                "PASSWORD": info.get("password", ""),
                "HOST": info.get("host"),
                "PORT": info.get("port"),
            }
            settings.configure(DATABASES={"default": database})
            django.setup()
        from django.db import connection, transaction

        self.within = connection
        self.atomic = transaction.atomic

    def begin(self) -> None:
        self.block = ExitStack()
        self.block.enter_context(self.atomic())

    def sell(self, id: int) -> None:
        with self.within.cursor() as cursor:
            cursor.execute(self.insert, (id,))

    def commit(self) -> None:
        self.block.close()

    def rollback(self) -> None:
        with pytest.raises(Undone), self.block:
            raise Undone


KINDS = {
    "psycopg": Implicit,
    "psycopg-dict-rows": DictRows,
    "psycopg-transaction": Explicit,
    "psycopg-async": Async,
    "sqlalchemy-connection": AlchemyConnection,
    "sqlalchemy-session": AlchemySession,
    "sqlalchemy-async-session": AlchemyAsync,
    "django": Django,
}


@pytest.fixture(params=KINDS)
def caller(
    request: pytest.FixtureRequest,
    look: psycopg.Connection[Any],
    postgres_server: str,
    schema: str,
) -> Iterator[Caller]:
    caller = KINDS[request.param](postgres_server, f"{schema}.sale")
    yield caller
    caller.close()


# What holds for every caller


@pytest.mark.promise("TX-1")
def test_an_enqueue_commits_with_the_callers_writes(
    queue: Queue, caller: Caller, look: psycopg.Connection[Any]
) -> None:
    caller.begin()
    caller.sell(1)
    sent = caller.call(queue.enqueue, {"sale": 1}, key="k", headers={"a": "b"})
    caller.sell(2)
    assert (queue.stats().ready, queue.lease(), sales(look)) == (0, [], [])  # nobody sees it yet
    caller.commit()
    assert queue.get(sent.id) == sent
    assert (queue.stats().ready, sales(look)) == (1, [1, 2])


@pytest.mark.promise("TX-1")
def test_an_enqueue_rolls_back_with_the_callers_writes(
    queue: Queue, caller: Caller, look: psycopg.Connection[Any]
) -> None:
    caller.begin()
    caller.sell(1)
    caller.call(queue.enqueue, {"sale": 1})
    caller.rollback()
    assert (list(queue.browse()), queue.stats().ready, sales(look)) == ([], 0, [])


@pytest.mark.promise("TX-1")
def test_an_enqueue_may_be_the_first_thing_in_a_transaction(
    queue: Queue, caller: Caller, look: psycopg.Connection[Any]
) -> None:
    caller.begin()
    caller.call(queue.enqueue_many, [1, 2])
    caller.sell(1)
    caller.rollback()
    assert (list(queue.browse()), queue.stats().ready, sales(look)) == ([], 0, [])
    caller.begin()
    caller.call(queue.enqueue_many, [3, Outgoing(4, delay=60)])
    assert queue.stats().ready == 0
    caller.commit()
    assert (queue.stats().ready, queue.stats().delayed) == (1, 1)
    assert [lease.message.payload for lease in queue.lease(10)] == [3]


@pytest.mark.promise("TX-1")
def test_a_large_batch_commits_or_rolls_back_as_well(queue: Queue, caller: Caller) -> None:
    caller.begin()
    caller.sell(1)
    caller.call(queue.enqueue_many, range(3000))
    caller.rollback()
    assert queue.stats().ready == 0
    caller.begin()
    caller.call(queue.enqueue_many, range(3000))
    assert queue.stats().ready == 0
    caller.commit()
    assert queue.stats().ready == 3000
    leases = queue.lease(3000)
    assert [lease.message.payload for lease in leases] == list(range(3000))
    caller.begin()
    assert caller.call(queue.settle, leases) == [Settled.APPLIED] * 3000
    caller.rollback()
    assert queue.stats().leased == 3000


@pytest.mark.promise("TX-1")
def test_an_id_that_is_held_is_told_inside_as_well(queue: Queue, caller: Caller) -> None:
    kept = queue.enqueue("first")
    caller.begin()
    again = caller.call(queue.enqueue, "second", id=kept.id)
    caller.commit()
    assert (again.duplicate, again.payload, queue.stats().ready) == (True, "first", 1)


@pytest.mark.promise("TX-2")
def test_an_ack_commits_or_rolls_back_with_the_callers_writes(
    queue: Queue, caller: Caller, look: psycopg.Connection[Any]
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    caller.begin()
    caller.sell(1)
    caller.call(queue.ack, lease)
    assert (queue.stats().leased, queue.stats().done) == (1, 0)
    caller.rollback()
    assert (queue.stats().leased, queue.stats().done, sales(look)) == (1, 0, [])
    caller.begin()
    caller.call(queue.ack, lease, result="sold")  # the first thing in the transaction
    caller.sell(1)
    caller.commit()
    assert (queue.stats().leased, queue.stats().done, sales(look)) == (0, 1, [1])
    assert [done.result for done in queue.log()] == ["sold"]


@pytest.mark.promise("TX-2")
def test_a_settle_commits_or_rolls_back_with_the_callers_writes(
    queue: Queue, caller: Caller, look: psycopg.Connection[Any]
) -> None:
    queue.enqueue_many([1, 2, 3])
    leases = queue.lease(3)
    ends = [leases[0], (leases[1], Retry("later", delay=60)), (leases[2], Fail("never"))]
    caller.begin()
    caller.sell(1)
    assert caller.call(queue.settle, ends) == [Settled.APPLIED] * 3
    caller.rollback()
    stats = queue.stats()
    assert (stats.leased, stats.delayed, stats.dead, stats.done) == (3, 0, 0, 0)
    assert [entry.lease for entry in queue.browse("leased")] == leases
    caller.begin()
    caller.sell(2)
    assert caller.call(queue.settle, ends) == [Settled.APPLIED] * 3
    caller.commit()
    stats = queue.stats()
    assert (stats.leased, stats.delayed, stats.dead, stats.done) == (0, 1, 1, 1)
    assert sales(look) == [2]


@pytest.mark.promise("TX-1")
def test_a_call_that_fails_leaves_the_callers_transaction_whole(
    hf: Holdfast, queue: Queue, caller: Caller, look: psycopg.Connection[Any]
) -> None:
    look.execute(
        "CREATE FUNCTION no_nines() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.priority = 9 THEN RAISE 'no nines here'; END IF; RETURN new; END $$"
    )
    look.execute(
        "CREATE TRIGGER no_nines BEFORE INSERT ON message FOR EACH ROW EXECUTE FUNCTION no_nines()"
    )
    gone, other = hf.queue("gone"), holdfast.connect(hf.store)
    other.queue("gone").delete()
    queue.enqueue("held by somebody else")
    (lease,) = queue.lease()
    queue.release(lease)
    queue.purge()
    caller.begin()
    caller.sell(1)
    with pytest.raises(InvalidArgument, match="priority"):
        caller.call(queue.enqueue, 1, priority=99)
    with pytest.raises(QueueNotFound):
        caller.call(gone.enqueue, 1)
    with pytest.raises(StoreError, match="no nines here"):  # an error in the middle of a batch
        caller.call(queue.enqueue_many, [1, 2, Outgoing(3, priority=9)])
    with pytest.raises(LeaseLost):
        caller.call(queue.ack, lease)
    caller.sell(2)
    caller.call(queue.enqueue, "good")
    caller.commit()
    assert sales(look) == [1, 2]
    assert [entry.message.payload for entry in queue.browse()] == ["good"]
    assert queue.stats().ready == 1


@pytest.mark.promise("TX-1")
def test_a_waiting_consumer_gets_a_message_only_after_the_commit(
    queue: Queue, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.queue.queue.WAIT_STEP_S", 600)  # the store must end the wait
    got: list[Any] = []

    def consume() -> None:
        (lease,) = queue.lease(wait=600)
        got.append(lease.message.payload)

    thread = threading.Thread(target=consume)
    thread.start()
    caller.begin()
    caller.call(queue.enqueue, 7)
    assert queue.lease() == []  # nobody sees it
    assert got == []
    caller.commit()
    wait_until(lambda: got == [7], timeout=30)
    thread.join()


# Savepoints and settings of psycopg


@pytest.mark.promise("TX-1", "TX-2")
@pytest.mark.parametrize("autocommit", [True, False])
def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(
    queue: Queue,
    mine: psycopg.Connection[Any],
    look: psycopg.Connection[Any],
    store_name: str,
    autocommit: bool,
) -> None:
    mine.autocommit = autocommit
    queue.enqueue("leased")
    (lease,) = queue.lease()
    with mine.transaction():
        mine.execute("INSERT INTO sale VALUES (1)")
        queue.enqueue("kept", within=mine)
        with mine.transaction():
            mine.execute("INSERT INTO sale VALUES (2)")
            queue.enqueue("dropped", within=mine)
            queue.ack(lease, within=mine)
            raise psycopg.Rollback
        queue.enqueue("kept too", within=mine)
        with mine.transaction():
            queue.enqueue("in a savepoint", within=mine)
    if not autocommit:
        mine.commit()
    assert sales(look) == [1]
    stored = [entry.message.payload for entry in queue.browse()]
    assert stored == ["kept", "kept too", "in a savepoint"]
    assert (queue.stats().ready, queue.stats().leased, queue.stats().done) == (3, 1, 0)
    queue.ack(lease)


@pytest.mark.promise("TX-1")
def test_a_savepoint_by_hand_is_still_there_after_an_enqueue(
    queue: Queue, mine: psycopg.Connection[Any], look: psycopg.Connection[Any]
) -> None:
    mine.execute("SAVEPOINT _pg3_1")  # the name that psycopg would choose
    queue.enqueue("dropped", within=mine)
    mine.execute("ROLLBACK TO _pg3_1")
    queue.enqueue("kept", within=mine)
    mine.commit()
    assert [entry.message.payload for entry in queue.browse()] == ["kept"]


@pytest.mark.promise("TX-1")
def test_a_nested_atomic_block_of_django_that_fails(
    queue: Queue, look: psycopg.Connection[Any], postgres_server: str, schema: str
) -> None:
    caller = Django(postgres_server, f"{schema}.sale")
    with caller.atomic():
        queue.enqueue("kept", within=caller.within)
        with suppress(Undone), caller.atomic():
            caller.sell(1)
            queue.enqueue("dropped", within=caller.within)
            raise Undone
    assert sales(look) == []
    assert [entry.message.payload for entry in queue.browse()] == ["kept"]
    caller.close()


@pytest.mark.promise("TX-1")
def test_a_nested_session_of_sqlalchemy_that_fails(
    queue: Queue, look: psycopg.Connection[Any], postgres_server: str, schema: str
) -> None:
    caller = AlchemySession(postgres_server, f"{schema}.sale")
    with caller.within.begin():
        queue.enqueue("kept", within=caller.within)
        with suppress(Undone), caller.within.begin_nested():
            caller.sell(1)
            queue.enqueue("dropped", within=caller.within)
            raise Undone
    assert sales(look) == []
    assert [entry.message.payload for entry in queue.browse()] == ["kept"]
    caller.close()


def test_the_callers_connection_is_as_it_was(
    queue: Queue, mine: psycopg.Connection[Any], schema: str
) -> None:
    def state() -> list[Any]:
        settings = mine.execute("SELECT name, setting FROM pg_settings ORDER BY name").fetchall()
        return [mine.autocommit, mine.row_factory, mine.prepare_threshold, settings]

    for _ in range(10):  # prepared by then
        before = state()
    queue.enqueue(1, within=mine)
    gc.collect()
    assert state() == before
    mine.commit()
    assert not mine.closed
    assert sales(mine) == []


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_a_transaction_that_an_enqueue_begins_is_as_the_caller_set_it(
    queue: Queue, mine: psycopg.Connection[Any], level: psycopg.IsolationLevel
) -> None:
    mine.isolation_level = level
    queue.enqueue(1, within=mine)
    (name,) = mine.execute("SHOW transaction_isolation").fetchone() or ("",)
    assert name.upper().replace(" ", "_") == level.name
    mine.commit()
    mine.isolation_level = None
    mine.deferrable = True
    queue.enqueue(1, within=mine)
    assert mine.execute("SHOW transaction_deferrable").fetchone() == ("on",)


def test_a_transaction_that_the_caller_keeps_read_only_takes_no_message(
    queue: Queue, mine: psycopg.Connection[Any]
) -> None:
    mine.read_only = True
    with pytest.raises(StoreError):
        queue.enqueue(1, within=mine)
    mine.commit()
    assert queue.stats().ready == 0


def test_the_caller_still_hears_notices_and_notifications(
    queue: Queue, mine: psycopg.Connection[Any]
) -> None:
    heard: list[str] = []
    mine.add_notice_handler(lambda notice: heard.append(notice.message_primary or ""))
    mine.add_notify_handler(lambda notify: heard.append(notify.payload))
    mine.execute("LISTEN mine")
    mine.commit()
    queue.enqueue(1, within=mine)
    mine.execute("DO $$ BEGIN RAISE NOTICE 'a notice'; END $$")
    mine.execute("NOTIFY mine, 'a notification'")
    mine.commit()
    mine.execute("SELECT 1")
    assert heard == ["a notice", "a notification"]


def test_text_is_kept_or_refused_whatever_the_callers_encoding(
    queue: Queue, postgres_server: str
) -> None:
    words = {"key": "é", "type": "ü", "headers": {"ä": "ö"}}
    with psycopg.connect(postgres_server, client_encoding="latin1") as connection:
        refused = _refused(lambda: queue.enqueue("é", within=connection, **words))
        connection.commit()
        if not refused:
            (lease,) = queue.lease()
            message = lease.message
            found = {"key": message.key, "type": message.type, "headers": message.headers}
            assert found == words
            queue.settle([(lease, Fail("ñ"))], within=connection)
            connection.commit()
            (dead,) = queue.dlq.browse()
            assert dead.message.history.errors[-1].message == "ñ"
    assert queue.stats().ready == 0


def test_a_pipeline_of_the_caller_is_obeyed_or_refused(
    queue: Queue, mine: psycopg.Connection[Any], look: psycopg.Connection[Any]
) -> None:
    with mine.pipeline(), mine.transaction():
        mine.execute("INSERT INTO sale VALUES (1)")
        refused = _refused(lambda: queue.enqueue(1, within=mine))
    mine.commit()
    assert (queue.stats().ready, sales(look)) == (0 if refused else 1, [1])


def _refused(call: Callable[[], Any]) -> bool:
    """Whether it was, plainly. Anything else than that, or doing what was asked, is an error."""
    try:
        call()
    except InvalidArgument as error:
        return error.field == "within"
    return False


# asyncio


@pytest.mark.promise("TX-1", "TX-2")
def test_an_async_connection_inside_its_loop(
    queue: Queue, look: psycopg.Connection[Any], postgres_server: str, schema: str
) -> None:
    async def scenario() -> None:
        connection = await psycopg.AsyncConnection.connect(postgres_server, autocommit=True)
        async with connection:
            async with connection.transaction():
                await connection.execute(f"INSERT INTO {schema}.sale VALUES (1)")
                queue.enqueue("kept", within=connection)
            async with connection.transaction():
                await connection.execute(f"INSERT INTO {schema}.sale VALUES (2)")
                queue.enqueue("dropped", within=connection)
                raise psycopg.Rollback
            (lease,) = queue.lease(10)
            assert lease.message.payload == "kept"
            async with connection.transaction():
                queue.ack(lease, within=connection)
                raise psycopg.Rollback
            async with connection.transaction():
                queue.ack(lease, within=connection)

    asyncio.run(scenario())
    assert sales(look) == [1]
    assert (queue.stats().ready, queue.stats().leased, queue.stats().done) == (0, 0, 1)


@pytest.mark.promise("TX-1")
def test_the_async_facade_enqueues_within_an_async_connection(
    postgres_url: str, postgres_server: str, look: psycopg.Connection[Any], schema: str
) -> None:
    async def send(queue: aio.AsyncQueue, connection: Any, what: str) -> None:
        await connection.execute(f"INSERT INTO {schema}.sale VALUES (%s)", (len(what),))
        await queue.enqueue(what, within=connection)

    async def scenario() -> list[Any]:
        async with await aio.connect(postgres_url) as hf:
            queue = await hf.queue("orders")
            connection = await psycopg.AsyncConnection.connect(postgres_server)
            async with connection:
                await send(queue, connection, "dropped")
                assert (await queue.stats()).ready == 0
                await connection.rollback()
                await send(queue, connection, "kept")
                await connection.commit()
            return [lease.message.payload for lease in await queue.lease(10)]

    assert asyncio.run(scenario()) == ["kept"]
    assert sales(look) == [len("kept")]


@pytest.mark.promise("TX-2")
def test_the_async_facade_settles_within_an_async_connection(
    postgres_url: str, postgres_server: str, hf: Holdfast
) -> None:
    async def scenario() -> tuple[int, int]:
        async with await aio.connect(postgres_url) as hf:
            queue = await hf.queue("orders")
            connection = await psycopg.AsyncConnection.connect(postgres_server)
            async with connection:
                await queue.enqueue_many([1, 2], within=connection)
                await connection.commit()
                first, second = await queue.lease(2)
                for end in (connection.rollback, connection.commit):
                    await queue.ack(first, within=connection)
                    assert await queue.settle([second], within=connection) == [Settled.APPLIED]
                    assert (await queue.stats()).leased == 2
                    await end()
            stats = await queue.stats()
            return stats.leased, stats.done

    assert asyncio.run(scenario()) == (0, 2)


# Acks that are under way


@pytest.mark.promise("TX-2")
def test_a_sweep_passes_over_an_ack_in_an_open_transaction(
    hf: Holdfast, mine: psycopg.Connection[Any]
) -> None:
    queue = hf.queue("short", ack_timeout=0.05)
    queue.enqueue(1)
    (lease,) = queue.lease()
    queue.ack(lease, within=mine)
    wait_until(lambda: hf.context.clock.now() >= lease.deadline)
    assert hf.sweep() == Swept()  # had it waited for that, it would say that it could not
    assert queue.stats().leased == 1
    mine.rollback()
    (entry,) = queue.browse("leased")
    assert entry.lease == lease
    assert hf.sweep() == Swept(requeued=1)
    assert queue.stats().leased == 0


@pytest.mark.promise("TX-2")
def test_an_ack_that_commits_after_a_sweep_has_finished_the_message(
    hf: Holdfast, mine: psycopg.Connection[Any]
) -> None:
    queue = hf.queue("short", ack_timeout=0.05)
    queue.enqueue(1)
    (lease,) = queue.lease()
    queue.ack(lease, within=mine)
    wait_until(lambda: hf.context.clock.now() >= lease.deadline)
    assert hf.sweep() == Swept()
    mine.commit()
    assert hf.sweep() == Swept()
    assert (queue.stats().ready, queue.stats().leased, queue.stats().done) == (0, 0, 1)


@pytest.mark.promise("TX-2")
def test_a_repeated_ack_does_not_commit_the_callers_writes_twice(
    queue: Queue, mine: psycopg.Connection[Any]
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    mine.execute("INSERT INTO sale VALUES (1)")
    queue.ack(lease, within=mine)
    mine.commit()
    mine.execute("INSERT INTO sale VALUES (2)")
    with pytest.raises(LeaseLost, match="settled before"):
        queue.ack(lease, within=mine)
    mine.rollback()
    queue.ack(lease)  # without writes of one's own there is nothing to lose


@pytest.mark.promise("TX-2")
def test_a_lost_lease_can_still_be_rolled_back(
    queue: Queue, mine: psycopg.Connection[Any], look: psycopg.Connection[Any]
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    queue.release(lease)
    mine.execute("INSERT INTO sale VALUES (1)")
    with pytest.raises(LeaseLost):
        queue.ack(lease, within=mine)
    mine.rollback()
    assert sales(look) == []
    assert queue.stats().ready == 1


@pytest.mark.promise("TX-2")
def test_a_handlers_writes_and_its_ack_are_one(
    hf: Holdfast, queue: Queue, postgres_server: str, look: psycopg.Connection[Any], schema: str
) -> None:
    @hf.handler("orders")
    def sell(id: int, lease: Lease) -> None:
        with psycopg.connect(postgres_server) as connection:
            connection.execute(f"INSERT INTO {schema}.sale VALUES (%s)", (id,))
            queue.ack(lease, within=connection)
            if id == 2 and lease.message.attempts == 1:
                raise RuntimeError("after the ack, before the commit")

    queue.enqueue_many([1, 2, 3])
    drain(hf)
    assert sales(look) == [1, 3]
    (again,) = queue.browse("delayed")
    assert again.message.payload == 2
    assert sorted(done.message.payload for done in queue.log()) == [1, 3]


@pytest.mark.promise("TX-1")
def test_a_commit_wakes_a_worker_of_another_process(
    postgres_url: str, queue: Queue, mine: psycopg.Connection[Any]
) -> None:
    seen: list[int] = []
    with holdfast.connect(postgres_url) as other:
        other.handler("orders")(lambda payload: seen.append(payload))  # noqa: PLW0108
        worker = other.worker(concurrency=1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        queue.enqueue(7, within=mine)
        mine.commit()
        wait_until(lambda: seen == [7])
        worker.stop()
        thread.join()


# Refusals


@pytest.mark.promise("TX-1")
def test_autocommit_without_a_transaction_is_refused(
    queue: Queue, mine: psycopg.Connection[Any], postgres_server: str
) -> None:
    mine.autocommit = True
    queue.enqueue("leased")
    (lease,) = queue.lease()
    engine = sqlalchemy.create_engine(
        sqlalchemy.make_url(postgres_server).set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
    )
    atomless = Django(postgres_server, "sale").within
    with engine.connect() as alchemy:
        for within in (mine, alchemy, atomless):
            for call in (
                lambda: queue.enqueue(1, within=within),  # noqa: B023
                lambda: queue.enqueue_many([1], within=within),  # noqa: B023
                lambda: queue.ack(lease, within=within),  # noqa: B023
                lambda: queue.settle([lease], within=within),  # noqa: B023
            ):
                with pytest.raises(InvalidArgument, match=r"within: .*autocommit") as refused:
                    call()
                assert refused.value.field == "within"
    engine.dispose()
    atomless.close()
    assert mine.execute("SELECT 1").fetchone() == (1,)
    assert (queue.stats().ready, queue.stats().leased) == (0, 1)
    mine.execute("BEGIN")  # by hand is as good
    queue.enqueue(1, within=mine)
    mine.execute("COMMIT")
    assert queue.stats().ready == 1


@pytest.mark.promise("TX-1")
def test_a_failed_transaction_is_refused(queue: Queue, mine: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        mine.execute("SELECT 1 / 0")
    with pytest.raises(InvalidArgument, match=r"within: .*failed: roll it back"):
        queue.enqueue(1, within=mine)
    mine.rollback()
    queue.enqueue(2, within=mine)
    mine.commit()
    assert [entry.message.payload for entry in queue.browse()] == [2]


def test_a_connection_that_is_closed_or_busy_is_refused(
    queue: Queue, mine: psycopg.Connection[Any], postgres_server: str
) -> None:
    closed = psycopg.connect(postgres_server)
    closed.close()
    with pytest.raises(InvalidArgument, match="within"):
        queue.enqueue(1, within=closed)
    with mine.cursor() as cursor, cursor.copy("COPY sale FROM STDIN") as copy:
        with pytest.raises(InvalidArgument, match="within"):
            queue.enqueue(1, within=mine)
        copy.write_row((1,))
    mine.commit()
    assert sales(mine) == [1]
    assert queue.stats().ready == 0


@pytest.mark.promise("TX-1")
def test_within_must_be_a_connection(queue: Queue, tmp_path: Any) -> None:
    lite = sqlite3.connect(tmp_path / "other.db")
    alchemy = sqlalchemy.create_engine("sqlite://").connect()
    for wrong in ("connection", 5, object(), lite, alchemy):
        with pytest.raises(InvalidArgument, match="within: must be a psycopg") as refused:
            queue.enqueue(1, within=wrong)
        assert refused.value.field == "within"
    lite.close()
    alchemy.close()
    alchemy.engine.dispose()
    assert queue.stats().ready == 0


@pytest.mark.promise("TX-1")
def test_within_must_be_a_connection_to_the_same_store(
    queue: Queue, look: psycopg.Connection[Any], postgres_server: str, schema: str
) -> None:
    look.execute(f"CREATE DATABASE {schema}_other")
    elsewhere = psycopg.conninfo.make_conninfo(postgres_server, dbname=f"{schema}_other")
    try:
        for made in (False, True):  # nothing of that name there; then another store of that name
            if made:
                url = urlsplit(postgres_server)._replace(path=f"/{schema}_other").geturl()
                mark = "&" if "?" in url else "?"
                holdfast.connect(f"{url}{mark}schema={schema}").close()
            with psycopg.connect(elsewhere) as other:
                other.execute("CREATE TABLE IF NOT EXISTS sale (id integer)")
                other.execute("INSERT INTO sale VALUES (1)")
                with pytest.raises(InvalidArgument, match="within: the connection must be to"):
                    queue.enqueue(1, within=other)
                other.execute("INSERT INTO sale VALUES (2)")  # still good
                other.commit()
                assert sales(other) == [1, 2]
                other.execute("DROP TABLE sale")
    finally:
        look.execute(f"DROP DATABASE {schema}_other WITH (FORCE)")
    assert queue.stats().ready == 0
