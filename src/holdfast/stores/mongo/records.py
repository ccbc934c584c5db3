"""Small values by kind and name, changed by compare-and-set, and named leases. All by _id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from holdfast.stores.contract import Claim, Record
from holdfast.stores.mongo.connections import Session, upserted
from holdfast.stores.mongo.layout import Doc

LAST = chr(0x10FFFF)


def put(
    to: Collection[Doc], kind: str, name: str, value: bytes | None, revision: int | None, now: int
) -> bool:
    key = f"{kind}/{name}"
    known: Doc = {"_id": key} if revision is None else {"_id": key, "r": revision}
    if value is None:
        if revision == 0:
            return to.find_one({"_id": key}, {"_id": 1}) is None
        return bool(to.delete_one(known).deleted_count) or revision is None
    if revision == 0:
        return note(to, kind, name, value, now)
    change: Doc = {"$set": {"v": value, "u": now}, "$inc": {"r": 1}}
    return bool(_upserted(to, known, change, upsert=revision is None))


def _upserted(to: Collection[Doc], known: Doc, change: Doc, *, upsert: bool) -> int:
    try:
        result = to.update_one(known, change, upsert=upsert)
    except DuplicateKeyError:  # somebody made it at the same moment
        result = to.update_one(known, change)
    return result.matched_count + (result.upserted_id is not None)


def note(
    to: Collection[Doc], kind: str, name: str, value: bytes, now: int, session: Session = None
) -> bool:
    """Write a new record; False if it is there already, which ends a transaction."""
    try:
        to.insert_one({"_id": f"{kind}/{name}", "v": value, "r": 1, "u": now}, session=session)
    except DuplicateKeyError:
        return False
    return True


def read_one(to: Collection[Doc], kind: str, name: str, session: Session = None) -> bool:
    return to.find_one({"_id": f"{kind}/{name}"}, {"_id": 1}, session=session) is not None


def read(to: Collection[Doc], kind: str, prefix: str, after: str, limit: int) -> list[Record]:
    if limit <= 0:
        return []
    found = to.find(_range(kind, prefix, after)).sort("_id", 1).limit(min(limit, 2**31 - 1))
    start = len(kind) + 1
    return [Record(d["_id"][start:], d["v"], int(d["r"]), int(d["u"])) for d in found]


def drop(to: Collection[Doc], kind: str, prefix: str, before: int | None, limit: int) -> int:
    ask = _range(kind, prefix, "")
    if before is not None:
        ask["u"] = {"$lt": before}
    found = to.find(ask, {"_id": 1}).sort("_id", 1).limit(limit)
    ids = [doc["_id"] for doc in found]
    return to.delete_many({**ask, "_id": {"$in": ids}}).deleted_count if ids else 0


def _range(kind: str, prefix: str, after: str) -> Doc:
    """A name that begins with a prefix lies between it and it with the last character after it."""
    between: dict[str, Any] = {"$gte": f"{kind}/{prefix}", "$lt": f"{kind}/{prefix}{LAST}"}
    if after:
        between["$gt"] = f"{kind}/{after}"
    return {"_id": between}


def claim(to: Collection[Doc], name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
    """Taken, or renewed, in one write; somebody else's makes a second document of the name."""
    name_of: Doc = {"$literal": owner}
    mine: Doc = {"$and": [{"$eq": ["$owner", name_of]}, {"$gt": ["$until", now]}]}
    free: Doc = {"_id": name, "$or": [{"owner": owner}, {"until": {"$lte": now}}]}
    epoch: Doc = {"$add": [{"$ifNull": ["$epoch", 0]}, {"$cond": [mine, 0, 1]}]}
    change = [{"$set": {"epoch": epoch, "owner": name_of, "until": now + ttl_ms}}]
    for _ in range(2):  # the second time: it was made, and given up, between look and write
        try:
            held = upserted(to, free, change)
        except DuplicateKeyError:
            continue
        return Claim(name, owner, int(held["epoch"]), now + ttl_ms) if ttl_ms else None
    return None


def claims(to: Collection[Doc], names: Sequence[str]) -> list[Claim | None]:
    found = {doc["_id"]: read_claim(doc) for doc in to.find({"_id": {"$in": list(names)}})}
    return [found.get(name) for name in names]


def read_claim(doc: Doc) -> Claim:
    return Claim(doc["_id"], doc["owner"], int(doc["epoch"]), int(doc["until"]))
