"""Who did what: a record of every call that needed the right admin and succeeded.

Records are the store's, so every server of a store tells the same. Their names run backwards in
time: the newest is the first. The newest thousand are kept.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, InvalidArgument, NotFound
from holdfast.model.message import home_of
from holdfast.server.auth import Principal
from holdfast.stores.contract import Event
from holdfast.wire import shapes as s
from holdfast.wire.operations import Operation

KIND = "action"
KEPT = 1000
TRIM_EVERY = 20
DETAIL_MAX = 1000
PAGE = 500
_FAR = 10**15
_MANY = 10**8 - 1

logger = logging.getLogger("holdfast.server")
_decode = msgspec.json.Decoder(s.ActionDoc).decode


class Actions:
    """Does what was asked, and writes down that it was done."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._at = hf.context
        self._written = itertools.count(1)

    def does(
        self, operation: Operation, does: Callable[[Any], Any], who: Principal, ask: Any
    ) -> Any:
        before = self._before(operation, ask)
        answer = does(ask)
        if self._is_news(operation, ask, before, answer):
            try:
                self._write(operation, ask, who, _count(operation, before, answer), answer)
            except HoldfastError as error:  # it was done all the same
                logger.warning("%s of %s is not written down: %s", operation.name, who.name, error)
        return answer

    def _before(self, operation: Operation, ask: Any) -> Any:
        """What tells, afterwards, whether anything is different."""
        match operation.name:
            case "CreateQueue":
                return self._revision(ask.queue)
            case "Bind":
                return self._revision(f"{ask.topic}@{ask.group}")
            case "CreateTopic":
                return self._topic(ask.topic)
            case "DeleteQueue":
                return self._held(ask.queue)
            case _:
                return None

    def _is_news(self, operation: Operation, ask: Any, before: Any, answer: Any) -> bool:
        """Clients make sure that their queues are there whenever they start: that is none."""
        match operation.name:
            case "CreateQueue" | "Bind":
                return answer.revision != before
            case "CreateTopic":
                return before != (answer.log, answer.retention)
            case "Redrive" | "StartRedrive":
                return not ask.dry_run
            case _:
                return True

    def _revision(self, queue: str) -> int | None:
        spec = self._at.spec(queue)
        return None if spec is None else spec.revision

    def _topic(self, name: str) -> Any:
        try:
            stats = self._hf.topic(name, create=False).stats()
        except (InvalidArgument, NotFound):
            return None
        return stats.log, stats.retention

    def _held(self, queue: str) -> int:
        try:
            stats = self._hf.queue(queue, create=False).stats()
        except (InvalidArgument, NotFound):
            return 0
        return stats.lag + stats.dead

    def _write(
        self, operation: Operation, ask: Any, who: Principal, count: int | None, answer: Any
    ) -> None:
        now, number = self._at.clock.now(), next(self._written)
        queue = _queue(ask, answer)
        # Two of one millisecond are told apart by their number, two of two servers by the dice.
        id = f"{_FAR - now:015d}-{_MANY - number % _MANY:08d}-{secrets.token_hex(2)}"
        action = s.ActionDoc(
            id, now, who.name or who.id, who.id, operation.function, queue, count, _detail(ask)
        )
        store = self._at.store
        store.put_record(KIND, id, msgspec.json.encode(action), 0, now)
        told = {"queue": queue, "what": action.what, "who": action.who, "count": count}
        store.publish([Event("action", now, told)])
        if number % TRIM_EVERY == 0:
            for old in store.records(KIND, limit=KEPT + PAGE)[KEPT:]:
                store.put_record(KIND, old.name, None, None, now)

    def list(self, ask: s.ActionsAsk, who: Principal) -> s.ActionsDoc:
        found: list[s.ActionDoc] = []
        after, looked = ask.after or "", 0
        while looked < KEPT + PAGE:
            page = self._at.store.records(KIND, after=after, limit=PAGE)
            for record in page:
                if len(found) == ask.limit:
                    return s.ActionsDoc(found, found[-1].id)
                action = _decode(record.value)
                if who.may("read", action.queue) and _is_of(action, ask.queue):
                    found.append(action)
            if len(page) < PAGE:
                break
            after, looked = page[-1].name, looked + len(page)
        return s.ActionsDoc(found)


def _is_of(action: s.ActionDoc, queue: str | None) -> bool:
    if queue is None:
        return True
    return action.queue is not None and queue in (action.queue, home_of(action.queue))


def _queue(ask: Any, answer: Any) -> str | None:
    """What it was done to. A group is a queue; a redrive that is cancelled tells its own."""
    if isinstance(answer, s.QueueDoc):
        return answer.queue
    for name in ("queue", "topic", "dlq_queue"):
        if found := getattr(ask, name, None):
            return found
    return getattr(answer, "dlq", None)


def _count(operation: Operation, before: Any, answer: Any) -> int | None:
    match operation.name, answer:
        case "DeleteQueue", _:
            return before
        case _, s.CountDoc():
            return answer.count
        case _, s.MessagesDoc():
            return len(answer.messages)
        case "StartRedrive", s.RedriveDoc():
            return None  # its own document tells how far it is
        case _, s.RedrivenDoc() | s.RedriveDoc():
            return answer.redriven
        case _, s.SweptDoc():
            return answer.requeued + answer.dead + answer.completed
        case _:
            return None


def _detail(ask: Any) -> str:
    """What was asked for beside the queue. Payloads are no matter for this page."""
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(ask):
        value = getattr(ask, field.name)
        if field.name in ("queue", "topic", "dlq_queue") or value in (None, UNSET, False, 0):
            continue
        if field.name in ("payload", "merge"):
            value = "edited"
        elif field.name == "ids":
            value = len(value)
        if value != field.default and value != s.PolicyDoc():
            given[field.name] = value
    said = msgspec.json.encode(given).decode() if given else ""
    return said if len(said) <= DETAIL_MAX else said[: DETAIL_MAX - 1] + "…"
