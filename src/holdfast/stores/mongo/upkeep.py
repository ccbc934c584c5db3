"""Work on many documents, in steps; and what an operator is shown."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bson import Timestamp
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import CollectionInvalid, OperationFailure

from holdfast.model import clock
from holdfast.model.message import PRIORITY_MAX
from holdfast.stores.mongo.connections import Connections
from holdfast.stores.mongo.layout import (
    DELAYED,
    LEASED,
    LOG,
    MESSAGES,
    META,
    ODD,
    QUEUES,
    READY,
    SOUND,
    SOUND_LOG,
    Doc,
)
from holdfast.stores.mongo.rows import number

STEP = 5000
GRAVE_MS = 300_000
"""How long what was deleted is looked for again: a transaction may have been open meanwhile."""
EXPIRED = "expired"
SHOWN = 10


def make_collection(database: Database[Doc], name: str, **options: Any) -> None:
    try:
        database.create_collection(name, check_exists=False, **options)
    except CollectionInvalid:
        return
    except OperationFailure as error:
        if error.code != 48:  # somebody else has just made it
            raise


def drop_all(db: Connections, q: int) -> int:
    """All that a queue held that is gone, in steps."""
    dropped = 0
    for kind, states in ((MESSAGES, (READY, DELAYED, LEASED)), (LOG, (None,))):
        at = db.get(kind)
        for state in states:
            asked: Doc = {"q": q} if state is None else {"q": q, "st": state}
            while ids := [doc["_id"] for doc in at.find(asked, {"_id": 1}).limit(STEP)]:
                dropped += at.delete_many({"_id": {"$in": ids}, "q": q}).deleted_count
    return dropped


def bury(db: Connections) -> None:
    meta = db.get(META)
    for grave in list(meta.find({"_id": {"$gte": "gone/", "$lt": "gone0"}})):
        drop_all(db, grave["q"])
        if clock.wall_ms() - grave["on"] > GRAVE_MS:
            meta.delete_one({"_id": grave["_id"]})


def late(messages: Collection[Doc], now: int) -> list[int]:
    """The numbers of the queues with overdue leases: one look into the index `leased` for each
    queue that has leases."""
    leased: Doc = {"q": {"$gte": 0}, "st": LEASED, "dl": {"$gte": 0}}
    first: list[Doc] = [
        {"$match": leased},
        {"$sort": {"q": 1, "st": 1, "dl": 1, "sq": 1}},
        {"$group": {"_id": "$q", "dl": {"$first": "$dl"}}},
        {"$match": {"dl": {"$lte": now}}},
    ]
    return [doc["_id"] for doc in messages.aggregate(first)]


def expire(db: Connections, kept_ms: int | None) -> None:
    """The log's TTL index: the net below the sweeper, an hour later than it. By the clock on the
    wall, whatever time the rows themselves bear."""
    log = db.get(LOG)
    found = {index["name"]: index for index in log.list_indexes()}.get(EXPIRED)
    if kept_ms is None:
        if found is not None:
            log.drop_index(EXPIRED)
        return
    seconds = min(kept_ms // 1000 + 3600, 2**31 - 1)
    if found is None:
        log.create_index([("on", 1)], name=EXPIRED, expireAfterSeconds=seconds)
    elif found.get("expireAfterSeconds") != seconds:
        db.database.command(
            "collMod", log.name, index={"name": EXPIRED, "expireAfterSeconds": seconds}
        )


def heads(
    at: Collection[Doc], q: int, partitions: int, now: int
) -> tuple[Counter[Any], dict[int, int]]:
    """By partition: how many delayed messages are due, and when the oldest at the head of a lane
    was enqueued."""
    first: dict[tuple[int, int], tuple[int, int]] = {}
    due: Counter[Any] = Counter()
    late: list[Doc] = [
        {"$match": {"q": q, "st": DELAYED, "av": {"$lte": now}}},
        {"$sort": {"pl": 1}},
        {
            "$group": {
                "_id": {"pt": "$pt", "rk": "$rk"},
                "n": {"$sum": 1},
                "pl": {"$first": "$pl"},
                "ea": {"$first": "$ea"},
            }
        },
    ]
    for group in at.aggregate(late):
        part, rank = group["_id"].get("pt"), group["_id"].get("rk")
        due[part if isinstance(part, int) else None] += group["n"]
        if isinstance(part, int) and isinstance(rank, int) and (head := _head(group)):
            first[part, rank] = head
    for part in range(partitions):
        rank = -1
        # Beyond the last rank lies the next queue's line, and MongoDB would walk over all that has
        # left it in the last minutes, only to find that none of it is asked for.
        while rank < PRIORITY_MAX:
            doc = at.find_one(
                {"q": q, "st": READY, "pt": part, "rk": {"$gt": rank}},
                {"rk": 1, "pl": 1, "ea": 1},
                sort=[("rk", 1), ("pl", 1)],
            )
            if doc is None:
                break
            rank = doc["rk"]
            if not isinstance(rank, int):  # damaged, and last in this order
                break
            if head := _head(doc):
                first[part, rank] = min(first.get((part, rank), head), head)
    oldest: dict[int, int] = {}
    for (part, _), (_, enqueued_at) in first.items():
        oldest[part] = min(oldest.get(part, enqueued_at), enqueued_at)
    return due, oldest


def _head(doc: Doc) -> tuple[int, int] | None:
    """None of what somebody edited into nonsense: the next lease sets it aside."""
    place, at = doc.get("pl"), doc.get("ea")
    if not isinstance(place, Timestamp) or not isinstance(at, int):
        return None
    return number(place), int(at)


def look(db: Connections) -> dict[str, Any]:
    """Facts of the server, and messages that nobody could read."""
    database = db.database
    said = database.command("hello")
    facts: dict[str, Any] = {
        "version": database.client.server_info()["version"],
        "replica_set": said.get("setName") or said.get("msg"),
        "w": db.where.w,
        "journal": db.where.journal,
    }
    beyond = [
        {"q": doc.get("qid"), "pt": {"$gte": doc.get("partitions")}}
        for doc in db.get(QUEUES).find({}, {"qid": 1, "partitions": 1})
    ]
    odd = {"$or": [{"st": ODD}, {"$nor": [{"$jsonSchema": SOUND}]}, *beyond]}
    found = list(db.get(MESSAGES).find(odd, {"_id": 1}).limit(SHOWN))
    found += db.get(LOG).find({"$nor": [{"$jsonSchema": SOUND_LOG}]}, {"_id": 1}).limit(SHOWN)
    facts["damaged"] = [doc["_id"] for doc in found[:SHOWN]]
    return facts
