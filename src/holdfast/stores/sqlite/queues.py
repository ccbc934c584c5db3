"""Queues: their numbers, and how they come and go."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from holdfast.model.queues import QueueSpec
from holdfast.stores.kit.specs import must_exist, number_of, write_policy, write_starts
from holdfast.stores.sqlite import statements as texts
from holdfast.stores.sqlite.settle import next_number


def find(db: sqlite3.Cursor, name: str) -> int | None:
    """A queue's number."""
    row = db.execute(texts.QID, (name,)).fetchone()
    return row[0] if row else None


def existing(db: sqlite3.Cursor, name: str) -> int:
    return must_exist(name, find(db, name))


def put(db: sqlite3.Cursor, specs: Sequence[QueueSpec]) -> bool:
    stored = dict(db.execute(texts.REVISIONS).fetchall())
    if any(stored.get(spec.name, 0) != spec.revision for spec in specs):
        return False
    for spec in specs:
        qid = number_of(spec.name, partial(find, db), lambda: next_number(db, "home", 1))
        row = (qid, spec.name, spec.partitions, spec.paused, write_policy(spec.policy))
        shape = (spec.ordered, write_starts(spec.starts))
        db.execute(texts.PUT_QUEUE, (*row, spec.created_at, spec.revision + 1, *shape))
    return True


def delete(db: sqlite3.Cursor, names: Sequence[str], *, only_empty: bool) -> bool:
    qids = [qid for name in names if (qid := find(db, name)) is not None]
    if only_empty and any(db.execute(texts.HELD, (qid,)).fetchone()[0] for qid in qids):
        return False
    for qid in qids:
        for statement in texts.DROP_QUEUE:
            db.execute(statement, (qid,))
    db.execute(texts.FORGET_LEASES)
    return True
