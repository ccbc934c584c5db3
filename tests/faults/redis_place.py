"""A store on Redis, and a full look at its keys that asks the store nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis
from storm import Place

import holdfast
from holdfast import Holdfast
from holdfast.testing import wait_until

GROUP = b"holdfast"
SEQ, ID = 15, 36
"""The length of what a token begins with: number and id; then comes ".part.lane.call"."""
QUEUES = {"0": "orders", "1": "orders.dlq"}


class Held(msgspec.Struct):
    """The ids of one queue, by where the keys have them."""

    waiting: list[str] = []
    leased: list[str] = []
    log: list[str] = []
    done: int = 0


class RedisPlace(Place):
    """`url` names a prefix; `server` is given where it may be killed."""

    def __init__(self, url: str, ledger: Path, server: Any = None) -> None:
        super().__init__(server, ledger)
        self.url = url
        address, _, options = url.partition("?")
        self.prefix = options.partition("prefix=")[2].partition("&")[0]
        self.db: Any = redis.Redis.from_url(address)

    def close(self) -> None:
        super().close()
        self.db.close()

    def url_at(self, port: int, **options: Any) -> str:
        said = "".join(f"&{name}={value}" for name, value in options.items())
        return f"redis://127.0.0.1:{port}/0?prefix={self.prefix}{said}"

    def blocked(self) -> int:
        """How many wait for something to come, by the name that the store's clients gave."""
        return self.db.info("clients")["blocked_clients"]

    def wait_until_victims_are_gone(self) -> None:
        """What a killed one had sent is done by then."""
        wait_until(lambda: not any(c["name"] == self.prefix for c in self.db.client_list()))

    def key(self, kind: str) -> str:
        return f"{self.prefix}:{{orders}}:{kind}"

    def look(self) -> dict[str, Held]:
        """Everything that the home holds; each message in one place, each key in agreement."""
        found = {flag: Held() for flag in QUEUES}
        where = _text(self.db.hgetall(self.key("x")))
        leased: dict[str, str] = {}  # id -> its entry in a stream
        for stream in sorted(self.db.scan_iter(match=self.key("s*"), count=1000)):
            for id, entry, taken in self._stream(stream):
                if taken:
                    assert where[id][0] not in "LW", f"{id}: read from its lane, {where[id]}"
                    leased[id] = entry
                else:
                    assert id not in where, f"{id}: in its lane, and {where.get(id)}"
                    found["0"].waiting.append(id)
        held_as: Counter[str] = Counter()
        for flag, held in found.items():
            for id, entry, taken in self._stream(self.key("a" + flag)):
                assert taken, f"{id}: leased again, of nobody"
                assert where[id].startswith(f"L {flag} "), where[id]
                assert where[id].split(" ")[10] == entry
                assert id not in leased, f"{id}: leased twice"
                leased[id] = entry
            late = [member[SEQ:].decode() for member in self.db.zrange(self.key("z" + flag), 0, -1)]
            for name in sorted(self.db.scan_iter(match=self.key(f"r{flag}.*"), count=1000)):
                late += [id.decode() for id in self.db.zrange(name, 0, -1)]
            for id in late:
                assert where[id].startswith(f"W {flag} "), where[id]
            held.waiting += late
            members = [member.decode() for member in self.db.zrange(self.key("d" + flag), 0, -1)]
            held.leased = [member[SEQ : SEQ + ID] for member in members]
            for token, id in zip(members, held.leased, strict=True):
                assert token == (where[id].split(" ")[11] if where[id][0] == "L" else where[id])
                held_as[token[SEQ + ID :].split(".", 3)[3]] += 1
            for member in self.db.zrange(self.key("b" + flag), 0, -1):
                assert member.decode().split(" ")[1] in held.leased
            log = self.db.xrange(self.key("log" + flag))
            rows = [(id, entry) for entry, fields in log for id in fields if len(id) == ID]
            held.log = [id.decode() for id, _ in rows]
            assert self.db.hgetall(self.key("li" + flag)) == dict(rows)
            held.done = int(self.db.hget(self.key("c"), "done" + flag) or 0)
        assert sorted(leased) == sorted(found["0"].leased + found["1"].leased)
        assert _text(self.db.hgetall(self.key("kn"))) == {k: str(n) for k, n in held_as.items()}
        assert set(_text(self.db.hgetall(self.key("k")))) == set(held_as)
        bodies = [id.decode() for id in self.db.hkeys(self.key("m"))]
        placed = [id for held in found.values() for id in held.waiting + held.leased]
        assert sorted(placed) == sorted(bodies), "a message is in no place, or in two"
        assert {id.decode() for id in self.db.hkeys(self.key("e"))} <= set(bodies)
        return found

    def _stream(self, name: Any) -> list[tuple[str, str, bool]]:
        """The id of each entry, its number, and whether a consumer has it."""
        (group,) = self.db.xinfo_groups(name)
        pending = self.db.xpending_range(name, GROUP, "-", "+", 10**6) if group["pending"] else []
        taken = {row["message_id"] for row in pending}
        entries = self.db.xrange(name)
        assert taken <= {entry for entry, _ in entries}, "a consumer has what is gone"
        last = _number(group["last-delivered-id"])
        for entry, _ in entries:
            assert (entry in taken) == (_number(entry) <= last), "read by nobody, and never again"
        return [(fields[b"i"].decode(), str(_number(e)), e in taken) for e, fields in entries]

    def check_whole(self, hf: Holdfast, accepted: set[str]) -> None:
        """Each accepted message is in one place, and the counts say what the keys hold."""
        self.wait_until_victims_are_gone()
        found = self.look()
        everything = [id for held in found.values() for id in held.waiting + held.leased + held.log]
        assert len(everything) == len(set(everything)), "a message is in two places"
        assert set(everything) == accepted, "a message was lost, or came from nowhere"
        for flag, name in QUEUES.items():
            stats, held = hf.queue(name).stats(), found[flag]
            counted = (stats.ready + stats.delayed, stats.leased, stats.done)
            assert counted == (len(held.waiting), len(held.leased), held.done)
        dead = len(found["1"].waiting + found["1"].leased)
        assert hf.queue("orders").stats().dead == dead

    def check_finished(self, ids: Sequence[str]) -> int:
        with holdfast.connect(self.url) as hf:
            self.check_whole(hf, set(ids))
            log = [done.message.id for done in hf.queue("orders").log()]
            assert len(log) == len(ids) and set(log) == set(ids)
            assert self.handled() == set(ids), "in the log, but no handler finished it"
            return hf.queue("orders").stats().done


def _text(found: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}


def _number(entry: bytes) -> int:
    return int(entry.partition(b"-")[0])
