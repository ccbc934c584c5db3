"""Keys: who may do what on which queues, for those who come to the store through a server.

A key is handed out once, as `hf_<id>_<secret>`. The store keeps a record of it that anybody who
copies the store may read: it has a hash of the secret, never the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from holdfast.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StoreCorrupt,
    Unauthenticated,
    did_you_mean,
)
from holdfast.model.message import NAME_MAX, home_of, is_dlq
from holdfast.model.policy import positive
from holdfast.queue.context import Context
from holdfast.queue.records import each_record, find_record
from holdfast.rules.lifecycle import ms

KEY = "key"
"""The kind of record."""
REMEMBER_S = 1.0
"""So late a server hears that a key was revoked."""
REMEMBERED_MAX = 10_000
"""Ids that a server remembers, those that do not exist included."""
PATTERNS_MAX = 100
TEXT_MAX = 200
PAGE = 1000

Right = Literal["read", "produce", "consume", "admin"]
"""What a call needs. `read` looks and changes nothing, `admin` sets up, purges, redrives."""
Role = Literal["read", "produce", "consume", "admin"]
"""What a key is given."""
State = Literal["active", "expired", "revoked"]

RIGHTS: dict[Role, frozenset[Right]] = {
    "read": frozenset({"read"}),
    "produce": frozenset({"produce"}),
    "consume": frozenset({"consume", "read"}),
    "admin": frozenset(get_args(Right)),
}
EVERY_QUEUE = "*"


class Key(msgspec.Struct, frozen=True):
    """A key as people may see it."""

    id: str
    name: str
    roles: tuple[Role, ...]
    queues: tuple[str, ...]
    """Patterns of queue names (see `matches`)."""
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None

    def state(self, now: int) -> State:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


class Principal(msgspec.Struct, frozen=True):
    """Who calls, and what they may."""

    id: str
    """Of the key."""
    name: str
    rights: frozenset[Right]
    queues: tuple[str, ...]

    def may(self, right: Right, queue: str | None) -> bool:
        """None is the store as a whole: only a key for every queue reaches that.

        Dead letters go with their queue. But what lies there died: that somebody may produce to
        the queue is no reason to let them put letters there.
        """
        if right not in self.rights:
            return False
        if queue is None:
            return EVERY_QUEUE in self.queues
        with_home = right != "produce" or "admin" in self.rights
        return any(_covers(pattern, queue, with_home=with_home) for pattern in self.queues)

    def demand(self, right: Right, queue: str | None) -> None:
        if not self.may(right, queue):
            where = "the whole store" if queue is None else repr(queue)
            raise PermissionDenied(f"key {self.id} lacks the right {right!r} on {where}")

    def demand_anywhere(self, right: Right) -> None:
        """For what shows only what `may` allows: lists, events."""
        if right not in self.rights:
            raise PermissionDenied(f"key {self.id} lacks the right {right!r}")


ANYBODY = Principal("", "anybody", RIGHTS["admin"], (EVERY_QUEUE,))
"""Who calls where no key is asked for."""


def create(
    at: Context,
    *,
    roles: Sequence[str],
    queues: Sequence[str],
    name: str = "",
    expires_in: float | None = None,
) -> tuple[Key, str]:
    """A new key, and what its user has to send: nobody can read that again."""
    given = _roles(roles), _patterns(queues)
    positive("expires_in", expires_in)
    _check_name(name)
    now = at.clock.now()
    until = None if expires_in is None else now + ms(expires_in)
    while True:
        id, secret = _new_id(), secrets.token_urlsafe(SECRET_BYTES)
        key = Key(id, name, *given, now, until)
        if _write(at, _Stored(key, _digest(secret)), revision=0):
            return key, f"hf_{id}_{secret}"


def revoke(at: Context, id: str) -> Key:
    """End a key for good; one that was revoked before stays as it is. `id` as for `get`."""
    while True:
        stored, revision = _find_or_say(at, id)
        if stored.key.revoked_at is not None:
            return stored.key
        ended = replace(stored, key=replace(stored.key, revoked_at=at.clock.now()))
        if _write(at, ended, revision=revision):
            return ended.key


def list_(at: Context) -> list[Key]:
    """Every key, also those that have ended; the oldest first."""
    return sorted((stored.key for stored in _all(at)), key=lambda key: (key.created_at, key.id))


def get(at: Context, id: str) -> Key:
    """A key by its id, or by itself, for those who found one lying about."""
    return _find_or_say(at, id)[0].key


class Authority:
    """Knows keys when it sees them. Thread-safe; remembers what it read for a second."""

    def __init__(self, context: Context) -> None:
        self._at = context
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        """The oldest first: all are kept equally long, so they also end in this order."""

    def check(self, token: str | None) -> Principal:
        """Who sent this. Unauthenticated if nobody; StoreUnavailable if it cannot be told."""
        if not token:
            raise Unauthenticated("a key is needed: holdfast key create makes one")
        found = _TOKEN.fullmatch(token)
        if not found:
            raise Unauthenticated(WRONG)
        id, secret = found.groups()
        known = self._known_or_read(id)
        # Unknown ids are compared as well, with a hash that nothing has: neither the text nor the
        # time it takes tells somebody who guesses that he has found an id.
        if not hmac.compare_digest(_digest(secret), known.digest) or known.key is None:
            raise Unauthenticated(WRONG)
        state = known.key.state(self._at.clock.now())
        if state != "active":  # said only to those who have the secret
            raise Unauthenticated(f"key {id} is {state}")
        return known.principal

    def check_again(self, who: Principal) -> None:
        """For calls that last: whether the key that let somebody in still counts."""
        known = self._known_or_read(who.id)
        state = "gone" if known.key is None else known.key.state(self._at.clock.now())
        if state != "active":
            raise Unauthenticated(f"key {who.id} is {state}")

    def _known_or_read(self, id: str) -> _Known:
        now = self._at.clock.monotonic()  # before the read: what changes after it counts at once
        with self._lock:
            known = self._known.get(id)
        if known is not None and now < known.until:
            return known
        stored, _ = _find(self._at, id)
        known = _remembered(stored, now + REMEMBER_S)
        with self._lock:
            self._known.pop(id, None)
            self._known[id] = known
            self._forget(now)
        return known

    def _forget(self, now: float) -> None:
        while len(self._known) > REMEMBERED_MAX or self._oldest().until <= now:
            del self._known[next(iter(self._known))]

    def _oldest(self) -> _Known:
        return next(iter(self._known.values()))


def matches(pattern: str, name: str) -> bool:
    """`*` stands for any run of characters, none included; all others for themselves.

    Piece by piece from the left, which needs no second try: a regular expression with many stars
    may take for ever to say no.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    at = len(first)
    for piece in middle:
        found = name.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return name.startswith(first) and name.endswith(last) and at + len(last) <= len(name)


def _covers(pattern: str, queue: str, *, with_home: bool) -> bool:
    if not is_dlq(queue):
        return matches(pattern, queue)
    # Their own name counts only where a pattern says .dlq: 'orders.*' is meant for orders.eu and
    # orders.us, and would also match the dead letters of orders.
    named = is_dlq(pattern) and matches(pattern, queue)
    return named or (with_home and matches(pattern, home_of(queue)))


ID_LENGTH = 12
SECRET_BYTES = 32
WRONG = "no such key"
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"  # an id has no '_': the first one ends it
_ID = re.compile(rf"[a-z2-7]{{{ID_LENGTH}}}")
_TOKEN = re.compile(rf"hf_({_ID.pattern})_([A-Za-z0-9_-]{{43}})")
_PATTERN = re.compile(r"[A-Za-z0-9_.@*-]+")
_NOBODY = Principal("", "", frozenset(), ())


class _Stored(msgspec.Struct, frozen=True):
    """What the record holds."""

    key: Key
    digest: str


class _Known(msgspec.Struct, frozen=True):
    """What an Authority remembers; without a key, that there is none."""

    key: Key | None
    digest: str
    principal: Principal
    until: float


_decode = msgspec.json.Decoder(_Stored).decode


def _digest(secret: str) -> str:
    # One round is enough. A slow hash protects what people think up, which can be guessed; nobody
    # guesses 32 random bytes, and every call of every client would have to wait for it.
    return hashlib.sha256(secret.encode()).hexdigest()


_NO_DIGEST = "-" * len(_digest(""))


def _new_id() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(ID_LENGTH))


def _remembered(stored: _Stored | None, until: float) -> _Known:
    if stored is None:
        return _Known(None, _NO_DIGEST, _NOBODY, until)
    key = stored.key
    rights = frozenset[Right]().union(*(RIGHTS[role] for role in key.roles))
    return _Known(key, stored.digest, Principal(key.id, key.name, rights, key.queues), until)


def _find_or_say(at: Context, id: str) -> tuple[_Stored, int]:
    whole = _TOKEN.fullmatch(id)
    stored, revision = _find(at, whole[1] if whole else id)
    if stored is None:
        hint = did_you_mean(id, [key.id for key in list_(at)])
        # Cut: a piece of a secret, put here by mistake, must not end up in a log.
        raise NotFound(f"no key {id[:ID_LENGTH]!r}; {hint}")
    return stored, revision


def _find(at: Context, id: str) -> tuple[_Stored | None, int]:
    """A key and the revision of its record."""
    if not _ID.fullmatch(id):
        return None, 0
    record = find_record(at.store, KEY, id)
    return (_read(id, record.value), record.revision) if record else (None, 0)


def _all(at: Context) -> Iterator[_Stored]:
    for record in each_record(at.store, KEY, page=PAGE):
        yield _read(record.name, record.value)


def _read(id: str, value: bytes) -> _Stored:
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"key {id} was not written by this Holdfast: {error}") from error


def _write(at: Context, stored: _Stored, *, revision: int) -> bool:
    """False: somebody was faster, read again."""
    value = msgspec.json.encode(stored)
    return at.store.put_record(KEY, stored.key.id, value, revision, at.clock.now())


def _roles(given: Any) -> tuple[Role, ...]:
    known = get_args(Role)
    for role in _several("roles", given):
        if role not in known:
            raise InvalidArgument("roles", f"{role!r}; {did_you_mean(str(role), known)}")
    return tuple(role for role in known if role in given)


def _patterns(given: Any) -> tuple[str, ...]:
    for pattern in _several("queues", given):
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            problem = "letters, digits, '_', '.', '-', '@', and '*' for any of them"
            raise InvalidArgument("queues", f"{pattern!r}: {problem}")
        if len(pattern) > NAME_MAX:
            raise InvalidArgument("queues", f"a pattern has at most {NAME_MAX} characters")
    return tuple(dict.fromkeys(given))


def _several(field: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidArgument(field, f"must be a list, not {given!r}")
    if not 1 <= len(given) <= PATTERNS_MAX:  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidArgument(field, f"name one at least, and at most {PATTERNS_MAX}")
    return list(given)  # pyright: ignore[reportUnknownArgumentType]


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or len(name) > TEXT_MAX or not name.isprintable():
        raise InvalidArgument("name", f"must be text on one line, of at most {TEXT_MAX} characters")
