"""Who keeps a copy of the log elsewhere, and up to when: retention may not overtake them.

An archive is a record in the store for each queue that it copies. Until it is given up, what it has
not copied yet stays, whatever the queue's retention says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from holdfast.model.moves import State
from holdfast.queue.context import Context
from holdfast.queue.records import each_record
from holdfast.stores.contract import View

KIND = "archive"


class Archive(msgspec.Struct, frozen=True):
    """One queue in one archive."""

    queue: str
    lake: str
    """Where the copy is."""
    upto: int
    """Everything that finished before this is in it; 0 when nothing is yet."""
    updated_at: int


_decode = msgspec.json.Decoder(Archive).decode


def list_archives(at: Context) -> list[Archive]:
    """For every queue and lake."""
    return [_decode(record.value) for record in each_record(at.store, KIND)]


def note(at: Context, queue: str, lake: str, upto: int) -> None:
    """Everything of a queue that finished before `upto` is in the lake."""
    now = at.clock.now()
    value = msgspec.json.encode(Archive(queue, lake, upto, now))
    at.store.put_record(KIND, _name(queue, lake), value, None, now)


def give_up(at: Context, lake: str, queues: Iterable[str] | None = None) -> list[str]:
    """Let retention no longer wait for this lake; returns the queues that it waited for."""
    wanted = None if queues is None else set(queues)
    mine = [one for one in list_archives(at) if one.lake == lake]
    gone = [one.queue for one in mine if wanted is None or one.queue in wanted]
    for queue in gone:
        at.store.put_record(KIND, _name(queue, lake), None, None, at.clock.now())
    return gone


def marks(archives: Iterable[Archive]) -> dict[str, int]:
    """By queue: every archive of it has what finished before this. Pure."""
    found: dict[str, int] = {}
    for one in archives:
        found[one.queue] = min(found.get(one.queue, one.upto), one.upto)
    return found


def cut(before: int | None, mark: int | None) -> int | None:
    """Before which time the log may be trimmed: retention's, or the archive's if that is earlier.
    Pure; None is never."""
    if before is None or mark is None:
        return before
    return min(before, mark)


def spare(at: Context, queue: str, mark: int, most: int) -> int:
    """How many of the oldest `most` rows of the log are archived: only these may be dropped where
    the log has too many rows, as the oldest are dropped first."""
    page = at.store.browse(View(queue, State.LOG, until=mark), None, most, at.clock.now())
    return len(page.entries)


def _name(queue: str, lake: str) -> str:
    return f"{queue}/{hashlib.blake2b(lake.encode(), digest_size=8).hexdigest()}"
