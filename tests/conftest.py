"""Options, the record of proven promises, and the stores that the suites run over."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.store import Store
from holdfast.stores import open_store
from holdfast.stores.memory import MemoryStore
from servers import STORES, mongo, postgres, redis

pytest.register_assert_rewrite("holdfast.testing.conformance")

ROOT = Path(__file__).parent.parent
PROVEN = ROOT / ".build" / "promises.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the soak tests")
    parser.addoption("--pictures", action="store_true", help="write docs/img/dashboard-*.png")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    items[:] = _in_turn(items)
    ids = Counter(item.nodeid for item in items)
    if twice := [id for id, n in ids.items() if n > 1]:  # xdist would run one of them
        raise pytest.UsageError(f"several tests are called {', '.join(twice)}")
    for item in items:
        for mark in item.iter_markers("promise"):
            item.user_properties.extend(("promise", id) for id in mark.args)
        item.user_properties.append(("part", _part(item)))


LONG_FILES = ("seeded", "model", "ordered", "faults", "batches", "setup")
"""The folders whose files take minutes, as those of Spark do. A file is worked by one process:
begun late, the last of them would leave the others without work."""


def _in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """The long files first; one of Spark and one of the others in turn. With a Spark in each of
    three processes, two processors are so busy that Spark's own workers, which have ten seconds to
    say that they are there, come too late."""
    spark: dict[Path, list[pytest.Item]] = {}
    others: dict[Path, list[pytest.Item]] = {}
    for item in sorted(items, key=_turn):
        files = spark if _folder(item) == "spark" else others
        files.setdefault(item.path, []).append(item)
    # Of Spark's the last first: streams take longer than the lake, and so do their partners here.
    pairs = zip_longest(reversed(spark.values()), others.values(), fillvalue=[])
    return [item for pair in pairs for file in pair for item in file]


def _turn(item: pytest.Item) -> int:
    folder = _folder(item)
    return LONG_FILES.index(folder) if folder in LONG_FILES else len(LONG_FILES)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


def _part(item: pytest.Item) -> str:
    """The store a test ran on, else the part of the project its folder names."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("store_name") or _folder(item)


class _Record:
    """Which promises were proven where, by tests that passed in this run."""

    def __init__(self) -> None:
        self.passed: list[dict[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            part = next((v for k, v in report.user_properties if k == "part"), "")
            for name, value in report.user_properties:
                if name == "promise":
                    row = {"promise": str(value), "part": str(part), "test": report.nodeid}
                    self.passed.append(row)

    def pytest_sessionfinish(self) -> None:
        if self.passed:
            PROVEN.parent.mkdir(exist_ok=True)
            known = json.loads(PROVEN.read_text()) if PROVEN.exists() else []
            rows = {json.dumps(row, sort_keys=True): row for row in [*known, *self.passed]}
            PROVEN.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1))


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)  # or children would inherit it
    if "HOLDFAST_TEST_UNRECORDED" in os.environ:  # a run on a copy with a bug in it
        return
    if not hasattr(config, "workerinput"):  # with xdist: the controller sees every report
        config.pluginmanager.register(_Record())


@pytest.hookimpl(trylast=True)  # Hypothesis must have begun
def pytest_sessionstart(session: pytest.Session) -> None:
    if "HOLDFAST_TEST_UNRECORDED" not in os.environ and not hasattr(session.config, "workerinput"):
        _first_text()


@settings(max_examples=1, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text())
def _first_text(_: str) -> None:
    """The first text makes tables of all characters, once in a checkout: seconds on a machine with
    much to do, which Hypothesis would take for a test that is too slow."""


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a real server. Without one: skipped at home, failed in CI."""
    given = os.environ.get(postgres.URL_VARIABLE)
    if given:
        yield given
        return
    with postgres.running(settings=postgres.FAST) as server:
        yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A store of its own: a schema that is made by the first who opens it, and dropped here."""
    schema = f"test_{secrets.token_hex(6)}"
    mark = "&" if "?" in postgres_server else "?"
    yield f"{postgres_server}{mark}schema={schema}"
    postgres.drop_schema(postgres_server, schema)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a real server, whose file is synced every second."""
    given = os.environ.get(redis.URL_VARIABLE)
    if given:
        yield given
        return
    with redis.running(settings=redis.EVERYSEC) as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[str]:
    """Of three real nodes."""
    with redis.running_cluster() as cluster:
        yield cluster.url


@pytest.fixture
def redis_url(redis_server: str) -> Iterator[str]:
    """A store of its own: keys with a prefix that nobody else has."""
    prefix = f"test-{secrets.token_hex(6)}"
    mark = "&" if "?" in redis_server else "?"
    yield f"{redis_server}{mark}prefix={prefix}"
    redis.drop_prefix(redis_server, prefix)


@pytest.fixture
def redis_cluster_url(redis_cluster: str) -> Iterator[str]:
    prefix = f"test-{secrets.token_hex(6)}"
    yield f"{redis_cluster}?prefix={prefix}"
    redis.drop_prefix(redis_cluster, prefix)


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[str]:
    """The URL of a real server: a replica set of one node."""
    given = os.environ.get(mongo.URL_VARIABLE)
    if given:
        yield given
        return
    with mongo.running(options=mongo.FAST) as server:
        yield server.url


@pytest.fixture(scope="session")
def mongo_standalone() -> Iterator[str]:
    """The URL of a real server without a replica set, which has no transactions."""
    with mongo.running(set_name=None, options=mongo.FAST) as server:
        yield server.url


@pytest.fixture
def mongo_url(mongo_server: str) -> Iterator[str]:
    """A store of its own: a database that is made by the first who writes, and dropped here."""
    database = f"test_{secrets.token_hex(6)}"
    yield mongo.with_database(mongo_server, database)
    mongo.drop_database(mongo_server, database)


@pytest.fixture
def mongo_standalone_url(mongo_standalone: str) -> Iterator[str]:
    database = f"test_{secrets.token_hex(6)}"
    yield mongo.with_database(mongo_standalone, database)
    mongo.drop_database(mongo_standalone, database)


@pytest.fixture
def store_url(store_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Of one fresh store. Asks for a server only where one is needed."""
    match store_name:
        case "postgres":
            return request.getfixturevalue("postgres_url")
        case "redis":
            return request.getfixturevalue("redis_url")
        case "redis-cluster":
            return request.getfixturevalue("redis_cluster_url")
        case "mongo":
            return request.getfixturevalue("mongo_url")
        case "mongo-standalone":
            return request.getfixturevalue("mongo_standalone_url")
        case "sqlite":
            return f"sqlite:///{tmp_path}/test.db"
        case _:
            return "memory://"


@pytest.fixture
def store_factory(store_name: str, store_url: str) -> Iterator[Callable[[], Store]]:
    """Opens handles on one fresh store, as separate processes would."""
    opened: list[Store] = []
    memory = MemoryStore()

    def factory() -> Store:
        store = memory if store_name == "memory" else open_store(store_url)
        opened.append(store)
        return store

    yield factory
    for store in opened:
        store.close()
