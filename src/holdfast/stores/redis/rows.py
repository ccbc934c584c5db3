"""Messages to bytes and back. The hot path of every batch: nothing is decoded needlessly."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.model.message import NO_HISTORY, Finished, Lease, Message, Status, is_dlq
from holdfast.model.payload import JSON
from holdfast.stores import damage
from holdfast.stores.contract import LeaseAsk
from holdfast.stores.rows import write_history

Row = tuple[
    int, int, str | None, str | None, str | None, dict[str, str] | None, int, int,
    float | None, int | None, dict[str, Any] | None, bytes,
]  # fmt: skip

_encode = msgspec.msgpack.Encoder().encode
_decode = cast(Any, msgspec.msgpack.Decoder(Row)).decode


def own_timeout(message: Message) -> int | None:
    return None if message.ack_timeout is None else round(message.ack_timeout * 1000)


ID = 36


def write_message(m: Message, now: int, since: int | None = None) -> tuple[str, str, bytes]:
    """Its id, where it goes and its body, as enqueue.lua takes them. What scripts may need stands
    before the "|", the rest means nothing to them. `since`: held as well if it finished then, or
    later."""
    id = m.id if since is None else f"{m.id} {since}"
    timeout = own_timeout(m)
    dead = is_dlq(m.queue)
    lane = 0 if dead else m.priority
    blob = write_body(m, lane, timeout)
    history = write_history(m.history)
    new = not m.attempts and m.first_leased_at is None and history is None
    if new and m.available_at <= now and not dead:
        head = f"F{m.partition}.{lane}" if timeout is None else f"F{m.partition}.{lane} {timeout}"
        return id, head, blob
    return id, _waiting(m, lane, timeout, history), blob


def write_moved(m: Message, lane: int) -> tuple[str, str, bytes]:
    """The same of one that comes from elsewhere, with all that happened to it there."""
    timeout = own_timeout(m)
    head = _waiting(m, lane, timeout, write_history(m.history))
    return m.id, head, write_body(m, lane, timeout)


def _waiting(m: Message, lane: int, timeout: int | None, history: str | None) -> str:
    first = "-" if m.first_leased_at is None else m.first_leased_at
    return (
        f"W {int(is_dlq(m.queue))} {m.partition} {lane} {m.available_at} {m.attempts} {first} "
        f"{'-' if timeout is None else timeout} {history or ''}"
    )


def write_body(m: Message, lane: int, timeout: int | None) -> bytes:
    own = "" if timeout is None else f".{timeout}"
    row = (
        m.partition,
        m.priority,
        m.key,
        m.type,
        None if m.content_type == JSON else m.content_type,
        m.headers or None,
        m.enqueued_at,
        m.available_at,
        m.ack_timeout,
        m.max_attempts,
        None if m.backoff is None else m.backoff.to_dict(),
        m.body,
    )
    return b"%d.%d.%d%b.%d|%b" % (
        m.partition, lane, m.available_at, own.encode(), m.enqueued_at, _encode(row),
    )  # fmt: skip


def write_finished(row: Finished) -> tuple[str, tuple[int, str, bytes, str], bytes]:
    """Its id, what restore.lua takes of it, and its body."""
    m = row.message
    first, leased = ("-" if at is None else at for at in (row.first_leased_at, row.last_leased_at))
    tail = (
        f" {m.attempts} {m.available_at} {first} {leased} {row.status} ack - {row.consumer or ''}"
    )
    result = b"" if row.result is None else b"=" + msgspec.json.encode(row.result)
    rest = (row.finished_at, tail, result, write_history(m.history) or "")
    return m.id, rest, write_body(m, 0 if is_dlq(m.queue) else m.priority, own_timeout(m))


def read_message(
    blob: bytes,
    id: str,
    queue: str,
    attempts: int = 0,
    first: int | None = None,
    available: int | None = None,
    history: bytes | None = None,
) -> Message:
    past = damage.read_history(history, queue, id) if history else NO_HISTORY
    try:
        (
            partition, priority, key, type, content_type, headers, enqueued_at, available_at,
            ack_timeout, max_attempts, backoff, body,
        ) = _decode(memoryview(blob)[blob.index(b"|") + 1 :])  # fmt: skip
    except (msgspec.DecodeError, ValueError, TypeError, AttributeError) as error:
        # What the other keys say of the message, and the bytes.
        message = damage.stand_in(queue, id, bytes(blob), str(error))
        return msgspec.structs.replace(
            message,
            attempts=attempts,
            first_leased_at=first,
            available_at=available or 0,
            history=msgspec.structs.replace(past, errors=(*past.errors, *message.errors)),
        )
    policy = damage.read_backoff(backoff, queue, id) if backoff is not None else None
    message = Message(
        id, queue, partition, priority, key, type, body, content_type or JSON, headers or {},
        enqueued_at, available_at if available is None else available, attempts, ack_timeout,
        max_attempts, policy, first, past,
    )  # fmt: skip
    sound = (ack_timeout is None or damage.is_timeout(ack_timeout)) and (
        max_attempts is None or damage.is_attempts(max_attempts)
    )
    return message if sound else damage.mended(message, "its time-out or its attempts")


class RowState(msgspec.Struct, frozen=True, gc=False):
    """What the hash x says of a message; see lua/include/rows.lua."""

    state: str
    dead: bool = False
    place: int | None = None
    """None: where it was enqueued."""
    attempts: int = 0
    available: int | None = None
    first: int | None = None
    token: str = "-"


UNTOUCHED = RowState("S")


def read_where(text: bytes | None) -> RowState:
    if text is None:
        return UNTOUCHED
    if text[:1].isdigit():
        return RowState("F", attempts=1, token=text.decode())
    try:
        state, flag, _, _, _, place, n, available, first, _, _, token, _ = text.decode().split(" ")
        leased = None if first == "-" else int(first)
        return RowState(state, flag == "1", int(place), int(n), int(available), leased, token)
    except ValueError as error:
        raise StoreCorrupt(f"{text!r} was not written by Holdfast") from error


class Held(NamedTuple):
    """What read.lua tells of a message, waiting or leased."""

    id: bytes
    first: bytes | None
    second: bytes | None
    """By these two numbers it is ordered; of a lease the first is its deadline."""
    state: bytes | None
    history: bytes | None
    call: bytes | None
    """The note of the lease call that holds it."""
    blob: bytes | None

    @property
    def cursor(self) -> tuple[int, int]:
        return int(float(self.first or 0)), int(self.second or 0)

    @property
    def where(self) -> RowState:
        return read_where(self.state)

    def message(self, queue: str) -> Message:
        where, id = self.where, self.id.decode()
        first = where.first
        if where.state == "F" and self.call is not None:
            first = _call(self.call, id, queue)[0]
        return read_message(
            self.blob or b"", id, queue, where.attempts, first, where.available, self.history
        )

    def lease(self, queue: str) -> Lease:
        message = self.message(queue)
        at, owner = (0, "") if self.call is None else _call(self.call, message.id, queue)
        return Lease(message, self.where.token, self.cursor[0], at, owner)


def _call(stored: bytes, id: str, queue: str) -> tuple[int, str]:
    """When a lease call was, and whose; see lease.lua."""
    try:
        at, _, owner = stored.split(b" ", 2)
        return int(at), owner.decode()
    except ValueError:
        damage.note(queue, id, "the call that leased it")
        return 0, ""


def take_lease(
    blob: bytes, id: str, token: str, ask: LeaseAsk, now: int, extra: tuple[bytes, bytes] | None
) -> Lease:
    """One that was leased just now; `extra` is where it is, and its history, if it came again."""
    if extra is None:
        message = read_message(blob, id, ask.queue, 1, now)
    else:
        where = read_where(extra[0])
        message = read_message(
            blob, id, ask.queue, where.attempts, where.first, where.available, extra[1] or None
        )
    own = own_timeout(message)
    return Lease(message, token, now + (ask.timeout_ms if own is None else own), now, ask.owner)


def seq_in_log(row: bytes) -> int:
    return int(row.split(b" ", 4)[3])


def read_finished(ms: int, id: bytes, row: bytes, queue: str) -> tuple[int, Finished]:
    """A row of the log: the seq of its message, and how it ended."""
    try:
        lengths = row.split(b" ", 3)
        start, parts = len(row) - len(lengths[3]), list[bytes]()
        for length in map(int, lengths[:3]):
            parts.append(row[start : start + length])
            start += length
        line, result, history = parts
        seq, attempts, available, first, leased, status, _verb, _rest, owner = line.decode().split(
            " ", 8
        )
        message = read_message(
            row[start:],
            id.decode(),
            queue,
            int(attempts),
            None if first == "-" else int(first),
            None if available == "-" else int(available),
            history or None,
        )
        return int(seq), Finished(
            message,
            cast(Status, status),
            ms,
            message.first_leased_at,
            None if leased == "-" else int(leased),
            None if leased == "-" else owner,
            damage.read_result(result[1:], queue, message.id) if result else None,
        )
    except (ValueError, IndexError, msgspec.DecodeError) as error:
        name = id.decode(errors="replace")
        message = damage.stand_in(queue, name, row, f"its row in the log: {error}")
        return 0, Finished(message, "COMPLETED_WITH_ERRORS", ms, None, None, None, None)


@lru_cache(maxsize=1000)
def quoted(name: str) -> str:
    """Names of batches: without spaces, in the order of nothing."""
    return quote(name, safe="")
