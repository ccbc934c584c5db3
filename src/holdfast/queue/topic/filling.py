"""Fills a group with what its topic has retained, while publishers go on.

    stage ------> copy ----------> close -------------> open
    from now on   the retained     publishers wait,     the stage is empty and
    publishers    messages go to   the staged           deleted, publishers go on
    write to a    the group        messages follow      with the group's own queue
    stage

Publishers name the stage in their enqueue. One that read the record before it changed has either
written in time, and its message is copied, or it finds no stage and reads the record again. So
nothing is lost or doubled, and what one producer publishes stays in order.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress

from msgspec.structs import replace

from holdfast.errors import QueueNotFound, StoreError
from holdfast.model import clock
from holdfast.model.moves import Transition
from holdfast.queue.context import Context
from holdfast.queue.queue import LocalQueue
from holdfast.queue.topic.copies import dropped, from_hidden
from holdfast.queue.topic.record import HIDDEN, TopicRecord, log_of
from holdfast.stores.contract import View

PAGE = 500
CLAIM_MS = 15_000
"""A binder that has not renewed its claim for so long is dead, and another one continues."""
POLL_S = 0.005


def new_stage(record: TopicRecord, group: str) -> str:
    stage = f"{record.topic}{HIDDEN}{group}.{secrets.token_hex(4)}"
    record.make_hidden(stage)
    return stage


def mark_filled(at: Context, record: TopicRecord, group: str, stage: str) -> None:
    """Open the group: its stage is empty and deleted. Anyone who finds that may say so, as the
    binder may have died before it did."""
    while setup := record.find():
        bound = setup.groups.get(group)
        if bound is None or bound.stage != stage:
            return
        if not bound.paused:
            with suppress(QueueNotFound):
                LocalQueue(at, record.queue_of(group)).resume()
        if record.write_group(setup, group, replace(bound, stage=None, closed=False)):
            return


class Filling:
    """The filling of one group, in one process; a claim keeps others from it meanwhile."""

    def __init__(
        self, context: Context, record: TopicRecord, group: str, queue: LocalQueue
    ) -> None:
        self._at = context
        self._record = record
        self._group = group
        self._queue = queue
        self._claim_name = f"bind/{queue.name}"
        self._claimant = f"{context.owner}:{secrets.token_hex(3)}"

    def run(self) -> None:
        """Returns when the group is filled, by this process or by another one."""
        while self._stage() is not None:
            if not self._claim():
                clock.sleep(POLL_S)
                continue
            try:
                stage = self._stage()
                if stage is not None:  # else another has filled it, and it is in use
                    self._fill(stage)
            finally:
                with suppress(StoreError):
                    self._claim(0)

    def _stage(self) -> str | None:
        return self._record.group(self._group).stage

    def _claim(self, ttl_ms: int = CLAIM_MS) -> bool:
        """Take, keep or (with 0) give up the right to fill the group."""
        now = self._at.clock.now()
        return self._at.store.claim(self._claim_name, self._claimant, ttl_ms, now) is not None

    def _fill(self, stage: str) -> None:
        store, record, queue = self._at.store, self._record, self._queue
        if self._at.spec(stage) is None:
            return mark_filled(self._at, record, self._group, stage)
        if not queue.spec.paused:
            queue.pause()
        for _ in self._copy_pages(log_of(record.topic)):
            pass
        while True:
            for moves in self._copy_pages(stage):
                store.settle(moves, self._at.clock.now())
            setup = record.read()
            bound = setup.groups.get(self._group)
            if bound is None or bound.stage != stage or not self._claim():
                return None
            if not bound.closed:
                record.write_group(setup, self._group, replace(bound, closed=True))
            elif store.delete_queues([stage], only_empty=True):
                return mark_filled(self._at, record, self._group, stage)

    def _copy_pages(self, source: str) -> Iterator[list[Transition]]:
        """Copy what a hidden queue holds now, page by page; yields what would drop each page."""
        after: str | None = None
        end: str | None = None
        while self._claim():
            now = self._at.clock.now()
            try:
                page = self._at.store.browse(View(source, upto=end), after, PAGE, now)
            except QueueNotFound:
                return  # retained no more, or staged no more
            if page.entries:
                spec = self._queue.spec
                copies = [from_hidden(entry.message, spec, now) for entry in page.entries]
                self._at.store.enqueue(copies, now)
            yield [dropped(source, entry.message.id, entry.place) for entry in page.entries]
            after, end = page.after, end or page.end
            if after is None:
                return
