"""How the schema of a PostgreSQL store comes to be: once, by whoever may, and not twice."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
import pytest

import holdfast
from holdfast import Fail, Holdfast, Retry, Settled, StoreError
from holdfast.stores import open_store
from holdfast.stores.postgres import migrations
from holdfast.stores.postgres.schema import in_schema

AT_ONCE = 8
TABLES = {"meta", "queue", "message", "log", "log_other", "delta", "claim", "event", "record"}

# What pg_dump would show: relations, columns, constraints, indexes, settings; and what meta holds.
CATALOG = """
SELECT 'relation', c.relname, c.relkind::text, c.oid::text, coalesce(c.reloptions::text, ''),
  pg_get_expr(c.relpartbound, c.oid), c.relacl::text
FROM pg_class c WHERE c.relnamespace = %(schema)s::text::regnamespace
UNION ALL
SELECT 'column', c.relname, a.attname, a.attnum::text, format_type(a.atttypid, a.atttypmod),
  a.attnotnull::text, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = %(schema)s::text::regnamespace AND a.attnum > 0
UNION ALL
SELECT 'constraint', conname, pg_get_constraintdef(oid), oid::text, '', '', ''
FROM pg_constraint WHERE connamespace = %(schema)s::text::regnamespace
UNION ALL
SELECT 'index', indexname, indexdef, '', '', '', ''
FROM pg_indexes WHERE schemaname = %(schema)s::text
ORDER BY 1, 2, 3, 4
"""


def schema_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


@pytest.fixture
def admin(postgres_server: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server, autocommit=True) as db:
        yield db


@pytest.fixture
def postgres_url(new_postgres_url: str) -> str:
    """A schema that is not there yet: these are the tests of making it."""
    return new_postgres_url


@pytest.fixture
def role(admin: psycopg.Connection[Any], postgres_url: str) -> Iterator[str]:
    """Somebody who may log in and nothing more."""
    name = f"role_{secrets.token_hex(6)}"
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    yield name
    admin.execute(f"DROP SCHEMA IF EXISTS {schema_of(postgres_url)} CASCADE")
    admin.execute(f"DROP OWNED BY {name}")
    admin.execute(f"DROP ROLE {name}")


@pytest.fixture
def role_url(role: str, postgres_url: str) -> str:
    """The store, as that role sees it."""
    parts = urlsplit(postgres_url)
    where = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{role}:{quote(role)}@{where}").geturl()


def catalog(db: psycopg.Connection[Any], url: str) -> list[Any]:
    schema = schema_of(url)
    meta = db.execute(f"SELECT name, value FROM {schema}.meta ORDER BY name").fetchall()
    return [*db.execute(CATALOG, {"schema": schema}).fetchall(), *meta]


def made_by_hand(db: psycopg.Connection[Any], schema: str) -> None:
    """What `holdfast migrate --sql` is for: somebody else runs the scripts."""
    with db.transaction():
        for script in migrations(schema=schema):
            db.execute(script)


def granted(db: psycopg.Connection[Any], schema: str, role: str) -> None:
    """What the error about missing rights tells people to do."""
    db.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    db.execute(f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")


# Once


def test_a_fresh_schema_has_one_of_each(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    holdfast.connect(postgres_url).close()
    rows = catalog(admin, postgres_url)
    _has_its_tables(rows)
    assert ("version", str(len(migrations()))) in rows


def test_nothing_of_a_fresh_schema_lies_elsewhere(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    others = (
        "SELECT oid FROM pg_class WHERE relnamespace NOT IN (SELECT oid FROM pg_namespace "
        "WHERE nspname = %s OR nspname LIKE 'test%%' OR nspname LIKE 'pg%%') ORDER BY oid"
    )
    before = admin.execute(others, (schema_of(postgres_url),)).fetchall()
    holdfast.connect(postgres_url).close()
    assert admin.execute(others, (schema_of(postgres_url),)).fetchall() == before


def test_migrating_again_changes_nothing(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    store = open_store(postgres_url)
    holdfast.connect(store).queue("orders").enqueue(1)
    before = catalog(admin, postgres_url)
    store.migrate()
    store.close()
    other = open_store(postgres_url)
    other.migrate()
    assert catalog(admin, postgres_url) == before
    assert holdfast.connect(other).queue("orders").stats().ready == 1
    other.close()


def test_many_threads_migrate_at_once(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    ready, raised = threading.Barrier(AT_ONCE, timeout=60), list[Exception]()

    def migrate() -> None:
        ready.wait(30)
        try:
            open_store(postgres_url).close()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=migrate) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert raised == []
    _is_one_store(postgres_url, admin)


MIGRATE = """
import sys, holdfast
print("ready", flush=True)
sys.stdin.readline()
with holdfast.connect(sys.argv[1]) as hf:
    hf.queue("orders").enqueue(1)
"""


def test_many_processes_migrate_at_once(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTEST_"))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", MIGRATE, postgres_url],
            env=clean,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(AT_ONCE)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # and now all of them
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert ends == [("", 0)] * AT_ONCE
    _is_one_store(postgres_url, admin)
    with holdfast.connect(postgres_url) as hf:
        assert hf.queue("orders").stats().ready == AT_ONCE


def _has_its_tables(rows: list[tuple[Any, ...]]) -> None:
    tables = {row[1] for row in rows if row[0] == "relation" and row[2] in "rp"}
    assert [name[:4] for name in tables - TABLES] == ["log_"], "the day on which it was made"
    assert tables > TABLES


def _is_one_store(url: str, admin: psycopg.Connection[Any]) -> None:
    rows = catalog(admin, url)
    _has_its_tables(rows)
    assert [row[0] for row in rows if len(row) == 2] == ["store", "version"]


def test_a_schema_is_named_where_it_is_a_name() -> None:
    statement = """
    -- holdfast.message
    SELECT nextval('holdfast.seq'), 'in holdfast.message', 'it''s holdfast.log'
    FROM holdfast.message
    """
    assert (
        in_schema(statement, "user")
        == """
    -- holdfast.message
    SELECT nextval('"user".seq'), 'in holdfast.message', 'it''s holdfast.log'
    FROM "user".message
    """
    )


def one_more(script: str) -> Callable[..., list[str]]:
    """The migrations of a later Holdfast."""

    def later(url: str = "", *, schema: str = "holdfast") -> list[str]:
        return [*migrations(url, schema=schema), in_schema(script, schema)]

    return later


def test_a_migration_that_fails_leaves_nothing(
    postgres_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.stores.postgres import store

    later = one_more("CREATE TABLE holdfast.more (id integer); SELECT 1 / 0")
    with monkeypatch.context() as patched:
        patched.setattr(store, "migrations", later)
        with pytest.raises(StoreError, match="division by zero"):
            holdfast.connect(postgres_url)
    made = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
    assert admin.execute(made, (schema_of(postgres_url),)).fetchone() == (0,)
    holdfast.connect(postgres_url).close()
    before = catalog(admin, postgres_url)
    with monkeypatch.context() as patched:  # the same on top of a schema that is there
        patched.setattr(store, "migrations", later)
        with pytest.raises(StoreError, match="division by zero"):
            holdfast.connect(postgres_url)
    assert catalog(admin, postgres_url) == before


def test_a_later_script_is_run_once_and_keeps_what_is_there(
    postgres_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.stores.postgres import store

    with holdfast.connect(postgres_url) as hf:
        hf.queue("orders").enqueue(1)
    later = one_more(
        "CREATE TABLE holdfast.more (id integer);"
        f"UPDATE holdfast.meta SET value = {len(migrations()) + 1} WHERE name = 'version'"
    )
    monkeypatch.setattr(store, "migrations", later)
    for _ in range(2):
        with holdfast.connect(postgres_url) as hf:
            assert hf.queue("orders").stats().ready == 1
    rows = catalog(admin, postgres_url)
    assert "more" in {row[1] for row in rows if row[0] == "relation"}
    assert ("version", str(len(migrations()) + 1)) in rows


# What the first two scripts made, and what the code that came with them stored there.
BEFORE = """
INSERT INTO {s}.queue (qid, name, partitions, paused, policy, created_at, revision) VALUES
  (2, 'orders', 1, false, '{{"max_attempts": 3}}', 1, 1), (3, 'orders.dlq', 1, false, '{{}}', 1, 1),
  (4, 'split', 2, false, '{{}}', 1, 1), (5, 'split.dlq', 2, false, '{{}}', 1, 1);
INSERT INTO {s}.message (seq, place, available_at, enqueued_at, home, qid, part, attempts, state,
  rank, priority, split, id, body)
SELECT n, n, 1, 1, qid / 2, qid, n %% partitions, 0, 0, 9, 0, partitions > 1, gen_random_uuid(),
  n::text::bytea
FROM {s}.queue, generate_series(1, 4) n WHERE qid %% 2 = 0;
INSERT INTO {s}.delta (qid, part, ready) VALUES (2, 0, 4), (4, 0, 2), (4, 1, 2);
SELECT setval('{s}.seq', 10), setval('{s}.home', 10);
"""


def test_a_schema_from_before_queues_were_ordered_goes_on(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    schema = schema_of(postgres_url)
    for script in migrations(schema=schema)[:2]:
        admin.execute(script)
    for statement in BEFORE.format(s=schema).replace("%%", "%").split(";\n"):
        if statement.strip():
            admin.execute(statement)
    with holdfast.connect(postgres_url) as hf:
        orders, split = hf.queue("orders"), hf.queue("split")
        assert [(q.spec.ordered, q.spec.starts) for q in (orders, split)] == [(False, (0,))] * 2
        assert orders.spec.policy.max_attempts == 3
        assert [lease.message.payload for lease in split.lease(9, partitions=[1])] == [1, 3]
        orders = hf.queue("orders", partitions=2)
        assert [lease.message.payload for lease in orders.lease(9, partitions=[0])] == [1, 2, 3, 4]
    rows = catalog(admin, postgres_url)
    assert ("version", str(len(migrations()))) in rows


# By somebody else


def test_scripts_run_by_hand_make_the_same_schema(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    def shape() -> list[Any]:  # without the oids and the store's own id
        rows = [
            tuple(v for v in row if not str(v).isdigit()) for row in catalog(admin, postgres_url)
        ]
        return [row for row in rows if row[0] != "store"]

    schema = schema_of(postgres_url)
    made_by_hand(admin, schema)
    by_hand = shape()
    admin.execute(f"DROP SCHEMA {schema} CASCADE")
    holdfast.connect(postgres_url).close()
    assert shape() == by_hand


def test_a_role_with_rights_on_the_tables_alone_can_do_everything(
    postgres_url: str, role_url: str, role: str, admin: psycopg.Connection[Any]
) -> None:
    schema = schema_of(postgres_url)
    made_by_hand(admin, schema)
    granted(admin, schema, role)
    before = catalog(admin, postgres_url)
    with holdfast.connect(role_url, max_attempts=1) as hf:
        every_verb(hf, role_url)
    assert catalog(admin, postgres_url) == before


def test_the_same_on_a_schema_that_migrate_made(
    postgres_url: str, role_url: str, role: str, admin: psycopg.Connection[Any]
) -> None:
    holdfast.connect(postgres_url).close()
    granted(admin, schema_of(postgres_url), role)
    with holdfast.connect(role_url, max_attempts=1) as hf:
        every_verb(hf, role_url)


def every_verb(hf: Holdfast, url: str) -> None:
    queue = hf.queue("orders", ack_timeout=60)
    split = hf.queue("split", partitions=4)
    queue.enqueue_many(range(6))
    split.enqueue(1, key="k")
    assert [lease.message.payload for lease in split.lease(partitions=range(4))] == [1]
    leases = queue.lease(5)
    ends = [leases[0], (leases[1], Fail("never")), (leases[2], Retry("later", delay=60))]
    assert queue.settle(ends) == [Settled.APPLIED] * 3
    queue.extend(leases[3], 600)
    queue.ack(leases[3], result="done")
    queue.release(leases[4])
    assert len(list(queue.browse())) == 2
    assert len(list(queue.log())) == 2
    assert queue.get(leases[4].message.id).payload == 4
    assert hf.redrive("orders.dlq").redriven == 2
    with psycopg.connect(url.partition("?")[0]) as mine:
        queue.enqueue("inside", within=mine)
    events = hf.subscribe(after=0)
    assert [event.type for event in events.next(5)] != []
    events.close()
    assert queue.replay(leases[0].message.id)[0].payload == 0
    queue.pause()
    queue.resume()
    assert hf.sweep().requeued == 0
    assert queue.lease(wait=0.1) != []
    assert queue.purge() > 0
    assert {stats.queue for stats in hf.stats()} == {"orders", "split"}
    split.delete(force=True)
    queue.delete(force=True)


def test_upkeep_by_a_role_that_does_not_own_the_tables_only_warns(
    postgres_url: str,
    role_url: str,
    role: str,
    admin: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    holdfast.connect(postgres_url).close()
    granted(admin, schema_of(postgres_url), role)
    before = catalog(admin, postgres_url)
    with holdfast.connect(role_url) as hf, caplog.at_level(logging.INFO, "holdfast"):
        queue = hf.queue("orders")
        queue.enqueue_many([1, 2])
        queue.ack(queue.lease()[0])
        now = hf.context.clock.now()
        hf.store.tidy(now, log_before=None)
        hf.store.tidy(now, log_before=now)
        warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert {record.levelname for record in warned} == {"WARNING"}
        assert all("belong to another user" in record.getMessage() for record in warned)
        assert (queue.stats().ready, queue.stats().done, len(list(queue.log()))) == (1, 1, 1)
        queue.ack(queue.lease()[0])
    assert catalog(admin, postgres_url) == before


def test_days_of_the_log_that_the_owner_makes_need_no_grant_of_their_own(
    postgres_url: str, role_url: str, role: str, admin: psycopg.Connection[Any]
) -> None:
    with holdfast.connect(postgres_url) as owner:
        granted(admin, schema_of(postgres_url), role)
        owner.store.tidy(owner.context.clock.now(), log_before=None)
    with holdfast.connect(role_url) as hf:
        queue = hf.queue("orders")
        queue.enqueue(1)
        queue.ack(queue.lease()[0], result="done")
        assert [done.result for done in queue.log()] == ["done"]
        assert hf.sweep().trimmed == 0
    other = f"SELECT count(*) FROM {schema_of(postgres_url)}.log_other"
    assert admin.execute(other).fetchone() == (0,)


def test_a_role_that_owns_its_schema_may_migrate(
    postgres_url: str, role_url: str, role: str, admin: psycopg.Connection[Any]
) -> None:
    """CREATE SCHEMA ... AUTHORIZATION is how many databases are handed out: no more is needed."""
    admin.execute(f"CREATE SCHEMA {schema_of(postgres_url)} AUTHORIZATION {role}")
    with holdfast.connect(role_url) as hf:
        hf.queue("orders").enqueue(1)
        hf.store.tidy(hf.context.clock.now(), log_before=None)
        assert hf.queue("orders").stats().ready == 1


def test_a_schema_half_made_by_hand_is_not_taken_for_whole(
    postgres_url: str, role_url: str, role: str, admin: psycopg.Connection[Any]
) -> None:
    schema = schema_of(postgres_url)
    admin.execute(f"CREATE SCHEMA {schema}")
    granted(admin, schema, role)
    with pytest.raises(StoreError, match="GRANT CREATE"):
        holdfast.connect(role_url)


@pytest.mark.parametrize("schema", ["holdfast", "holdfast_two", "my_holdfast", "x"])
def test_scripts_are_for_the_schema_that_was_named(schema: str) -> None:
    by_name = migrations(schema=schema)
    assert migrations(f"postgresql://localhost/shop?schema={schema}") == by_name
    for script, plain in zip(by_name, migrations(), strict=True):
        made = script.replace('"', "").count(f"CREATE TABLE {schema}.")
        assert made == plain.replace('"', "").count("CREATE TABLE holdfast.")
        assert "holdfast." not in script.replace('"', "").replace(f"{schema}.", "")


def test_two_stores_in_one_database_know_nothing_of_each_other(
    postgres_url: str, postgres_server: str, admin: psycopg.Connection[Any]
) -> None:
    other_url = postgres_url.replace("schema=test_", "schema=test_other_")
    try:
        with holdfast.connect(postgres_url) as one, holdfast.connect(other_url) as other:
            one.queue("orders").enqueue(1)
            assert other.queues() == []
            other.queue("orders")
            assert other.queue("orders").stats().ready == 0
            assert other.queue("orders").lease(wait=0.2) == []
            with psycopg.connect(postgres_server) as mine:
                one.queue("orders").enqueue(2, within=mine)
                other.queue("orders").enqueue(3, within=mine)
            assert one.queue("orders").stats().ready == 2
            assert other.queue("orders").stats().ready == 1
    finally:
        admin.execute(f"DROP SCHEMA IF EXISTS {schema_of(other_url)} CASCADE")
