"""Keys on every store: made, known, ended; and that what is stored gives no key away."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import (
    Holdfast,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StoreCorrupt,
    StoreUnavailable,
    Unauthenticated,
)
from holdfast.server import auth
from holdfast.server.auth import ANYBODY, Authority, Key
from holdfast.testing import ManualClock, MemoryStore
from holdfast.testing.conformance.fixtures import another, hf, store
from servers import redis

__all__ = ["another", "hf", "store"]

UNKNOWN = f"hf_{'a' * 12}_{'A' * 43}"


class Clock(ManualClock):
    """Its stopwatch stands still as well."""

    def monotonic(self) -> float:
        return self.now() / 1000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(hf: Holdfast) -> Authority:
    return Authority(hf.context)


def refused(authority: Authority, token: str | None) -> str:
    with pytest.raises(Unauthenticated) as error:
        authority.check(token)
    return str(error.value)


def altered(token: str) -> str:
    """The same id with another secret."""
    return token[:-20] + "A" * 20


def test_a_key_is_made_and_known(hf: Holdfast, authority: Authority, clock: Clock) -> None:
    key, token = auth.create(
        hf.context, roles=["consume", "read"], queues=["orders", "mail*"], name="billing"
    )
    assert key == Key(key.id, "billing", ("read", "consume"), ("orders", "mail*"), clock.now())
    assert token.startswith(f"hf_{key.id}_")
    who = authority.check(token)
    assert (who.id, who.name, who.rights) == (key.id, "billing", {"read", "consume"})
    assert who.may("consume", "mail.eu") and not who.may("produce", "mail.eu")
    who.demand("read", "orders")
    with pytest.raises(PermissionDenied, match=f"key {key.id} lacks the right 'admin' on 'orders'"):
        who.demand("admin", "orders")
    with pytest.raises(PermissionDenied, match="lacks the right 'read' on the whole store"):
        who.demand("read", None)
    assert auth.get(hf.context, key.id) == auth.get(hf.context, token) == key


def test_another_process_knows_it(
    hf: Holdfast, another: Callable[[], Holdfast], clock: Clock
) -> None:
    made = []
    for n in range(3):
        made.append(auth.create(hf.context, roles=["admin"], queues=["*"], name=f"{n}"))
        clock.advance(1)
    there = another().context
    assert auth.list_(there) == [key for key, _ in made]
    assert [Authority(there).check(token).name for _, token in made] == ["0", "1", "2"]


def test_the_store_has_no_secret(hf: Holdfast) -> None:
    key, token = auth.create(hf.context, roles=["read"], queues=["*"])
    secret = token.removeprefix(f"hf_{key.id}_")
    (record,) = hf.store.records(auth.KEY)
    assert len(secret) == 43
    assert secret.encode() not in record.value
    assert key.id.encode() in record.value


def test_wrong_ones_are_refused_all_in_the_same_words(hf: Holdfast, authority: Authority) -> None:
    _, token = auth.create(hf.context, roles=["admin"], queues=["*"])
    id = token.split("_")[1]
    wrong = [UNKNOWN, f"hf_{id}_{'A' * 43}", token[:-1], token + "A", f" {token}", f"{token}\n"]
    wrong += [token.upper(), token.replace("hf_", "hg_"), "é" * 59, "\0", "\udcff", f"hf_{id}_"]
    for again in range(2):  # the second time from memory
        assert {refused(authority, each) for each in wrong} == {"no such key"}, again
        assert authority.check(token).id == id
    assert {refused(authority, each) for each in (None, "")} == {
        "a key is needed: holdfast key create makes one"
    }


def test_it_expires_on_the_millisecond(hf: Holdfast, authority: Authority, clock: Clock) -> None:
    key, token = auth.create(hf.context, roles=["read"], queues=["*"], expires_in=0.5)
    assert key.expires_at == clock.now() + 500
    clock.advance(0.499)
    assert authority.check(token).id == key.id
    assert key.state(clock.now()) == "active"
    clock.advance(0.001)  # within the second that it is remembered for
    assert refused(authority, token) == f"key {key.id} is expired"
    assert key.state(clock.now()) == "expired"
    assert refused(authority, altered(token)) == "no such key"


def test_a_revoked_one_ends_everywhere_within_a_second(
    hf: Holdfast, another: Callable[[], Holdfast], clock: Clock
) -> None:
    key, token = auth.create(hf.context, roles=["read"], queues=["*"])
    _, stays = auth.create(hf.context, roles=["read"], queues=["*"])
    there = Authority(another().context)
    there.check(token)
    revoked = auth.revoke(hf.context, key.id)
    assert revoked.revoked_at == clock.now() and revoked.state(clock.now()) == "revoked"
    clock.advance(0.999)
    assert there.check(token).id == key.id
    clock.advance(0.001)
    assert refused(there, token) == f"key {key.id} is revoked"
    assert there.check(stays)
    assert refused(there, altered(token)) == "no such key"
    assert auth.revoke(hf.context, token) == revoked  # again, later: as it was
    assert revoked in auth.list_(hf.context)


def test_one_made_after_it_was_asked_for_is_known_within_a_second(
    hf: Holdfast, authority: Authority, clock: Clock
) -> None:
    key, token = auth.create(hf.context, roles=["read"], queues=["*"])
    (record,) = hf.store.records(auth.KEY)
    hf.store.put_record(auth.KEY, key.id, None, None, clock.now())
    assert refused(authority, token) == "no such key"
    hf.store.put_record(auth.KEY, key.id, record.value, 0, clock.now())
    assert refused(authority, token) == "no such key"
    clock.advance(1)
    assert authority.check(token).id == key.id


def test_of_many_who_revoke_all_say_the_same(
    hf: Holdfast, another: Callable[[], Holdfast], clock: Clock
) -> None:
    made, _ = auth.create(hf.context, roles=["read"], queues=["*"])
    contexts = [another().context for _ in range(4)]
    barrier, said = threading.Barrier(4, timeout=60), list[Key]()

    def end(n: int) -> None:
        barrier.wait()
        clock.advance(0.001)
        said.append(auth.revoke(contexts[n], made.id))

    threads = [threading.Thread(target=end, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 4
    assert {key.revoked_at for key in said} == {auth.get(hf.context, made.id).revoked_at}


def test_one_that_is_not_there(hf: Holdfast) -> None:
    with pytest.raises(NotFound, match="no key 'x'; none is known"):
        auth.revoke(hf.context, "x")
    key, token = auth.create(hf.context, roles=["read"], queues=["*"])
    near = key.id[:-1] + ("a" if key.id[-1] != "a" else "b")
    with pytest.raises(NotFound, match=f"no key '{near}'; did you mean '{key.id}'"):
        auth.get(hf.context, near)
    for odd in ("", "\0", "\udcff", "é", key.id[:-1], key.id + "x", "%" * 12, "_" * 12):
        with pytest.raises(NotFound):
            auth.revoke(hf.context, odd)
    with pytest.raises(NotFound) as error:
        auth.revoke(hf.context, token[:-1])
    assert token[20:-1] not in str(error.value)
    assert auth.get(hf.context, key.id).revoked_at is None


def test_a_record_that_is_no_key_lets_nobody_in(
    hf: Holdfast, authority: Authority, clock: Clock
) -> None:
    key, token = auth.create(hf.context, roles=["read"], queues=["*"])
    (record,) = hf.store.records(auth.KEY)
    for value in (b"", b"{}", record.value.replace(b'"read"', b'"rule"')):
        hf.store.put_record(auth.KEY, key.id, value, None, clock.now())
        with pytest.raises(StoreCorrupt, match=f"key {key.id} was not written by"):
            authority.check(token)


def test_more_keys_than_a_page(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "PAGE", 3)
    made = {auth.create(hf.context, roles=["read"], queues=["*"])[0].id for _ in range(7)}
    assert {key.id for key in auth.list_(hf.context)} == made


# Not a matter of the store


class Counting(MemoryStore):
    """Says how often keys were read."""

    reads = 0

    def records(self, kind: str, **ask):  # type: ignore[no-untyped-def]
        self.reads += kind == auth.KEY
        return super().records(kind, **ask)


class Raced(MemoryStore):
    """Before its next write comes another one."""

    first: Callable[[], object] | None = None

    def put_record(self, *args):  # type: ignore[no-untyped-def]
        first, self.first = self.first, None
        if first is not None:
            first()
        return super().put_record(*args)


def test_who_comes_second_changes_nothing(clock: Clock) -> None:
    raced = Raced()
    context = holdfast.connect(raced, clock=clock).context
    made, _ = auth.create(context, roles=["read"], queues=["*"])
    at = clock.now() + 10_000

    def another_revokes() -> None:
        clock.advance(10)
        auth.revoke(context, made.id)

    raced.first = another_revokes
    assert auth.revoke(context, made.id).revoked_at == at
    assert auth.get(context, made.id).revoked_at == at


def id_of(n: int) -> str:
    return "".join("abcdefgh"[n >> 3 * digit & 7] for digit in range(12))


def test_keys_are_remembered_within_bounds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_MAX", 100)
    counting = Counting()
    context = holdfast.connect(counting, clock=clock).context
    authority = Authority(context)
    _, token = auth.create(context, roles=["read"], queues=["*"])

    def reads(*tokens: str) -> int:
        before = counting.reads
        for each in tokens:
            if each == token:
                authority.check(each)
            else:
                refused(authority, each)
        return counting.reads - before

    unknown = [f"hf_{id_of(n)}_{'A' * 43}" for n in range(1000)]
    assert reads(token, token, token) == 1
    assert reads(*unknown[:99], *unknown[:99], token) == 99  # all of them fit
    assert reads(*unknown) == 901
    assert len(authority._known) == 100
    assert reads(token) == 1  # made room for those who guess: costs a read, no more
    clock.advance(1)
    assert reads(token) == 1
    assert len(authority._known) == 1


def test_a_store_that_is_down_lets_nobody_in_and_says_so() -> None:
    clock = Clock()
    with redis.running() as server:
        context = holdfast.connect(server.url, clock=clock).context
        authority = Authority(context)
        _, token = auth.create(context, roles=["read"], queues=["*"])
        authority.check(token)
    assert authority.check(token)  # still remembered
    clock.advance(1)
    for each in (token, altered(token), UNKNOWN):
        with pytest.raises(StoreUnavailable):
            authority.check(each)
    assert refused(authority, "malformed") == "no such key"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"roles": []}, "roles: name one at least"),
        ({"roles": "read"}, "roles: must be a list, not 'read'"),
        ({"roles": ["raed"]}, "roles: 'raed'; did you mean 'read'"),
        ({"roles": [None]}, "roles: None; known: admin, consume, produce, read"),
        ({"queues": []}, "queues: name one at least"),
        ({"queues": ["*"] * 101}, "queues: name one at least, and at most 100"),
        ({"queues": "*"}, "queues: must be a list"),
        ({"queues": [""]}, "queues: '': letters, digits"),
        ({"queues": ["a?"]}, r"queues: 'a\?': letters, digits"),
        ({"queues": [1]}, "queues: 1: letters"),
        ({"queues": ["a" * 129]}, "queues: a pattern has at most 128 characters"),
        ({"name": "a\nb"}, "name: must be text on one line"),
        ({"name": "a" * 201}, "name: must be text on one line, of at most 200"),
        ({"name": None}, "name: must be text"),
        ({"expires_in": 0}, "expires_in: must be more than 0 seconds"),
        ({"expires_in": -1}, "expires_in: must not be negative"),
        ({"expires_in": "1d"}, "expires_in: must be a number of seconds"),
    ],
)
def test_what_makes_no_key(given: dict, problem: str) -> None:
    context = holdfast.connect("memory://").context
    with pytest.raises(InvalidArgument, match=problem):
        auth.create(context, **{"roles": ["read"], "queues": ["*"], **given})
    assert auth.list_(context) == []


def test_anybody_may_do_anything() -> None:
    for right in ("read", "produce", "consume", "admin"):
        for queue in ("orders", "orders.dlq", "orders@mail", None):
            ANYBODY.demand(right, queue)


def test_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(program, "keys.md", "exec"), {})
