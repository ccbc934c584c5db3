"""Scripts on a home, which is a queue with its dead-letter queue, and what is remembered of homes.

What is remembered may be out of date: every script compares it and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.model.message import DLQ_SUFFIX, home_of
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.stores.kit.specs import Remembered, no_queue
from holdfast.stores.redis.connections import Arg, Connections
from holdfast.stores.redis.keys import Home, Keys, flag_of, tag_of
from holdfast.stores.redis.mending import Mender
from holdfast.stores.redis.moves import CHUNK, CHUNK_BYTES
from holdfast.stores.redis.moving import Mover
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.url import Where


class Settings(msgspec.Struct):
    """A queue's settings, as they are stored."""

    partitions: int
    policy: dict[str, Any]
    created_at: int
    ordered: bool = False
    starts: tuple[int, ...] = (0,)


class Homes:
    """The part that all others of the store are built on."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._db = Connections(where)
        self._keys = Keys(where.prefix)
        self._db.mend = Mender(self._db, self._keys).mend
        self._mover = Mover(self._db, self._keys, self._on)
        self._known: Remembered[QueueSpec] = Remembered()
        self._parts: dict[str, int] = {}
        self._step = CHUNK

    def _spec_of(self, name: str) -> QueueSpec | None:
        return self._known.get(name) or self._note(name, self._db.run(*self._spec_words(name)))

    def _spec_words(self, name: str) -> tuple[str, ...]:
        flag = flag_of(name)
        return "HMGET", self._keys.of(name).key("c"), f"spec{flag}", f"paused{flag}", f"rev{flag}"

    def _note(self, name: str, stored: list[bytes | None]) -> QueueSpec | None:
        return self._known.put(name, read_spec(name, stored))

    def _homes(self) -> list[str]:
        return sorted(name.decode() for name in self._db.run("SMEMBERS", self._keys.homes))

    def _home(self, queue: str) -> Home:
        name = home_of(queue)
        return self._keys.home(name, self._parts.get(name, 1))

    def _on(
        self, queue: str, script: Script, keys: Callable[[Home], Sequence[str]], *args: Arg
    ) -> Any:
        """Run a script that takes the queue, its home's number of partitions and `args`; again if
        the home turns out to have more partitions."""
        while True:
            home = self._home(queue)
            answer = self._db.script(script, keys(home), (flag_of(queue), home.parts, *args))
            if answer[0] == b"gone":
                self._known.forget(queue)
                self._parts.pop(home.name, None)
                raise no_queue(queue)
            if answer[0] != b"parts":
                return answer
            self._changed(home.name, int(answer[1]))

    def _asked(
        self, queue: str, script: Script, keys: Callable[[Home], Sequence[str]], *args: Arg
    ) -> list[Any]:
        """The same of a script that may have to run again until all due messages have taken their
        place in line."""
        while True:
            answer = self._on(queue, script, keys, *args)
            if answer[0] == b"ok":
                return answer[1:]

    def _changed(self, home: str, parts: int) -> None:
        """It has other settings than those that are remembered."""
        self._parts[home] = parts
        self._known.forget(home, home + DLQ_SUFFIX)

    def _slots(self, queues: Sequence[str], numbers: Sequence[int]) -> list[list[int]]:
        """Some of the queues, by what one script reaches: in a cluster the queues of one slot."""
        slots: dict[str, list[int]] = {}
        cluster = self._where.kind == "cluster"
        for n in numbers:
            slots.setdefault(tag_of(queues[n]) if cluster else "", []).append(n)
        return list(slots.values())

    def _size(self, bodies: list[bytes | None]) -> None:
        """Scripts read as many bodies at a time as fit, if they are as large as these."""
        if bodies:
            size = sum(len(body) for body in bodies if body) // len(bodies)
            self._step = max(1, min(CHUNK, CHUNK_BYTES // (size + 1)))


def read_spec(name: str, stored: list[bytes | None]) -> QueueSpec | None:
    settings, paused, revision = stored
    if settings is None or revision is None:
        return None
    try:
        of, policy = _settings(settings)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(f"{name}: its settings were not written by Holdfast") from error
    plain = (name, of.partitions, policy, paused == b"1", of.created_at, int(revision))
    return QueueSpec(*plain, of.ordered, of.starts)


@lru_cache(maxsize=1000)
def _settings(stored: bytes) -> tuple[Settings, Policy]:
    settings = msgspec.json.decode(stored, type=Settings)
    return settings, Policy.from_dict(settings.policy)


def write_spec(spec: QueueSpec) -> bytes:
    policy = spec.policy.to_dict()
    return msgspec.json.encode(
        Settings(spec.partitions, policy, spec.created_at, spec.ordered, spec.starts)
    )
