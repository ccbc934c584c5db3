"""Queues: making, listing, emptying and deleting them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model.message import DLQ_SUFFIX, home_of
from holdfast.model.queues import QueueSpec
from holdfast.stores.redis.connections import Arg
from holdfast.stores.redis.homes import write_spec
from holdfast.stores.redis.keys import flag_of
from holdfast.stores.redis.moves import CHUNK
from holdfast.stores.redis.ready import Ready
from holdfast.stores.redis.scripts import DROP, QUEUES


class Queues(Ready):
    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        """In one step, as far as one script reaches. In a cluster that is one slot: of several
        slots all are compared first, and then each is written in a step of its own."""
        self._known.forget()
        slots = self._slots([spec.name for spec in specs], range(len(specs)))
        if len(slots) > 1 and not all(map(self._is_current, specs)):
            return False
        fresh = {home_of(spec.name) for spec in specs if not spec.revision}
        self._list(fresh)  # only these: a full server can still change a queue
        done = [self._put([specs[n] for n in slot]) for slot in slots]
        self._list(fresh)  # a deletion of the queues before may have come in between
        for spec in specs:
            self._parts.pop(home_of(spec.name), None)
        self._known.forget()
        return all(done)

    def _is_current(self, spec: QueueSpec) -> bool:
        stored = self._spec_of(spec.name)
        return (stored.revision if stored else 0) == spec.revision

    def _list(self, homes: Iterable[str]) -> None:
        if homes:
            self._db.run("SADD", self._keys.homes, *homes)

    def _put(self, specs: Sequence[QueueSpec]) -> bool:
        """Of one slot."""
        keys, at, args = list[str](), dict[str, int](), list[Arg]()
        for spec in specs:
            home = self._keys.of(spec.name)
            if home.name not in at:
                at[home.name] = len(keys) + 1
                keys += home.queues
            args += (at[home.name], flag_of(spec.name), spec.revision, write_spec(spec))
            args += (int(spec.paused), spec.partitions)
        answer = self._db.script(QUEUES, keys, args)
        if answer == -1:  # a process that began to delete queues of these names did not end it
            for spec in specs:
                self._drop_all(spec.name)
            answer = self._db.script(QUEUES, keys, args)
        return answer == 1

    def queues(
        self, names: Sequence[str] | None = None, *, overdue: int | None = None
    ) -> list[QueueSpec]:
        if names is not None:
            return [spec for name in names if (spec := self._spec_of(name))]
        names = sorted(name + suffix for name in self._homes() for suffix in ("", DLQ_SUFFIX))
        if overdue is None:
            self._known.forget()
        else:
            names = self._late(names, overdue)
        if not names:
            return []
        stored = self._db.run_each([self._spec_words(name) for name in names])
        found = (self._note(name, fields) for name, fields in zip(names, stored, strict=True))
        return [spec for spec in found if spec is not None]

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        """Each is gone at once; what it held is then dropped in steps."""
        self._known.forget()
        if only_empty:
            for name in names:
                if self._spec_of(name) and not self._is_empty(name):
                    return False
        homes = dict.fromkeys(map(home_of, names))
        for home in homes:  # both queues of it in one step
            flags = "".join(sorted(flag_of(name) for name in names if home_of(name) == home))
            if self._drop(home, "begin-empty" if only_empty else "begin", 0, flags) == -1:
                return False
        self._known.forget()
        for name in names:
            self._drop_all(name)
        for home in homes:
            if self._is_gone(home):
                self._unlist(home)
        return True

    def _unlist(self, home: str) -> None:
        lists = (self._keys.moving, self._keys.homes)
        for key in lists:
            self._db.run("SREM", key, home)
        self._parts.pop(home, None)
        if not self._is_gone(home):  # made again meanwhile
            for key in lists:
                self._db.run("SADD", key, home)

    def _is_gone(self, home: str) -> bool:
        return self._spec_of(home) is None and self._spec_of(home + DLQ_SUFFIX) is None

    def _is_empty(self, name: str) -> bool:
        return self._drop(name, "held", 0) == 0

    def _drop_all(self, name: str) -> None:
        # What arrived here is on record only as long as there is anything here.
        self._mover.finish(queue=name)
        while self._drop(name, "go on", CHUNK) >= CHUNK:
            pass

    def _drop_waiting(self, queue: str, limit: int) -> int:
        dropped = 0
        while dropped < limit:
            wanted = min(CHUNK, limit - dropped)
            n = self._drop(queue, "purge", wanted)
            dropped += n
            if n < wanted:
                break
        return dropped

    def _drop(self, name: str, what: str, limit: int, flags: str = "") -> int:
        return self._on(name, DROP, lambda home: home.everything, what, limit, flags)[1]
