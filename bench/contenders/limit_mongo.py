"""The limit: MongoDB by hand, with nothing a queue needs beyond taking turns.

One collection, one partial index on what is ready; a lease has a deadline and a token, an ack
compares the token. No ids of its own, no log, no counts, no retries, bodies encoded beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import token_bytes
from typing import Any

import pymongo
from pymongo import ASCENDING, DESCENDING, MongoClient, WriteConcern
from pymongo.collection import Collection

from bench.results import Who
from bench.timing import batches, bodies, timed

DURABLE = "w:majority, journaled, on one node: survives a power cut"
DRIVER = f"pymongo {pymongo.version}"

WHO = Who(
    name="by hand",
    kind="limit",
    version=DRIVER,
    settings="insert_many; covered find, update_many, find by _id and token, delete_many",
    durability=DURABLE,
    delivery="leased by token, deleted when acked; no log, no retries",
    acks=True,
)

LEASE_MS = 30_000
FILL = 1000
CONCERN = WriteConcern(w="majority", j=True)
QUEUE, READY, LEASED = 1, 0, 1
ORDER = [("pr", DESCENDING), ("_id", ASCENDING)]
INDEX = [("q", ASCENDING), ("st", ASCENDING), *ORDER]
"""With `st` in the key although it is the same in all: else every candidate would be fetched."""

Messages = Collection[dict[str, Any]]


def enqueue_bulk(size: int) -> Callable[[str, int], float]:
    def run(url: str, n: int) -> float:
        parts = batches(bodies(n), size)
        with _opened(url) as messages:
            with timed() as watch:
                for part in parts:
                    _insert(messages, part)
            _holds(messages, n)
        return watch.seconds

    return run


def enqueue_one(url: str, n: int) -> float:
    items = bodies(n)
    with _opened(url) as messages:
        with timed() as watch:
            for item in items:
                messages.insert_one(_message(item))
        _holds(messages, n)
    return watch.seconds


def lease_ack(size: int) -> Callable[[str, int], float]:
    def run(url: str, n: int) -> float:
        acked = 0
        with _opened(url) as messages:
            for part in batches(bodies(n), FILL):
                _insert(messages, part)
            with timed() as watch:
                while leased := _lease(messages, token := token_bytes(8), size):
                    ids = [message["_id"] for message in leased]
                    acked += messages.delete_many({"_id": {"$in": ids}, "tk": token}).deleted_count
            _holds(messages, 0)
        assert acked == n, f"{acked} of {n}"
        return watch.seconds

    return run


def _insert(messages: Messages, items: list[bytes]) -> None:
    messages.insert_many([_message(item) for item in items], ordered=False)


def _message(body: bytes) -> dict[str, Any]:
    return {"q": QUEUE, "st": READY, "pr": 0, "b": body}


def _lease(messages: Messages, token: bytes, size: int) -> list[dict[str, Any]]:
    # A cursor's first answer has 101 at most, unless it is told.
    ready = messages.find({"q": QUEUE, "st": READY}, {"_id": 1}, batch_size=size)
    ids = [found["_id"] for found in ready.sort(ORDER).limit(size).hint(INDEX)]
    if not ids:
        return []
    deadline = int(time.time() * 1000) + LEASE_MS
    messages.update_many(
        {"_id": {"$in": ids}, "st": READY}, {"$set": {"st": LEASED, "tk": token, "dl": deadline}}
    )
    return messages.find({"_id": {"$in": ids}, "tk": token}, batch_size=size).to_list()


def _holds(messages: Messages, n: int) -> None:
    found = messages.count_documents({})
    assert found == n, f"{found} instead of {n}"


@contextmanager
def _opened(url: str) -> Iterator[Messages]:
    with MongoClient[dict[str, Any]](url) as client:
        messages = client.get_default_database().get_collection("message", write_concern=CONCERN)
        messages.create_index(INDEX, partialFilterExpression={"st": READY})
        yield messages
