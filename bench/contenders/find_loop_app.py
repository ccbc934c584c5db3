"""The queue that teams write on MongoDB; as a program, its worker in a process of its own.

One find_one_and_update takes what is pending or whose retry is due, a delete_one acks it.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from secrets import token_bytes
from typing import Any

from pymongo import ASCENDING, MongoClient, ReturnDocument
from pymongo.collection import Collection

from bench.contenders import tasks
from bench.contenders.limit_mongo import CONCERN
from bench.timing import batches, payloads, timed

POLL_S = 0.01
LEASE_S = 30.0
FILL = 1000
ORDER = [("_id", ASCENDING)]
INDEX = [("status", ASCENDING), *ORDER]
"""Both arms of the $or come out of it in order and are merged: no sort, no scan."""

Jobs = Collection[dict[str, Any]]


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    with _opened(url) as jobs, timed() as watch:
        for item in items:
            jobs.insert_one(_job("nothing", item))
    return watch.seconds


def enqueue_many(url: str, parts: list[list[dict[str, Any]]]) -> float:
    with _opened(url) as jobs, timed() as watch:
        for part in parts:
            jobs.insert_many([_job("nothing", item) for item in part])
    return watch.seconds


def take_and_delete(url: str, n: int) -> float:
    """The loop alone, without a worker around it."""
    enqueue_many(url, batches(payloads(n), FILL))
    done = 0
    with _opened(url) as jobs:
        with timed() as watch:
            while job := _take(jobs):
                done += _delete(jobs, job)
        assert (done, jobs.count_documents({})) == (n, 0), f"{done} of {n}"
    return watch.seconds


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    with _opened(url) as jobs:
        yield lambda item: jobs.insert_one(_job("note", item))


def work(url: str, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with _opened(url) as jobs, ThreadPoolExecutor(threads) as pool:
        for _ in range(threads):
            pool.submit(_work, jobs)


def _work(jobs: Jobs) -> None:
    while True:
        if job := _take(jobs):
            try:
                getattr(tasks, job["task"])(job["payload"])
            except tasks.FailedOnce:
                jobs.update_one({"_id": job["_id"]}, {"$set": {"status": "retry", "due": 0.0}})
            else:
                _delete(jobs, job)
        else:
            time.sleep(POLL_S)


def _job(task: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"status": "pending", "task": task, "payload": payload, "attempts": 0}


def _take(jobs: Jobs) -> dict[str, Any] | None:
    now = time.time()
    due = [{"status": "pending"}, {"status": "retry", "due": {"$lte": now}}]
    taken = {"status": "running", "token": token_bytes(8), "until": now + LEASE_S}
    return jobs.find_one_and_update(
        {"$or": due},
        {"$set": taken, "$inc": {"attempts": 1}},
        sort=ORDER,
        return_document=ReturnDocument.AFTER,
    )


def _delete(jobs: Jobs, job: dict[str, Any]) -> int:
    return jobs.delete_one({"_id": job["_id"], "token": job["token"]}).deleted_count


@contextmanager
def _opened(url: str) -> Iterator[Jobs]:
    with MongoClient[dict[str, Any]](url) as client:
        jobs = client.get_default_database().get_collection("jobs", write_concern=CONCERN)
        jobs.create_index(INDEX)
        yield jobs


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
