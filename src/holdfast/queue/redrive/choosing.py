"""Which dead letters a redrive takes, how fast, and what it makes of them. Pure: no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.errors import InvalidArgument, did_you_mean, shown
from holdfast.model import payload as payloads
from holdfast.model.message import Message, check_id
from holdfast.model.policy import seconds, whole
from holdfast.rules.causes import check_fingerprint, fingerprint_of
from holdfast.rules.lifecycle import ms

IDS_MAX = 10_000
CHOICE_MAX = 64 * 1024
"""Bytes of the values that a filter compares with, as JSON."""
RATE_MAX = 1_000_000.0
STEP_S = 0.1
"""With a rate, messages go in steps of about this much time: evenly, and not one by one."""


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Takes the dead letters of which everything holds that is given here."""

    reason: str | None = None
    """Why it is dead: "failed", "max attempts exceeded", ..."""
    code: str | None = None
    """The code of its last error."""
    key: str | None = None
    type: str | None = None
    older_than: float | None = None
    """It died so many seconds ago, or longer."""
    newer_than: float | None = None
    """It died less than so many seconds ago."""
    headers: dict[str, str] = {}
    """It has each of these headers, with this value."""
    fields: dict[str, Any] = {}
    """In its JSON payload there is this value at this dotted path: {"customer.id": 7}."""
    fingerprint: str | None = None
    """It died of the cause that has this fingerprint (see queue/failures.py)."""

    def __post_init__(self) -> None:
        for field in ("reason", "code", "key", "type", "fingerprint"):
            _text(f"where.{field}", getattr(self, field))
        check_fingerprint("where.fingerprint", self.fingerprint)
        seconds("where.older_than", self.older_than)
        seconds("where.newer_than", self.newer_than)
        for name, value in _mapping("where.headers", self.headers).items():
            _text(f"where.headers.{name}", value)
        _json("where.fields", _mapping("where.fields", self.fields))

    @classmethod
    def of(cls, **fields: Any) -> DeadFilter:
        """A filter from keywords, refusing an unknown one with the near one suggested."""
        return cls(**_known("where", fields, cls.__struct_fields__))


class Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new payload, as a value that can be sent and stored. One of:"""

    payload: Any | UnsetType = UNSET
    """This JSON value instead."""
    merge: dict[str, Any] | UnsetType = UNSET
    """A JSON merge patch (RFC 7396) on a JSON payload: null takes a field away."""

    def __post_init__(self) -> None:
        if (self.payload is UNSET) == (self.merge is UNSET):
            raise InvalidArgument("edit", "give payload or merge: one of them")
        if self.merge is not UNSET:
            _mapping("edit.merge", self.merge)
        _json("edit", self.payload if self.merge is UNSET else self.merge, math.inf)

    @classmethod
    def of(cls, **fields: Any) -> Edit:
        return cls(**_known("edit", fields, cls.__struct_fields__))

    def __call__(self, message: Message) -> Any:
        if self.merge is UNSET:
            return msgspec.json.encode(self.payload)
        if message.content_type != payloads.JSON:
            raise InvalidArgument("merge", f"its payload is {message.content_type}, not JSON")
        try:
            return msgspec.json.encode(merged(message.payload, self.merge))
        except RecursionError:
            raise InvalidArgument("merge", "is nested too deeply") from None


Editor = Callable[[Message], Any]
"""Says the new payload of a message; None leaves it as it is."""


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked of a redrive, checked."""

    count: int = 0
    ids: tuple[str, ...] | None = None
    where: DeadFilter | None = None
    rate: float | None = None
    to: str | None = None
    edit: Edit | None = None
    dry_run: bool = False


def checked(
    count: Any = 0,
    *,
    ids: Any = None,
    where: Any = None,
    rate: Any = None,
    to: Any = None,
    edit: Any = None,
    dry_run: Any = False,
) -> tuple[Options, Editor | None]:
    """The options of a redrive, and what edits: a function cannot be stored with them."""
    whole("count", count, low=0)
    if rate is not None:
        _rate(rate)
    if isinstance(where, Mapping):
        where = DeadFilter.of(**_named("where", cast("Mapping[Any, Any]", where)))
    if where is not None and not isinstance(where, DeadFilter):
        raise InvalidArgument("where", f"must be a DeadFilter, not {shown(where)}")
    if isinstance(edit, Mapping):
        edit = Edit.of(**_named("edit", cast("Mapping[Any, Any]", edit)))
    if edit is not None and not callable(edit):
        raise InvalidArgument("edit", f"must be an Edit or a function, not {shown(edit)}")
    options = Options(
        count=count or 0,
        ids=None if ids is None else _ids(ids),
        where=where,
        rate=rate,
        to=to,
        edit=edit if isinstance(edit, Edit) else None,
        dry_run=bool(dry_run),
    )
    return options, cast("Editor | None", edit)


def matches(where: DeadFilter, message: Message, now: int) -> bool:
    """Whether a filter takes a dead letter. `now` is when the redrive began."""
    last = message.errors[-1] if message.errors else None
    return (
        _is(where.reason, message.reason)
        and _is(where.code, last and last.code)
        and _is(where.key, message.key)
        and _is(where.type, message.type)
        and _died_between(where, message.dead_at, now)
        and all(message.headers.get(name) == value for name, value in where.headers.items())
        and (not where.fields or _has_fields(where.fields, message))
        and (where.fingerprint is None or where.fingerprint == fingerprint_of(message))
    )


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result: dict[str, Any] = {**target} if isinstance(target, dict) else {}
    for name, value in cast("dict[str, Any]", patch).items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def edited(edit: Editor, message: Message, limit: int) -> tuple[bytes, str] | None:
    """The new body and content type of a message; None when it stays as it is.

    Bytes keep the content type that the message has, and so does text that replaces text.
    """
    new = edit(message)
    if new is None:
        return None
    if isinstance(edit, Edit):
        return payloads.encode(new, payloads.JSON, limit)
    is_text = isinstance(new, str) and message.content_type.startswith("text/")
    keeps = is_text or isinstance(new, bytes | bytearray)
    return payloads.encode(new, message.content_type if keeps else None, limit)


def step(rate: float | None, most: int) -> int:
    """How many messages to move at once so as to keep to a rate evenly."""
    return most if rate is None else max(1, min(most, int(rate * STEP_S)))


def due(last: float, now: float, moved: int, rate: float | None) -> float:
    """When the next may be moved, after `moved` went at `now`. Time that was lost stays lost: who
    was held up does not hurry afterwards, so no stretch of time sees more than its rate."""
    return now if rate is None else max(last, now) + moved / rate


def _died_between(where: DeadFilter, dead_at: int | None, now: int) -> bool:
    if where.older_than is None and where.newer_than is None:
        return True
    if dead_at is None:
        return False  # put there by hand: nobody knows
    old = where.older_than is None or dead_at <= now - ms(where.older_than)
    return old and (where.newer_than is None or dead_at > now - ms(where.newer_than))


def _is(wanted: str | None, value: str | None) -> bool:
    return wanted is None or wanted == value


def _has_fields(fields: dict[str, Any], message: Message) -> bool:
    if message.content_type != payloads.JSON:
        return False
    try:
        payload = message.payload
        return all(_same(_at(payload, path), value) for path, value in fields.items())
    except (ValueError, msgspec.MsgspecError):
        return False  # stored by somebody else as JSON, and is none
    except RecursionError:
        return False  # nested more deeply than anything that can be asked for


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(name, UNSET)
        elif isinstance(value, list) and name.isdecimal():
            items = cast("list[Any]", value)
            value = items[int(name)] if int(name) < len(items) else UNSET
        else:
            return UNSET
    return value


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: unlike Python's, its true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        a, b = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(one, list) and isinstance(other, list | tuple):
        items = cast("list[Any]", one), cast("Sequence[Any]", other)
        return len(items[0]) == len(items[1]) and all(map(_same, *items))
    return one == other


def _ids(ids: Any) -> tuple[str, ...]:
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__iter__"):
        raise InvalidArgument("ids", f"must be a list of ids, not {shown(cast(object, ids))}")
    found = tuple(dict.fromkeys(check_id(id) for id in ids))
    if len(found) > IDS_MAX:
        raise InvalidArgument("ids", f"{len(found)} ids; the limit is {IDS_MAX}")
    return found


def _rate(rate: Any) -> None:
    number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not number or not 0 < rate <= RATE_MAX:
        raise InvalidArgument("rate", f"must be more than 0 messages a second, not {shown(rate)}")


def _text(field: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(field, f"must be text, not {shown(value)}")


def _mapping(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(field, f"must be a mapping, not {shown(value)}")
    return cast("dict[str, Any]", value)


def _json(field: str, value: Any, limit: float = CHOICE_MAX) -> None:
    try:
        payloads.encode(value, payloads.JSON, cast("int", limit))
    except InvalidArgument as error:
        raise InvalidArgument(field, error.problem) from error


def _named(field: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    for name in given:
        if not isinstance(name, str):
            raise InvalidArgument(field, f"a field's name must be text, not {shown(name)}")
    return dict(given)


def _known(field: str, given: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    for name in given:
        if name not in known:
            raise InvalidArgument(f"{field}.{name}", f"no such field; {did_you_mean(name, known)}")
    return given
