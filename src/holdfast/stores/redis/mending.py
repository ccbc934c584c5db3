"""Damaged notes of where a message is (the hash x) are written again from the places that hold it.

A script that finds one writes nothing and names the message. Then this looks for the message, notes
where it stands, adds an error to its history, and the script runs again. See lua/mend.lua.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.model.message import DLQ_SUFFIX, ERRORS_MAX, NO_HISTORY
from holdfast.stores import damage
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.scripts import load
from holdfast.stores.rows import write_history

MEND = load("mend")
PROBLEM = "where it stands in the queue"


class Mender:
    def __init__(self, db: Connections, keys: Keys) -> None:
        self._db = db
        self._keys = keys

    def mend(self, settings: str, id: bytes) -> None:
        """`settings` is the key of the home's settings."""
        name, shown = self._keys.home_of(settings), id.decode(errors="replace")
        if name is None:
            raise StoreCorrupt(f"{settings}: {shown} was not written by Holdfast")
        parts = self._db.run("HGET", settings, "parts")
        home = self._keys.home(name, int(parts or 1))
        was: bytes = self._db.run("HGET", home.key("e"), id) or b""
        past = damage.read_history(was, name, shown) if was else NO_HISTORY
        errors = (*past.errors, damage.damaged(PROBLEM))[-ERRORS_MAX:]
        history = write_history(msgspec.structs.replace(past, errors=errors)) or ""
        flag, found = self._db.script(MEND, home.moving, [id, was, history])
        if found != b"fine":
            queue = name + (DLQ_SUFFIX if flag == b"1" else "")
            gone = ", and it has no body: it was removed" if found == b"gone" else ""
            damage.note(queue, shown, PROBLEM + gone)
