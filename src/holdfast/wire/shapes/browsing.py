"""Looking at messages and at the log, and replaying it."""

from __future__ import annotations

from typing import Annotated

from holdfast.wire.shapes.base import Ask, Cursor, Doc, Id, Limit, Name, State, Time, says
from holdfast.wire.shapes.messages import FinishedDoc, MessageDoc


class BrowseAsk(Ask, frozen=True):
    """A page of messages that match all that is given. `after` of the answer goes on from there,
    also when a page is short: a page looks at so many messages at most."""

    queue: Name
    state: State = "ready"
    after: Cursor = None
    limit: Limit = 100
    since: Time | None = None
    until: Time | None = None
    key: str | None = None
    type: str | None = None
    text: Annotated[str | None, says("In the payload, headers or errors.")] = None
    code: Annotated[str | None, says("Of the last error.")] = None
    reason: Annotated[str | None, says("Of a dead letter.")] = None
    header: Annotated[list[str], says("name=value, each must be there.")] = []
    field: Annotated[list[str], says("path=JSON value, in a JSON payload.")] = []
    id: Annotated[str | None, says("Only this one, found at once.")] = None
    fingerprint: Annotated[str | None, says("Dead letters of this failure group.")] = None
    newest: Annotated[bool, says("log: the last finished first.")] = False


class EntryDoc(Doc, frozen=True):
    message: MessageDoc
    token: Annotated[str | None, says("Never shown.")] = None
    deadline: Time | None = None
    leased_at: Time | None = None
    owner: str | None = None
    finished: FinishedDoc | None = None


class PageDoc(Doc, frozen=True):
    entries: list[EntryDoc]
    after: Cursor = None
    looked: int = 0
    now: Annotated[int, says("The store's time, for countdowns.")] = 0


class MessageAsk(Ask, frozen=True):
    queue: Name
    id: Id


class MomentDoc(Doc, frozen=True):
    """One step in the life of a message."""

    at: Time
    what: str
    consumer: str | None = None
    attempt: int | None = None
    detail: str | None = None
    traceback: str | None = None


class DetailDoc(Doc, frozen=True):
    message: MessageDoc
    state: Annotated[str, says("ready, delayed, leased, dead or done.")]
    deadline: Time | None = None
    owner: str | None = None
    finished: FinishedDoc | None = None
    timeline: list[MomentDoc] = []
    now: Annotated[int, says("The store's time, for countdowns.")] = 0


class LogAsk(Ask, frozen=True):
    queue: Name
    after: Cursor = None
    limit: Limit = 100
    since: Time | None = None
    until: Time | None = None


class LogDoc(Doc, frozen=True):
    finished: list[FinishedDoc]
    after: Cursor = None


class ReplayAsk(Ask, frozen=True):
    queue: Name
    id: Annotated[str | None, says("One message; or a range:")] = None
    since: Time | None = None
    until: Time | None = None
    after: Annotated[str | None, says("Of an answer that was not the last: go on there.")] = None
