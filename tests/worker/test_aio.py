"""The async facade: the same verbs, awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Holdfast, InvalidArgument, LeaseLost, Settled, aio
from holdfast.testing import wait_until


@pytest.fixture(params=["memory", "sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(store_name: str, tmp_path: Path) -> str:
    return "memory://" if store_name == "memory" else f"sqlite:///{tmp_path}/jobs.db"


def test_every_verb(url: str) -> None:
    async def scenario() -> None:
        async with await aio.connect(url, max_attempts=2) as hf:
            orders = await hf.queue("orders", ack_timeout=60)
            sent = await orders.enqueue({"id": 1}, key="k")
            await orders.enqueue_many(range(6))
            assert (await orders.get(sent.id)) == sent
            leases = await orders.lease(7)
            await orders.ack(leases[0], result="done")
            await orders.ack(leases[0])  # again: fine
            with pytest.raises(LeaseLost):
                await orders.release(leases[0])
            await orders.nack(leases[1], "later", delay=60)
            await orders.fail(leases[2], "never", code="X")
            await orders.release(leases[3])
            assert (await orders.extend(leases[4], 600)).deadline > leases[4].deadline
            assert await orders.settle(leases[5:]) == [Settled.APPLIED] * 2
            stats = await orders.stats()
            assert (stats.ready, stats.delayed, stats.leased, stats.dead, stats.done) == (
                1,
                1,
                1,
                1,
                3,
            )
            assert [entry.message.payload async for entry in orders.browse("ready")] == [2]
            assert [done.result async for done in orders.log()] == ["done", None, None]
            assert (await hf.redrive("orders.dlq")).redriven == 1
            assert (await hf.sweep()).requeued == 0
            assert [s.queue for s in await hf.stats()] == ["orders"]
            (again,) = await orders.replay(sent.id)
            assert again.origin == sent.id
            await orders.pause()
            assert await orders.lease() == []
            await orders.resume()
            assert await orders.dlq.lease() == []
            assert await orders.purge() == 4
            await orders.delete(force=True)

    asyncio.run(scenario())


def test_many_at_once(url: str) -> None:
    async def scenario() -> None:
        async with await aio.connect(url, threads=4) as hf:
            orders = await hf.queue("orders")
            await asyncio.gather(*(orders.enqueue(n) for n in range(100)))
            batches = await asyncio.gather(*(orders.lease(7) for _ in range(20)))
            leases = [lease for batch in batches for lease in batch]
            assert sorted(lease.message.payload for lease in leases) == list(range(100))
            await asyncio.gather(*(orders.ack(lease) for lease in leases))
            assert (await orders.stats()).done == 100

    asyncio.run(scenario())


def test_topics_and_partitions(url: str) -> None:
    async def scenario() -> None:
        async with await aio.connect(url) as hf:
            shop = await hf.topic("shop")
            billing = await shop.bind("billing", partitions=2)
            await shop.publish({"n": 1}, key="a")
            await shop.publish_many([2, 3])
            assert [part.lag for part in await billing.partitions()] != [0, 0]
            assert await shop.groups() == ["billing"]
            late = await shop.bind("late", start="earliest")
            assert (await late.stats()).ready == 3
            assert (await (await shop.group("late")).stats()).lag == 3
            await shop.unbind("late", force=True)
            assert await shop.groups() == ["billing"]

    asyncio.run(scenario())


def test_a_cancelled_lease_gives_back_what_it_gets(url: str) -> None:
    async def scenario() -> Holdfast:
        hf = await aio.connect(url)
        orders = await hf.queue("orders")
        waiting = asyncio.create_task(orders.lease(wait=30))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await orders.enqueue(1)
        return hf.sync

    hf = asyncio.run(scenario())
    queue = hf.queue("orders")
    wait_until(lambda: [e.message.attempts for e in queue.browse()] == [0])
    hf.close()


def test_a_bad_url_is_an_error_here_too() -> None:
    with pytest.raises(InvalidArgument, match="url"):
        asyncio.run(aio.connect("nonsense"))
