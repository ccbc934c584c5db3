"""Fixtures: the servers that all test processes share, and an empty store for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores import open_store
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from servers import STORES, mongo, postgres, shared
from servers.base import skipping
from servers.spaces import Spaces, lent, new_name, spaces_of

SERVERS = pytest.StashKey[shared.Servers]()

OwnServer = Callable[[AbstractContextManager[Any]], str]


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of xdist's processes
        config.stash[SERVERS] = shared.offered()
        return
    config.stash[SERVERS] = shared.Servers()
    if config.getoption("numprocesses", None):
        shared.offer(config.stash[SERVERS])


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and SERVERS in config.stash:
        config.stash[SERVERS].close()


def _server(request: pytest.FixtureRequest, kind: str) -> str:
    with skipping():
        return request.config.stash[SERVERS].url(kind)


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> str:
    """The URL of a real server. Without one: skipped at home, failed in CI."""
    return _server(request, "postgres")


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> str:
    """The URL of a real server, whose file is synced every second."""
    return _server(request, "redis")


@pytest.fixture(scope="session")
def redis_cluster(request: pytest.FixtureRequest) -> str:
    """The URL of three real nodes."""
    return _server(request, "redis-cluster")


@pytest.fixture(scope="session")
def mongo_server(request: pytest.FixtureRequest) -> str:
    """The URL of a real server: a replica set of one node."""
    return _server(request, "mongo")


class LentUrl:
    """Empty stores on a server, `with lent_url("postgres", server) as url`; each is used again by
    the next test of this process."""

    def __init__(self) -> None:
        self._known: dict[str, Spaces] = {}

    @contextmanager
    def __call__(self, kind: str, server: str) -> Iterator[str]:
        if server not in self._known:
            self._known[server] = spaces_of(kind, server)
        with lent(self._known[server]) as url:
            yield url

    def forget(self, server: str) -> None:
        yours = [os.environ.get(name) for name in shared.YOURS.values()]
        if server in self._known:
            self._known.pop(server).close(drop=server in yours)

    def close(self) -> None:
        for server in list(self._known):
            self.forget(server)


@pytest.fixture(scope="session")
def lent_url() -> Iterator[LentUrl]:
    with closing(LentUrl()) as lent_url:
        yield lent_url


@pytest.fixture(scope="module")
def own_server(lent_url: LentUrl) -> Iterator[OwnServer]:
    """The URL of a server for one module only: `own_server(mongo.running())`."""
    with ExitStack() as stack:

        def start(running: AbstractContextManager[Any]) -> str:
            url = stack.enter_context(running).url
            stack.callback(lent_url.forget, url)  # while the server still answers
            return url

        yield start


@pytest.fixture
def postgres_url(postgres_server: str, lent_url: LentUrl) -> Iterator[str]:
    """A store of its own: an empty schema."""
    with lent_url("postgres", postgres_server) as url:
        yield url


@pytest.fixture
def new_postgres_url(postgres_server: str) -> Iterator[str]:
    """A schema that does not exist yet."""
    schema = new_name()
    mark = "&" if "?" in postgres_server else "?"
    yield f"{postgres_server}{mark}schema={schema}"
    postgres.drop_schema(postgres_server, schema)


@pytest.fixture
def redis_url(redis_server: str, lent_url: LentUrl) -> Iterator[str]:
    """A store of its own: keys with a prefix that nobody else has."""
    with lent_url("redis", redis_server) as url:
        yield url


@pytest.fixture
def redis_cluster_url(redis_cluster: str, lent_url: LentUrl) -> Iterator[str]:
    with lent_url("redis-cluster", redis_cluster) as url:
        yield url


@pytest.fixture
def mongo_url(mongo_server: str, lent_url: LentUrl) -> Iterator[str]:
    """A store of its own: an empty database."""
    with lent_url("mongo", mongo_server) as url:
        yield url


@pytest.fixture
def new_mongo_url(mongo_server: str) -> Iterator[str]:
    """A database that does not exist yet."""
    database = new_name()
    yield mongo.with_database(mongo_server, database)
    mongo.drop_database(mongo_server, database)


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def store_url(store_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of an empty store. Asks for a server only where one is needed."""
    match store_name:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/test.db"
        case _:
            return request.getfixturevalue(f"{store_name.replace('-', '_')}_url")


@pytest.fixture
def store_factory(store_name: str, store_url: str) -> Iterator[Callable[[], Store]]:
    """Opens handles on one empty store, as separate processes would."""
    opened: list[Store] = []
    memory = MemoryStore()

    def factory() -> Store:
        store = memory if store_name == "memory" else open_store(store_url)
        opened.append(store)
        return store

    yield factory
    for store in opened:
        store.close()
