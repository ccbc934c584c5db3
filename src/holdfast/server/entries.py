"""One row of a page, and whether somebody who searches wants to see it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model.message import Message
from holdfast.queue.redrive.choosing import DeadFilter, matches
from holdfast.rules.causes import check_fingerprint
from holdfast.stores.contract import Entry
from holdfast.wire import shapes as s


def entry_doc(entry: Entry) -> s.EntryDoc:
    lease = entry.lease
    return s.EntryDoc(
        message=s.MessageDoc.of(entry.message),
        deadline=lease.deadline if lease else None,
        leased_at=lease.leased_at if lease else None,
        owner=lease.owner if lease else None,
        finished=s.FinishedDoc.of(entry.finished) if entry.finished else None,
    )


class Wanted:
    """Whether a message matches all that was asked for."""

    def __init__(self, ask: s.BrowseAsk, now: int) -> None:
        self._now = now
        check_fingerprint("fingerprint", ask.fingerprint)
        self._where = DeadFilter(
            reason=ask.reason,
            code=ask.code,
            key=ask.key,
            type=ask.type,
            headers=dict(_pair("header", text) for text in ask.header),
            fields={path: _value(path, text) for path, text in map(_field_pair, ask.field)},
            fingerprint=ask.fingerprint,
        )
        self._text = None if ask.text is None else ask.text.lower()
        self.all = self._text is None and self._where == DeadFilter()

    def __call__(self, message: Message) -> bool:
        return self.all or (
            matches(self._where, message, self._now)
            and (self._text is None or self._has_text(message, self._text))
        )

    def _has_text(self, message: Message, text: str) -> bool:
        if text in message.body.decode(errors="replace").lower() or text in message.id:
            return True
        said = [f"{name}={value}" for name, value in message.headers.items()]
        said += [f"{error.code} {error.message}" for error in message.errors]
        said += [message.key or "", message.type or ""]
        return any(text in one.lower() for one in said)


def _pair(field: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidArgument(field, f"must be name=value, not {text!r}")
    return name, value


def _field_pair(text: str) -> tuple[str, str]:
    return _pair("field", text)


def _value(path: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise InvalidArgument("field", f"{path}: {text!r} is not JSON; text needs quotes") from None
