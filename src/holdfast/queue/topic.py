"""A topic fans out: what is published reaches each group bound to it. A group is a queue.

All that a topic knows is one record, changed by compare-and-set. A publish reads it, stores a copy
for each group and one to be retained with one enqueue, and reads it again: a group that was bound
meanwhile gets its copy before the publish returns. What is retained waits in a hidden queue from
which nobody leases. A group that starts with it is filled like this (`Topic.bind`):

    stage ------> copy ----------> close -------------> open
    from now on   what stood       publishers wait,     the stage is empty and gone,
    publishers    in the hidden    what is staged       publishers go on with the
    write to a    queue goes to    follows              group's own queue
    stage         the group

Publishers name the stage in their enqueue. So one that read the record before it changed either
came in time, and is copied, or finds no stage, and reads again: nothing is lost or doubled, and
what one producer publishes stays in order.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.errors import (
    GroupNotFound,
    InvalidArgument,
    NotFound,
    QueueNotEmpty,
    QueueNotFound,
    StoreError,
    did_you_mean,
    shown,
)
from holdfast.model import clock
from holdfast.model.backoff import Backoff
from holdfast.model.message import (
    NO_HISTORY,
    History,
    Message,
    Outgoing,
    check_queue_name,
    dlq_of,
    is_dlq,
    new_ids,
)
from holdfast.model.moves import Enqueued, Target, Transition, Verb
from holdfast.model.policy import DEFAULTS, Policy
from holdfast.model.queues import QueueSpec
from holdfast.queue.checks import check_items
from holdfast.queue.context import Context
from holdfast.queue.outgoing import Maker
from holdfast.queue.queue import Queue
from holdfast.rules.lifecycle import finished_since, ms, partition_of
from holdfast.stores.contract import QueueStats, View, spec_of
from holdfast.telemetry import tracing

TOPIC = "topic"
"""The kind of record."""
HIDDEN = "@."
"""In the names of queues that no user can make."""
PAGE = 500
TRIM_STEP = 1000
TRIM_STEPS_MAX = 20
CLAIM_MS = 15_000
"""A binder that is not heard of for so long is gone, and another goes on."""
CLOSED_S = 2.0
"""Longer than this no publisher waits for a binder."""
POLL_S = 0.005
REMEMBER_S = 0.25
"""So late a publisher hears of more partitions, or of another limit, of a group."""

Start = Literal["now", "earliest"]
MakeQueue = Callable[..., Queue]
logger = logging.getLogger("holdfast.topic")


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group as the topic's record has it."""

    born: int
    """The revision of the record that it came with: one bound again is another one."""
    start: Start = "now"
    stage: str | None = None
    """Where its messages wait while it is being filled; None for one that is there."""
    closed: bool = False
    """Filled up to the stage: publishers wait until that is empty."""
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


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    groups: dict[str, QueueStats]
    filling: list[str]
    """Those of them whose binding has not come to its end."""
    retained: int
    oldest_age: float | None
    """Seconds since the oldest message that is retained was published."""
    log: bool
    retention: float


class Known(msgspec.Struct, frozen=True):
    """The queues of the groups, as they were a moment ago: a publish would read each of them."""

    revision: int = -1
    until: float = 0.0
    targets: list[QueueSpec] = []
    limit: int = 0
    """Bytes that a payload may have."""


_decode = msgspec.json.Decoder(Setup).decode


def is_hidden(queue: str) -> bool:
    return HIDDEN in queue


def log_of(topic: str) -> str:
    """The hidden queue of what a topic retains."""
    return f"{topic}{HIDDEN}log"


class Topic:
    """A handle on one topic. Cheap, thread-safe, good for the life of its connection."""

    def __init__(self, context: Context, make_queue: MakeQueue, name: str) -> None:
        self.name = name
        self._at = context
        self._make_queue = make_queue
        self._known = Known()

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    def bind(
        self,
        group: str,
        *,
        start: Start = "now",
        partitions: int | None = None,
        ordered: bool | None = None,
        **policy: Any,
    ) -> Queue:
        """The group's queue, which gets all that is published from now on; made if it is new.

        `start="earliest"` fills it first with all that the topic still retains, in order; it is
        paused until that is done. A group that is bound is not filled again. When a binder dies in
        the middle the group stays paused and loses nothing, and who binds it again starts over:
        what the first one had copied is still there under its id, so nothing comes twice.
        """
        name = self._queue_of(check_group_name(group))
        if start not in ("now", "earliest"):
            raise InvalidArgument("start", f'must be "now" or "earliest", not {shown(start)}')
        self._setup()
        queue = self._make_queue(name, partitions=partitions, ordered=ordered, **policy)
        stage = None
        while group not in (setup := self._setup()).groups:
            bound = Group(setup.revision + 1, start)
            if start == "earliest" and setup.log:
                stage = stage or self._new_stage(group)
                bound = replace(bound, stage=stage, paused=queue.spec.paused)
            if self._write(setup, groups={**setup.groups, group: bound}):
                break
        else:
            if stage is not None:  # another one was faster
                self._at.store.delete_queues([stage], only_empty=False)
        self._fill(group, queue)
        return queue

    def group(self, group: str) -> Queue:
        """The queue of a group that is bound."""
        name = self._queue_of(check_group_name(group))
        self._group(self._setup(), group)
        return Queue(self._at, name)

    def groups(self) -> list[str]:
        return sorted(self._setup().groups)

    def unbind(self, group: str, *, force: bool = False) -> None:
        """Delete a group with its queue, dead letters and log; `force` if they hold messages."""
        queue = self._queue_of(check_group_name(group))
        bound = self._group(self._setup(), group)
        if not self._at.store.delete_queues([queue, dlq_of(queue)], only_empty=not force):
            raise QueueNotEmpty(f"{queue} or its dead letters hold messages; force=True deletes")
        self._forget(group, bound)
        if bound.stage is not None:
            self._at.store.delete_queues([bound.stage], only_empty=False)

    def delete(self, *, force: bool = False) -> None:
        """Delete the topic with what it retains and its groups; `force` if they hold messages."""
        setup, store = self._setup(), self._at.store
        while True:
            if not force:
                self._refuse_if_held(setup)
            names = [name for group in setup.groups for name in _both(self._queue_of(group))]
            if names and not store.delete_queues(names, only_empty=not force):
                continue  # it holds one now: say so
            if store.put_record(TOPIC, self.name, None, setup.revision, self._at.clock.now()):
                break
            setup = self._setup()
        hidden = self.name + HIDDEN
        names = [spec.name for spec in store.queues() if spec.name.startswith(hidden)]
        store.delete_queues(names, only_empty=False)

    def publish(
        self,
        payload: Any,
        *,
        id: Any = None,
        key: str | bytes | None = None,
        type: str | None = None,
        priority: int = 0,
        delay: float | None = None,
        at: datetime | float | None = None,
        headers: dict[str, str] | None = None,
        ack_timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        content_type: str | None = None,
        within: Any = None,
    ) -> Message:
        """Store one message in every group, or in none; returns when the store has it.

        The fields are those of `Queue.enqueue`, the id is the same in every group. One that every
        group holds, or finished lately, changes nothing: `duplicate` is set. With your own
        transaction (`within`), groups that are bound before it is committed may miss the message.
        """
        outgoing = Outgoing(
            payload,
            id,
            key,
            type,
            priority,
            delay,
            at,
            headers,
            ack_timeout,
            max_attempts,
            backoff,
            content_type,
        )
        return self._publish([outgoing], within)[0]

    def publish_many(self, items: Iterable[Any], *, within: Any = None) -> list[Message]:
        """Like `Queue.enqueue_many`: all or none of them (on Redis each of them), in each group."""
        return self._publish(check_items(items), within)

    def stats(self) -> TopicStats:
        """What each group holds, and what is retained for those to come."""
        setup, now = self._setup(), self._at.clock.now()
        log = self._stats_of(log_of(self.name), now) if setup.log else None
        groups = {name: self._stats_of(self._queue_of(name), now) for name in sorted(setup.groups)}
        return TopicStats(
            self.name,
            {name: stats for name, stats in groups.items() if stats is not None},
            sorted(name for name, group in setup.groups.items() if group.stage is not None),
            log.ready if log else 0,
            log.oldest_age if log else None,
            setup.log,
            setup.retention,
        )

    def _stats_of(self, queue: str, now: int) -> QueueStats | None:
        try:
            return self._at.store.stats([queue], now)[0]
        except QueueNotFound:
            return None

    # The record

    def find(self) -> Setup | None:
        for record in self._at.store.records(TOPIC, prefix=self.name, limit=1):
            if record.name == self.name:
                return replace(_decode(record.value), revision=record.revision)
        return None

    def settle(self, *, create: bool, log: bool | None, retention: float | None) -> Topic:
        """Make the topic, or change what is given."""
        Policy(log=log, retention=retention)  # which checks them
        given = {"log": log, "retention": retention}
        changes = {name: value for name, value in given.items() if value is not None}
        while True:
            setup = self.find()
            if setup is None and not create:
                known = [topic.name for topic in topics(self._at, self._make_queue)]
                raise NotFound(f"no topic {self.name!r}; {did_you_mean(self.name, known)}")
            wanted = replace(setup or Setup(created_at=self._at.clock.now()), **changes)
            if wanted == setup:
                return self
            if wanted.log:
                self._make_hidden(log_of(self.name))
            if self._write(wanted):
                if not wanted.log:
                    self._at.store.delete_queues([log_of(self.name)], only_empty=False)
                return self

    def _setup(self) -> Setup:
        setup = self.find()
        if setup is None:
            known = [topic.name for topic in topics(self._at, self._make_queue)]
            raise NotFound(f"no topic {self.name!r}; {did_you_mean(self.name, known)}")
        return setup

    def _write(self, setup: Setup, **changes: Any) -> bool:
        """False: somebody was faster, read again."""
        value = msgspec.json.encode(replace(setup, **changes))
        now = self._at.clock.now()
        return self._at.store.put_record(TOPIC, self.name, value, setup.revision, now)

    def _group(self, setup: Setup, group: str) -> Group:
        if group not in setup.groups:
            hint = did_you_mean(group, setup.groups)
            raise GroupNotFound(f"topic {self.name!r} has no group {group!r}; {hint}")
        return setup.groups[group]

    def _forget(self, group: str, bound: Group) -> None:
        """Take a group out of the record, if it is still this one."""
        while setup := self.find():
            if getattr(setup.groups.get(group), "born", 0) != bound.born:
                return
            left = {name: other for name, other in setup.groups.items() if name != group}
            if self._write(setup, groups=left):
                return

    def _refuse_if_held(self, setup: Setup) -> None:
        now = self._at.clock.now()
        for group in setup.groups:
            stats = self._stats_of(self._queue_of(group), now)
            if stats and stats.ready + stats.delayed + stats.leased + stats.dead:
                raise QueueNotEmpty(
                    f"{self._queue_of(group)} or its dead letters hold messages; force=True deletes"
                )

    def _queue_of(self, group: str) -> str:
        return check_queue_name(f"{self.name}@{group}", "group")

    def _make_hidden(self, name: str) -> None:
        store = self._at.store
        while spec_of(store, name) is None:
            if store.put_queues([QueueSpec(name, created_at=self._at.clock.now())]):
                return

    # Publishing

    def _publish(self, items: list[Any], within: Any) -> list[Message]:
        span = tracing.producing("publish", self.name, len(items))
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
            setup = self._open()
            targets = self._targets(setup)
            if targets is None:
                self._mend(setup)
                continue
            messages, given = self._made(items, ids, now)
            if trace:
                messages = tracing.carrying(messages, trace)
            copies = [copy for message in messages for copy in _copies(message, targets)]
            try:
                since = self._finished_since(copies, given, targets, now)
                answers = (
                    self._at.store.enqueue(copies, now, within=within, finished_since=since)
                    if copies
                    else []
                )
            except QueueNotFound:
                self._known = Known()
                if within is not None:
                    raise
                self._mend(setup)
                continue
            self._catch_up(setup, messages, now, within)
            return _with_held(messages, answers, len(targets), len(targets) - setup.log)

    def _open(self) -> Setup:
        """The record, as soon as no group of it is closed."""
        until = self._at.clock.monotonic() + CLOSED_S
        while True:
            setup = self._setup()
            if not any(group.closed for group in setup.groups.values()):
                return setup
            if self._at.clock.monotonic() > until:  # its binder is gone, or will close it again
                groups = {n: replace(group, closed=False) for n, group in setup.groups.items()}
                self._write(setup, groups=groups)
            else:
                clock.sleep(POLL_S)

    def _targets(self, setup: Setup) -> list[QueueSpec] | None:
        """The queues that get a copy, the hidden ones last; None if one is not there."""
        known, now = self._known, self._at.clock.monotonic()
        if known.revision == setup.revision and now < known.until:
            return known.targets
        names = [group.stage or self._queue_of(name) for name, group in setup.groups.items()]
        if setup.log:
            names.append(log_of(self.name))
        there = self._at.store.queues(sorted(names, key=is_hidden))
        if len(there) < len(names):
            return None
        limits = [self._at.complete(spec).payload_max or 0 for spec in there]
        limit = min([self._at.policy.payload_max or 0, *limits])
        self._known = Known(setup.revision, now + REMEMBER_S, there, limit)
        return there

    def _finished_since(
        self, copies: list[Message], given: set[str], targets: list[QueueSpec], now: int
    ) -> dict[int, int] | None:
        """By each group's own policy: which copies are duplicates if they finished since when."""
        if not given:
            return None
        since: dict[int, int] = {}
        for spec in targets:
            policy = self._at.complete(spec)
            found = None if is_hidden(spec.name) else finished_since(copies, given, policy, now)
            mine = (found or {}).items()
            since |= {n: at for n, at in mine if copies[n].queue == spec.name}
        return since or None

    def _made(self, items: list[Any], ids: list[str], now: int) -> tuple[list[Message], set[str]]:
        """Checked by the strictest of the groups; with the ids that the caller chose."""
        make = Maker(QueueSpec(self.name), Policy(payload_max=self._known.limit), now)
        messages: list[Message] = []
        try:
            for item, id in zip(items, ids, strict=True):
                messages.append(make(item, id))
        except InvalidArgument as error:
            error.index = len(messages)
            raise
        return messages, make.given

    def _mend(self, setup: Setup) -> None:
        """A queue is not there. Others changed the record meanwhile, or they never came to it."""
        found = self.find()
        if found is None or found.revision != setup.revision:
            return
        for name, group in setup.groups.items():
            if group.stage is not None:
                if self._at.spec(group.stage) is None:
                    self._joined(name, group.stage)
            elif self._at.spec(self._queue_of(name)) is None:
                logger.warning("%s: its queue was deleted, so it is bound no more", name)
                self._forget(name, group)
        if setup.log:
            self._make_hidden(log_of(self.name))
        clock.sleep(POLL_S)

    def _catch_up(self, setup: Setup, messages: list[Message], now: int, within: Any) -> None:
        """Give them to groups that were bound while they were on their way."""
        reached = {group.born for group in setup.groups.values()}
        while (found := self.find()) is not None and found.revision != setup.revision:
            for name, group in found.groups.items():
                if group.born not in reached and self._reach(name, group, messages, now, within):
                    reached.add(group.born)
            if all(group.born in reached for group in found.groups.values()):
                setup = found
            else:  # one is gone, or filled: the record must say so
                self._mend(found)

    def _reach(
        self, name: str, group: Group, messages: list[Message], now: int, within: Any
    ) -> bool:
        spec = self._at.spec(group.stage or self._queue_of(name))
        if spec is None:
            return False
        if group.start == "earliest" and group.stage is None:
            messages = self._unseen(spec.name, messages)
        copies = [copy for message in messages for copy in _copies(message, [spec])]
        try:
            self._at.store.enqueue(copies, now, within=within)
        except QueueNotFound:
            return False
        return True

    def _unseen(self, queue: str, messages: list[Message]) -> list[Message]:
        """Those that a binder, who began and ended meanwhile, has not found among the retained:
        the group neither holds them nor has finished them."""
        found = self._at.store.find(queue, [m.id for m in messages])
        return [m for m, seen in zip(messages, found, strict=True) if seen is None]

    # Filling a group

    def _new_stage(self, group: str) -> str:
        stage = f"{self.name}{HIDDEN}{group}.{secrets.token_hex(4)}"
        self._make_hidden(stage)
        return stage

    def _fill(self, group: str, queue: Queue) -> None:
        """Until the group is there, by us or by another: one at a time."""
        claim, me = f"bind/{queue.name}", f"{self._at.owner}:{secrets.token_hex(3)}"
        while self._group(self._setup(), group).stage is not None:
            if not self._claimed(claim, me):
                clock.sleep(POLL_S)
                continue
            try:
                stage = self._group(self._setup(), group).stage
                if stage is not None:  # else another has filled it, and people work on it
                    self._fill_from(stage, group, queue, lambda: self._claimed(claim, me))
            finally:
                with suppress(StoreError):
                    self._at.store.claim(claim, me, 0, self._at.clock.now())

    def _claimed(self, claim: str, me: str) -> bool:
        return self._at.store.claim(claim, me, CLAIM_MS, self._at.clock.now()) is not None

    def _fill_from(self, stage: str, group: str, queue: Queue, held: Callable[[], bool]) -> None:
        if self._at.spec(stage) is None:
            self._joined(group, stage)
            return
        if not queue.spec.paused:
            queue.pause()
        for _ in self._pages(log_of(self.name), queue, held):
            pass
        while True:
            for moves in self._pages(stage, queue, held):
                self._at.store.settle(moves, self._at.clock.now())
            setup = self._setup()
            bound = setup.groups.get(group)
            if bound is None or bound.stage != stage or not held():
                return
            if not bound.closed:
                closed = {**setup.groups, group: replace(bound, closed=True)}
                self._write(setup, groups=closed)
            elif self._at.store.delete_queues([stage], only_empty=True):
                self._joined(group, stage)
                return

    def _pages(
        self, source: str, queue: Queue, held: Callable[[], bool]
    ) -> Iterator[list[Transition]]:
        """Copy what stands in a hidden queue now, page by page, and yield how to drop the page."""
        after: str | None = None
        end: str | None = None
        while held():
            now = self._at.clock.now()
            try:
                page = self._at.store.browse(View(source, upto=end), after, PAGE, now)
            except QueueNotFound:
                return  # retained no more, or staged no more
            if page.entries:
                spec = queue.spec
                copies = [_unkept(entry.message, spec, now) for entry in page.entries]
                self._at.store.enqueue(copies, now)
            yield [_dropped(source, entry.message.id, entry.place) for entry in page.entries]
            after, end = page.after, end or page.end
            if after is None:
                return

    def _joined(self, group: str, stage: str) -> None:
        """The stage is empty and gone. Whoever sees that says so, if the binder died before."""
        while setup := self.find():
            bound = setup.groups.get(group)
            if bound is None or bound.stage != stage:
                return
            if not bound.paused:
                with suppress(QueueNotFound):
                    Queue(self._at, self._queue_of(group)).resume()
            there = replace(bound, stage=None, closed=False)
            if self._write(setup, groups={**setup.groups, group: there}):
                return


def open_topic(
    at: Context,
    make_queue: MakeQueue,
    name: str,
    *,
    create: bool,
    log: bool | None,
    retention: float | None,
) -> Topic:
    topic = Topic(at, make_queue, check_topic_name(name))
    return topic.settle(create=create, log=log, retention=retention)


def topics(at: Context, make_queue: MakeQueue) -> list[Topic]:
    return [Topic(at, make_queue, name) for name, _ in _setups(at)]


def trim(at: Context, now: int) -> int:
    """Drop what topics have retained for longer than they should, in bounded steps; how much."""
    return sum(
        _trim(at, log_of(name), now, ms(setup.retention))
        for name, setup in _setups(at)
        if setup.log and setup.retention
    )


def count(at: Context) -> int:
    """How many topics there are."""
    return sum(1 for _ in _setups(at))


def _setups(at: Context) -> Iterator[tuple[str, Setup]]:
    after = ""
    while records := at.store.records(TOPIC, after=after):
        yield from ((record.name, _decode(record.value)) for record in records)
        after = records[-1].name


def _trim(at: Context, log: str, now: int, retention: int) -> int:
    dropped = 0
    with suppress(QueueNotFound):  # deleted since the tick began
        for _ in range(TRIM_STEPS_MAX):
            oldest = at.store.stats([log], now)[0].oldest_age
            if oldest is None or ms(oldest) <= retention:
                break
            entries = at.store.browse(View(log), None, TRIM_STEP, now).entries
            old = [e for e in entries if e.message.enqueued_at < now - retention]
            at.store.settle([_dropped(log, e.message.id, e.place) for e in old], now)
            dropped += len(old)
            if len(old) < TRIM_STEP:
                break
    return dropped


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


def _both(queue: str) -> tuple[str, str]:
    return queue, dlq_of(queue)


def _copies(message: Message, targets: Iterable[QueueSpec]) -> Iterator[Message]:
    for spec in targets:
        if is_hidden(spec.name):
            yield _kept(message, spec.name)
        else:
            part = partition_of(message.key, message.id, spec.spread) + spec.starts[-1]
            yield replace(message, queue=spec.name, partition=part)


def _kept(message: Message, queue: str) -> Message:
    """As it waits in a hidden queue: in one line with all others, whatever its priority or delay;
    those are noted in its history, which says nothing else yet."""
    now = message.enqueued_at
    note = {"priority": message.priority, "available_at": message.available_at}
    plain = message.priority == 0 and message.available_at == now
    history = NO_HISTORY if plain else History(handled=note)
    return replace(message, queue=queue, partition=0, priority=0, available_at=now, history=history)


def _unkept(message: Message, spec: QueueSpec, now: int) -> Message:
    """As it comes from a hidden queue to a group, like one that is enqueued there now."""
    note = message.history.handled
    return replace(
        message,
        queue=spec.name,
        partition=partition_of(message.key, message.id, spec.spread) + spec.starts[-1],
        priority=note.get("priority", 0),
        enqueued_at=now,
        available_at=max(now, note.get("available_at", 0)),
        history=NO_HISTORY,
    )


def _dropped(queue: str, id: str, place: int) -> Transition:
    return Transition(Verb.ACK, queue, id, Target.DONE, place=place)


def _with_held(
    messages: list[Message], answers: list[Enqueued], copies: int, groups: int
) -> list[Message]:
    """Of each message as many answers as copies: first those of the groups."""
    if Enqueued.HELD not in answers:
        return messages
    return [
        replace(message, duplicate=Enqueued.STORED not in answers[n : n + (groups or copies)])
        for message, n in zip(messages, range(0, len(answers), copies), strict=True)
    ]
