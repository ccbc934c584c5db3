"""Commands and transactions on a replica set, or on what stands behind a mongos."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from bson import CodecOptions
from bson.errors import InvalidDocument
from pymongo import MongoClient, ReadPreference, ReturnDocument, WriteConcern
from pymongo import errors as driver
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from holdfast.errors import (
    FailedPrecondition,
    HoldfastError,
    InvalidArgument,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.model import clock
from holdfast.stores.mongo.layout import Doc
from holdfast.stores.mongo.url import Where

T = TypeVar("T")
Session = ClientSession | None

FIND_S = 5.0
"""How long to look for a primary before a call is given up."""
PAUSE_S = (0.002, 0.1)
CONFLICT_S = 1.0
"""How long those who can do without make way for others who write the same: these may be dead, and
hold it for a minute."""
COMMAND_BYTES = 12_000_000
"""A command has at most 16 MiB."""
DOC_BYTES = 4000
"""What the rest of a message may take at most: names, key, type, error."""
DUPLICATE = 11000
TRANSIENT = "TransientTransactionError"
UNKNOWN = "UnknownTransactionCommitResult"

NO_SET = (
    "a standalone server has no transactions, which Holdfast needs. A replica set of one node is "
    "enough: start the server with `mongod --replSet rs0`, then run "
    "`mongosh --eval 'rs.initiate()'` once. Its data stays"
)

SOON = WriteConcern(w=1)
"""On the primary; a later write that waits for others covers it."""
PLAIN: CodecOptions[Doc] = CodecOptions()
"""Whatever classes the client of a session that is joined makes of documents."""
FAILURES = (driver.PyMongoError, InvalidDocument, OSError)
LABELLED = (driver.OperationFailure, driver.ConnectionFailure)


class Conflict(StoreUnavailable):
    """Another transaction holds what this one would write."""


class Connections:
    """Thread-safe. A process that was forked off opens connections of its own.

    A transaction that the server gave up is run again; what is outside of one never is, but for
    what the server itself can tell is a repetition.
    """

    def __init__(self, where: Where) -> None:
        self.where = where
        self.store = ""
        """What the store calls itself; known once it was opened."""
        self._closed = False
        self._pid = 0
        self._made: MongoClient[Doc] | None = None
        self._opening = threading.Lock()
        self._never = threading.Event()
        self._collections: dict[tuple[int, str, bool], Collection[Doc]] = {}
        self.concern = WriteConcern(w=where.w, wtimeout=where.wait_ms, j=where.journal)

    @property
    def client(self) -> MongoClient[Doc]:
        if self._pid != os.getpid():
            with self._opening:
                if self._pid != os.getpid():
                    self._made = self._open()  # the parent's is left to the parent
                    self._pid = os.getpid()
        if self._closed or self._made is None:
            raise StoreUnavailable(f"{self.where.shown}: this connection was closed")
        return self._made

    def _open(self) -> MongoClient[Doc]:
        ms = int(self.where.timeout * 1000)
        patience: dict[str, Any] = {
            "connectTimeoutMS": min(ms, 5000),
            "serverSelectionTimeoutMS": min(ms, int(FIND_S * 1000)),
            "socketTimeoutMS": ms,
            "maxPoolSize": None,
            "appname": "holdfast",
        }
        given = self.where.uri.lower()
        options = {name: v for name, v in patience.items() if f"{name.lower()}=" not in given}
        try:
            return MongoClient(self.where.uri, connect=False, **options)
        except driver.PyMongoError as error:
            raise InvalidArgument("url", f"{self.where.shown}: {error}") from None

    def of(self, client: MongoClient[Doc]) -> Database[Doc]:
        """Our database by the way of another client, whose session one is to join."""
        return client.get_database(
            self.where.database, PLAIN, ReadPreference.PRIMARY, self.concern, ReadConcern()
        )

    @property
    def database(self) -> Database[Doc]:
        return self.of(self.client)

    def name(self, kind: str) -> str:
        return f"{self.where.prefix}.{kind}"

    def get(self, kind: str, session: Session = None, *, soon: bool = False) -> Collection[Doc]:
        """A collection, by the way of the session's own client if there is one."""
        client = self.client if session is None else session.client
        key = (id(client), kind, soon)
        known = self._collections.get(key)
        if known is None or known.database.client is not client:
            known = self.of(client).get_collection(
                self.name(kind), write_concern=SOON if soon else self.concern
            )
            if client is self._made:  # not those of whoever lets us join
                self._collections[key] = known
        return known

    def check_server(self) -> None:
        """Refuse a server that has no transactions: one that is not in a replica set."""
        said = self.database.command("hello")
        if "setName" not in said and said.get("msg") != "isdbgrid":
            raise StoreError(f"{self.where.shown}: {NO_SET}")

    def tx(
        self,
        work: Callable[[ClientSession], T],
        patience: float | None = None,
        session: Session = None,
    ) -> T:
        """Run `work` in a transaction: all that it writes in one step.

        `patience`: seconds to make way for others who write the same, if less than any call has.
        `session`: the one to run it in; no other call may use it at the same time.
        """
        patience = self.where.timeout if patience is None else patience
        with self.translated():
            if session is not None:
                return self._tx(session, work, patience)
            with self.client.start_session() as own:
                return self._tx(own, work, patience)

    def _tx(self, session: ClientSession, work: Callable[[ClientSession], T], patience: float) -> T:
        begun, pause = clock.monotonic(), PAUSE_S[0]
        until = begun + self.where.timeout
        while True:
            session.start_transaction(ReadConcern("snapshot"), self.concern, ReadPreference.PRIMARY)
            try:
                answer = work(session)
                self._commit(session, until)
                return answer
            except BaseException as error:
                if session.in_transaction:
                    with suppress(driver.PyMongoError):
                        session.abort_transaction()
                if not has_label(error, TRANSIENT):
                    raise
                if is_conflict(error) and clock.monotonic() > begun + patience:
                    raise Conflict(f"{self.where.shown}: another transaction holds it") from error
                if clock.monotonic() > until:
                    raise
            self.pause(pause)
            pause = min(pause * 2, PAUSE_S[1])

    def _commit(self, session: ClientSession, until: float) -> None:
        """Until it is known how it went: the server tells a repeated commit from a new one."""
        while True:
            try:
                session.commit_transaction()
                return
            except LABELLED as error:
                timed_out = isinstance(error, driver.WTimeoutError)
                if not has_label(error, UNKNOWN) or timed_out or clock.monotonic() > until:
                    raise
            self._never.wait(PAUSE_S[1])

    def pause(self, longest: float) -> None:
        self._never.wait(random.uniform(0, longest))

    def close(self) -> None:
        self._closed = True
        made, self._made = self._made, None
        if made is not None and self._pid == os.getpid():
            with suppress(*FAILURES):
                made.close()

    @contextmanager
    def translated(self) -> Generator[None, None, None]:
        """The driver's errors as ours, with their cause."""
        try:
            yield
        except FAILURES as error:
            raise self._ours(error) from error

    def _ours(self, error: BaseException) -> HoldfastError:
        shown = self.where.shown
        if self._closed:
            return StoreUnavailable(f"{shown}: this connection was closed")
        said, code = _said(error), getattr(error, "code", None)
        if isinstance(error, driver.BulkWriteError):  # whose own words say nothing
            said, code = _first_of(error, said)
        text = f"{shown}: {said}"
        if isinstance(error, driver.DocumentTooLarge) or code in _TOO_LARGE:
            return InvalidArgument("payload", "MongoDB takes documents of at most 16 MiB")
        if isinstance(error, driver.ConfigurationError | driver.InvalidURI):
            return InvalidArgument("url", said)
        if code in _NOT_ALLOWED:
            return StoreError(f"{text}. Check user and password, and what this user may do")
        if code in _FULL:
            return StoreFull(f"{text}. Nothing was stored")
        if code == _CACHE or "will not fit in the storage engine cache" in said:
            return StoreFull(f"{text}. Nothing was stored: send it in smaller batches")
        if isinstance(error, driver.WTimeoutError) or code == 64:
            return StoreUnavailable(
                f"{text}. It may have been written, but not by as many servers as asked for"
            )
        if isinstance(error, driver.ConnectionFailure | OSError):
            return StoreUnavailable(text)
        if code in _LATER or has_label(error, TRANSIENT) or has_label(error, UNKNOWN):
            return StoreUnavailable(text)
        if code in _READ_ONLY:
            return StoreReadOnly(text)
        if code == 20 and "ransaction" in said:
            return FailedPrecondition(f"{text}. Transactions need a replica set")
        return StoreError(text)


_NOT_ALLOWED = {13, 18, 8000}
_FULL = {14031, 12501}
_CACHE = 388
_TOO_LARGE = {10334, 17419, 17420}
_READ_ONLY = {10058}
_LATER = {
    6, 7, 24, 43, 46, 50, 89, 91, 100, 112, 133, 134, 136, 175, 189, 211, 237, 238, 251, 262, 290,
    365, 9001, 10107, 11600, 11602, 13388, 13435, 13436,
}  # fmt: skip
"""Stepped down, shutting down, not yet a primary, cut off, out of time, out of luck."""


def insert(at: Collection[Doc], docs: list[Doc], session: ClientSession) -> bool:
    """Insert documents as a part of a transaction; False if there was one of them already, which
    ends the transaction. One command for all of them: the driver's own way looks at each document
    several times."""
    for part in _in_commands(docs):
        reply = at.database.command(
            "insert", at.name, documents=part, ordered=False, session=session
        )
        errors: list[Doc] = reply.get("writeErrors", [])
        for error in errors:
            if error["code"] != DUPLICATE:
                raise driver.OperationFailure(error["errmsg"], error["code"], error)
        if errors:
            return False
    return True


def _in_commands(docs: list[Doc]) -> Generator[list[Doc], None, None]:
    """Parts that each fit into one command."""
    start, size = 0, 0
    for n, doc in enumerate(docs):
        own = DOC_BYTES
        for name in ("bd", "hi", "hd"):
            if isinstance(part := doc.get(name), bytes | str):  # somebody may have edited it
                own += len(part)
        if size + own > COMMAND_BYTES and n > start:
            yield docs[start:n]
            start, size = n, 0
        size += own
    if start < len(docs):
        yield docs[start:]


def upserted(
    at: Collection[Doc], known: Doc, change: Doc | list[Doc], session: Session = None
) -> Doc:
    """Change or make one document; as it is then."""
    return cast(
        Doc,
        at.find_one_and_update(
            known,
            change,
            upsert=True,
            return_document=ReturnDocument.AFTER,
            session=session,
        ),
    )


def has_label(error: BaseException, label: str) -> bool:
    return isinstance(error, driver.PyMongoError) and error.has_error_label(label)


def is_conflict(error: BaseException) -> bool:
    return isinstance(error, driver.OperationFailure) and error.code == 112


def _first_of(error: driver.BulkWriteError, said: str) -> tuple[str, int | None]:
    details: Doc = dict(error.details or {})
    for problem in (*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())):
        return str(problem.get("errmsg", said)).rstrip("."), problem.get("code")
    return said, error.code


def _said(error: BaseException) -> str:
    """In one line, without what the driver appends for its own developers."""
    text = str(error) or type(error).__name__
    for end in (", full error:", ", Timeout:", " (configured timeouts:", ", Topology Description"):
        text = text.partition(end)[0]
    return text.strip().rstrip(".")
