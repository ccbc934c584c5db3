"""Settling: acks in one statement for a queue, anything else message by message (settle.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.model.moves import Settled, Transition, Verb
from holdfast.stores.contract import BatchEnd
from holdfast.stores.postgres import settle
from holdfast.stores.postgres.connections import Connection, Connections
from holdfast.stores.postgres.queues import Queues
from holdfast.stores.postgres.settle import DAY_MS


class Settling:
    def __init__(self, db: Connections, queues: Queues) -> None:
        self._db = db
        self._queues = queues

    def settle(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """In a transaction of its own."""
        groups = settle.alike_by_queue(moves)
        if len(groups) == 1:
            return self._finish(moves, now)
        if groups:
            return self._finish_many(moves, groups, now)
        return self._each(moves, now)

    def _each(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        return self._db.transact(lambda rows: settle.settle(rows, moves, now))

    def _finish(self, moves: Sequence[Transition], now: int) -> list[Settled]:
        """Acks of one queue: a single statement, and a second look only at what was not held."""
        known = self._queues.look_up(moves[0].queue)
        if known is None:
            return [Settled.STALE] * len(moves)
        bind = settle.finish_bind(moves, now, known[1])
        n, ids = self._db.rows(settle.FINISH_ALIKE, bind)[0]
        if n == len(moves):
            return [Settled.APPLIED] * n
        acked: set[str] = set(ids or ())
        rest = [move for move in moves if move.id not in acked]
        self._queues.forget()
        found = iter(self._each(rest, now))
        return [Settled.APPLIED if move.id in acked else next(found) for move in moves]

    def _finish_many(
        self, moves: Sequence[Transition], groups: dict[str, list[int]], now: int
    ) -> list[Settled]:
        """Acks of several queues: a statement for each, all sent before the first answer is read.
        What was not held gets a second look."""

        def finish(db: Connection) -> set[int]:
            qids: dict[str, int] = settle.qids_of(self._db.within(db), moves)
            sent: list[tuple[list[int], Any]] = []
            for name, group in groups.items():
                qid = qids.get(name)
                if qid is not None:
                    bind = settle.finish_bind([moves[n] for n in group], now, qid)
                    statement = self._db.sql(settle.FINISH_ALIKE)
                    sent.append((group, db.execute(statement, bind, binary=True)))
            done: set[int] = set()
            for group, cursor in sent:
                count, ids = cursor.fetchone()
                acked: set[str] = set(ids or ())
                done.update(n for n in group if count == len(group) or moves[n].id in acked)
            return done

        done = self._db.run(finish, at_once=True)
        rest = [n for n in range(len(moves)) if n not in done]
        answers = dict.fromkeys(done, Settled.APPLIED)
        if rest:
            again = self._each([moves[n] for n in rest], now)
            answers.update(zip(rest, again, strict=True))
        return [answers[n] for n in range(len(moves))]

    def end_batch(self, end: BatchEnd, now: int) -> int:
        bind: dict[str, Any] = {
            "qid": self._queues.qid(end.queue),
            "batch": end.batch,
            "limit": end.limit,
            "now": now,
            "day": 0 if end.status is None else now // DAY_MS,
            "status": end.status,
            "verb": Verb.ACK.value,
        }
        n = self._db.rows(settle.FINISH_BATCH, bind)[0][0]
        if n:
            self._queues.fold()
        return n
