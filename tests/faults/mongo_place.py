"""A store on MongoDB, and a full look at its documents that asks the store nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from pymongo import MongoClient
from storm import HERE, Place

import holdfast
from holdfast import Holdfast
from holdfast.stores.contract import overdue_in
from holdfast.testing import wait_until

READY, DELAYED, LEASED = 0, 1, 2
ID = 36
STALE_MS = 10_001
"""After this a mark of somebody who died is put right by `tidy`."""
SOON_OVER = {"transactionLifetimeLimitSeconds": "2"}
"""For a server: how long it keeps what a killed client had begun. By itself, a minute."""


class Held(msgspec.Struct):
    """The ids of one queue, by where the documents have them."""

    waiting: list[str] = []
    leased: list[str] = []
    log: list[str] = []


class MongoPlace(Place):
    """`url` names a database; `server` is given where it may be killed."""

    def __init__(self, url: str, ledger: Path, server: Any = None) -> None:
        super().__init__(server, ledger)
        self.database = urlsplit(url).path.strip("/")
        self.url = url
        self.process_url = f"{url}&appName={self.database}"
        self.client: MongoClient[dict[str, Any]] = MongoClient(url)
        self.db = self.client[self.database]

    def close(self) -> None:
        super().close()
        self.client.close()

    def url_at(self, port: int, **options: Any) -> str:
        said = "".join(f"&{name}={value}" for name, value in options.items())
        return f"mongodb://127.0.0.1:{port}/{self.database}?directConnection=true{said}"

    def get(self, kind: str) -> Any:
        return self.db[f"holdfast.{kind}"]

    def wait_until_victims_are_gone(self) -> None:
        """What a killed one had sent is done by then; what it had begun is given up."""
        asked: dict[str, Any] = {"allUsers": True, "idleConnections": True}
        theirs: list[dict[str, Any]] = [
            {"$currentOp": asked},
            {"$match": {"appName": self.database, "type": "op"}},
        ]
        wait_until(lambda: not list(self.client.admin.aggregate(theirs)), timeout=30)
        self.client.admin.command("killAllSessions", [])

    def look(self) -> dict[str, Held]:
        """Every message by the queue it is in, each document as the others say."""
        names = {doc["qid"]: doc["_id"] for doc in self.get("queues").find()}
        found = {name: Held() for name in names.values()}
        for doc in self.get("messages").find().sort("_id", 1):
            held = found[names[doc["q"]]]
            assert doc["st"] in (READY, DELAYED, LEASED), doc
            if doc["st"] == LEASED:
                assert doc["tk"] and doc["dl"] and doc["ow"], doc
            else:
                assert "ba" not in doc, doc
            (held.leased if doc["st"] == LEASED else held.waiting).append(doc["_id"][-ID:])
        for doc in self.get("log").find().sort("_id", 1):
            found[names[doc["q"]]].log.append(doc["_id"][-ID:])
        return found

    def check_whole(self, hf: Holdfast, accepted: set[str], of: str = "orders") -> None:
        """Each accepted message is in one place, and the counts say what the documents do once
        those who died in the middle were tidied up after."""
        self.wait_until_victims_are_gone()
        late = hf.context.clock.now() + STALE_MS
        overdue_in(
            hf.store, of, late, 1000
        )  # of a standalone: takes out what is in the log already
        hf.store.tidy(late, log_before=None)
        found = self.look()
        ours = [found[name] for name in (of, f"{of}.dlq")]
        everything = [id for held in ours for id in held.waiting + held.leased + held.log]
        assert len(everything) == len(set(everything)), "a message is in two places"
        assert set(everything) == accepted, "a message was lost, or came from nowhere"
        self.check_counts(hf, found, of)

    def check_counts(self, hf: Holdfast, found: dict[str, Held], of: str = "orders") -> None:
        for name in (of, f"{of}.dlq"):
            stats = hf.queue(name).stats()
            counted = (stats.ready + stats.delayed, stats.leased)
            assert counted == (len(found[name].waiting), len(found[name].leased)), name
        dead = found[f"{of}.dlq"]
        assert hf.queue(of).stats().dead == len(dead.waiting + dead.leased)
        marked = list(self.get("counts").find({"do": {"$gt": ""}}))
        assert not marked, "a mark that nobody clears"

    def check_finished(self, ids: Sequence[str]) -> int:
        with holdfast.connect(self.url) as hf:
            self.check_whole(hf, set(ids))
            log = [done.message.id for done in hf.queue("orders").log()]
            assert len(log) == len(ids) and set(log) == set(ids)
            assert self.handled() == set(ids), "in the log, but no handler finished it"
            return hf.queue("orders").stats().done


class Victims:
    """Processes that die before the nth command of what they do; see mongo_victims.py."""

    def __init__(self, place: MongoPlace) -> None:
        command = [sys.executable, str(HERE / "mongo_victims.py"), place.process_url]
        self._parent = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def die(self, action: str, queue: str, now: int, nth: int) -> tuple[bool, list[str]]:
        """Whether it died, and the commands that it sent."""
        assert self._parent.stdin and self._parent.stdout
        self._parent.stdin.write(json.dumps([action, queue, now, nth]) + "\n")
        self._parent.stdin.flush()
        code, sent = json.loads(self._parent.stdout.readline())
        assert code in (0, 9), f"{action}: it failed by itself"
        return code == 9, sent

    def close(self) -> None:
        self._parent.communicate()
