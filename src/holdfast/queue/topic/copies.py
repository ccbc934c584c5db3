"""The copies of a published message: one for each group, and one to be retained.

A hidden queue is one line without priorities or delays, so a copy in it notes both for the groups
that get it later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.model.message import Message, starting_again
from holdfast.model.moves import Enqueued, Target, Transition, Verb
from holdfast.model.queues import QueueSpec
from holdfast.queue.topic.record import is_hidden
from holdfast.rules.lifecycle import partition_of


def copies_of(messages: Sequence[Message], targets: Iterable[QueueSpec]) -> list[Message]:
    """A copy of each message for each target, message by message."""
    specs = list(targets)
    return [_copy(message, spec) for message in messages for spec in specs]


def _copy(message: Message, spec: QueueSpec) -> Message:
    if is_hidden(spec.name):
        return _to_hidden(message, spec.name)
    return replace(message, queue=spec.name, partition=_partition(message, spec))


def _partition(message: Message, spec: QueueSpec) -> int:
    return partition_of(message.key, message.id, spec.spread) + spec.starts[-1]


def _to_hidden(message: Message, queue: str) -> Message:
    """Its history carries the priority and the delay."""
    now = message.enqueued_at
    note = {"priority": message.priority, "available_at": message.available_at}
    plain = message.priority == 0 and message.available_at == now
    history = message.history if plain else replace(message.history, handled=note)
    return replace(message, queue=queue, partition=0, priority=0, available_at=now, history=history)


def from_hidden(message: Message, spec: QueueSpec, now: int) -> Message:
    """A retained message as a group gets it: like one that is enqueued there now."""
    note = message.history.handled
    return replace(
        message,
        queue=spec.name,
        partition=_partition(message, spec),
        priority=note.get("priority", 0),
        enqueued_at=now,
        available_at=max(now, note.get("available_at", 0)),
        history=starting_again(message.history),
    )


def dropped(queue: str, id: str, place: int) -> Transition:
    """Removes a message from a hidden queue."""
    return Transition(Verb.ACK, queue, id, Target.DONE, place=place)


def with_duplicates(
    messages: list[Message], answers: list[Enqueued], copies: int, groups: int
) -> list[Message]:
    """Mark the messages that every group held already.

    `answers` has `copies` answers for each message, first those of the groups.
    """
    if Enqueued.HELD not in answers:
        return messages
    return [
        replace(message, duplicate=Enqueued.STORED not in answers[n : n + (groups or copies)])
        for message, n in zip(messages, range(0, len(answers), copies), strict=True)
    ]
