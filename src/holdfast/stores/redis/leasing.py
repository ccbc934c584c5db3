"""Leasing: from one queue, from many, and under a batch name."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.model.message import Lease
from holdfast.stores.contract import NO_DEADLINE, LeaseAsk
from holdfast.stores.kit.pages import in_steps
from holdfast.stores.redis.browse import bodies
from holdfast.stores.redis.connections import Arg
from holdfast.stores.redis.keys import Home, flag_of
from holdfast.stores.redis.moves import CHUNK, REST, SEQ
from holdfast.stores.redis.ready import Ready
from holdfast.stores.redis.rows import quoted, take_lease
from holdfast.stores.redis.scripts import LEASE
from holdfast.stores.redis.url import Where

TRIES = 20


class Leasing(Ready):
    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self._was_full = False
        self._news = ""
        """The queue that woke the last waiter of many, if one did."""

    def _take_leases(self, ask: LeaseAsk, now: int) -> list[Lease]:
        if ask.others:
            return self._lease_many(ask, now)
        leases: list[Lease] = []
        while True:
            wanted = min(CHUNK, ask.limit - len(leases))
            try:
                answer = self._lease(ask, now, wanted, ask.timeout_ms)
                leases += self._taken(self._home(ask.queue), answer, ask, now)
            except HoldfastError:
                if leases:  # return these; the next call raises the error
                    return leases
                raise
            status, tokens, *_ = answer
            if (status != b"more" and len(tokens) < wanted) or len(leases) >= ask.limit:
                return leases

    def _reserve(self, ask: LeaseAsk, now: int) -> int:
        held = 0
        while held < ask.limit:
            wanted = min(CHUNK, ask.limit - held)
            status, n, *_ = self._lease(ask, now, wanted, None)
            held += n or 0  # of none: an empty list
            if status != b"more" and (n or 0) < wanted:
                break
        return held

    def _lease(self, ask: LeaseAsk, now: int, limit: int, timeout: int | None) -> list[Any]:
        flag, parts = flag_of(ask.queue), ask.partitions
        args = self._lease_args(ask, now, limit, timeout)
        return self._on(ask.queue, LEASE, lambda home: home.lease_of(flag, parts), *args)

    def _lease_args(
        self, ask: LeaseAsk, now: int, limit: int, timeout: int | None
    ) -> tuple[Arg, ...]:
        named = ask.partitions
        parts = "" if named is None else f" {' '.join(map(str, named))} "
        if named is not None and ask.epochs is not None:
            pairs = zip(named, ask.epochs, strict=True)
            parts = f" {' '.join(f'{part}:{epoch}' for part, epoch in pairs)} "
        batch = quoted(ask.batch) if ask.batch else ""
        return (
            limit, now, ask.token, "" if timeout is None else timeout, batch, ask.owner, parts,
            NO_DEADLINE, self._step,
        )  # fmt: skip

    def _taken(self, home: Home, answer: list[Any], ask: LeaseAsk, now: int) -> list[Lease]:
        _, tokens, blobs, extras = answer
        again = {int(extras[n]): (extras[n + 1], extras[n + 2]) for n in range(0, len(extras), 3)}
        # An entry that another program wrote into a lane names no message: it has no body.
        names = [token.decode(errors="replace") for token in tokens]
        found = bodies(self._db, home, [name[SEQ:REST] for name in names], blobs)
        leases: list[Lease] = []
        for n, (token, blob) in enumerate(zip(names, found, strict=True)):
            if blob is not None:
                extra = again.get(n) if again else None
                leases.append(take_lease(blob, token[SEQ:REST], token, ask, now, extra))
        self._size(found)
        return leases

    # Many queues

    def _lease_many(self, ask: LeaseAsk, now: int) -> list[Lease]:
        """A look at the queues, first at as many as may be enough, in one round trip; and one for
        the scripts that lease from those that have something."""
        leases: list[Lease] = []
        news, self._news = self._news, ""
        if news:  # it has just woken a waiter: not after a look at all the others
            mine = [one for one in ask.each() if one.queue == news]
            if mine and (leases := self._lease_some(mine, ask.limit, now)):
                return leases
        for some in in_steps(ask, full=self._was_full):
            try:
                leases += self._lease_some(some, ask.limit - len(leases), now)
            except HoldfastError:
                if leases:  # return these; the next call raises the error
                    return leases
                raise
            if len(leases) >= ask.limit:
                break
        self._was_full = len(leases) >= ask.limit
        return leases

    def _lease_some(self, asks: list[LeaseAsk], limit: int, now: int) -> list[Lease]:
        for _ in range(TRIES):
            left, chosen = limit, list[LeaseAsk]()
            ready = self._ready([one.queue for one in asks], now)
            for one, answer in zip(asks, ready, strict=True):
                most = min(one.limit, answer[0], left, CHUNK) if answer else 0
                if most > 0:
                    chosen.append(msgspec.structs.replace(one, limit=most))
                    left -= most
            leases = self._lease_each(chosen, now) if chosen else []
            if leases or not chosen:  # else others took all of it in between
                return leases
        return []

    def _lease_each(self, asks: list[LeaseAsk], now: int) -> list[Lease]:
        homes = [self._home(one.queue) for one in asks]
        calls: list[tuple[list[str], list[Arg]]] = []
        for one, home in zip(asks, homes, strict=True):
            flag, rest = flag_of(one.queue), self._lease_args(one, now, one.limit, one.timeout_ms)
            calls.append((home.lease_of(flag, one.partitions), [flag, home.parts, *rest]))
        leases: list[Lease] = []
        refused: HoldfastError | None = None
        for one, home, answer in zip(asks, homes, self._db.scripts(LEASE, calls), strict=True):
            if isinstance(answer, HoldfastError):
                refused = answer
            elif answer[0] in (b"gone", b"parts"):  # since the look; the next one knows
                self._lanes.pop(home.name, None)
            else:
                leases += self._taken(home, answer, one, now)
        if refused is not None and not leases:
            raise refused
        return leases
