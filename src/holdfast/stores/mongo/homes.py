"""To another home on a server without transactions. A message has another key there, so this is
several writes, and nobody may find it in both homes or in none.

The old document is marked as going. The new one comes as a lease that nobody holds, which names
the old one. Then the old one is taken out, if it is still marked and nobody took it meanwhile. At
last the new one is let go into its line. Who dies on the way leaves such a lease behind: when it
is overdue (see `MongoStore._read_overdue`), `go_on` takes it out if the old one is still there, else it
is let go.
"""

from __future__ import annotations

import secrets
from collections import Counter

from pymongo import errors as driver
from pymongo.collection import Collection

from holdfast.stores.mongo.counts import Deltas, moved
from holdfast.stores.mongo.layout import LEASED, Doc

UNDER_WAY_MS = 10_000
LET_GO: list[Doc] = [
    {"$set": {"st": "$mf.st"}},
    {"$unset": ["mf", "mo", "tk", "dl", "la", "ow"]},
]


def move_alone(messages: Collection[Doc], doc: Doc, new: Doc, now: int) -> bool:
    """False: it was not as it was read, or its id is held where it would come to."""
    move = secrets.token_hex(8)
    here: Doc = {"_id": doc["_id"], "st": doc["st"], "tk": doc.get("tk"), "pl": doc["pl"]}
    if not messages.update_one(here, {"$set": {"mo": move}}).matched_count:
        return False
    coming = {"_id": new["_id"], "tk": move, "st": LEASED}
    of: Doc = {"mf": {"of": doc["_id"], "st": new["st"]}}
    try:
        held: Doc = {"dl": now + UNDER_WAY_MS, "la": now, "ow": "a move"}
        messages.insert_one({**new, **of, **coming, **held})
    except driver.DuplicateKeyError:
        _stay(messages, doc["_id"], move)
        return False
    if messages.delete_one({**here, "mo": move}).deleted_count:
        messages.update_one(coming, LET_GO)
        return True
    messages.delete_one(coming)
    _stay(messages, doc["_id"], move)
    return False


def go_on(messages: Collection[Doc], doc: Doc) -> Deltas:
    """Of a move that broke off: the document that was to come, and how counts change."""
    coming = {"_id": doc["_id"], "tk": doc["tk"], "st": LEASED}
    of, state = doc["mf"]["of"], doc["mf"]["st"]
    _stay(messages, of, doc["tk"])  # from here on, who was only slow cannot take it out any more
    old = messages.find_one({"_id": of}, {"sq": 1})
    if old is not None and old.get("sq") == doc.get("sq"):  # else a new message with its id
        n, to = messages.delete_one(coming).deleted_count, None
    else:
        n, to = messages.update_one(coming, LET_GO).modified_count, state
    return moved(n, Counter({doc.get("pt"): n}), LEASED, to)


def _stay(messages: Collection[Doc], key: str, move: str) -> None:
    messages.update_one({"_id": key, "mo": move}, {"$unset": {"mo": ""}})
