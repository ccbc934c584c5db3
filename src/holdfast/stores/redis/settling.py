"""Settling: transitions, plain acks by the hundred, and acks of a whole batch name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby, repeat
from typing import Any, cast

from holdfast.model.message import home_of
from holdfast.model.moves import Settled, Transition, Verb
from holdfast.stores.contract import BatchEnd
from holdfast.stores.redis.connections import Arg
from holdfast.stores.redis.enqueueing import no_transaction
from holdfast.stores.redis.homes import Homes
from holdfast.stores.redis.keys import flag_of
from holdfast.stores.redis.moves import (
    ANSWERS,
    CHUNK,
    MOVES,
    UNCHANGED,
    Edit,
    alike,
    edit,
    edits,
    lanes_of,
    written,
)
from holdfast.stores.redis.moving import road
from holdfast.stores.redis.rows import quoted
from holdfast.stores.redis.scripts import FINISH, SETTLE


class Settling(Homes):
    def _apply(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]:
        no_transaction(within)
        homes: dict[str, list[int]] = {}
        for n, move in enumerate(moves):
            homes.setdefault(home_of(move.queue), []).append(n)
        if len(homes) > 1:
            return self._settle_homes(moves, list(homes.values()), now)
        if not moves:
            return []
        if alike(moves):
            return self._finish(moves, now)
        told: list[Settled] = []
        for way, some in groupby(moves, road):  # in their order: two may be of one message
            told += (self._mover.move if way else self._settle)(list(some), now)
        return told

    def _settle_homes(
        self, moves: Sequence[Transition], homes: list[list[int]], now: int
    ) -> list[Settled]:
        """One home after the other; but where there are only plain acks, all in one round trip."""
        answers: dict[int, Settled] = {}
        acks: list[list[int]] = []
        for mine in homes:
            some = [moves[n] for n in mine]
            if alike(some):
                acks += [mine[n : n + CHUNK] for n in range(0, len(mine), CHUNK)]
            else:
                answers |= zip(mine, self._apply(some, now, None), strict=True)
        calls = [self._finish_call([moves[n] for n in mine], now) for mine in acks]
        for mine, told in zip(acks, self._db.each(FINISH, calls), strict=True):
            answers |= zip(mine, (ANSWERS[answer] for answer in told[1]), strict=True)
        return [answers[n] for n in range(len(moves))]

    def _finish(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """Many acks: the plainest and most frequent of all settlements."""
        answers: list[Settled] = []
        while len(answers) < len(moves):
            chunk = moves[len(answers) : len(answers) + CHUNK]
            _, told = self._db.script(FINISH, *self._finish_call(chunk, now))
            answers += [ANSWERS[answer] for answer in told]
        return answers

    def _finish_call(self, moves: Sequence[Transition], now: int) -> tuple[list[str], list[Arg]]:
        first = moves[0]
        flag, home = flag_of(first.queue), self._home(first.queue)
        width = 1 if all(move.result is None for move in moves) else 2
        verb, status = first.verb.value, first.status or ""
        args: list[Arg] = [flag, home.parts, now, verb, status, self._step, "", width]
        if width == 1:
            args += [cast(str, move.token) for move in moves]
        else:
            for move in moves:
                result = b"" if move.result is None else b"=" + move.result
                args += (cast(str, move.token), result)
        return [*home.finish[flag], *home.of_lanes(lanes_of(moves, home))], args

    def _end_batch(self, end: BatchEnd, now: int) -> int:
        flag, done = flag_of(end.queue), 0
        args = (now, Verb.ACK.value, end.status or "", self._step, quoted(end.batch))
        while done < end.limit:
            wanted = min(CHUNK, end.limit - done)
            n, _ = self._on(
                end.queue, FINISH, lambda home: [*home.finish[flag], *home.lanes], *args, wanted
            )
            done += n
            if not n:
                break
        return done

    def _settle(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        answers: list[Settled] = []
        while len(answers) < len(moves):
            some = moves[len(answers) : len(answers) + MOVES]
            if any(map(edits, some)):
                some = some[: self._step]
                answers += self._settle_some(some, now, self._edits(some))
            else:
                answers += self._settle_some(some, now, repeat(UNCHANGED))
        return answers

    def _edits(self, moves: Sequence[Transition]) -> list[Edit]:
        """Only Python can read a body: it is read and written here, and the script compares."""
        blobs = self._db.run("HMGET", self._home(moves[0].queue).key("m"), *(m.id for m in moves))
        self._size(blobs)
        return [edit(move, blob) for move, blob in zip(moves, blobs, strict=True)]

    def _settle_some(
        self, moves: Sequence[Transition], now: int, changes: Iterable[Edit]
    ) -> list[Settled]:
        told = self._on(
            moves[0].queue,
            SETTLE,
            lambda home: [*home.settle, *home.of_lanes(lanes_of(moves, home))],
            now,
            *chain.from_iterable(map(written, moves, changes)),
        )
        return [ANSWERS[answer] for answer in told]
