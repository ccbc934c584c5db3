"""Pages, details and holders: what operators look at. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.errors import InvalidArgument, MessageNotFound
from holdfast.message import Finished, Lease, Message, dlq_of, is_dlq
from holdfast.queue import Queue
from holdfast.redrive.choosing import DeadFilter, matches
from holdfast.store import Entry, State, View
from holdfast.wire import shapes as s

STEP = 500
LOOK_MAX = 5000
"""Messages that one page looks at, when filters let few of them through."""
HOLDERS_MAX = 10_000


def page(queue: Queue, ask: s.BrowseAsk) -> s.PageDoc:
    """Up to `limit` that match. A page that looked at LOOK_MAX ends there, and says where."""
    store, now = queue.context.store, queue.context.clock.now()
    wanted = _Wanted(ask, now)
    view = View(queue.name, State(ask.state), ask.since, ask.until)
    found: list[s.EntryDoc] = []
    after, looked = ask.after, 0
    while True:
        left = ask.limit - len(found)
        rows = store.browse(view, after, left if wanted.all else min(STEP, left * 4), now)
        for n, entry in enumerate(rows.entries):
            looked += 1
            if wanted(entry.message):
                found.append(entry_doc(entry))
            if len(found) == ask.limit and n + 1 < len(rows.entries):
                # the rest of the step is looked at again: step back to here
                rows = store.browse(view, after, n + 1, now)
                break
        after = rows.after
        if after is None or len(found) >= ask.limit or looked >= LOOK_MAX:
            return s.PageDoc(found, after, looked, now)


def entry_doc(entry: Entry) -> s.EntryDoc:
    lease = entry.lease
    return s.EntryDoc(
        message=s.MessageDoc.of(entry.message),
        deadline=lease.deadline if lease else None,
        leased_at=lease.leased_at if lease else None,
        owner=lease.owner if lease else None,
        finished=s.FinishedDoc.of(entry.finished) if entry.finished else None,
    )


class _Wanted:
    """Whether a message matches all that was asked for."""

    def __init__(self, ask: s.BrowseAsk, now: int) -> None:
        self._now = now
        self._where = DeadFilter(
            reason=ask.reason,
            code=ask.code,
            key=ask.key,
            type=ask.type,
            headers=dict(_pair("header", text) for text in ask.header),
            fields={path: _value(path, text) for path, text in map(_field_pair, ask.field)},
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


def detail(queue: Queue, id: str) -> s.DetailDoc:
    """One message of a queue, of its dead letters or of its log."""
    now = queue.context.clock.now()
    message = next(iter(queue.context.store.get(queue.name, [id])), None)
    if message is None:
        return _of_log(queue, id, now)
    lease = _lease(queue, message, now)
    return s.DetailDoc(
        message=s.MessageDoc.of(message),
        state=_state(message, lease, now),
        deadline=lease.deadline if lease else None,
        owner=lease.owner if lease else None,
        timeline=sorted(_moments(message, lease, None), key=lambda moment: moment.at),
        now=now,
    )


def _of_log(queue: Queue, id: str, now: int) -> s.DetailDoc:
    for name in dict.fromkeys([queue.name, dlq_of(queue.name)]):
        if queue.context.store.get_queue(name) is None:
            continue
        view = View(name, State.LOG, id=id)
        for entry in queue.context.store.browse(view, None, 1, now).entries:
            done = entry.finished
            return s.DetailDoc(
                message=s.MessageDoc.of(entry.message),
                state="done",
                finished=s.FinishedDoc.of(done) if done else None,
                timeline=sorted(_moments(entry.message, None, done), key=lambda m: m.at),
                now=now,
            )
    raise MessageNotFound(f"{queue.name} holds no message {id}")


def _state(message: Message, lease: Lease | None, now: int) -> str:
    if lease is not None:
        return "leased"
    if is_dlq(message.queue):
        return "dead"
    return "delayed" if message.available_at > now else "ready"


def _lease(queue: Queue, message: Message, now: int) -> Lease | None:
    """Who holds it. Leases are found by walking those of the queue, as far as that is sensible."""
    looked = 0
    after: str | None = None
    while looked < HOLDERS_MAX:
        view = View(message.queue, State.LEASED)
        rows = queue.context.store.browse(view, after, STEP, now)
        for entry in rows.entries:
            if entry.message.id == message.id:
                return entry.lease
        looked += len(rows.entries)
        after = rows.after
        if after is None:
            return None
    return None


def _moments(message: Message, lease: Lease | None, done: Finished | None) -> Iterator[s.MomentDoc]:
    yield s.MomentDoc(message.enqueued_at, "enqueued", detail=message.origin and "replayed")
    if message.first_leased_at is not None:
        yield s.MomentDoc(message.first_leased_at, "first leased", attempt=1)
    for error in message.errors:
        yield s.MomentDoc(
            error.at, "failed", error.consumer, error.attempt, f"{error.code}: {error.message}"
        )
    if message.dead_at is not None:
        yield s.MomentDoc(message.dead_at, "dead", detail=message.reason)
    if lease is not None:
        yield s.MomentDoc(lease.leased_at, "leased", lease.owner, message.attempts)
    if done is not None:
        if done.last_leased_at is not None:
            yield s.MomentDoc(done.last_leased_at, "leased", done.consumer, message.attempts)
        yield s.MomentDoc(done.finished_at, "finished", done.consumer, detail=done.status)


def who_holds(queue: Queue) -> s.ConsumersDoc:
    """Everybody who holds a message of the queue, or owns a partition of it."""
    store, now = queue.context.store, queue.context.clock.now()
    leases: dict[str, list[Lease]] = {}
    after: str | None = None
    looked = 0
    while looked < HOLDERS_MAX:
        rows = store.browse(View(queue.name, State.LEASED), after, STEP, now)
        for entry in rows.entries:
            if entry.lease is not None:
                leases.setdefault(entry.lease.owner, []).append(entry.lease)
        looked += len(rows.entries)
        after = rows.after
        if after is None:
            break
    owned: dict[str, list[int]] = {}
    for part in queue.partitions():
        if part.owner is not None:
            owned.setdefault(part.owner, []).append(part.partition)
    names = sorted({*leases, *owned})
    return s.ConsumersDoc(
        [_holder(name, leases.get(name, []), owned.get(name, [])) for name in names], looked, now
    )


def _holder(name: str, leases: list[Lease], partitions: list[int]) -> s.ConsumerDoc:
    return s.ConsumerDoc(
        name,
        len(leases),
        min((lease.leased_at for lease in leases), default=None),
        min((lease.deadline for lease in leases), default=None),
        partitions,
    )
