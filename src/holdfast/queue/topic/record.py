"""A topic's record: all that a topic knows, one value in the store changed by compare-and-set.

It lists the topic's groups and how far each one is with being filled (see filling.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.errors import GroupNotFound, InvalidArgument, NotFound, did_you_mean, shown
from holdfast.model.message import check_queue_name, dlq_of, is_dlq
from holdfast.model.policy import DEFAULTS
from holdfast.model.queues import QueueSpec
from holdfast.queue.context import Context
from holdfast.queue.interface import Start
from holdfast.queue.records import each_record, find_record
from holdfast.stores.contract import spec_of

TOPIC = "topic"
"""The kind of record."""
HIDDEN = "@."
"""Part of the names of internal queues; users cannot create a queue with it."""


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group in the topic's record."""

    born: int
    """The revision of the record that added it: a group that is bound again is a different one."""
    start: Start = "now"
    stage: str | None = None
    """The queue where its messages wait while it is being filled; None when that is over."""
    closed: bool = False
    """Filled up to the stage: publishers wait until the stage is empty."""
    paused: bool = False
    """Its queue was paused before it was filled, and stays so."""


class Setup(msgspec.Struct, frozen=True):
    """What a topic's record holds."""

    log: bool = True
    retention: float = DEFAULTS.retention or 0.0
    groups: dict[str, Group] = {}
    created_at: int = 0
    revision: int = 0
    """Of the record it was read from."""


_decode = msgspec.json.Decoder(Setup).decode


class TopicRecord:
    """The record of one topic, which may not exist."""

    def __init__(self, context: Context, topic: str) -> None:
        self.topic = topic
        self._at = context

    def find(self) -> Setup | None:
        record = find_record(self._at.store, TOPIC, self.topic)
        return record and replace(_decode(record.value), revision=record.revision)

    def read(self) -> Setup:
        """Raises NotFound, with the nearest name, where there is none."""
        setup = self.find()
        if setup is None:
            known = [name for name, _ in setups(self._at)]
            raise NotFound(f"no topic {self.topic!r}; {did_you_mean(self.topic, known)}")
        return setup

    def group(self, group: str) -> Group:
        """Raises GroupNotFound where it is not bound."""
        groups = self.read().groups
        if group not in groups:
            hint = did_you_mean(group, groups)
            raise GroupNotFound(f"topic {self.topic!r} has no group {group!r}; {hint}")
        return groups[group]

    def write(self, setup: Setup, **changes: Any) -> bool:
        """False if the record has changed since it was read: read it again."""
        return self._put(msgspec.json.encode(replace(setup, **changes)), setup.revision)

    def delete(self, setup: Setup) -> bool:
        """False if the record has changed since it was read: read it again."""
        return self._put(None, setup.revision)

    def _put(self, value: bytes | None, revision: int) -> bool:
        now = self._at.clock.now()
        return self._at.store.put_record(TOPIC, self.topic, value, revision, now)

    def write_group(self, setup: Setup, name: str, group: Group) -> bool:
        return self.write(setup, groups={**setup.groups, name: group})

    def remove_group(self, name: str, group: Group) -> None:
        """Does nothing if the name has been bound again since."""
        while setup := self.find():
            if getattr(setup.groups.get(name), "born", 0) != group.born:
                return
            left = {other: bound for other, bound in setup.groups.items() if other != name}
            if self.write(setup, groups=left):
                return

    def queue_of(self, group: str) -> str:
        return queue_of(self.topic, group)

    def make_hidden(self, name: str) -> None:
        """Create one of the topic's internal queues, unless it exists."""
        store = self._at.store
        while spec_of(store, name) is None:
            if store.put_queues([QueueSpec(name, created_at=self._at.clock.now())]):
                return


def setups(at: Context) -> Iterator[tuple[str, Setup]]:
    """Every topic by name."""
    for record in each_record(at.store, TOPIC):
        yield record.name, _decode(record.value)


def count(at: Context) -> int:
    """How many topics there are."""
    return sum(1 for _ in setups(at))


def is_hidden(queue: str) -> bool:
    return HIDDEN in queue


def queue_of(topic: str, group: str) -> str:
    return check_queue_name(f"{topic}@{group}", "group")


def log_of(topic: str) -> str:
    """The hidden queue that holds what a topic retains."""
    return f"{topic}{HIDDEN}log"


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_topic_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or is_dlq(name):
        raise InvalidArgument(
            "topic",
            f"{shown(name)}: letters, digits, '_', '.', '-', and no {dlq_of('')!r} at the end",
        )
    return check_queue_name(name, "topic")


def check_group_name(group: Any) -> str:
    if not isinstance(group, str) or not _GROUP.fullmatch(group) or is_dlq(group):
        raise InvalidArgument(
            "group",
            f"{shown(group)}: letters, digits, '_', '.', '-', the first one a letter or a digit, "
            f"and no {dlq_of('')!r} at the end",
        )
    return group
