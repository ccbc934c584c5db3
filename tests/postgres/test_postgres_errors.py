"""What goes wrong with a PostgreSQL: each case has its own error, which says what to do."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import psycopg
import pytest

import holdfast
from holdfast import (
    FailedPrecondition,
    HoldfastError,
    InvalidArgument,
    Outgoing,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.stores import open_store
from holdfast.stores.postgres import connections, open_url
from holdfast.testing import wait_until
from servers import postgres
from servers.base import free_port
from tests.soon import soon

SECRET = "Gr4nite~Secret"
WRONG = "Wr0ng~Secret"
HBA = """
host all postgres 127.0.0.1/32 trust
host all all      127.0.0.1/32 scram-sha-256
"""


def with_options(url: str, **options: Any) -> str:
    mark = "&" if "?" in url else "?"
    return f"{url}{mark}{urlencode(options, quote_via=quote)}"


def schema_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


def as_user(url: str, user: str, password: str = SECRET, database: str = "postgres") -> str:
    parts = urlsplit(url)
    netloc = f"{user}:{quote(password, safe='')}@{parts.hostname}:{parts.port}"
    return parts._replace(netloc=netloc, path=f"/{database}").geturl()


def everything_said(error: BaseException) -> str:
    """As a log would show it: with its causes."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.fixture
def admin(postgres_server: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server, autocommit=True) as db:
        yield db


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A server that asks everybody but the superuser for a password."""
    with postgres.running(settings=postgres.FAST, hba=HBA) as server:
        with psycopg.connect(server.url, autocommit=True) as db:
            for user in ("maker", "user"):
                db.execute(f"CREATE ROLE \"{user}\" LOGIN PASSWORD '{SECRET}'")
            db.execute("GRANT CREATE ON DATABASE postgres TO maker")
        yield server.url


# Who may


def test_the_right_password_is_all_it_takes(guarded: str) -> None:
    with holdfast.connect(as_user(guarded, "maker")) as hf:
        hf.queue("orders").enqueue(1)


def test_a_wrong_password_is_an_error_that_does_not_show_it(guarded: str) -> None:
    with pytest.raises(StoreError, match="password authentication failed") as refused:
        holdfast.connect(as_user(guarded, "maker", WRONG))
    assert not isinstance(refused.value, StoreUnavailable)  # trying again will not help
    assert WRONG not in everything_said(refused.value)


def test_a_password_that_is_missing(guarded: str) -> None:
    parts = urlsplit(guarded)
    url = parts._replace(netloc=f"maker@{parts.hostname}:{parts.port}").geturl()
    with pytest.raises(StoreError, match="no password supplied") as refused:
        holdfast.connect(url)
    assert not isinstance(refused.value, StoreUnavailable)


def test_a_database_that_is_not_there(guarded: str) -> None:
    with pytest.raises(StoreError, match='database "shop" does not exist') as refused:
        holdfast.connect(as_user(guarded, "maker", database="shop"))
    assert not isinstance(refused.value, StoreUnavailable)
    assert SECRET not in everything_said(refused.value)


def test_who_may_not_make_a_schema_is_told_what_to_grant(guarded: str) -> None:
    with pytest.raises(StoreError, match="permission denied") as refused:
        holdfast.connect(with_options(as_user(guarded, "user"), schema="fresh"))
    assert "GRANT CREATE ON DATABASE" in str(refused.value)
    assert "holdfast migrate --sql" in str(refused.value)
    assert SECRET not in everything_said(refused.value)


@pytest.mark.parametrize("usage", [False, True])
def test_who_may_not_touch_the_tables_is_told_what_to_grant(guarded: str, usage: bool) -> None:
    schema = f"locked_{usage}".lower()
    holdfast.connect(with_options(guarded, schema=schema)).close()
    if usage:
        with psycopg.connect(guarded) as db:
            db.execute(f'GRANT USAGE ON SCHEMA {schema} TO "user"')
    with pytest.raises(StoreError, match="permission denied") as refused:
        holdfast.connect(with_options(as_user(guarded, "user"), schema=schema))
    for needed in (f"GRANT USAGE ON SCHEMA {schema}", f"ON ALL TABLES IN SCHEMA {schema}"):
        assert needed in str(refused.value)
    assert SECRET not in everything_said(refused.value)


def test_who_may_only_read_is_told_what_to_grant(guarded: str) -> None:
    with holdfast.connect(with_options(guarded, schema="readable")) as hf:
        hf.queue("orders").enqueue(1)
    with psycopg.connect(guarded) as db:
        db.execute('GRANT USAGE ON SCHEMA readable TO "user"')
        db.execute('GRANT SELECT ON ALL TABLES IN SCHEMA readable TO "user"')
    with holdfast.connect(with_options(as_user(guarded, "user"), schema="readable")) as hf:
        queue = hf.queue("orders")
        assert queue.stats().ready == 1
        with pytest.raises(StoreError, match="GRANT SELECT, INSERT, UPDATE, DELETE"):
            queue.enqueue(2)
        assert queue.stats().ready == 1


def test_a_connect_that_fails_leaves_no_connection_behind(guarded: str) -> None:
    before = set(threading.enumerate())  # others in this process may keep pools of their own
    with pytest.raises(StoreError) as refused:
        holdfast.connect(with_options(as_user(guarded, "user"), schema="fresh"))
    with psycopg.connect(guarded, autocommit=True) as db:
        query = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'user'"
        wait_until(lambda: db.execute(query).fetchone() == (0,))
    new = set(threading.enumerate()) - before
    assert [thread.name for thread in new if thread.name.startswith("pool-")] == []
    assert refused.value is not None  # also while somebody keeps the error


@pytest.mark.parametrize("password", ["100%Secret", "Secret#1", "Sec?ret", "Secret/1", "Sec@ret"])
def test_a_url_that_is_not_well_formed_does_not_show_its_password(password: str) -> None:
    """As people type them: special characters not encoded."""
    with pytest.raises(HoldfastError) as refused:
        holdfast.connect(f"postgresql://maker:{password}@127.0.0.1:1/postgres?timeout=1")
    assert password not in everything_said(refused.value)
    assert "Sec" not in str(refused.value)


# Whether it is there


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    url = f"postgresql://postgres:{quote(SECRET)}@127.0.0.1:{free_port()}/postgres"
    with pytest.raises(StoreUnavailable, match="refused") as away:
        soon(lambda: holdfast.connect(with_options(url, timeout=600)))
    assert SECRET not in everything_said(away.value)


def test_a_host_that_nobody_knows() -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere\.invalid"):
        holdfast.connect("postgresql://postgres@nowhere.invalid/postgres")


def test_every_connection_is_in_use(postgres_url: str) -> None:
    with holdfast.connect(with_options(postgres_url, pool_size=1, timeout=1)) as hf:
        queue = hf.queue("orders")
        raised: list[Exception] = []

        def other() -> None:
            try:
                queue.enqueue(1)
            except Exception as error:
                raised.append(error)

        with hf.store._db.use():  # pyright: ignore
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(30)
        (error,) = raised
        assert isinstance(error, StoreUnavailable)
        assert "pool_size=1" in str(error)
        queue.enqueue(2)
        assert [lease.message.payload for lease in queue.lease(10)] == [2]


def test_a_lock_that_somebody_keeps(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    with holdfast.connect(with_options(postgres_url, timeout=1)) as hf:
        queue = hf.queue("orders")
        with admin.transaction():
            admin.execute(f"SELECT * FROM {schema_of(postgres_url)}.queue FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                queue.enqueue(1)
        queue.enqueue(2)
        assert [lease.message.payload for lease in queue.lease(10)] == [2]


def test_a_statement_that_takes_too_long(postgres_url: str) -> None:
    with holdfast.connect(with_options(postgres_url, timeout=1)) as hf:
        db = hf.store._db  # pyright: ignore
        told = [db.execute(f"SHOW {name}_timeout", {}) for name in ("statement", "lock")]
        assert told == [[("1s",)], [("500ms",)]]
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            db.execute("SELECT pg_sleep(%(s)s)::text", {"s": 20})
        hf.queue("orders").enqueue(1)


def test_a_store_that_was_closed_says_so(postgres_url: str) -> None:
    hf = holdfast.connect(postgres_url)
    queue = hf.queue("orders")
    hf.close()
    hf.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        queue.enqueue(1)


# The URL


@pytest.mark.parametrize(
    ("option", "hint"),
    [("shema", "schema"), ("pool-size", "pool_size"), ("ssl_mode", "sslmode"), ("poler", "pooler")],
)
def test_an_unknown_option_is_refused_with_the_nearest(option: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"did you mean '{hint}'") as refused:
        open_url(f"postgresql://localhost/x?{option}=1")
    assert refused.value.field == f"url option {option}"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("schema", value) for value in ("", "Upper", "a-b", "a.b", "1a", 'a"b', "x" * 42, "ö")],
        *[("timeout", value) for value in ("", "0", "-1", "soon", "nan", "inf", "4000")],
        *[("pool_size", value) for value in ("", "0", "-1", "many", "nan", "1.5", "5000")],
        *[("pooler", value) for value in ("", "session", "yes")],
        *[("synchronous_commit", value) for value in ("", "maybe", "on; DROP TABLE x")],
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(option: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        open_url(with_options("postgresql://localhost/x", **{option: value}))
    assert refused.value.field == f"url option {option}"


def test_a_bad_value_of_the_drivers_own_options_is_refused() -> None:
    with pytest.raises(HoldfastError, match="sslmode"):
        holdfast.connect("postgresql://127.0.0.1:1/x?sslmode=perhaps")
    with pytest.raises(InvalidArgument, match="not a PostgreSQL URL"):
        open_url("postgresql://127.0.0.1:port/x")


def test_a_list_of_hosts_is_tried_in_order(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    user, at, host = parts.netloc.rpartition("@")
    away = f"127.0.0.1:{free_port()}"
    with holdfast.connect(parts._replace(netloc=f"{user}{at}{away},{host}").geturl()) as hf:
        hf.queue("orders").enqueue(1)
    assert open_url("postgresql://[::1]:5432/x")


@pytest.mark.parametrize("schema", ["user", "select", "pg_mine", "table"])
def test_a_schema_whose_name_means_something_in_sql(
    postgres_server: str, admin: psycopg.Connection[Any], schema: str
) -> None:
    """Either it works, or the option is named."""
    url = with_options(postgres_server, schema=schema)
    try:
        with holdfast.connect(url) as hf:
            hf.queue("orders").enqueue(1)
            assert hf.queue("orders").stats().ready == 1
    except InvalidArgument as error:
        named = error.field == "url option schema"
    else:
        named = True
    finally:
        admin.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    assert named


@pytest.mark.parametrize(
    "options",
    [
        {"synchronous_commit": "off"},
        {"pooler": "transaction"},
        {"pool_size": 1},
        {"application_name": "shop", "connect_timeout": 5},
        {"client_encoding": "latin1"},
        {"options": "-c default_transaction_isolation=serializable"},
        {"options": "-c bytea_output=escape -c datestyle=German -c timezone=Asia/Kolkata"},
    ],
    ids=str,
)
def test_good_options_work(postgres_url: str, options: dict[str, Any]) -> None:
    with holdfast.connect(with_options(postgres_url, **options)) as hf:
        queue = hf.queue("orders")
        sent = queue.enqueue(b"\x00\xff", key="é", type="日本", headers={"é": "ö"})
    with holdfast.connect(postgres_url) as hf:
        (lease,) = hf.queue("orders").lease()
        assert (lease.message.body, lease.message.headers) == (sent.body, sent.headers)
        assert (lease.message.key, lease.message.type) == ("é", "日本")


# What it holds


@pytest.mark.parametrize("field", ["key", "type", "content_type"])
def test_text_with_a_nul_is_refused_and_nothing_is_stored(
    postgres_url: str, postgres_server: str, field: str
) -> None:
    with holdfast.connect(postgres_url) as hf:
        queue = hf.queue("orders")
        bad = Outgoing(b"x", **{"content_type": "text/plain", field: "a\x00b"})
        with pytest.raises(InvalidArgument, match=r"0x00|NUL"):
            queue.enqueue_many([1, bad, 2])
        with psycopg.connect(postgres_server) as mine:
            with pytest.raises(InvalidArgument, match=r"0x00|NUL"):
                queue.enqueue_many([1, bad, 2], within=mine)
            assert mine.execute("SELECT 1").fetchone() == (1,)
        assert queue.stats().ready == 0
        assert list(queue.browse()) == []


def test_a_nul_is_kept_where_it_can_be(postgres_url: str) -> None:
    """In a payload, a header, an error or a result: these are not PostgreSQL's text."""
    with holdfast.connect(postgres_url) as hf:
        queue = hf.queue("orders")
        queue.enqueue("a\x00b", headers={"h\x00": "v\x00"})
        (lease,) = queue.lease()
        assert (lease.message.payload, lease.message.headers) == ("a\x00b", {"h\x00": "v\x00"})
        queue.nack(lease, "bad\x00luck", delay=0)
        (lease,) = queue.lease()
        assert lease.message.history.errors[-1].message == "bad\x00luck"
        queue.ack(lease, result="good\x00luck")
        assert [done.result for done in queue.log()] == ["good\x00luck"]


@pytest.mark.parametrize("owner", ["a\x00b", "a\ud800b"])
def test_an_owner_that_is_not_text_is_refused(postgres_url: str, owner: str) -> None:
    with holdfast.connect(postgres_url) as hf:
        queue = hf.queue("orders")
        queue.enqueue(1)
        with pytest.raises(InvalidArgument):
            queue.lease(owner=owner)
        assert queue.stats().ready == 1


def test_a_server_that_takes_no_writes(new_postgres_url: str) -> None:
    read_only = with_options(new_postgres_url, options="-c default_transaction_read_only=on")
    with pytest.raises(StoreReadOnly, match="read-only"):
        holdfast.connect(read_only)
    with holdfast.connect(new_postgres_url) as hf:
        hf.queue("orders").enqueue(1)
    with holdfast.connect(read_only) as hf:
        queue = hf.queue("orders")
        assert queue.stats().ready == 1
        assert len(list(queue.browse())) == 1
        calls: list[Callable[[], Any]] = [lambda: queue.enqueue(2), queue.lease, queue.purge]
        for call in calls:
            with pytest.raises(StoreReadOnly, match="read-only"):
                call()
        assert queue.stats().ready == 1


@pytest.mark.parametrize(("version", "shown"), [(120005, "12.5"), (90624, "9")])
def test_an_old_server_is_refused(version: int, shown: str) -> None:
    with pytest.raises(FailedPrecondition, match=f"PostgreSQL 13 or newer.* {shown}"):
        connections.check_server(version)


def test_a_server_that_is_new_enough() -> None:
    connections.check_server(130000)
    connections.check_server(180001)


def test_a_schema_of_a_newer_holdfast(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    holdfast.connect(postgres_url).close()
    meta = f"{schema_of(postgres_url)}.meta"
    admin.execute(f"UPDATE {meta} SET value = '999' WHERE name = 'version'")
    with pytest.raises(SchemaTooNew, match=r"schema 999.*pip install --upgrade holdfast"):
        holdfast.connect(postgres_url)
    assert admin.execute(f"SELECT value FROM {meta} WHERE name = 'version'").fetchone() == ("999",)


OTHERS = {
    "a table of that name": "CREATE TABLE {}.message (id integer)",
    "a meta table with other columns": "CREATE TABLE {}.meta (id integer)",
    "a meta table without a version": "CREATE TABLE {}.meta (name text, value text)",
    "a meta table with another version": (
        "CREATE TABLE {0}.meta (name text, value text); "
        "INSERT INTO {0}.meta VALUES ('version', 'v2-beta')"
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_schema_that_belongs_to_something_else(
    new_postgres_url: str, admin: psycopg.Connection[Any], other: str
) -> None:
    """It is left as it is, and the error says that it is not ours."""
    schema = schema_of(new_postgres_url)
    admin.execute(f"CREATE SCHEMA {schema}")
    admin.execute(OTHERS[other].format(schema))
    tables = f"SELECT relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace"
    before = admin.execute(tables).fetchall()
    with pytest.raises(StoreCorrupt, match=r"[Nn]ot a Holdfast schema"):
        holdfast.connect(new_postgres_url)
    assert admin.execute(tables).fetchall() == before


def test_a_table_that_was_dropped(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    with holdfast.connect(postgres_url) as hf:
        queue = hf.queue("orders")
        admin.execute(f"DROP TABLE {schema_of(postgres_url)}.message")
        with pytest.raises(StoreCorrupt, match="message"):
            queue.enqueue(1)


def test_no_error_names_the_password(guarded: str) -> None:
    """Of everything that can go wrong after the store was opened."""
    url = with_options(as_user(guarded, "maker"), schema="spoken", timeout=1, pool_size=1)
    store = open_store(url)
    said: list[str] = []

    def tried(call: Callable[[], Any]) -> None:
        with pytest.raises(HoldfastError) as failed:
            call()
        said.append(everything_said(failed.value))

    hf = holdfast.connect(store)
    queue = hf.queue("orders")
    tried(lambda: queue.enqueue(1, key="\x00"))
    tried(lambda: queue.enqueue(1, within=object()))
    tried(lambda: store._db.execute("SELECT 1 / 0", {}))  # pyright: ignore
    with psycopg.connect(guarded) as db:
        db.execute("SELECT * FROM spoken.queue FOR UPDATE")
        tried(lambda: queue.enqueue(1))
    with psycopg.connect(guarded, autocommit=True) as db:
        db.execute("ALTER ROLE maker NOLOGIN")
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'maker'")
        tried(lambda: queue.enqueue(1))
        db.execute("ALTER ROLE maker LOGIN")
    hf.close()
    tried(lambda: queue.enqueue(1))
    assert [text for text in said if SECRET in text or quote(SECRET, safe="") in text] == []
