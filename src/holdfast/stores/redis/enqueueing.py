"""Storing messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
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
        since, answers = finished_since or {}, dict[int, Enqueued]()
        slots = _slots(frozenset([message.queue for message in messages]))
        mine = {tag: list[int]() for tag in slots}
        if len(slots) > 1:
            for n, message in enumerate(messages):
                mine[tag_of(message.queue)].append(n)
        for tag, homes in slots.items():
            numbers = mine[tag] or range(len(messages))
            answers |= self._enqueue(messages, numbers, homes, now, receipt or "", since)
        return [answers[n] for n in range(len(messages))]

    def _enqueue(
        self,
        messages: Sequence[Message],
        mine: Sequence[int],
        homes: Mapping[str, str],
        now: int,
        receipt: str,
        since: Mapping[int, int],
    ) -> dict[int, Enqueued]:
        """Those of one slot, into its homes. Each chunk asks whether all of them are there."""
        if len(homes) > 1:  # those of one id stay together
            first = {messages[n].id: n for n in reversed(mine)}
            mine = sorted(mine, key=lambda n: first[messages[n].id])
        rows = [write_message(messages[n], now, since.get(n)) for n in mine]
        answers: dict[int, Enqueued] = {}
        for number, chunk in enumerate(chunks(rows)):
            numbers = mine[len(answers) : len(answers) + len(chunk)]
            parts = [(name, flags, chunk) for name, flags in homes.items()]
            if len(parts) > 1:
                of = {name: list[tuple[int, Row]]() for name in homes}
                for n, row in zip(numbers, chunk, strict=True):
                    of[home_of(messages[n].queue)].append((n, row))
                parts = [(name, homes[name], [row for _, row in some]) for name, some in of.items()]
                numbers = [n for some in of.values() for n, _ in some]
            told = self._store(parts, now, _part_of(receipt, number))
            answers |= zip(numbers, told, strict=True)
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


@lru_cache(maxsize=1000)
def _slots(queues: frozenset[str]) -> dict[str, dict[str, str]]:
    """By tag the homes of these queues, and which of their two queues."""
    slots: dict[str, dict[str, str]] = {}
    for queue in sorted(queues, key=lambda queue: (tag_of(queue), queue)):
        homes = slots.setdefault(tag_of(queue), {})
        homes[home_of(queue)] = homes.get(home_of(queue), "") + flag_of(queue)
    return slots


def no_transaction(within: Any) -> None:
    if within is not None:
        raise InvalidArgument("within", "Redis has no transactions to join")


def _part_of(receipt: str, number: int) -> str:
    return f"{receipt}\0{number}" if receipt and number else receipt
