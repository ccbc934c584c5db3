"""Messages to documents and back. On the hot path of every batch."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from bson import Timestamp

from holdfast.errors import StoreCorrupt
from holdfast.model.message import (
    NO_HISTORY,
    PRIORITY_MAX,
    Finished,
    Lease,
    Message,
    Status,
    is_dlq,
)
from holdfast.model.payload import JSON
from holdfast.stores import damage
from holdfast.stores.contract import LeaseAsk
from holdfast.stores.mongo.layout import DELAYED, READY, Doc
from holdfast.stores.rows import encode_json, write_history

ID = 36
TOKEN_TAIL = 12
TICK = Timestamp(0, 0)
"""In a new document the server writes its own next tick in place of this: unique, and growing."""


class Row(msgspec.Struct, gc=False):
    """What makes a message of a document; anything of another type is nonsense."""

    key: str = msgspec.field(name="_id")
    pt: int
    pr: int
    ea: int
    av: int
    at: int
    bd: bytes
    ky: str | None = None
    ty: str | None = None
    ct: str | None = None
    hd: str | None = None
    to: float | None = None
    mx: int | None = None
    bo: str | None = None
    hi: str | None = None
    fl: int | None = None


class Held(msgspec.Struct, gc=False):
    tk: str
    dl: int
    la: int
    ow: str


NONSENSE = (msgspec.ValidationError, msgspec.DecodeError, TypeError, ValueError)
BYTES = (bytes,)
"""Else text in place of a body would be taken for base64."""


def key_of(home: int, id: str) -> str:
    return f"{home}/{id}"


def id_of(key: str) -> str:
    """The message's id in the key of its document, or of one of its rows in the log."""
    id, _, _ = key.partition("/")[2].partition("/")
    if len(id) != ID:
        raise ValueError("its _id is not a home and an id")
    return id


def q_of(key: str) -> int:
    """The number of the queue in the key of a log row."""
    return int(key.partition("/")[0])


def number(tick: Timestamp) -> int:
    return tick.time << 32 | tick.inc


def position(doc: Doc, first: str, second: str) -> tuple[int, int]:
    """Where it stands in an order of two fields, as a cursor says it."""
    at, tick = doc.get(first), doc.get(second)
    if not isinstance(at, int) or not isinstance(tick, Timestamp):
        raise StoreCorrupt(f"{doc.get('_id')} has no place in line")
    return int(at), number(tick)


def tick(number: int) -> Timestamp:
    number = max(0, min(number, 2**64 - 1))
    return Timestamp(number >> 32, number & 0xFFFFFFFF)


def token_of(base: str, id: str) -> str:
    """A lease call's token makes one for each message."""
    return f"{base}.{id[-TOKEN_TAIL:]}"


def base_of(token: str, id: str) -> str:
    """The lease call's; one that no call has if the token is not this message's."""
    base, _, tail = token.rpartition(".")
    return base if tail == id[-TOKEN_TAIL:] else ""


def write_message(message: Message, home: int, q: int, now: int) -> Doc:
    lane = 0 if is_dlq(message.queue) else message.priority
    doc: Doc = {
        "_id": f"{home}/{message.id}",
        "q": q,
        "st": READY if message.available_at <= now else DELAYED,
        "pt": message.partition,
        "rk": PRIORITY_MAX - lane,
        "pl": TICK,
        "sq": TICK,
        "pr": message.priority,
        "ea": message.enqueued_at,
        "av": message.available_at,
        "at": message.attempts,
        "bd": message.body,
    }
    if message.key is not None:
        doc["ky"] = message.key
    if message.type is not None:
        doc["ty"] = message.type
    if message.content_type != JSON:
        doc["ct"] = message.content_type
    if message.headers:
        doc["hd"] = encode_json(message.headers)
    if message.ack_timeout is not None:
        doc["to"] = message.ack_timeout
    if message.max_attempts is not None:
        doc["mx"] = message.max_attempts
    if message.backoff is not None:
        doc["bo"] = encode_json(message.backoff.to_dict())
    if message.first_leased_at is not None:
        doc["fl"] = message.first_leased_at
    history = write_history(message.history)
    if history is not None:
        doc["hi"] = history
    return doc


def read_message(doc: Doc, queue: str, leasing_at: int | None = None) -> Message:
    """One that is being leased right now has one attempt more, and this as its first lease if
    there was none before."""
    try:
        row = msgspec.convert(doc, Row, builtin_types=BYTES)
        id = id_of(row.key)
        attempts, first, timeout = row.at, row.fl, row.to
        if timeout is not None and not damage.is_timeout(timeout):
            damage.note(queue, id, f"its time-out: {timeout}")
            timeout = None
        if leasing_at is not None:
            attempts += 1
            first = first or leasing_at
        return Message(
            id,
            queue,
            row.pt,
            row.pr,
            row.ky,
            row.ty,
            row.bd,
            row.ct or JSON,
            damage.read_headers(row.hd, queue, id) if row.hd else {},
            row.ea,
            row.av,
            attempts,
            timeout,
            row.mx,
            damage.read_backoff(row.bo, queue, id) if row.bo else None,
            first,
            damage.read_history(row.hi, queue, id) if row.hi else NO_HISTORY,
        )
    except NONSENSE as error:
        raise StoreCorrupt(
            f"{queue}: {doc.get('_id')} is not as Holdfast wrote it: {error}"
        ) from error


def take_lease(doc: Doc, ask: LeaseAsk, now: int) -> Lease:
    message = read_message(doc, ask.queue, now)
    own = message.ack_timeout
    deadline = now + (ask.timeout_ms if own is None else round(own * 1000))
    return Lease(message, token_of(ask.token, message.id), deadline, now, ask.owner)


def read_lease(doc: Doc, queue: str) -> Lease:
    message = read_message(doc, queue)
    try:
        held = msgspec.convert(doc, Held)
    except NONSENSE as error:
        raise StoreCorrupt(
            f"{queue}: {doc.get('_id')} is not as Holdfast wrote it: {error}"
        ) from error
    return Lease(message, token_of(held.tk, message.id), held.dl, held.la, held.ow)


LOGGED = (
    "q", "pt", "sq", "pr", "ky", "ty", "ct", "hd", "bd", "ea", "av", "at", "to", "mx", "bo", "hi",
    "fl", "tk", "la", "ow", "er",
)  # fmt: skip
"""What goes from a message into its log row."""


def write_log(doc: Doc, now: int, status: str, verb: str, wall_ms: int) -> Doc:
    row = {name: doc[name] for name in LOGGED if name in doc}
    row["_id"] = log_key(doc["q"], doc["_id"][-ID:])
    row["fa"] = now
    row["ss"] = status
    row["vb"] = verb
    row["on"] = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return row


def write_finished(row: Finished, home: int, q: int, now: int) -> Doc:
    """One that finished elsewhere, as this log has it."""
    doc = write_message(row.message, home, q, now)
    if row.last_leased_at is not None:
        doc["la"] = row.last_leased_at
    if row.consumer is not None:
        doc["ow"] = row.consumer
    made = write_log(doc, row.finished_at, row.status, "ack", row.finished_at)
    if row.result is not None:
        made["rs"] = msgspec.json.encode(row.result)
    return made


def log_key(q: int, id: str, again: str | int | None = None) -> str:
    """An id that finishes more than once has a row for each time. The first has the plain key; the
    others say which end it is: the token of the lease that ended, or, of rows that finished
    elsewhere, the time."""
    return f"{q}/{id}" if again is None else f"{q}/{id}/{again}"


def all_of(q: int, id: str) -> Doc:
    """The keys of all rows of an id; "0" follows "/"."""
    return {"$gte": log_key(q, id), "$lt": f"{log_key(q, id)}0"}


def logged_again(row: Doc) -> Doc:
    """A log row for an id that has one already."""
    return {**row, "_id": f"{row['_id']}/{row.get('tk', row['fa'])}"}


class Ended(msgspec.Struct, gc=False):
    ss: Status
    fa: int
    la: int | None = None
    ow: str | None = None
    rs: bytes | None = None


def read_finished(doc: Doc, queue: str) -> Finished:
    message = read_message(doc, queue)
    try:
        row = msgspec.convert(doc, Ended, builtin_types=BYTES)
        result = None if row.rs is None else damage.read_result(row.rs, queue, message.id)
    except NONSENSE as error:
        raise StoreCorrupt(
            f"{queue}: {doc.get('_id')} is not as Holdfast wrote it: {error}"
        ) from error
    return Finished(message, row.ss, row.fa, message.first_leased_at, row.la, row.ow, result)
