"""The limit: Redis by hand, with nothing a queue needs beyond taking turns.

One stream, one group: what is read belongs to its consumer, an ack deletes it. No ids of its own,
no log, no counts, no retries, no delays, bodies encoded beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

from redis import Redis

from bench.results import Who
from bench.timing import BATCH, batches, bodies, timed

DURABLE = "the file is synced every second: Redis may crash, a power cut may take the last second"
DRIVER = f"redis-py {version('redis')}, hiredis {version('hiredis')}"

WHO = Who(
    name="by hand",
    kind="limit",
    version=DRIVER,
    settings="pipelined XADD; XREADGROUP, then XACK and XDEL in one pipeline",
    durability=DURABLE,
    delivery="pending with its consumer, deleted when acked; no log, no retries",
    acks=True,
)

STREAM, GROUP, CONSUMER = b"stream", b"group", b"consumer"
FIELD = b"b"
FILL = 1000


def enqueue_bulk(size: int) -> Callable[[str, int], float]:
    def run(url: str, n: int) -> float:
        parts = batches(bodies(n), size)
        with opened(url) as client:
            with timed() as watch:
                for part in parts:
                    _add(client, part)
            assert client.xlen(STREAM) == n
        return watch.seconds

    return run


def enqueue_one(url: str, n: int) -> float:
    items = bodies(n)
    with opened(url) as client:
        with timed() as watch:
            for item in items:
                client.xadd(STREAM, {FIELD: item})
        assert client.xlen(STREAM) == n
    return watch.seconds


def lease_ack_bulk(url: str, n: int) -> float:
    acked = 0
    with opened(url) as client:
        fill(client, n)
        with timed() as watch:
            while ids := _read(client, BATCH):
                with client.pipeline(transaction=False) as pipe:
                    pipe.xack(STREAM, GROUP, *ids)
                    pipe.xdel(STREAM, *ids)
                    pipe.execute()
                acked += len(ids)
        assert client.xlen(STREAM) == 0
    assert acked == n, f"{acked} of {n}"
    return watch.seconds


def fill(client: Redis, n: int) -> None:
    for part in batches(bodies(n), FILL):
        _add(client, part)


@contextmanager
def opened(url: str) -> Iterator[Redis]:
    with Redis.from_url(url) as client:
        client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        yield client


def _add(client: Redis, items: list[bytes]) -> None:
    with client.pipeline(transaction=False) as pipe:
        for item in items:
            pipe.xadd(STREAM, {FIELD: item})
        pipe.execute()


def _read(client: Redis, size: int) -> list[bytes]:
    for _, entries in client.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=size):
        return [id for id, _ in entries]
    return []
