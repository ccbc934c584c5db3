"""Every option of the source and the sink, parsed in one place."""

# pyright: basic

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from holdfast.errors import InvalidArgument, did_you_mean
from holdfast.model import settings
from holdfast.model.message import check_id, check_queue_name

VIEWS = ("ready", "delayed", "leased", "dead", "log")

SOURCE = {
    "url": "the store; HOLDFAST_URL where it is not given",
    "queue": "the queue to read",
    "slices": "pieces that are read in parallel",
    "storeTimeout": "seconds to wait for a store that is away before the query fails",
}
STREAM = {
    **SOURCE,
    "maxMessagesPerTrigger": "messages of one batch at most",
    "onLost": 'what becomes of the batch of a query that is gone: "hold" or "redeliver"',
    "name": "what `holdfast spark queries` calls it",
}
BATCH = {
    **SOURCE,
    "view": f"one of {', '.join(VIEWS)}",
    "since": "only messages enqueued (log: finished) at or after this time",
    "until": "only those before this time",
    "id": "log: only this message",
}
SINK = {
    "url": SOURCE["url"],
    "queue": "the queue to write to",
    "payloadFormat": 'a string payload is a "json" document (default) or plain "text"',
    "writeId": "names a write: repeated under the same name it adds nothing",
    "storeTimeout": SOURCE["storeTimeout"],
}
INTERNAL = ("plan", "path")
"""`plan` is how `run` hands its handlers on; `path` is refused with a hint."""
SPARKS = ("checkpointlocation", "queryname")
"""Options of `writeStream` itself, which Spark hands on to the sink."""

MAX_PER_TRIGGER = 50_000
SLICES = 4
STORE_TIMEOUT_S = 300.0


class Options(msgspec.Struct, frozen=True):
    url: str
    queue: str
    view: str = "ready"
    slices: int = SLICES
    max_per_trigger: int = MAX_PER_TRIGGER
    on_lost: str = "hold"
    name: str = ""
    store_timeout: float = STORE_TIMEOUT_S
    since: int | None = None
    until: int | None = None
    id: str | None = None
    payload_format: str = "json"
    write_id: str | None = None
    plan: str | None = None


def parse(given: Mapping[str, str], known: Mapping[str, str]) -> Options:
    """Options as Spark passes them, names in any case. Raises InvalidArgument naming the option."""
    names = {name.lower(): name for name in (*known, *INTERNAL)}
    found: dict[str, str] = {}
    for name, text in given.items():
        if known is SINK and name.lower() in SPARKS:
            continue
        if name.lower() not in names:
            raise InvalidArgument(f"option {name}", f"no such option; {did_you_mean(name, known)}")
        found[names[name.lower()]] = text
    if found.pop("path", None) is not None:
        raise InvalidArgument("path", 'there is none: use .option("queue", ...).load() or .save()')
    url = found.get("url") or settings.load().url
    if not url:
        raise InvalidArgument("option url", "is needed, or HOLDFAST_URL in the environment")
    if url.startswith("memory:"):
        raise InvalidArgument("option url", "a memory store lives in one process; Spark has many")
    if "queue" not in found:
        raise InvalidArgument("option queue", "is needed")
    return Options(
        url=url,
        queue=check_queue_name(found["queue"], "option queue"),
        view=_one_of("view", found.get("view", "ready"), VIEWS),
        slices=_whole("slices", found.get("slices"), SLICES, 10_000),
        max_per_trigger=_whole(
            "maxMessagesPerTrigger",
            found.get("maxMessagesPerTrigger"),
            MAX_PER_TRIGGER,
            100_000_000,
        ),
        on_lost=_one_of("onLost", found.get("onLost", "hold"), ("hold", "redeliver")),
        name=found.get("name", ""),
        store_timeout=_seconds("storeTimeout", found.get("storeTimeout"), STORE_TIMEOUT_S),
        since=_time("since", found.get("since")),
        until=_time("until", found.get("until")),
        id=_id(found.get("id")),
        payload_format=_one_of(
            "payloadFormat", found.get("payloadFormat", "json"), ("json", "text")
        ),
        write_id=found.get("writeId"),
        plan=found.get("plan"),
    )


def _one_of(name: str, text: str, known: tuple[str, ...]) -> str:
    if text.lower() not in known:
        raise InvalidArgument(f"option {name}", f"{text!r}: {did_you_mean(text, known)}")
    return text.lower()


def _whole(name: str, text: str | None, default: int, high: int) -> int:
    if text is None:
        return default
    plain = text.replace("_", "")
    if not plain.isdecimal() or not 1 <= int(plain) <= high:
        raise InvalidArgument(f"option {name}", f"must be 1 to {high}, not {text!r}")
    return int(plain)


def _seconds(name: str, text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:
        raise InvalidArgument(f"option {name}", f"must be 0 to 86400 seconds, not {text!r}")
    return value


def _id(text: str | None) -> str | None:
    try:
        return None if text is None else check_id(text)
    except InvalidArgument as error:
        raise InvalidArgument("option id", error.problem) from None


def _time(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"option {name}", f"must be a time like 2026-05-01T12:00:00Z, not {text!r}"
        ) from None
    return to_ms(at)


def to_ms(at: datetime) -> int:
    """Spark's own times come without a zone, in UTC (see `session`)."""
    whole = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(whole.timestamp() * 1000)
