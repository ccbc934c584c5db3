"""Publishes: one enqueue stores a message in every group of a topic, or in none.

A publish reads the topic's record, stores a copy for each group and one to be retained, and reads
the record again: a group that was bound meanwhile gets its copy before the publish returns.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.errors import QueueNotFound
from holdfast.model import clock
from holdfast.model.message import Message, new_ids
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.queue.context import Context
from holdfast.queue.outgoing import Maker
from holdfast.queue.topic.copies import copies_of, with_duplicates
from holdfast.queue.topic.filling import POLL_S, mark_filled
from holdfast.queue.topic.record import Group, Setup, TopicRecord, is_hidden, log_of
from holdfast.rules.lifecycle import finished_since
from holdfast.telemetry import tracing

CLOSED_S = 2.0
"""No publisher waits for a binder longer than this."""
REMEMBER_S = 0.25
"""After this time at most a publisher notices a group's new partitions or limits."""

logger = logging.getLogger("holdfast.topic")


class Targets(msgspec.Struct, frozen=True):
    """The queues of a topic, remembered for a moment: a publish would read each of them."""

    revision: int = -1
    until: float = 0.0
    specs: list[QueueSpec] = []
    """Those of the groups first, the hidden ones last."""
    limit: int = 0
    """How many bytes a payload may have."""


class Publisher:
    def __init__(self, context: Context, record: TopicRecord) -> None:
        self._at = context
        self._record = record
        self._targets = Targets()

    def publish(self, items: list[Any], within: Any) -> list[Message]:
        span = tracing.producing("publish", self._record.topic, len(items))
        if span is None:
            return self._store(items, within)
        with span as headers:
            return self._store(items, within, headers)

    def _store(
        self, items: list[Any], within: Any, trace: dict[str, str] | None = None
    ) -> list[Message]:
        now = self._at.clock.now()
        ids = list(new_ids(len(items), now))
        while True:
            setup = self._wait_until_open()
            targets = self._read_targets(setup)
            if targets is None:
                self._mend(setup)
                continue
            make = Maker(
                QueueSpec(self._record.topic), Policy(payload_max=self._targets.limit), now
            )
            messages = make.each(items, ids)
            if trace:
                messages = tracing.carrying(messages, trace)
            copies = copies_of(messages, targets)
            try:
                since = self._finished_since(copies, make.given, targets, now)
                answers = (
                    self._at.store.enqueue(copies, now, within=within, finished_since=since)
                    if copies
                    else []
                )
            except QueueNotFound:
                self._targets = Targets()
                if within is not None:
                    raise
                self._mend(setup)
                continue
            self._catch_up(setup, messages, now, within)
            return with_duplicates(messages, answers, len(targets), len(targets) - setup.log)

    def _wait_until_open(self) -> Setup:
        """The record, as soon as none of its groups is closed."""
        until = self._at.clock.monotonic() + CLOSED_S
        while True:
            setup = self._record.read()
            if not any(group.closed for group in setup.groups.values()):
                return setup
            if self._at.clock.monotonic() > until:  # its binder is dead, or will close it again
                groups = {n: replace(group, closed=False) for n, group in setup.groups.items()}
                self._record.write(setup, groups=groups)
            else:
                clock.sleep(POLL_S)

    def _read_targets(self, setup: Setup) -> list[QueueSpec] | None:
        """The queues that get a copy; None if one of them does not exist."""
        known, now = self._targets, self._at.clock.monotonic()
        if known.revision == setup.revision and now < known.until:
            return known.specs
        names = [self._queue_of(name, group) for name, group in setup.groups.items()]
        if setup.log:
            names.append(log_of(self._record.topic))
        specs = self._at.store.queues(sorted(names, key=is_hidden))
        if len(specs) < len(names):
            return None
        limits = [self._at.complete(spec).payload_max or 0 for spec in specs]
        limit = min([self._at.policy.payload_max or 0, *limits])  # that of the strictest group
        self._targets = Targets(setup.revision, now + REMEMBER_S, specs, limit)
        return specs

    def _queue_of(self, name: str, group: Group) -> str:
        return group.stage or self._record.queue_of(name)

    def _finished_since(
        self, copies: list[Message], given: set[str], targets: list[QueueSpec], now: int
    ) -> dict[int, int] | None:
        """By each group's own policy: since when a finished message makes a copy a duplicate."""
        if not given:
            return None
        since: dict[int, int] = {}
        for spec in targets:
            policy = self._at.complete(spec)
            found = None if is_hidden(spec.name) else finished_since(copies, given, policy, now)
            own = (found or {}).items()
            since |= {n: at for n, at in own if copies[n].queue == spec.name}
        return since or None

    def _mend(self, setup: Setup) -> None:
        """Correct the record where a queue is missing: somebody deleted it, or died before they
        changed the record."""
        record = self._record
        found = record.find()
        if found is None or found.revision != setup.revision:
            return
        for name, group in setup.groups.items():
            if self._at.spec(self._queue_of(name, group)) is not None:
                continue
            if group.stage is not None:
                mark_filled(self._at, record, name, group.stage)
            else:
                logger.warning("%s: its queue was deleted, so it is no longer bound", name)
                record.remove_group(name, group)
        if setup.log:
            record.make_hidden(log_of(record.topic))
        clock.sleep(POLL_S)

    def _catch_up(self, setup: Setup, messages: list[Message], now: int, within: Any) -> None:
        """Give the messages to groups that were bound while they were being stored."""
        reached = {group.born for group in setup.groups.values()}
        while (found := self._record.find()) is not None and found.revision != setup.revision:
            for name, group in found.groups.items():
                if group.born not in reached and self._reach(name, group, messages, now, within):
                    reached.add(group.born)
            if all(group.born in reached for group in found.groups.values()):
                setup = found
            else:  # one is deleted, or filled: the record must say so
                self._mend(found)

    def _reach(
        self, name: str, group: Group, messages: list[Message], now: int, within: Any
    ) -> bool:
        spec = self._at.spec(self._queue_of(name, group))
        if spec is None:
            return False
        if group.start == "earliest" and group.stage is None:
            messages = self._unseen(spec.name, messages)
        try:
            self._at.store.enqueue(copies_of(messages, [spec]), now, within=within)
        except QueueNotFound:
            return False
        return True

    def _unseen(self, queue: str, messages: list[Message]) -> list[Message]:
        """Those that the group neither holds nor has finished: a binder that began and ended
        meanwhile did not find them among the retained ones."""
        found = self._at.store.find(queue, [m.id for m in messages])
        return [m for m, seen in zip(messages, found, strict=True) if seen is None]
