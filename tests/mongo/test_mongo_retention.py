"""The log's TTL index: the net below the sweeper, set by the longest retention of any queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

import holdfast
from holdfast.model import settings
from holdfast.testing import wait_until
from holdfast.work.sweeper import Sweeper
from servers import mongo

HOUR = 3600


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mongo.running(parameters={"ttlMonitorSleepSecs": "1"}, options=mongo.FAST) as server:
        yield mongo.with_database(server.url, "retention")


@pytest.fixture
def log(url: str) -> Iterator[Collection[Any]]:
    with MongoClient(url) as client:
        client.drop_database("retention")
        yield client.get_default_database()["holdfast.log"]


def expiry(log: Collection[Any]) -> int | None:
    """Seconds after which MongoDB itself drops a row."""
    return log.index_information().get("expired", {}).get("expireAfterSeconds")


@pytest.mark.promise("LOG-4")
def test_the_index_follows_the_longest_retention(url: str, log: Collection[Any]) -> None:
    with holdfast.connect(url, retention=60) as hf:
        hf.queue("short")
        hf.sweep()
        assert expiry(log) is None  # only a tick of the sweeper keeps house
        tick(hf)
        assert expiry(log) == 60 + HOUR
        hf.queue("long", retention=86_400)
        tick(hf)
        assert expiry(log) == 86_400 + HOUR
        hf.queue("for-ever", retention=0)
        tick(hf)
        assert expiry(log) is None


@pytest.mark.promise("LOG-4")
def test_the_server_drops_what_is_older_and_nothing_else(url: str, log: Collection[Any]) -> None:
    with holdfast.connect(url, retention=60) as hf:
        queue = hf.queue("orders")
        old, young = queue.enqueue_many(["old", "young"])
        queue.settle(queue.lease(2))
        tick(hf)
        long_ago = datetime.now(UTC) - timedelta(hours=2)
        log.update_one({"_id": {"$regex": old.id}}, {"$set": {"on": long_ago}})
        wait_until(lambda: log.count_documents({}) == 1)
        assert [entry.message.id for entry in queue.browse("log")] == [young.id]
        assert queue.stats().done == 2


def tick(hf: holdfast.Holdfast) -> None:
    """As every worker does, each five seconds."""
    Sweeper(hf.context, settings.load()).tick()
