"""Storing messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from holdfast.errors import InvalidArgument, QueueNotFound
from holdfast.model.message import DLQ_SUFFIX, Message, home_of
from holdfast.model.moves import Enqueued
from holdfast.stores.redis.connections import Arg
from holdfast.stores.redis.homes import Homes
from holdfast.stores.redis.keys import flag_of, tag_of
from holdfast.stores.redis.moves import Row, chunks, keys_of
from holdfast.stores.redis.rows import write_message
from holdfast.stores.redis.scripts import ENQUEUE


class Enqueueing(Homes):
    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any = None,
        receipt: str | None = None,
        finished_since: Mapping[int, int] | None = None,
    ) -> list[Enqueued]:
        """Each chunk whole or not at all; what broke off may be repeated. A chunk holds what goes
        to queues of one slot, and all that have one id: a topic's message with all its groups."""
        no_transaction(within)
        homes = {home_of(message.queue) for message in messages}
        since = finished_since or {}
        if len(homes) == 1:
            return self._enqueue(homes.pop(), messages, now, receipt or "", since)
        tags: dict[str, list[int]] = {}
        for n, message in enumerate(messages):
            tags.setdefault(tag_of(message.queue), []).append(n)
        answers: dict[int, Enqueued] = {}
        for _, mine in sorted(tags.items()):
            answers |= self._enqueue_all(messages, mine, now, receipt or "", since)
        return [answers[n] for n in range(len(messages))]

    def _enqueue(
        self,
        name: str,
        messages: Sequence[Message],
        now: int,
        receipt: str,
        since: Mapping[int, int],
    ) -> list[Enqueued]:
        """Into one home."""
        answers: list[Enqueued] = []
        rows = [write_message(message, now, since.get(n)) for n, message in enumerate(messages)]
        for number, chunk in enumerate(chunks(rows)):
            queues = {m.queue for m in messages[len(answers) : len(answers) + len(chunk)]}
            flags = "".join(sorted(map(flag_of, queues)))
            answers += self._store([(name, flags, chunk)], now, _part_of(receipt, number))
        return answers

    def _enqueue_all(
        self,
        messages: Sequence[Message],
        mine: Sequence[int],
        now: int,
        receipt: str,
        since: Mapping[int, int],
    ) -> dict[int, Enqueued]:
        """Into homes of one slot. Each chunk asks whether all of them are there."""
        homes: dict[str, str] = {}
        first: dict[str, int] = {}
        for n in mine:
            name, flag = home_of(messages[n].queue), flag_of(messages[n].queue)
            homes[name] = "".join(sorted({*homes.get(name, ""), flag}))
            first.setdefault(messages[n].id, n)
        order = sorted(mine, key=lambda n: first[messages[n].id])
        rows = [write_message(messages[n], now, since.get(n)) for n in order]
        answers: dict[int, Enqueued] = {}
        for number, chunk in enumerate(chunks(rows)):
            of: dict[str, list[tuple[int, Row]]] = {name: [] for name in sorted(homes)}
            for n, row in zip(order[len(answers) :], chunk, strict=False):
                of[home_of(messages[n].queue)].append((n, row))
            parts = [(name, homes[name], [row for _, row in some]) for name, some in of.items()]
            told = self._store(parts, now, _part_of(receipt, number))
            at = chain.from_iterable(of.values())
            answers |= {n: answer for (n, _), answer in zip(at, told, strict=True)}
        return answers

    def _store(
        self, homes: Sequence[tuple[str, str, Sequence[Row]]], now: int, receipt: str
    ) -> list[Enqueued]:
        """One step: of each home its name, which of its queues, and the messages."""
        keys: list[str] = []
        args: list[Arg] = [now, receipt]
        for name, flags, rows in homes:
            args += (len(keys) + 1, flags, "", len(rows), *chain.from_iterable(rows))
            keys += keys_of(self._keys, name, flags, rows, receipt=bool(receipt))
        answer = self._db.script(ENQUEUE, keys, args)
        if answer[0] == b"gone":
            name = homes[int(answer[2])][0]
            raise QueueNotFound(f"no queue {name + (DLQ_SUFFIX if answer[1] == b'1' else '')!r}")
        if answer[0] == b"kept":
            return [Enqueued.HELD for _, _, rows in homes for _ in rows]
        return [Enqueued.STORED if stored else Enqueued.HELD for stored in answer[1]]


def no_transaction(within: Any) -> None:
    if within is not None:
        raise InvalidArgument("within", "Redis has no transactions to join")


def _part_of(receipt: str, number: int) -> str:
    return f"{receipt}\0{number}" if receipt and number else receipt
