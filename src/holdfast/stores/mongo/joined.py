"""The caller's own transaction: a client session of theirs, on the same store."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pymongo import errors as driver
from pymongo.client_session import ClientSession

from holdfast.errors import FailedPrecondition, InvalidArgument, StoreUnavailable
from holdfast.stores.mongo.connections import TRANSIENT, Connections, has_label
from holdfast.stores.mongo.counts import Gone
from holdfast.stores.mongo.layout import META


class TransactionLost(StoreUnavailable, driver.PyMongoError):
    """The server gave up the caller's transaction: `with_transaction` runs it again."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        driver.PyMongoError.__init__(self, problem, {TRANSIENT})


@contextmanager
def joined(within: Any, db: Connections) -> Generator[ClientSession, None, None]:
    """The caller's session, inside of its transaction."""
    if not isinstance(within, ClientSession):
        raise InvalidArgument("within", "must be a pymongo ClientSession in a transaction")
    if within.has_ended:
        raise InvalidArgument("within", "the session has ended")
    if not within.in_transaction:
        raise InvalidArgument("within", "the session has no transaction: start_transaction() first")
    try:
        with db.translated():
            theirs = db.get(META, within).find_one({"_id": "schema"}, session=within)
            if theirs is None or theirs.get("store") != db.store:
                raise InvalidArgument("within", f"the session is not on {db.where.shown}")
            yield within
    except FailedPrecondition:
        raise InvalidArgument("within", f"the session is not on {db.where.shown}") from None
    except Gone:
        raise TransactionLost(f"{db.where.shown}: the queue was deleted meanwhile") from None
    except StoreUnavailable as error:
        if error.__cause__ is not None and has_label(error.__cause__, TRANSIENT):
            raise TransactionLost(str(error)) from error.__cause__
        raise
