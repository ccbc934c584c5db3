"""Async handlers run on one event loop in the worker; async producers await the same verbs."""

import asyncio

import holdfast
from holdfast import aio

URL = "sqlite:///async.db"
hf = holdfast.connect(URL)
hf.queue("pages")


@hf.handler("pages", time_limit=5)  # an async handler can be ended; it is retried then
async def fetch(page: dict[str, str], attempt: int) -> int:
    await asyncio.sleep(0.05)  # your HTTP client here
    print(f"fetched {page['path']} at attempt {attempt}")
    return len(page["path"])


async def produce() -> None:
    async with await aio.connect(URL) as there:
        pages = await there.queue("pages")
        await pages.enqueue_many({"path": f"/page/{n}"} for n in range(20))


asyncio.run(produce())
hf.work(until_empty=True, concurrency=10)  # ten at a time, one thread
print(hf.queue("pages").stats().done, "done")
hf.close()
