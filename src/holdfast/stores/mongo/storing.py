"""Puts messages, and rows of a log that finished elsewhere, into the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo.client_session import ClientSession

from holdfast.model.message import Finished, Message
from holdfast.model.moves import Enqueued
from holdfast.stores.mongo import records
from holdfast.stores.mongo.connections import Connections, insert
from holdfast.stores.mongo.counting import Changed, Counting
from holdfast.stores.mongo.counts import DONE, WOKEN, Deltas, moved
from holdfast.stores.mongo.layout import LOG, MESSAGES, RECORDS, Doc
from holdfast.stores.mongo.queues import Known, Queues, there
from holdfast.stores.mongo.rows import (
    all_of,
    id_of,
    logged_again,
    q_of,
    write_finished,
    write_message,
)
from holdfast.stores.mongo.settling import Again
from holdfast.stores.rows import first_of_each

LOOKED_UP = 100
"""Ids that one question to the log names."""
STEP = 1000


class Storing:
    def __init__(self, db: Connections, queues: Queues, counting: Counting) -> None:
        self._db = db
        self._queues = queues
        self._counting = counting

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any,
        receipt: str | None,
        finished_since: Mapping[int, int],
    ) -> list[Enqueued]:
        names = {message.queue for message in messages}
        careful = within is not None

        def store(
            session: ClientSession, known: dict[str, Known | None]
        ) -> Changed[list[Enqueued]]:
            queues = {name: there(name, queue) for name, queue in known.items()}
            receipts = self._db.get(RECORDS, session)
            if receipt is not None and records.read_one(receipts, "receipt", receipt, session):
                return [Enqueued.HELD] * len(messages), {}
            # Before the insert: in a transaction both see the same moment, and an id that finishes
            # after it is a conflict.
            done = self._finished(messages, finished_since, session)
            docs = [
                write_message(message, queues[message.queue].home, queues[message.queue].q, now)
                for message in messages
            ]
            new = [doc for n, doc in enumerate(docs) if n not in done]
            inserted = iter(self._insert(new, careful, session))
            stored = [n not in done and next(inserted) for n in range(len(docs))]
            if receipt is not None:
                records.note(receipts, "receipt", receipt, b"", now, session)
            come = [doc for doc, is_new in zip(docs, stored, strict=True) if is_new]
            answers = [Enqueued.STORED if is_new else Enqueued.HELD for is_new in stored]
            return answers, _counted(come)

        try:
            return self._counting.run(names, now, store, within)
        except Again:
            careful = True
            return self._counting.run(names, now, store, within)

    def _finished(
        self, messages: Sequence[Message], since: Mapping[int, int], session: ClientSession
    ) -> set[int]:
        """Those of the messages that the logs of their queues or dead letters have since then."""
        found: set[int] = set()
        log, asked = self._db.get(LOG, session), list(since)
        logs = {
            name: list(self._queues.with_dlq(name)) for name in {messages[n].queue for n in asked}
        }
        for start in range(0, len(asked), LOOKED_UP):
            some = asked[start : start + LOOKED_UP]
            ranges = [
                {"_id": all_of(q, messages[n].id), "fa": {"$gte": since[n]}}
                for n in some
                for q in logs[messages[n].queue]
            ]
            rows = log.find({"$or": ranges}, {"_id": 1}, session=session)
            ended = {(q_of(row["_id"]), id_of(row["_id"])) for row in rows}
            found |= {
                n for n in some for q in logs[messages[n].queue] if (q, messages[n].id) in ended
            }
        return found

    def _insert(self, docs: list[Doc], careful: bool, session: ClientSession) -> list[bool]:
        """Whether each was new; of one id twice, the first is."""
        messages = self._db.get(MESSAGES, session)
        held: set[str] = set()
        if careful:
            keys = [doc["_id"] for doc in docs]
            found = messages.find({"_id": {"$in": keys}}, {"_id": 1}, session=session)
            held = {doc["_id"] for doc in found}
        stored: list[bool] = []
        for doc in docs:
            stored.append(doc["_id"] not in held)
            if careful:
                held.add(doc["_id"])
        new = [doc for doc, is_new in zip(docs, stored, strict=True) if is_new]
        if new and not insert(messages, new, session):
            raise Again
        return stored

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        unique = first_of_each(rows)

        def write(session: ClientSession, known: dict[str, Known | None]) -> Changed[int]:
            found = there(queue, known[queue])
            log = self._db.get(LOG, session)
            new = self._not_logged(
                [write_finished(row, found.home, found.q, now) for row in unique], session
            )
            if new and not insert(log, new, session):
                raise Again
            return len(new), {found.q: Counter({DONE: len(new)})}

        return self._counting.run([queue], now, write)

    def _not_logged(self, rows: list[Doc], session: ClientSession) -> list[Doc]:
        """Those that the log does not have; under a key of their own where it has their id."""
        keys = [key for row in rows for key in (row["_id"], logged_again(row)["_id"])]
        log = self._db.get(LOG, session)
        ends = {
            doc["_id"]: doc.get("fa")
            for start in range(0, len(keys), STEP)
            for doc in log.find(
                {"_id": {"$in": keys[start : start + STEP]}}, {"fa": 1}, session=session
            )
        }
        new: list[Doc] = []
        for row in rows:
            if row["_id"] in ends and ends[row["_id"]] != row["fa"]:
                row = logged_again(row)
            if row["_id"] not in ends:
                ends[row["_id"]] = row["fa"]
                new.append(row)
        return new


def _counted(docs: list[Doc]) -> dict[int, Deltas]:
    """How the counts of queues change by new messages."""
    counts: dict[int, Deltas] = defaultdict(Counter)
    for (q, state, part), n in Counter((doc["q"], doc["st"], doc["pt"]) for doc in docs).items():
        counts[q].update(moved(n, Counter({part: n}), to=state))
        counts[q][WOKEN] = 1
    return counts
