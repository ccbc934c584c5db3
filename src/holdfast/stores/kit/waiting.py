"""Waiting for messages and for events: the loops of `Store.wait` and `Subscription.next`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from holdfast.model import clock
from holdfast.stores.contract import Event

K = TypeVar("K")


def wait_for_messages(
    look: Callable[[int, float], tuple[bool, bool]],
    now: int,
    timeout: float,
    *,
    again: bool,
    rest_s: float = 0.0,
) -> bool:
    """The outer loop of `Store.wait`.

    `look(now, timeout)` answers whether there is something to lease and, if not, whether there may
    be after it has waited for a sign. `again`: a sign is not enough, because it may concern
    partitions that nobody asked for; look again, at most once in `rest_s`, until there is something
    or the time is up.
    """
    until = clock.monotonic() + timeout
    while (left := until - clock.monotonic()) > 0:
        begun = clock.monotonic()
        found, sign = look(now, left)
        if found or not again:
            return found or sign
        if rest_s:
            clock.sleep(max(0.0, min(begun + rest_s, until) - clock.monotonic()))
        now += round((clock.monotonic() - begun) * 1000)
    return False


class Watch(Protocol):
    """What was seen so far. Its `wait` ends early for whatever has happened since then."""

    def wait(self, timeout: float) -> bool: ...

    def __enter__(self) -> Watch: ...

    def __exit__(self, *error: object) -> None: ...


class Subscription:
    """Events after a number, read again whenever there may be more. See `contract.Subscription`."""

    def __init__(
        self,
        read: Callable[[int], list[Event]],
        watch: Callable[[], Watch],
        after: int,
        *,
        rest_s: float = 0.0,
    ) -> None:
        """`rest_s`: between two reads, where a watch is ended by much that is no event."""
        self._read = read
        self._watch = watch
        self._after = after
        self._rest_s = rest_s

    def next(self, timeout: float) -> list[Event]:
        until = clock.monotonic() + timeout
        while True:
            with self._watch() as watch:
                events = self._read(self._after)
                left = until - clock.monotonic()
                if events or left <= 0:
                    self._after = events[-1].seq if events else self._after
                    return events
                watch.wait(left)
            if self._rest_s:
                clock.sleep(min(self._rest_s, left))

    def close(self) -> None: ...


class Topics(Generic[K]):
    """Wakes the threads of this process that wait for a topic. Thread-safe."""

    def __init__(self, everything: K, patience_s: Callable[[], float]) -> None:
        """`everything`: the topic that wakes everybody. `patience_s`: how long a waiter trusts that
        it will be told; after that its `wait` ends, so that it looks by itself."""
        self._everything = everything
        self._patience_s = patience_s
        self._told: Counter[K] = Counter()
        self._changed = threading.Condition()

    def tell(self, topics: Iterable[K]) -> None:
        with self._changed:
            self._told.update(topics)
            self._changed.notify_all()

    def tell_all(self) -> None:
        self.tell((self._everything,))

    def watch(self, topics: Iterable[K]) -> Watch:
        """Whatever is told from now on ends the `wait` of the result."""
        return _Seen(self, {topic: self._told[topic] for topic in (self._everything, *topics)})

    def wait(self, seen: Mapping[K, int], timeout: float) -> bool:
        """Whether anything was told; False after `timeout`, or when it is time to look again."""
        with self._changed:
            return self._changed.wait_for(
                lambda: any(self._told[topic] != n for topic, n in seen.items()),
                min(timeout, self._patience_s()),
            )


class _Seen(Generic[K]):
    def __init__(self, topics: Topics[K], seen: Mapping[K, int]) -> None:
        self._topics = topics
        self._seen = seen

    def wait(self, timeout: float) -> bool:
        return self._topics.wait(self._seen, timeout)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None: ...
