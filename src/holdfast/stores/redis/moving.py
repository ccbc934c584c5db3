"""Moves to a queue of another home, which may lie on another node: no one script reaches both.

A message departs in one step and arrives in another. In between it belongs to the home it came
from, stands in no line, and the plan of its move lies beside it. Any process that finds a plan that
was left behind can carry it out. To do that twice does no harm: where the messages arrive, a
receipt keeps which of them were refused, because the queue is gone or holds their id. Those go back
to their place. A queue that was deleted and made again is not the one that the plan names, so a
message that was refused stays refused. See "Moves between queues" in docs/redis.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Protocol

import msgspec

from holdfast.errors import StoreCorrupt, StoreError
from holdfast.model.message import home_of
from holdfast.model.moves import Settled, Target, Transition
from holdfast.stores.redis.connections import Arg, Connections
from holdfast.stores.redis.keys import Home, Keys, flag_of
from holdfast.stores.redis.moves import CHUNK_BYTES, MOVES, Row, changed, keys_of
from holdfast.stores.redis.rows import Held, write_moved
from holdfast.stores.redis.scripts import ENQUEUE, Script, load

LEFT_MS = 15_000
"""A move that is older was left behind by a process that died, or waits for its node."""

EXPECT, DEPART, CONCLUDE = load("expect"), load("depart"), load("conclude")


class On(Protocol):
    """Runs a script on a queue's home; see `Homes._on`."""

    def __call__(
        self, queue: str, script: Script, keys: Callable[[Home], Sequence[str]], *args: Arg
    ) -> Any: ...


class Plan(msgspec.Struct, frozen=True):
    """What is to become of the messages of one move: all from one queue, all to one."""

    born: str
    """The name of the queue they go to, until it is deleted."""
    moves: list[Transition]

    @property
    def queue(self) -> str:
        return self.moves[0].queue

    @property
    def to_queue(self) -> str:
        return self.moves[0].to_queue


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Plan).decode


def road(move: Transition) -> tuple[str, str] | None:
    """From where to where, of a move that leaves its home; None of all others."""
    if move.target is not Target.WAITING or home_of(move.to_queue) == home_of(move.queue):
        return None
    return move.queue, move.to_queue


class Mover:
    def __init__(self, db: Connections, keys: Keys, on: On) -> None:
        self._db = db
        self._keys = keys
        self._on = on

    def move(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """All on one road."""
        answers: list[Settled] = []
        while len(answers) < len(moves):
            answers += self._some(_bounded(moves[len(answers) :]), now)
        return answers

    def finish(self, *, before: int | None = None, queue: str | None = None) -> None:
        """Carry out what was left behind: moves that began before, or all from or to a queue.

        There are only as many as processes died, or nodes were away, in the middle of one.
        """
        failed: StoreError | None = None
        for home in sorted(self._db.run("SMEMBERS", self._keys.moving)):
            key = self._keys.home(home.decode(), 1).key("t")
            for name in sorted(self._db.run("HKEYS", key)):
                if before is None or _begun(name.decode()) < before:
                    try:
                        self._finish(key, name.decode(), queue)
                    except StoreError as error:  # those to other nodes can go on
                        failed = failed or error
        if failed is not None:
            raise failed

    def _finish(self, key: str, name: str, queue: str | None) -> None:
        stored = self._db.run("HGET", key, name)
        if stored is None:  # another process was faster
            return
        try:
            plan = _decode(stored)
        except msgspec.DecodeError as error:
            raise StoreCorrupt(f"{key}: {name} was not written by Holdfast") from error
        if queue is None or queue in (plan.queue, plan.to_queue):
            self._carry(name, plan, self._depart(name, plan, b"")[1])

    def _some(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """Of as many as one move takes, the first ones. What would be refused stays untouched."""
        born, fit = self._expect(moves)
        plan = Plan(born, [move for move in moves if move.id in fit])
        if not plan.moves:
            return [Settled.STALE] * len(moves)
        name = f"{now}.{secrets.token_hex(8)}"
        self._db.run("SADD", self._keys.moving, home_of(plan.queue))  # so that it will be found
        told, rows = self._depart(name, plan, _encode(plan))
        departed = dict(zip((move.id for move in plan.moves), told, strict=False))
        refused = self._carry(name, plan, rows) if b"a" in told else set[str]()
        answers: list[Settled] = []
        for move in moves:
            if move.id in fit and move.id not in departed:
                break
            moved = departed.get(move.id) == b"a" and move.id not in refused
            answers.append(Settled.APPLIED if moved else Settled.STALE)
        return answers

    def _expect(self, moves: Sequence[Transition]) -> tuple[str, set[str]]:
        """The name of the queue they go to, and the ids that it would accept."""
        to = moves[0].to_queue
        args = [flag_of(to), secrets.token_hex(8), *(move.id for move in moves)]
        born, held = self._db.script(EXPECT, self._keys.of(to).keys("c m"), args)
        fit = {move.id for move in moves} if born else set[str]()
        return born.decode(), fit - {id.decode() for id in held}

    def _depart(self, name: str, plan: Plan, stored: bytes) -> tuple[list[bytes], list[Row]]:
        """The answers of depart.lua, and what is under way by this move; without a plan to store,
        only that."""
        expected: list[Arg] = []
        for move in plan.moves:
            overdue = "" if move.overdue_at is None else move.overdue_at
            place = "" if move.place is None else move.place
            expected += [move.id, move.token or "", overdue, place]
        args = (name, stored, CHUNK_BYTES, *expected)
        answers, *columns = self._on(plan.queue, DEPART, lambda home: home.moving, *args)
        return answers, _rows(plan, columns)

    def _carry(self, name: str, plan: Plan, rows: Sequence[Row]) -> set[str]:
        """The rest of a move: arrival and conclusion. The ids of those that were refused."""
        refused = self._arrive(name, plan, rows)
        back, ids = f" {' '.join(sorted(refused))} ", (id for id, _, _ in rows)
        self._on(plan.queue, CONCLUDE, lambda home: home.moving, _begun(name), name, back, *ids)
        return refused

    def _arrive(self, name: str, plan: Plan, rows: Sequence[Row]) -> set[str]:
        to = self._keys.of(plan.to_queue).name
        flag = flag_of(plan.to_queue)
        keys = keys_of(self._keys, to, flag, rows, receipt=True)
        args: list[Arg] = [_begun(name), f"move/{name}", 1, flag, plan.born, len(rows)]
        status, told, *_ = self._db.script(ENQUEUE, keys, [*args, *chain.from_iterable(rows)])
        if status == b"gone":
            return {move.id for move in plan.moves}
        if status == b"kept":  # revision, time, and the ids that were refused
            return set(told.decode().split()[2:])
        return {id for (id, _, _), stored in zip(rows, told, strict=True) if not stored}


def _rows(plan: Plan, columns: Sequence[Sequence[Any]]) -> list[Row]:
    """What is under way, as it shall be stored: those that take their old place in line first, as
    old as they are, then those that go to its end."""
    moves = {move.id: move for move in plan.moves}
    rows: list[tuple[tuple[int, int], Row]] = []
    for n, (id, state, history, blob) in enumerate(zip(*columns, strict=True)):
        if blob is None:
            raise StoreCorrupt(f"{plan.queue}: {id.decode()} is on its way without a body")
        move = moves[id.decode()]
        message = Held(id, None, None, state, history, None, blob).message(plan.queue)
        line = (1, n) if move.tail else (0, int(state.split(b" ", 5)[4]))
        rows.append((line, write_moved(changed(message, move), move.lane)))
    return [row for _, row in sorted(rows)]


def _begun(name: str) -> int:
    """When a move began. All its steps are of that time, whoever takes them."""
    return int(name.partition(".")[0])


def _bounded(moves: Sequence[Transition]) -> list[Transition]:
    """The first ones, as many as one move takes; each id once, as a plan has one place for it."""
    some: dict[str, Transition] = {}
    size = 0
    for move in moves[:MOVES]:
        size += len(move.body or b"")
        if some and (size > CHUNK_BYTES or move.id in some):
            break
        some[move.id] = move
    return list(some.values())
