"""What the server does: one function for each operation of the table, whatever door it came by.

Functions are plain and run in a bounded pool of threads, as stores are synchronous; those that wait
(a lease) or are grouped with others (enqueue, settle) are coroutines.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import astuple

import holdfast
from holdfast.app import Holdfast
from holdfast.errors import FailedPrecondition, HoldfastError, InvalidArgument, LeaseLost
from holdfast.model.message import (
    NO_HISTORY,
    Lease,
    Message,
    Outgoing,
    check_id,
    dlq_of,
)
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.model.payload import JSON
from holdfast.model.settings import Settings
from holdfast.queue import failures
from holdfast.queue.checks import check_text
from holdfast.queue.queue import Queue
from holdfast.queue.redrive import DeadFilter, Edit, RedriveJob
from holdfast.queue.topic import Topic
from holdfast.rules.decide import decide, encode_result
from holdfast.rules.outcome import Done, Extend, Fail, Outcome, Release, Reported, Retry
from holdfast.server.actions import Actions
from holdfast.server.auth import ANYBODY, Authority, Principal
from holdfast.server.browsing import detail, page, replay_range, who_holds
from holdfast.server.grouping import Grouped, Grouping
from holdfast.server.history import Recorder, Spans, history
from holdfast.server.limits import Limits
from holdfast.server.ordered import Seat, Seats
from holdfast.server.pipelines import pipelines, report, reports
from holdfast.server.polling import Polls
from holdfast.server.sizes import walk
from holdfast.stores.contract import QueueStats, held_in
from holdfast.telemetry import tracing
from holdfast.telemetry.observe import unobserved
from holdfast.wire import shapes as s
from holdfast.wire.operations import OPERATIONS, Operation

THREADS = 16
SLOW_THREADS = 8
"""For what looks at many messages: it never takes the threads of those who only want one."""
SLOW = {
    "Browse",
    "Purge",
    "Replay",
    "ListFailures",
    "Redrive",
    "ReadLog",
    "ListConsumers",
    "Bind",
    "Sweep",
    "DeleteQueue",
    "DeleteTopic",
    "GetHistory",
    "ListReports",
    "GetReport",
}
T = TypeVar("T")


class Service:
    """One connection to a store, for all who come over a wire."""

    def __init__(
        self,
        hf: Holdfast,
        settings: Settings,
        limits: Limits,
        *,
        authority: Authority | None,
        started: Callable[[], None],
    ) -> None:
        """`started` is called when there is a new redrive to work on."""
        self.hf = hf
        self.at = hf.context
        self.limits = limits
        self._settings = settings
        self._authority = authority
        self._started = started
        self._threads = ThreadPoolExecutor(THREADS, "holdfast-serve")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, "holdfast-slow")
        self._enqueues = Grouping(self._threads, self._enqueue_group)
        self._settles = Grouping(self._threads, self._settle_group)
        self.polls = Polls(self.at, self._threads, limits)
        self.seats = Seats(self.at, settings, limits, self._threads)
        self.told: Callable[[list[QueueStats]], None] = lambda _: None
        """Called with the numbers that somebody was answered."""
        self.recorder = Recorder(hf)
        self._spans = Spans(self.at)
        self._actions = Actions(hf)
        self._loop = asyncio.get_running_loop()
        self._does: dict[str, tuple[Callable[..., Any], bool]] = {}
        for operation in OPERATIONS:
            does = getattr(self, operation.function)
            self._does[operation.name] = (does, inspect.iscoroutinefunction(does))

    async def call(self, operation: Operation, ask: Any, who: Principal) -> Any:
        """Do it, if `who` may. The rights are checked here, once for both doors."""
        if who is not ANYBODY:
            _demand(operation, ask, who)
        does, is_async = self._does[operation.name]
        if operation.name in _TOLD_WHO:
            does = partial(does, who=who)
        if is_async:
            return await does(ask)
        if operation.right == "admin":
            does = partial(self._actions.does, operation, does, who)
        pool = self._slow if operation.name in SLOW else self._threads
        return await self.run(does, ask, pool=pool)

    def still(self, who: Principal) -> Callable[[], None] | None:
        """Asked again and again while somebody waits; None where there are no keys."""
        return None if self._authority is None else partial(self._authority.check_again, who)

    async def run(
        self, does: Callable[..., T], *args: Any, pool: ThreadPoolExecutor | None = None
    ) -> T:
        loop = asyncio.get_running_loop()
        carried = partial(copy_context().run, does, *args)  # with the span that is under way
        return await loop.run_in_executor(pool or self._threads, carried)

    async def stop(self) -> None:
        """No more waiting; what is under way may end."""
        await self.polls.stop()
        self.seats.close_all()
        self._slow.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._threads.shutdown)  # what was not handed out is given back

    # Messages

    async def enqueue(self, ask: s.EnqueueAsk, who: Principal) -> s.EnqueuedDoc:
        return _enqueued(await self._enqueues.add(ask.queue, _item(ask)), ask.queue, who)

    def _enqueue_group(self, queue: str, items: Sequence[Any]) -> Grouped[Message]:
        return self._queue(queue).enqueue_each(items)

    def enqueue_batch(self, ask: s.EnqueueBatchAsk, who: Principal) -> s.EnqueuedsDoc:
        items = _all_outgoing(ask.messages)
        made = self._queue(ask.queue).enqueue_many(items, receipt=ask.receipt)
        return s.EnqueuedsDoc([_enqueued(message, ask.queue, who) for message in made])

    def publish(self, ask: s.PublishAsk, who: Principal) -> s.EnqueuedDoc:
        [made] = self._topic(ask.topic).publish_many([outgoing(ask)])
        return _enqueued(made, ask.topic, who)

    def publish_batch(self, ask: s.PublishBatchAsk, who: Principal) -> s.EnqueuedsDoc:
        made = self._topic(ask.topic).publish_many(_all_outgoing(ask.messages))
        return s.EnqueuedsDoc([_enqueued(message, ask.topic, who) for message in made])

    async def lease_batch(self, ask: s.LeaseAsk, who: Principal) -> s.LeasesDoc:
        try:
            leases = await self.polls.lease(ask, still=self.still(who))
        except FailedPrecondition:  # it is ordered
            leases = await self._lease_in_order(ask, who)
        return s.LeasesDoc([s.LeaseDoc.of(lease) for lease in leases])

    async def _lease_in_order(self, ask: s.LeaseAsk, who: Principal) -> list[Lease]:
        if ask.partitions is not None:
            raise InvalidArgument("partitions", f"{ask.queue} is ordered: they are shared out")
        seat = await self.seats.named(ask.queue, ask.owner)
        seat.waiting += 1
        try:
            leases = await self.polls.lease(ask, seat, self.still(who))
        finally:
            seat.waiting -= 1
        seat.sent(leases)
        return leases

    async def give_back(self, answer: s.LeasesDoc) -> None:
        """Nobody was there any more to hear it: these deliveries do not count."""
        for lease in answer.leases:
            item = s.SettleItem(lease.message.id, lease.token, "release", owner=lease.owner)
            await self._settles.add(lease.message.queue, item)

    async def settle(self, ask: s.SettleAsk) -> s.SettledsDoc:
        items: list[s.SettleItem] = []
        for n, item in enumerate(ask.items):
            with _Item(n):
                items.append(_checked(item))
        done = await self.run(self._settle_group, ask.queue, items)
        results: list[s.SettledDoc] = []
        for item in done:
            if isinstance(item, Exception):
                raise item
            results.append(item)
        return s.SettledsDoc(results)

    async def ack(self, ask: s.AckAsk) -> s.Nothing:
        await self._settle_one(ask, "done", result=ask.result)
        return s.Nothing()

    async def nack(self, ask: s.NackAsk) -> s.Nothing:
        await self._settle_one(ask, "retry", error=ask.error, delay=ask.delay)
        return s.Nothing()

    async def fail(self, ask: s.FailAsk) -> s.Nothing:
        await self._settle_one(ask, "fail", error=ask.error)
        return s.Nothing()

    async def release(self, ask: s.ReleaseAsk) -> s.Nothing:
        await self._settle_one(ask, "release", delay=ask.delay)
        return s.Nothing()

    async def extend(self, ask: s.ExtendAsk) -> s.SettledDoc:
        return await self._settle_one(ask, "extend", seconds=ask.seconds)

    async def _settle_one(self, ask: Any, outcome: Any, **fields: Any) -> s.SettledDoc:
        item = s.SettleItem(ask.id, ask.token, outcome, owner=ask.owner, **fields)
        done: s.SettledDoc = await self._settles.add(ask.queue, _checked(item))
        if done.status == Settled.STALE:
            raise LeaseLost(f"{ask.id}: this lease has ended, the message moved on")
        return done

    def _settle_group(self, queue: str, items: Sequence[s.SettleItem]) -> Grouped[s.SettledDoc]:
        """What was leased in order goes through its consumer; the rest in one write."""
        done: dict[int, s.SettledDoc | HoldfastError] = {}
        rest: list[tuple[int, s.SettleItem]] = []
        for n, item in enumerate(items):
            seat = self.seats.of(queue, item.id, item.token)
            if seat is None or item.outcome == "extend":
                rest.append((n, item))
            else:
                done[n] = self._settle_in_order(queue, seat, item)
        if rest or not items:  # nothing to settle: of a queue that is there
            try:
                written = self._settle_at_once(queue, [item for _, item in rest])
            except HoldfastError as error:
                if not done:
                    raise
                written = [error] * len(rest)
            done.update(zip((n for n, _ in rest), written, strict=True))
        return [done[n] for n in range(len(items))]

    def _settle_in_order(
        self, queue: str, seat: Seat, item: s.SettleItem
    ) -> s.SettledDoc | HoldfastError:
        outcome = _outcome(item)
        assert not isinstance(outcome, Extend)
        try:
            seat.settle(item.token, outcome)
            status = Settled.APPLIED
        except LeaseLost:
            status = Settled.STALE
        except HoldfastError as error:
            return error
        self.polls.settled([item.token])
        self._loop.call_soon_threadsafe(self.polls.serve, queue)
        return s.SettledDoc(item.id, status.value)

    def _settle_at_once(self, queue: str, items: Sequence[s.SettleItem]) -> list[s.SettledDoc]:
        """Rules need the message; only an ack does without it."""
        of = self._queue(queue)
        policy, now = of.policy, self.at.clock.now()
        wanted = [item.id for item in items if item.outcome != "done"]
        held = {m.id: m for m in held_in(self.at.store, queue, wanted)} if wanted else {}
        moves: list[Transition] = []
        for item in items:
            message = held.get(item.id) or _unknown(queue, item.id)
            lease = Lease(message, item.token, 0, 0, item.owner or self.at.owner)
            if message.queue != queue:  # moved on to its dead letters, or back
                moves.append(_nowhere(queue, item))
            else:
                moves.append(decide(lease, _outcome(item), policy, now, self.at.rng))
        answers = self.at.store.settle(moves, now)
        self._ended(moves, answers)
        return [
            s.SettledDoc(
                item.id,
                answer.value,
                move.deadline if answer is Settled.APPLIED and move.deadline else None,
            )
            for item, move, answer in zip(items, moves, answers, strict=True)
        ]

    def _ended(self, moves: Sequence[Transition], answers: Sequence[Settled]) -> None:
        """For streams that wait for room."""
        self.polls.settled(move.token for move in moves if move.target is not Target.LEASED)
        for move, answer in zip(moves, answers, strict=True):
            if move.target is Target.LEASED and answer is Settled.APPLIED:
                self.polls.extended(move.token or "", move.deadline)
                self.seats.extended(move.token or "", move.deadline)

    # Queues

    def list_queues(self, ask: s.ListAsk, who: Principal) -> s.QueuesDoc:
        found = {queue.name: queue for queue in self.hf.queues()}
        names = _listed(found, ask, who)
        specs = {spec.name: spec for spec in self.at.store.queues() if spec.name in names}
        return s.QueuesDoc(
            [s.QueueDoc.of(specs[name], self.at.complete(specs[name])) for name in specs]
        )

    def create_queue(self, ask: s.PutQueueAsk) -> s.QueueDoc:
        queue = self.hf.queue(
            ask.queue, partitions=ask.partitions, ordered=ask.ordered, **ask.policy.fields()
        )
        return self._describe(queue)

    def get_queue(self, ask: s.QueueAsk) -> s.QueueDoc:
        return self._describe(self._queue(ask.queue))

    def delete_queue(self, ask: s.DeleteQueueAsk) -> s.Nothing:
        self._queue(ask.queue).delete(force=ask.force)
        self._spans.forget(ask.queue)
        return s.Nothing()

    def list_stats(self, ask: s.ListAsk, who: Principal) -> s.StatsListDoc:
        found = {stats.queue: stats for stats in self.hf.stats()}
        self.told([*found.values()])
        return s.StatsListDoc([s.StatsDoc.of(found[name]) for name in _listed(found, ask, who)])

    def get_stats(self, ask: s.QueueAsk) -> s.StatsDoc:
        stats = self._queue(ask.queue).stats()
        self.told([stats])
        return s.StatsDoc.of(stats)

    def list_partitions(self, ask: s.QueueAsk) -> s.PartitionsDoc:
        parts = self._queue(ask.queue).partitions()
        return s.PartitionsDoc([s.PartitionDoc.of(part) for part in parts])

    def list_consumers(self, ask: s.QueueAsk) -> s.ConsumersDoc:
        return who_holds(self._queue(ask.queue))

    def pause(self, ask: s.QueueAsk) -> s.Nothing:
        self._queue(ask.queue).pause()
        return s.Nothing()

    def resume(self, ask: s.QueueAsk) -> s.Nothing:
        self._queue(ask.queue).resume()
        return s.Nothing()

    def purge(self, ask: s.QueueAsk) -> s.CountDoc:
        return s.CountDoc(self._queue(ask.queue).purge())

    def _describe(self, queue: Queue) -> s.QueueDoc:
        spec = queue.spec
        return s.QueueDoc.of(spec, self.at.complete(spec))

    # What there is to see

    def browse(self, ask: s.BrowseAsk) -> s.PageDoc:
        return page(self._queue(ask.queue), ask, self.limits.answer_bytes)

    def get_message(self, ask: s.MessageAsk) -> s.DetailDoc:
        return detail(self._queue(ask.queue), check_id(ask.id))

    def read_log(self, ask: s.LogAsk) -> s.LogDoc:
        found = page(
            self._queue(ask.queue),
            s.BrowseAsk(ask.queue, "log", ask.after, ask.limit, ask.since, ask.until),
            self.limits.answer_bytes,
        )
        rows = [entry.finished for entry in found.entries if entry.finished is not None]
        return s.LogDoc(rows, found.after)

    def replay(self, ask: s.ReplayAsk) -> s.MessagesDoc:
        queue = self._queue(ask.queue)
        if ask.id is None and (ask.since is not None or ask.until is not None):
            return replay_range(queue, ask, self.limits.answer_bytes)
        made = queue.replay(ask.id, since=ask.since, until=ask.until)
        return s.MessagesDoc([s.MessageDoc.of(message) for message in made])

    def list_failures(self, ask: s.FailuresAsk) -> s.FailuresDoc:
        dlq = self._queue(dlq_of(self._queue(ask.queue).name))
        read = partial(walk, budget=self.limits.answer_bytes)
        found = failures.failure_groups(self.at, dlq.name, scan=ask.scan, read=read)
        return s.FailuresDoc(
            found.dlq,
            [_failure(group) for group in found.groups],
            found.looked,
            found.total,
            found.bucket_ms,
        )

    # Redrive

    def redrive(self, ask: s.RedriveAsk) -> s.RedrivenDoc:
        done = self.hf.redrive(ask.dlq_queue, ask.count, **_redrive_options(ask))
        return s.RedrivenDoc(**msgspec.structs.asdict(done))

    def start_redrive(self, ask: s.RedriveAsk) -> s.RedriveDoc:
        job = self.hf.start_redrive(ask.dlq_queue, ask.count, **_redrive_options(ask))
        self._started()
        return _job(job)

    def list_redrives(self, ask: s.NoAsk, who: Principal) -> s.RedrivesDoc:
        jobs = [job for job in self.hf.list_redrives() if who.may("read", job.dlq)]
        return s.RedrivesDoc([_job(job) for job in jobs])

    def get_redrive(self, ask: s.RedriveIdAsk, who: Principal) -> s.RedriveDoc:
        job = self.hf.get_redrive(ask.id)
        who.demand("read", job.dlq)
        return _job(job)

    def cancel_redrive(self, ask: s.RedriveIdAsk, who: Principal) -> s.RedriveDoc:
        who.demand("admin", self.hf.get_redrive(ask.id).dlq)
        return _job(self.hf.cancel_redrive(ask.id))

    # Topics

    def list_topics(self, ask: s.ListAsk, who: Principal) -> s.TopicsDoc:
        found = {topic.name: topic for topic in self.hf.topics()}
        names = _listed(found, ask, who)
        return s.TopicsDoc([self._describe_topic(found[name]) for name in names])

    def create_topic(self, ask: s.PutTopicAsk) -> s.TopicDoc:
        topic = self.hf.topic(ask.topic, log=ask.log, retention=ask.retention)
        return self._describe_topic(topic)

    def get_topic(self, ask: s.TopicAsk) -> s.TopicDoc:
        return self._describe_topic(self._topic(ask.topic))

    def delete_topic(self, ask: s.DeleteTopicAsk, who: Principal) -> s.Nothing:
        topic = self._topic(ask.topic)
        for group in topic.groups():
            who.demand("admin", f"{ask.topic}@{group}")
        topic.delete(force=ask.force)
        return s.Nothing()

    def bind(self, ask: s.BindAsk) -> s.QueueDoc:
        start: Any = ask.start
        queue = self._topic(ask.topic).bind(
            ask.group,
            start=start,
            partitions=ask.partitions,
            ordered=ask.ordered,
            **ask.policy.fields(),
        )
        return self._describe(queue)

    def unbind(self, ask: s.UnbindAsk) -> s.Nothing:
        self._topic(ask.topic).unbind(ask.group, force=ask.force)
        return s.Nothing()

    def _describe_topic(self, topic: Topic) -> s.TopicDoc:
        stats = topic.stats()
        return s.TopicDoc(
            stats.topic,
            {name: s.StatsDoc.of(of) for name, of in stats.groups.items()},
            stats.filling,
            stats.retained,
            stats.oldest_age,
            stats.log,
            stats.retention,
        )

    # The whole

    def sweep(self, ask: s.NoAsk) -> s.SweptDoc:
        return s.SweptDoc(*msgspec.structs.astuple(self.hf.sweep()))

    def get_settings(self, ask: s.NoAsk) -> s.SettingsDoc:
        own = self._settings
        return s.SettingsDoc(
            version=holdfast.__version__,
            store=type(unobserved(self.at.store)).__name__.removesuffix("Store").lower(),
            auth=self._authority is not None,
            overdue_check_interval_ms=own.overdue_check_interval_ms,
            requeue_batch_size=own.requeue_batch_size,
            partition_lease_ms=own.partition_lease_ms,
            partition_renew_ms=own.partition_renew_ms,
            partition_rebalance_ms=own.partition_rebalance_ms,
            policy=s.PolicyDoc.of(self.at.policy),
            limits={
                name: float(value) for name, value in msgspec.structs.asdict(self.limits).items()
            },
            now=self.at.clock.now(),
        )

    def get_identity(self, ask: s.NoAsk, who: Principal) -> s.IdentityDoc:
        auth = self._authority is not None
        return s.IdentityDoc(who.id, who.name, sorted(who.rights), list(who.queues), auth)

    def get_history(self, ask: s.HistoryAsk, who: Principal) -> s.HistoryDoc:
        if ask.queue is not None:
            self._queue(ask.queue)
        now = self.at.clock.now()
        return history(ask, self.recorder, self._spans, partial(who.may, "read"), now)

    def list_actions(self, ask: s.ActionsAsk, who: Principal) -> s.ActionsDoc:
        return self._actions.list(ask, who)

    # Spark

    def list_pipelines(self, ask: s.NoAsk, who: Principal) -> s.PipelinesDoc:
        return pipelines(self.at, partial(who.may, "read"))

    def list_reports(self, ask: s.ReportsAsk) -> s.ReportsDoc:
        return reports(self.at, ask.limit)

    def get_report(self, ask: s.ReportIdAsk) -> s.ReportDoc:
        return report(self.at, ask.id)

    def _queue(self, name: str) -> Queue:
        return self.hf.queue(name, create=False)

    def _topic(self, name: str) -> Topic:
        return self.hf.topic(name, create=False)


_LISTS = {
    "ListQueues",
    "ListStats",
    "ListTopics",
    "ListRedrives",
    "GetRedrive",
    "CancelRedrive",
    "GetHistory",
    "ListActions",
    "ListPipelines",
}
"""They show or touch only what a key may see, which its ask need not name."""
_TOLD_WHO = _LISTS | {
    *("LeaseBatch", "GetIdentity", "Enqueue", "EnqueueBatch", "Publish", "PublishBatch"),
    "DeleteTopic",
}


def _demand(operation: Operation, ask: Any, who: Principal) -> None:
    if operation.right is None:
        return
    for field in operation.guards:
        name = getattr(ask, field)
        if name:
            who.demand(operation.right, name)
    if operation.name in ("Bind", "Unbind"):  # the group's queue is what they change
        who.demand(operation.right, f"{ask.topic}@{ask.group}")
    if operation.name in _LISTS:
        who.demand_anywhere(operation.right)
    elif not operation.guards:
        who.demand(operation.right, None)


def outgoing(ask: s.OutgoingDoc) -> Outgoing:
    """What a client sent, as the library takes it. JSON is kept as it was written."""
    if ask.payload is not UNSET and ask.body is not None:
        raise InvalidArgument("body", "give payload or body, not both")
    if ask.payload is not UNSET:
        if ask.content_type not in (None, JSON):
            raise InvalidArgument("content_type", f"a payload is {JSON}; send others as body")
        body, content_type = bytes(ask.payload), JSON
    elif ask.body is not None:
        body, content_type = ask.body, ask.content_type
    else:
        raise InvalidArgument("payload", "is missing: give payload (JSON) or body (base64)")
    return Outgoing(
        body,
        ask.id,
        ask.key,
        ask.type,
        ask.priority,
        ask.delay,
        ask.at,
        tracing.inject(ask.headers) if tracing.is_loaded() else ask.headers,
        ask.ack_timeout,
        ask.max_attempts,
        ask.backoff and ask.backoff.value(),
        content_type,
    )


def _all_outgoing(asks: Sequence[s.OutgoingDoc]) -> list[Any]:
    items: list[Any] = []
    try:
        for ask in asks:
            items.append(_item(ask))  # noqa: PERF401, their number is that of the bad one
    except InvalidArgument as error:
        error.index = len(items)
        raise
    return items


def _item(ask: s.OutgoingDoc) -> Outgoing | Raw:
    """The payload, where nothing else was sent: most are such, and have less to check."""
    if ask.payload is UNSET or tracing.is_loaded() or astuple(ask)[1:_OWN] != _NOTHING_ELSE:
        return outgoing(ask)
    return ask.payload


_NOTHING_ELSE = astuple(s.OutgoingDoc())[1:]
_OWN = len(_NOTHING_ELSE) + 1
"""Those of a single ask have the queue behind them."""


class _Item:
    """An error inside is that of the n-th item of a batch."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InvalidArgument):
            error.index = self._n


def _enqueued(message: Message, to: str, who: Principal) -> s.EnqueuedDoc:
    """A duplicate answers with the message that is held, to those who may read it."""
    if message.duplicate and not who.may("read", to):
        return s.EnqueuedDoc(message.id, to, 0, 0, 0, duplicate=True)
    return s.EnqueuedDoc.of(message)


def _checked(item: s.SettleItem) -> s.SettleItem:
    """Before it goes into one write with others, which must not fail because of it."""
    outcome = _outcome(item)
    if isinstance(outcome, Done) and outcome.result is not None:
        encode_result(outcome.result)
    check_text("token", item.token)
    check_text("owner", item.owner)
    return msgspec.structs.replace(item, id=check_id(item.id))


def _outcome(item: s.SettleItem) -> Outcome:
    match item.outcome:
        case "done":
            return Done(_decoded("result", item.result))
        case "retry":
            error = item.error or s.ErrorAsk("nacked")
            return Retry(_reported(error), delay=item.delay, code=error.code)
        case "fail":
            error = item.error or s.ErrorAsk("failed")
            return Fail(_reported(error), code=error.code)
        case "release":
            return Release(delay=item.delay)
        case "extend":
            return Extend(item.seconds)


def _reported(error: s.ErrorAsk) -> Reported:
    return Reported(error.message, error.code, error.traceback)


def _decoded(field: str, raw: Raw | UnsetType) -> Any:
    """A Raw was only skipped when the document was read: what is in it is looked at here."""
    try:
        return None if raw is UNSET else msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(field, f"not JSON: {error}") from None


def _unknown(queue: str, id: str) -> Message:
    """For an ack, which needs no more of it; for others it stands for one that is gone."""
    return Message(
        check_id(id), queue, 0, 0, None, None, b"", JSON, {}, 0, 0, 1, history=NO_HISTORY
    )


_VERBS = {
    "done": Verb.ACK,
    "retry": Verb.NACK,
    "fail": Verb.FAIL,
    "release": Verb.RELEASE,
    "extend": Verb.EXTEND,
}


def _nowhere(queue: str, item: s.SettleItem) -> Transition:
    """The store finds nothing to apply it to, but knows a call that was repeated."""
    return Transition(
        _VERBS[item.outcome],
        queue,
        item.id,
        Target.WAITING,
        item.token,
        to_queue=queue,
    )


def _listed(names: Any, ask: s.ListAsk, who: Principal) -> list[str]:
    found = [
        name
        for name in sorted(names)
        if name.startswith(ask.prefix) and name > ask.after and who.may("read", name)
    ]
    return found[: ask.limit]


def _redrive_options(ask: s.RedriveAsk) -> dict[str, Any]:
    where = None
    if ask.where is not None:
        given = msgspec.structs.asdict(ask.where)
        given["fields"] = _decoded("where.fields", ask.where.fields)
        where = DeadFilter(**{name: value for name, value in given.items() if value is not None})
    edit = None
    if ask.payload is not UNSET or ask.merge is not UNSET:
        chosen = {"payload": ask.payload, "merge": ask.merge}
        given = {name: _decoded(name, raw) for name, raw in chosen.items() if raw is not UNSET}
        edit = Edit(**given)
    return {
        "ids": ask.ids,
        "where": where,
        "rate": ask.rate,
        "to": ask.to,
        "edit": edit,
        "dry_run": ask.dry_run,
    }


def _failure(group: failures.FailureGroup) -> s.FailureDoc:
    fields = msgspec.structs.asdict(group)
    fields["by_time"] = [s.BucketDoc(at, count) for at, count in group.by_time]
    return s.FailureDoc(**fields)


def _job(job: RedriveJob) -> s.RedriveDoc:
    return s.RedriveDoc(**{name: getattr(job, name) for name in s.RedriveDoc.__struct_fields__})
