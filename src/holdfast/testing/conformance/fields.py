"""What a producer sets on a message is kept, whatever the table of fields says there is."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import Backoff, Message, Outgoing, Queue, State
from holdfast.model.fields import FIELDS, Field

NOT_KEPT = {"payload", "body", "delay", "at"}
"""What other fields are made from."""
GIVEN: dict[str, Any] = {
    "id": "01a1e160-0000-7000-8000-000000000001",
    "content_type": "text/plain",
    "priority": 7,
    "backoff": Backoff(base=3.0),
}


def given_value(field: Field) -> Any:
    """A value that is not the default."""
    values: dict[str, Any] = {"text": field.name, "int": 5, "real": 2.5, "time": 5, "flag": True}
    return GIVEN.get(field.name, values.get(field.kind, {field.name: "x"}))


SENT = {
    field.name: given_value(field)
    for field in FIELDS
    if field.sent is not None and field.name not in NOT_KEPT
}


def check(where: str, message: Message) -> None:
    for name, value in SENT.items():
        assert getattr(message, name) == value, f"{name}: not kept by {where}"


def test_every_field_that_a_producer_sets_is_kept(queue: Queue) -> None:
    """While it waits, in a lease, after a failure, among the dead letters, and in the log."""
    check("enqueue", queue.enqueue_many([Outgoing("x", **SENT)])[0])
    [entry] = queue.browse()
    check("browse", entry.message)
    (lease,) = queue.lease()
    check("lease", lease.message)
    queue.nack(lease, "no", delay=0)
    check("get", queue.get(lease.id))
    (lease,) = queue.lease()
    queue.fail(lease)
    [dead] = queue.dlq.browse(State.READY)
    check("the dead-letter queue", dead.message)


def test_every_field_that_a_producer_sets_is_in_the_log(queue: Queue) -> None:
    queue.enqueue_many([Outgoing("x", **SENT)])
    queue.ack(queue.lease()[0])
    [finished] = queue.log()
    check("the log", finished.message)
    [again] = queue.replay(finished.message.id)
    check("replay", _with_its_id(again))
    check("a lease of what was replayed", _with_its_id(queue.lease()[0].message))


def _with_its_id(message: Message) -> Message:
    """What is replayed is a new message."""
    return msgspec.structs.replace(message, id=SENT["id"])
