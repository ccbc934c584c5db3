"""The server's connection, and handles on its queues and topics."""

from __future__ import annotations

from functools import lru_cache

from holdfast.app import Holdfast
from holdfast.errors import QueueNotFound, did_you_mean
from holdfast.model.message import check_queue_name
from holdfast.queue.interface import Topic
from holdfast.queue.queue import LocalQueue

HANDLES_MAX = 1000


class Handles:
    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.context = hf.context
        self._made = lru_cache(HANDLES_MAX)(self._make)

    def queue(self, name: str) -> LocalQueue:
        """A handle, which has read nothing yet. Kept, because it remembers the queue's policy."""
        return self._made(name)

    def existing(self, name: str) -> LocalQueue:
        """A handle on a queue that is there; for calls that would not notice that it is not."""
        queue = self.queue(name)
        queue.spec  # noqa: B018  # raises QueueNotFound
        return queue

    def _make(self, name: str) -> LocalQueue:
        return LocalQueue(self.context, check_queue_name(name))

    def topic(self, name: str) -> Topic:
        return self.hf.topic(name, create=False)

    def with_hint(self, error: QueueNotFound, name: object) -> QueueNotFound:
        """The error with the nearest name, if it says no more than that there is no such queue."""
        if str(error) != f"no queue {name!r}":
            return error
        known = [queue.name for queue in self.hf.queues()]
        return QueueNotFound(f"{error}; {did_you_mean(str(name), known)}")
