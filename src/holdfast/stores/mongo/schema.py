"""Makes the collections, and upgrades those of an older version.

Every step may be repeated, and two processes may run it at once. The document that says that all
is done is written last.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator

from pymongo.client_session import ClientSession

from holdfast.errors import SchemaTooNew, StoreCorrupt
from holdfast.model import clock
from holdfast.stores.mongo import upkeep
from holdfast.stores.mongo.connections import SOON, Connections, upserted
from holdfast.stores.mongo.counting import Changed, Counting
from holdfast.stores.mongo.counts import DONE, Deltas, moved
from holdfast.stores.mongo.layout import (
    CLAIMS,
    COUNTS,
    EVENTS,
    INDEXES,
    LEASED,
    LOG,
    MESSAGES,
    META,
    QUEUES,
    RECORDS,
    TASKS,
    VERSION,
    Doc,
    tasks,
)
from holdfast.stores.mongo.queues import Known
from holdfast.stores.mongo.rows import log_key

STEP = 1000


class Schema:
    def __init__(self, db: Connections, counting: Counting) -> None:
        self._db = db
        self._counting = counting

    def migrate(self) -> str:
        """Make or upgrade the collections; returns the name that the store gave itself."""
        shown = self._db.where.shown
        with self._db.translated():
            self._db.check_server()
            found = self._db.get(META).find_one({"_id": "schema"}) or self._make_all()
        stored = found.get("version")
        version = stored if isinstance(stored, int) and not isinstance(stored, bool) else 0
        if version > VERSION:
            raise SchemaTooNew(
                f"{shown} has layout {version}, this Holdfast knows {VERSION}: "
                "pip install --upgrade holdfast"
            )
        if version <= 0 or not isinstance(found.get("store"), str):
            raise StoreCorrupt(f"{shown}: {self._db.name(META)} is not Holdfast's")
        with self._db.translated():
            if version < VERSION:
                self._count_partitions()
            if not found.get("whole"):
                self._end_what_broke_off()
        return found["store"]

    def _make_all(self) -> Doc:
        self._make()
        mine = {"version": VERSION, "store": secrets.token_hex(8), "whole": True}
        return upserted(self._db.get(META), {"_id": "schema"}, {"$setOnInsert": mine})

    def _make(self) -> None:
        """The write that then says that all is there waits for a majority to have this as well."""
        database = self._db.client.get_database(self._db.where.database, write_concern=SOON)
        for kind in (CLAIMS, RECORDS, EVENTS):
            upkeep.make_collection(database, self._db.name(kind))
        for kind, indexes in INDEXES.items():
            self._db.get(kind, soon=True).create_indexes(indexes)
        view = tasks(self._db.name(QUEUES), self._db.name(LOG))
        upkeep.make_collection(
            database, self._db.name(TASKS), viewOn=self._db.name(MESSAGES), pipeline=view
        )

    def _count_partitions(self) -> None:
        """From version 1. The next `tidy` counts what each partition has."""
        self._make()
        for doc in self._db.get(QUEUES).find({"partitions": {"$gt": 1}}):
            gate = {"_id": f"{doc.get('qid')}/gate/0", "do": None}
            self._db.get(COUNTS).update_one(gate, {"$set": {"do": "upgrade", "ds": 0}})
        self._db.get(META).update_one({"_id": "schema"}, {"$max": {"version": VERSION}})

    # Older versions also worked on standalone servers, which have no transactions.

    def _end_what_broke_off(self) -> None:
        """Finish calls whose process was killed between two writes that belong together."""
        names = {doc["qid"]: doc["_id"] for doc in self._db.get(QUEUES).find({}, {"qid": 1})}
        graves = [f"gone/{q}" for q in names]  # deletions that did not get as far as the queue
        self._db.get(META).delete_many({"_id": {"$in": graves}})
        for q, name in names.items():
            for docs in self._leased(q):
                self._take_out_what_is_done(name, docs)
                for doc in docs:
                    if isinstance(doc.get("mf"), dict):
                        self._end_move(name, doc)
        self._db.get(META).update_one({"_id": "schema"}, {"$set": {"whole": True}})

    def _leased(self, q: int) -> Iterator[list[Doc]]:
        messages, last = self._db.get(MESSAGES), ""
        asked: Doc = {"q": q, "st": LEASED}
        fields = dict.fromkeys(("q", "pt", "sq", "tk", "mf"), 1)
        while docs := list(
            messages.find({**asked, "_id": {"$gt": last}}, fields).sort("_id", 1).limit(STEP)
        ):
            yield docs
            last = docs[-1]["_id"]

    def _take_out_what_is_done(self, name: str, docs: list[Doc]) -> None:
        """Delete messages that are in the log, with the token that they are still leased by."""
        ends: dict[str, Doc] = {}
        for doc in docs:
            id = doc["_id"].partition("/")[2]
            ends[log_key(doc["q"], id)] = ends[log_key(doc["q"], id, doc.get("tk"))] = doc
        for row in list(self._db.get(LOG).find({"_id": {"$in": list(ends)}}, {"tk": 1})):
            doc = ends[row["_id"]]
            if row.get("tk") == doc.get("tk"):
                self._end(name, doc, None, Counter({DONE: 1}))

    def _end_move(self, name: str, doc: Doc) -> None:
        """Finish the move of a message to another home: delete it here if the old one is still
        there, else put it in line."""
        messages, move = self._db.get(MESSAGES), doc["mf"]
        old = messages.find_one({"_id": move.get("of")}, {"sq": 1})
        is_here = old is None or old.get("sq") != doc.get("sq")  # a new message may have its id
        self._end(name, doc, move.get("st") if is_here else None, Counter())
        messages.update_one({"_id": move.get("of"), "mo": doc["tk"]}, {"$unset": {"mo": ""}})

    def _end(self, name: str, doc: Doc, to: int | None, counted: Deltas) -> None:
        """End the lease: delete the message, or give it the state `to`."""
        held = {"_id": doc["_id"], "tk": doc["tk"], "st": LEASED}

        def work(session: ClientSession, _: dict[str, Known | None]) -> Changed[None]:
            messages = self._db.get(MESSAGES, session)
            if to is None:
                n = messages.delete_one(held, session=session).deleted_count
            else:
                left = dict.fromkeys(("mf", "mo", "tk", "dl", "la", "ow"), "")
                change: Doc = {"$set": {"st": to}, "$unset": left}
                n = messages.update_one(held, change, session=session).modified_count
            deltas = moved(n, Counter({doc.get("pt"): n}), LEASED, to)
            if n:
                deltas.update(counted)
            return None, {doc["q"]: deltas}

        self._counting.run([name], clock.wall_ms(), work)
