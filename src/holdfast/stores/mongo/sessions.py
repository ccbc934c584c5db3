"""Ends transactions that a process left open when it died.

The server keeps what such a transaction has written locked for a minute (by default), and so the
messages of a worker that was killed in the middle of an ack. A sweep that meets one ends it: the
messages are overdue, so the settlement in it has lost anyway. A process that lives runs its
transaction again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pymongo import errors as driver

from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.layout import COUNTS, Doc

ABANDONED_US = 500_000
"""A transaction has been waiting for its client for as long, in microseconds."""
SESSIONS_MAX = 1000

logger = logging.getLogger("holdfast.mongo")


class Sessions:
    def __init__(self, db: Connections) -> None:
        self._db = db
        self._told = False

    def end_abandoned(self, queues: Sequence[int]) -> int:
        """End the transactions of Holdfast that seem abandoned and count on these queues; how many
        there were. Without the right to see or to end them: none, and the server will."""
        try:
            sessions = self._abandoned(queues)
            if sessions:
                self._db.client.admin.command("killSessions", sessions)
        except driver.OperationFailure as error:
            if not self._told:
                self._told = True
                logger.warning(
                    "a transaction that holds overdue messages could not be ended (see "
                    "docs/mongo.md); they stay leased until the server ends it: %s",
                    error,
                )
            return 0
        if sessions:
            logger.warning("ended %d abandoned transactions of dead processes", len(sessions))
        return len(sessions)

    def _abandoned(self, queues: Sequence[int]) -> list[Doc]:
        asked: Doc = {"q": {"$in": list(queues)}, "se": {"$exists": True}}
        slots = self._db.get(COUNTS).find(asked, {"se": 1}).sort("u", -1).limit(SESSIONS_MAX)
        ids = [slot["se"] for slot in slots]
        if not ids:
            return []
        # Those of our own user, for which no right is needed.
        idle: list[Doc] = [
            {"$currentOp": {"idleSessions": True, "allUsers": False}},
            {
                "$match": {
                    "type": "idleSession",
                    "lsid.id": {"$in": ids},
                    "transaction.timeInactiveMicros": {"$gte": ABANDONED_US},
                }
            },
            {"$project": {"lsid": 1}},
        ]
        return [{"id": found["lsid"]["id"]} for found in self._db.client.admin.aggregate(idle)]
