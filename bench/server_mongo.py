"""The MongoDB that is measured on: a replica set of one node, a fresh database for every sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from bench.measures.throughput import Fresh
from servers.mongo import MongoServer, with_database

SERVER = {"wiredTigerCacheSizeGB": "1", "oplogSize": "1024"}
"""More than a test gets: a million messages and their indexes fit."""
CONCERN = {"w": "majority", "j": True}

Client = MongoClient[dict[str, Any]]


@contextmanager
def stage(folder: Path) -> Iterator[tuple[Fresh, dict[str, str]]]:
    """One server for the whole run. Whoever names no write concern gets the server's: the same."""
    server = MongoServer(options=SERVER, folder=folder)
    try:
        server.start()
        with MongoClient(server.url) as client:
            client.admin.command("setDefaultRWConcern", defaultWriteConcern=CONCERN)
            yield _databases(client, server.url), _facts(client)
    finally:
        server.close()


def _databases(client: Client, url: str) -> Fresh:
    names = (f"bench_{n}" for n in itertools.count())

    @contextmanager
    def fresh() -> Iterator[str]:
        name = next(names)
        try:
            yield with_database(url, name)
        finally:
            client.drop_database(name)
            client.admin.command("fsync")  # a checkpoint: everybody starts right after one

    return fresh


def _facts(client: Client) -> dict[str, str]:
    """As the server itself says, not as it was told."""
    config = client.admin.command("replSetGetConfig")["config"]
    status = client.admin.command("serverStatus")
    concern = client.admin.command("getDefaultRWConcern")["defaultWriteConcern"]
    cache = status["wiredTiger"]["cache"]["maximum bytes configured"]
    return {
        "MongoDB": f"{status['version']} on the loopback: a replica set of "
        f"{len(config['members'])}, {status['storageEngine']['name']} with a cache of "
        f"{cache // 2**20} MB",
        "write concern": f"w={concern['w']}, j={str(concern['j']).lower()} for all: the server's "
        "default, for those that ask for none of their own",
    }
