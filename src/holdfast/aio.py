"""The same verbs for asyncio: a thin facade over a bounded pool of threads.

    hf = await holdfast.aio.connect("sqlite:///jobs.db")
    orders = await hf.queue("orders")
    await orders.enqueue({"id": 1})

Stores are synchronous and batch first; a round trip in a thread costs less than a second
implementation of every store would (docs/adr/0004).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from holdfast import app
from holdfast.model.message import Finished, Lease, Message
from holdfast.model.moves import Settled, State
from holdfast.queue.interface import PartitionStats, Queue, Topic
from holdfast.queue.redrive import Redriven
from holdfast.rules.outcome import Outcome
from holdfast.stores.contract import Entry, QueueStats
from holdfast.work.sweeper import Swept

THREADS = 16
"""Calls under way at once; more wait their turn."""

P = ParamSpec("P")
T = TypeVar("T")


async def connect(url: str, *, threads: int = THREADS, **options: Any) -> AsyncHoldfast:
    """Like `holdfast.connect`, for use in an event loop."""
    pool = _Pool(threads)
    try:
        return AsyncHoldfast(await pool.run(app.connect, url, **options), pool)
    except BaseException:
        pool.close()
        raise


class AsyncHoldfast:
    """A connection whose verbs are awaited. Handlers and workers are those of `sync`."""

    def __init__(self, sync: app.Holdfast, pool: _Pool) -> None:
        self.sync = sync
        self._pool = pool

    async def queue(self, name: str, **options: Any) -> AsyncQueue:
        return AsyncQueue(await self._pool.run(self.sync.queue, name, **options), self._pool)

    async def topic(self, name: str, **options: Any) -> AsyncTopic:
        return AsyncTopic(await self._pool.run(self.sync.topic, name, **options), self._pool)

    async def stats(self) -> list[QueueStats]:
        return await self._pool.run(self.sync.stats)

    async def redrive(self, dlq: str, count: int = 0, **options: Any) -> Redriven:
        """Like `Holdfast.redrive`; `edit` and `progress` are called in a thread of the pool."""
        return await self._pool.run(self.sync.redrive, dlq, count, **options)

    async def sweep(self) -> Swept:
        return await self._pool.run(self.sync.sweep)

    async def close(self) -> None:
        await self._pool.run(self.sync.close)
        self._pool.close()

    async def __aenter__(self) -> AsyncHoldfast:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncQueue:
    """A queue whose verbs are awaited; they mean what they mean on `Queue`."""

    def __init__(self, sync: Queue, pool: _Pool) -> None:
        self.sync = sync
        self.name = sync.name
        self._pool = pool

    @property
    def dlq(self) -> AsyncQueue:
        return AsyncQueue(self.sync.dlq, self._pool)

    async def enqueue(self, payload: Any, **options: Any) -> Message:
        return await self._pool.run(self.sync.enqueue, payload, **options)

    async def enqueue_many(self, items: Iterable[Any], *, within: Any = None) -> list[Message]:
        return await self._pool.run(self.sync.enqueue_many, list(items), within=within)

    async def lease(
        self,
        limit: int = 1,
        wait: float = 0.0,
        *,
        owner: str | None = None,
        partitions: Sequence[int] | None = None,
    ) -> list[Lease]:
        """Like `Queue.lease`. Cancelled while it waits, it gives back whatever it still gets."""
        call = self._pool.submit(self.sync.lease, limit, wait, owner=owner, partitions=partitions)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            call.add_done_callback(self._give_back)
            raise

    def _give_back(self, call: Future[list[Lease]]) -> None:
        if not call.cancelled() and call.exception() is None:
            for lease in call.result():
                self.sync.release(lease)

    async def ack(self, lease: Lease, *, result: Any = None, within: Any = None) -> None:
        await self._pool.run(self.sync.ack, lease, result=result, within=within)

    async def nack(self, lease: Lease, error: Any = None, *, delay: float | None = None) -> None:
        await self._pool.run(self.sync.nack, lease, error, delay=delay)

    async def fail(self, lease: Lease, error: Any = "failed", *, code: str | None = None) -> None:
        await self._pool.run(self.sync.fail, lease, error, code=code)

    async def release(self, lease: Lease, *, delay: float | None = None) -> None:
        await self._pool.run(self.sync.release, lease, delay=delay)

    async def extend(self, lease: Lease, seconds: float | None = None) -> Lease:
        return await self._pool.run(self.sync.extend, lease, seconds)

    async def settle(
        self, items: Iterable[Lease | tuple[Lease, Outcome]], *, within: Any = None
    ) -> list[Settled]:
        return await self._pool.run(self.sync.settle, list(items), within=within)

    async def stats(self) -> QueueStats:
        return await self._pool.run(self.sync.stats)

    async def partitions(self) -> list[PartitionStats]:
        return await self._pool.run(self.sync.partitions)

    async def get(self, id: Any) -> Message:
        return await self._pool.run(self.sync.get, id)

    def browse(self, state: State | str = State.READY, **bounds: Any) -> AsyncIterator[Entry]:
        return self._pool.iterate(self.sync.browse(state, **bounds))

    def log(self, **bounds: Any) -> AsyncIterator[Finished]:
        return self._pool.iterate(self.sync.log(**bounds))

    async def replay(self, id: Any = None, **bounds: Any) -> list[Message]:
        return await self._pool.run(self.sync.replay, id, **bounds)

    async def pause(self) -> None:
        await self._pool.run(self.sync.pause)

    async def resume(self) -> None:
        await self._pool.run(self.sync.resume)

    async def purge(self) -> int:
        return await self._pool.run(self.sync.purge)

    async def delete(self, *, force: bool = False) -> None:
        await self._pool.run(self.sync.delete, force=force)


class AsyncTopic:
    """A topic whose verbs are awaited; they mean what they mean on `Topic`."""

    def __init__(self, sync: Topic, pool: _Pool) -> None:
        self.name = sync.name
        self.sync = sync
        self._pool = pool

    async def bind(self, group: str, **options: Any) -> AsyncQueue:
        return AsyncQueue(await self._pool.run(self.sync.bind, group, **options), self._pool)

    async def unbind(self, group: str, *, force: bool = False) -> None:
        await self._pool.run(self.sync.unbind, group, force=force)

    async def group(self, name: str) -> AsyncQueue:
        return AsyncQueue(await self._pool.run(self.sync.group, name), self._pool)

    async def groups(self) -> list[str]:
        return await self._pool.run(self.sync.groups)

    async def publish(self, payload: Any, **options: Any) -> Message:
        return await self._pool.run(self.sync.publish, payload, **options)

    async def publish_many(self, items: Iterable[Any], *, within: Any = None) -> list[Message]:
        return await self._pool.run(self.sync.publish_many, items, within=within)


class _Pool:
    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-aio")

    def submit(self, call: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        carried = copy_context()  # the span that is open where this is awaited
        return self._threads.submit(carried.run, partial(call, *args, **options))

    async def run(self, call: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.wrap_future(self.submit(call, *args, **options))

    async def iterate(self, items: Iterator[T]) -> AsyncIterator[T]:
        """A page of the iterator per trip into a thread, not an item."""
        take = partial(_take, items, 200)
        while page := await asyncio.wrap_future(self._threads.submit(take)):
            for item in page:
                yield item

    def close(self) -> None:
        self._threads.shutdown(wait=False)


def _take(items: Iterator[T], n: int) -> list[T]:
    return [item for _, item in zip(range(n), items, strict=False)]
