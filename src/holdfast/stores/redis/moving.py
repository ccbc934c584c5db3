"""Moves to a queue of another home, which may lie on another node: no one script reaches both.

A message departs in one step, and arrives in another. In between it lies with the home it came
from, in no line, together with the plan of its move; so whoever finds a plan that was left behind
can carry it out. To do that twice does no harm: where the messages arrive, a receipt keeps what
became of them. They were stored, or refused, because the queue is gone or holds the id; what was
refused goes back to its place. A queue that was deleted and made again is not the one that the
plan names: who was refused once stays refused. See "Moves between queues" in docs/redis.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.errors import StoreCorrupt, StoreError
from holdfast.model.message import home_of
from holdfast.model.moves import Settled, Target, Transition
from holdfast.stores.redis import browse
from holdfast.stores.redis.connections import Arg, Connections, Script, load
from holdfast.stores.redis.keys import Home, Keys, flag_of
from holdfast.stores.redis.moves import CHUNK_BYTES, MOVES, Row, changed, lanes_of
from holdfast.stores.redis.rows import read_waiting, read_where, write_moved

LEFT_MS = 15_000
"""A move that is older was left behind by a process that died, or waits for its node."""

EXPECT, DEPART, TRANSIT = load("expect"), load("depart"), load("transit")
ARRIVE, CONCLUDE = load("arrive"), load("conclude")

On = Callable[
    [str, Script, Callable[[Home], Sequence[str]], Callable[[Home], Iterable[Arg]]], list[Any]
]
"""Runs a script on a queue's home, with its keys and arguments."""


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
        if stored is None:  # somebody was faster
            return
        try:
            plan = _decode(stored)
        except msgspec.DecodeError as error:
            raise StoreCorrupt(f"{key}: {name} was not written by Holdfast") from error
        if queue is None or queue in (plan.queue, plan.to_queue):
            self._carry(name, plan)

    def _some(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """Of as many as one move takes, the first ones. What would be refused stays untouched."""
        born, held = self._expect(moves)
        plan = Plan(born, [move for move in moves if born and move.id not in held])
        if not plan.moves:
            return [Settled.STALE] * len(moves)
        name = f"{now}.{secrets.token_hex(8)}"
        told = dict(zip((move.id for move in plan.moves), self._depart(name, plan), strict=False))
        refused = self._carry(name, plan) if b"a" in told.values() else set[str]()
        answers: list[Settled] = []
        for move in moves:
            if move.id not in held and move.id not in told:
                break
            moved = told.get(move.id) == b"a" and move.id not in refused
            answers.append(Settled.APPLIED if moved else Settled.STALE)
        return answers

    def _expect(self, moves: Sequence[Transition]) -> tuple[str, set[str]]:
        to = moves[0].to_queue
        keys = [self._keys.of(to).key(kind) for kind in ("c", "m")]
        args = [flag_of(to), secrets.token_hex(8), *(move.id for move in moves)]
        born, held = self._db.script(EXPECT, keys, args)
        return born.decode(), {id.decode() for id in held}

    def _depart(self, name: str, plan: Plan) -> list[bytes]:
        self._db.run("SADD", self._keys.moving, home_of(plan.queue))  # so that it will be found
        stored, expected = _encode(plan), list[Arg]()
        for move in plan.moves:
            overdue = "" if move.overdue_at is None else move.overdue_at
            place = "" if move.place is None else move.place
            expected += [move.id, move.token or "", overdue, place]
        flag = flag_of(plan.queue)
        return self._on(
            plan.queue,
            DEPART,
            lambda home: [*home.depart, *home.of_lanes(lanes_of(plan.moves, home))],
            lambda home: [home.parts, flag, name, stored, CHUNK_BYTES, *expected],
        )

    def _carry(self, name: str, plan: Plan) -> set[str]:
        """The rest of a move: arrival and conclusion. The ids of those that were refused."""
        rows = self._rows(name, plan)
        refused = self._arrive(name, plan, rows)
        flag, ids = flag_of(plan.queue), [id for id, _, _ in rows]
        back = f" {' '.join(sorted(refused))} "
        self._on(
            plan.queue,
            CONCLUDE,
            lambda home: home.conclude[flag],
            lambda home: [_begun(name), home.parts, flag, name, back, *ids],
        )
        return refused

    def _rows(self, name: str, plan: Plan) -> list[Row]:
        """What is under way, as it shall be stored: those that take their old place in line first,
        as old as they are, then those that go to its end."""
        home, moves = self._keys.of(plan.queue), {move.id: move for move in plan.moves}
        keys = [home.key(kind) for kind in ("c", "m", "x", "e")]
        ids, states, past, blobs = self._db.script(TRANSIT, keys, [name, browse.BODIES, *moves])
        blobs = browse.bodies(self._db, home, ids, blobs)
        rows: list[tuple[tuple[int, int], Row]] = []
        for n, (id, state, history, blob) in enumerate(zip(ids, states, past, blobs, strict=True)):
            if blob is None:
                raise StoreCorrupt(f"{plan.queue}: {id.decode()} is on its way without a body")
            move = moves[id.decode()]
            message = read_waiting(blob, move.id, plan.queue, read_where(state), history, None)
            line = (1, n) if move.tail else (0, int(state.split(b" ", 5)[4]))
            rows.append((line, write_moved(changed(message, move), move.lane)))
        return [row for _, row in sorted(rows)]

    def _arrive(self, name: str, plan: Plan, rows: Sequence[Row]) -> set[str]:
        to, flag = plan.to_queue, flag_of(plan.to_queue)
        told = self._on(
            to,
            ARRIVE,
            lambda home: home.arrive[flag],
            lambda home: [
                _begun(name), home.parts, flag, plan.born, f"move/{name}",
                *(value for row in rows for value in row),
            ],
        )  # fmt: skip
        if told[0] == b"refused":
            return {move.id for move in plan.moves}
        return set(told[1].decode().split())


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
