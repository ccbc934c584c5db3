"""How queues come and go, in a transaction that is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.model.queues import QueueSpec
from holdfast.stores.kit.specs import number_of, write_policy
from holdfast.stores.sql.store import Rows, read_spec


class Statements(Protocol):
    SPECS: str
    NEW_HOME: str
    PUT_QUEUE: str
    QUEUES_TO_DELETE: str
    NOT_EMPTY: str
    DELETE_QUEUE: Sequence[str]


def put(
    rows: Rows,
    statements: Statements,
    specs: Sequence[QueueSpec],
    starts: Callable[[tuple[int, ...]], Any],
) -> bool:
    """See `Store.put_queues`. `starts`: how the first partitions are stored."""
    stored = rows(statements.SPECS, {})
    revisions = {row[1]: read_spec(row).revision for row in stored}
    if any(revisions.get(spec.name, 0) != spec.revision for spec in specs):
        return False
    qids: dict[str, int] = {row[1]: row[0] for row in stored}
    for spec in specs:
        qid = number_of(spec.name, qids.get, lambda: rows(statements.NEW_HOME, {})[0][0])
        qids[spec.name] = qid
        bind = {
            "qid": qid,
            "name": spec.name,
            "partitions": spec.partitions,
            "paused": spec.paused,
            "policy": write_policy(spec.policy),
            "created_at": spec.created_at,
            "revision": spec.revision + 1,
            "ordered": spec.ordered,
            "starts": starts(spec.starts),
        }
        rows(statements.PUT_QUEUE, bind)
    return True


def delete(
    rows: Rows,
    statements: Statements,
    names: Sequence[str],
    listed: Callable[[Sequence[Any]], Any],
    *,
    only_empty: bool,
) -> bool:
    """See `Store.delete_queues`. `listed`: a list as statements bind it."""
    found = rows(statements.QUEUES_TO_DELETE, {"names": listed(names)})
    qids = {"qids": listed([qid for (qid,) in found])}
    if only_empty and rows(statements.NOT_EMPTY, qids):
        return False
    for statement in statements.DELETE_QUEUE:
        rows(statement, qids)
    return True
