"""Runs handlers: leases in batches, hands out, settles in groups, renews what still runs.

Five threads around the handlers, none of which waits for another's round trip: one leases, one
settles, one renews, one keeps the partitions of ordered queues, one sweeps. A store that is away is
waited for; nothing is dropped meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Literal

import msgspec

from holdfast.errors import (
    InvalidArgument,
    QueueNotFound,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.model.clock import Clock
from holdfast.model.errortext import clean
from holdfast.model.message import ERROR_TEXT_MAX, Lease, is_dlq
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.model.policy import DEFAULTS, Policy, positive, seconds, whole
from holdfast.model.queues import QueueSpec
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.queue import Queue
from holdfast.rules import lifecycle
from holdfast.stores.contract import ByPartition
from holdfast.telemetry import tracing
from holdfast.work.handlers import (
    CannotRun,
    Handler,
    Problem,
    Registry,
    Verdict,
    decide,
    problem,
    run,
    run_async,
)
from holdfast.work.leaser import Leaser, Specs
from holdfast.work.ownership import POLL_S, Delivery, Owner, Work
from holdfast.work.process import Child, check_not_importing, check_picklable, time_for
from holdfast.work.sweeper import Sweeper

Executor = Literal["thread", "process"]

PREFETCH_MAX = 1000
PREFETCH_S, PREFETCH_S_MAX = 0.05, 0.5
"""Beyond what can run at once, lease no more than what was worked off in this time lately. A store
whose leases take longer than the first one is asked for more, up to the second one."""
GROUP = 500
LINGER_S = 0.002
"""How long a lone ack waits for company while other handlers run."""
RECONNECT_S = (0.1, 5.0)
IDLE_S = 1.0
LOOK_S = 2.0
"""How often an idle worker leases although no store has given a sign."""
RENEW_TICK_S = (0.01, 0.25)
RENEW_MIN_MS = 1000
"""A lease is renewed for at least so long: one of a millisecond would keep the renewer busy."""
SIGNAL_S = 0.25
"""A signal that another thread received is handled when the main thread wakes up."""
LOOP_END_S = 5.0
SWEEP_END_S = 5.0
"""For a sweep that is under way: the store is closed after it, and its lock is given back."""

NO_EXTEND = "Extend: messages of an ordered queue are finished by the worker that holds them"
STORE_REFUSED = "what came of it could not be stored"
PROBE = "probe"
"""A claim that nobody holds: a small write that says whether the store takes any."""

logger = logging.getLogger("holdfast.worker")


class Health(msgspec.Struct, frozen=True):
    ready: bool
    why: str = ""


class Worker:
    """Works queues until it is told to stop. `run` blocks; `stop` may come from any thread."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        settings: Settings,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 16,
        executor: Executor = "thread",
        time_limit: float | None = None,
        grace: float = 30.0,
        until_empty: bool = False,
        sweep: bool = True,
    ) -> None:
        whole("concurrency", concurrency, low=1, high=10_000)
        positive("time_limit", time_limit)
        seconds("grace", grace)
        names = list(queues or registry.queues())
        if not names:
            raise InvalidArgument("queues", "no handler is registered and no queue is named")
        check_handlers(registry.all(), executor, time_limit)
        self._at = context
        self._registry = registry
        self._queues = [Queue(context, name) for name in names]
        self._concurrency = concurrency
        self._in_processes = executor == "process"
        self._time_limit = time_limit
        self._grace = grace
        self._until_empty = until_empty
        self._settings = settings
        self._specs = Specs(context, names)
        self._leaser = Leaser(context, self._specs)
        self._owners: dict[str, Owner] = {}
        self._sweeper = Sweeper(context, settings) if sweep else None

        self._asked_to_stop: SimpleQueue[None] = SimpleQueue()
        self._stop = threading.Event()  # lease no more
        self._quit = threading.Event()  # everything is settled, or given up
        self._handing_out = threading.Condition()
        self._idle = 0  # handler threads that wait for work
        self._buffer: deque[Delivery] = deque()  # leased, not started
        self._flying: dict[str, Delivery] = {}  # leased, not finished, by token
        self._finished: deque[Delivery] = deque()
        self._has_finished = threading.Event()
        self._has_room = threading.Event()
        self._unsettled = 0
        self._settled = 0
        self._trouble: dict[str, str] = {}
        self._nudge = threading.Event()  # partitions need care before their time
        self._loop = _Loop(concurrency)
        self._unable = 0  # handler threads without a process

    def run(self) -> bool:
        """Work until stopped. True when everything that ran was finished and settled."""
        if self._in_processes:
            check_not_importing()
        specs = self._specs.read()
        for queue in self._queues:
            if queue.name not in specs:
                raise QueueNotFound(f"no queue {queue.name!r}")
            if specs[queue.name].ordered:
                self._owner(queue)
        self._start(self._own_loop)
        leaser = self._start(self._lease_loop)
        settler = self._start(self._settle_loop)
        self._start(self._renew_loop)
        for _ in range(self._concurrency):
            self._start(self._handle_loop)
        sweeping = self._sweeper and self._start(self._sweeper.run, self._quit)
        names = ", ".join(queue.name for queue in self._queues)
        logger.info("working %s with concurrency %d", names, self._concurrency)
        try:
            self._wait_until_stopped()
            self._stop.set()
            self._has_room.set()
            logger.info("stopping; %d deliveries in hand", self._unsettled)
            leaser.join()
            clean = self._finish_what_runs()
        finally:
            self._stop.set()
            self._quit.set()
            self._nudge.set()
            self._has_finished.set()
            settler.join()
            with self._handing_out:
                self._handing_out.notify_all()
            self._loop.stop()
            self._leave()
            if sweeping is not None:
                sweeping.join(SWEEP_END_S)
        logger.info("stopped; %d deliveries settled", self._settled)
        return clean and self._unsettled == 0

    def stop(self) -> None:
        """No new leases; what runs may finish within the grace time. Also for signal handlers:
        a SimpleQueue, because setting an event that this very thread waits for may deadlock."""
        self._asked_to_stop.put(None)

    def _wait_until_stopped(self) -> None:
        while True:
            with suppress(Empty):
                return self._asked_to_stop.get(timeout=SIGNAL_S)

    def health(self) -> Health:
        """Whether the store answers and the queues are there; if not, why."""
        trouble = dict(self._trouble)
        return Health(not trouble, "; ".join(f"{what}: {why}" for what, why in trouble.items()))

    def _start(self, target: Callable[..., None], *args: Any) -> threading.Thread:
        name = f"holdfast-{target.__name__.strip('_')}"
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    # Leasing

    def _lease_loop(self) -> None:
        patience = _Patience(self._trouble, "lease", self._stop)
        pace = _Pace(self._at.clock)
        while not self._stop.is_set():
            ahead = pace.ahead(self._settled)
            room = self._concurrency - self._unable + ahead - len(self._flying)
            is_full = room < max(1, ahead // 2) and not self._owners
            unable = self._nobody_is_able()
            if unable:
                self._put_back()  # here, as a lease may just have brought something
            if unable or is_full:
                self._has_room.wait(IDLE_S)
                self._has_room.clear()
                continue
            try:
                quiet, begun = self._unsettled == 0, self._at.clock.monotonic()
                leased = self._lease_some(room, ahead)
                pace.leased(self._at.clock.monotonic() - begun)
                if leased == 0:
                    self._nothing_there(quiet)
                patience.reward()
            except Exception as error:
                patience.wait(error)

    def _lease_some(self, room: int, ahead: int) -> int:
        """From ordered queues what their owner gives, from the others what there is room for."""
        leased, plain = 0, list[Queue]()
        specs = self._specs.read()
        for queue in self._queues:
            if not self._is_there(queue.name, specs):
                continue
            if not specs[queue.name].ordered:
                plain.append(queue)
                continue
            work = self._owner(queue).lease(2 * ahead)
            leased += work.leased
            self._go_on(work)
        leases = self._leaser.lease(plain, min(room - leased, PREFETCH_MAX))
        items = [Delivery(lease) for lease in leases]
        self._take_in(items)
        self._hand_out(items)
        return leased + len(leases)

    def _is_there(self, name: str, specs: Mapping[str, QueueSpec]) -> bool:
        """A queue that was deleted is worked again when it is back."""
        if name in specs:
            self._trouble.pop(name, None)
            return True
        if name not in self._trouble:
            self._trouble[name] = "the queue is gone"
            logger.warning("%s: the queue is gone", name)
        return False

    def _nothing_there(self, quiet: bool) -> None:
        if not self._until_empty:
            self._wait_for_more()
        elif quiet and self._unsettled == 0 and self._all_empty():
            self._stop.set()
            self.stop()
        else:
            self._has_room.wait(POLL_S if self._owners else IDLE_S)
            self._has_room.clear()

    def _wait_for_more(self) -> None:
        names = [queue.name for queue in self._queues if queue.name not in self._trouble]
        now = self._at.clock.now()
        ordered = [self._owners[name] for name in names if name in self._owners]
        owned = ordered[0].owned() if len(names) == len(ordered) == 1 else []
        if not names:
            self._stop.wait(IDLE_S / 2)
        elif not ordered:
            self._wait_for_any(names)
        elif owned and not self._unsettled:
            self._at.store.wait(names, now, IDLE_S / 2, owned)
        else:  # one wait for several queues knows no partitions
            self._has_room.wait(POLL_S)
            self._has_room.clear()

    def _wait_for_any(self, names: list[str]) -> None:
        """The store looks by itself before each wait, so nothing needs to be leased in between."""
        until = self._at.clock.monotonic() + LOOK_S
        try:
            while not self._stop.is_set() and self._at.clock.monotonic() < until:
                if self._at.store.wait(names, self._at.clock.now(), IDLE_S / 2):
                    return
        except QueueNotFound:
            self._specs.forget()
            raise

    def _all_empty(self) -> bool:
        """Of ordered queues also what others own: it is theirs to finish."""
        now = self._at.clock.now()
        depths = [self._at.store.stats(ByPartition(name), now) for name in self._owners]
        return not any(depth.ready for of in depths for depth in of)

    def _take_in(self, items: list[Delivery]) -> None:
        with self._handing_out:
            self._unsettled += len(items)
        self._flying.update((item.lease.token, item) for item in items)

    def _hand_out(self, plain: list[Delivery]) -> None:
        awaited: list[Delivery] = []
        if not self._in_processes and any(handler.is_async for handler in self._registry.all()):
            awaited = [item for item in plain if self._is_async(item.lease)]
            plain = [item for item in plain if not self._is_async(item.lease)]
        if awaited:
            self._loop.start(self._handle_async, awaited)
        self._buffer.extend(plain)
        if self._idle:
            with self._handing_out:
                self._handing_out.notify(len(plain))

    def _is_async(self, lease: Lease) -> bool:
        return any(handler.is_async for handler in self._registry.matching(lease.message))

    # Ordered queues

    def _owner(self, queue: Queue) -> Owner:
        owner = self._owners.get(queue.name)
        if owner is None:
            owner = Owner(
                self._at, queue, self._settings, nudge=self._nudge, on_lease=self._take_in
            )
            self._owners[queue.name] = owner
            self._nudge.set()
        return owner

    def _own_loop(self) -> None:
        """Keeps partitions, and gives them up; also while what runs may still finish."""
        patience = _Patience(self._trouble, "own", self._quit)
        while not self._quit.is_set():
            try:
                for owner in list(self._owners.values()):
                    self._go_on(owner.tick())
                patience.reward()
            except Exception as error:
                patience.wait(error)
            dues = [owner.due_in() for owner in list(self._owners.values())]
            self._nudge.wait(min(dues, default=None))
            self._nudge.clear()

    def _may_start(self, item: Delivery) -> bool:
        """Asked at the last moment: its partition may have been lost on the way to here."""
        now = self._at.clock.now()
        return item.deadline > now and self._owners[item.lease.message.queue].holds(item, now)

    def _go_on(self, work: Work) -> None:
        if work.back:
            self._finished.extend(work.back)
            self._has_finished.set()
        if work.start:
            self._hand_out(work.start)

    def _leave(self) -> None:
        for owner in self._owners.values():
            try:
                owner.leave()
            except StoreError as error:
                logger.warning("%s: partitions run out by themselves: %s", owner.queue.name, error)

    # Handling

    def _handle_loop(self) -> None:
        child = Child(self._registry.all()) if self._in_processes else None
        while (item := self._take()) is not None:
            unable: CannotRun | None = None
            try:
                if item.part is None or self._may_start(item):
                    item.verdict = self._handle(item.lease, child)
            except CannotRun as error:
                unable = error
            except BaseException as error:  # this thread stays, whatever is thrown into it
                item.verdict = _unhandled(item, error)
            self._finish(item)
            if unable is not None and child is not None:
                self._wait_until_able(child, unable)
        if child is not None:
            child.kill()

    def _wait_until_able(self, child: Child, why: CannotRun) -> None:
        """Take no message before a handler can be run again."""
        patience = _Patience(self._trouble, "starting handlers", self._stop)
        with self._handing_out:
            self._unable += 1
        self._has_room.set()
        while not self._stop.is_set():
            patience.wait(why)
            try:
                child.start()
                patience.reward()
                break
            except CannotRun as error:
                why = error
        with self._handing_out:
            self._unable -= 1
        self._has_room.set()

    def _nobody_is_able(self) -> bool:
        return self._unable >= self._concurrency

    def _put_back(self) -> None:
        """What nobody here can start another worker may take."""
        while self._buffer:
            with suppress(IndexError):
                self._finish(self._buffer.popleft())

    def _take(self) -> Delivery | None:
        while True:
            try:
                return self._buffer.popleft()  # no lock while there is work
            except IndexError:
                pass
            with self._handing_out:
                if self._quit.is_set():
                    return None
                self._idle += 1
                if not self._buffer:
                    self._handing_out.wait(IDLE_S)
                self._idle -= 1

    def _handle(self, lease: Lease, child: Child | None) -> Verdict:
        handlers = self._registry.due(lease.message)
        if not handlers:
            return self._registry.nothing_due(lease.message)
        begun = self._at.clock.monotonic()
        with tracing.handling(lease) as span:
            if child is None:
                verdict = run(handlers, lease)
            else:
                verdict = child.run(lease, time_for(handlers, self._time_limit))
            _say(span, verdict, recorded=child is None)
        self._handled(lease, begun, verdict)
        return verdict

    async def _handle_async(self, item: Delivery) -> None:
        try:
            await self._await(item)
        except CannotRun as error:
            self._trouble["starting handlers"] = str(error)
            logger.warning("%s: %s", item.lease.message.id, error)
            item.verdict = Verdict(ending="release", delay=RECONNECT_S[1])
        except BaseException as error:
            if self._loop.is_ending:
                raise  # this delivery stays open and becomes overdue
            item.verdict = _unhandled(item, error)
        self._finish(item)

    async def _await(self, item: Delivery) -> None:
        if item.part is not None and not self._may_start(item):
            return
        handlers = self._registry.due(item.lease.message)
        if not handlers:
            item.verdict = self._registry.nothing_due(item.lease.message)
            return
        begun = self._at.clock.monotonic()
        with tracing.handling(item.lease) as span:
            verdict = await run_async(handlers, item.lease)
            _say(span, verdict, recorded=True)
        item.verdict = verdict
        self._handled(item.lease, begun, verdict)
        self._trouble.pop("starting handlers", None)

    def _handled(self, lease: Lease, begun: float, verdict: Verdict) -> None:
        for observer in self._at.observers:
            seconds = self._at.clock.monotonic() - begun
            observer.handled(lease.message.queue, seconds, not verdict.problems)

    def _finish(self, item: Delivery) -> None:
        work: Work | None = None
        if item.part is not None and item.verdict is not None and item.verdict.ending == "extend":
            item.verdict = Verdict(problems=(Problem(NO_EXTEND, "ExtendInOrder"),))
        if item.part is not None:  # first: whoever settles it must know whether it holds its key
            verdict: Verdict | None = item.verdict
            started = verdict is not None
            failed = verdict is not None and not verdict.is_done
            owner = self._owners[item.lease.message.queue]
            work = owner.finished(item, failed=failed, started=started)
        self._finished.append(item)
        if not self._has_finished.is_set():
            self._has_finished.set()
        if work is not None:
            self._go_on(work)

    # Settling

    def _settle_loop(self) -> None:
        patience = _Patience(self._trouble, "settle", self._quit)
        group: list[Delivery] = []
        while True:
            group += self._take_finished(wait=not group)
            last = self._quit.is_set() and not self._finished
            try:
                while group:
                    try:
                        self._settle_each(group[:GROUP])
                    finally:
                        group = [item for item in group if not item.ended]
                patience.reward()
            except Exception as error:
                if self._quit.is_set():
                    logger.error("%d deliveries not settled: %s", len(group), error)
                    return
                patience.wait(error)
            if last:
                return

    def _take_finished(self, *, wait: bool) -> list[Delivery]:
        if wait:
            self._has_finished.wait()
        if len(self._finished) < len(self._flying) and len(self._finished) < GROUP:
            self._quit.wait(LINGER_S)  # others are about to finish: one write for all of them
        self._has_finished.clear()
        taken: list[Delivery] = []
        while self._finished:
            item = self._finished.popleft()
            self._flying.pop(item.lease.token, None)
            taken.append(item)
        self._has_room.set()
        return taken

    def _settle_each(self, group: list[Delivery]) -> None:
        """A group that the store refuses, though it answers, has a bad item: the others are settled
        without it, and it is a dead letter."""
        try:
            return self._settle(group)
        except StoreError as error:
            if isinstance(error, _STORE_IS_AT_FAULT) or not self._store_takes_writes():
                raise
            refused: Exception = error
        except Exception as error:
            refused = error
        if len(group) > 1:
            middle = len(group) // 2
            self._settle_each(group[:middle])
            return self._settle_each(group[middle:])
        item = group[0]
        item.refused += 1
        if item.refused == 2:  # not a passing fault
            text = f"{STORE_REFUSED}: {clean(refused, ERROR_TEXT_MAX)}"
            item.verdict = Verdict(problems=(Problem(text, "OutcomeRefused"),), fatal=True)
        if item.refused <= 3:
            return self._settle_each(group)
        what = f"{item.lease.message.queue} {item.lease.message.id}"
        logger.error("%s: %s; its lease runs out", what, STORE_REFUSED, exc_info=refused)
        self._settled_all([item], {})
        return None

    def _store_takes_writes(self) -> bool:
        """Not where a right is missing, for example: that is no message's fault."""
        try:
            self._at.store.claim(PROBE, self._at.owner, 0, self._at.clock.now())
        except Exception:
            return False
        return True

    def _settle(self, group: list[Delivery]) -> None:
        now = self._at.clock.now()
        policies = self._specs.policies({item.lease.message.queue for item in group})
        ours = [item for item in group if self._holds(item, now)] if self._owners else group
        moves = [self._move(item, policies[item.lease.message.queue], now) for item in ours]
        answers = self._at.store.settle(moves, now)
        self._settled_all(group, dict(zip(map(id, ours), answers, strict=True)))
        everything = logger.isEnabledFor(logging.DEBUG)
        for item, move, answer in zip(ours, moves, answers, strict=True):
            if everything or answer is Settled.STALE or move.verb is not Verb.ACK:
                _tell(item, move, answer, now)

    def _settled_all(self, group: list[Delivery], answers: dict[int, Settled]) -> None:
        if self._owners:
            for item in group:
                if item.part is not None:
                    owner = self._owners[item.lease.message.queue]
                    self._go_on(owner.settled(item, answers.get(id(item))))
        for item in group:
            item.ended = True
        with self._handing_out:
            self._unsettled -= len(group)
        self._settled += len(group)
        self._has_room.set()

    def _holds(self, item: Delivery, now: int) -> bool:
        """Of a partition that has been lost nothing may be settled: its new owner has it all."""
        if item.part is None or self._owners[item.lease.message.queue].holds(item, now):
            return True
        if not item.back:
            message = item.lease.message
            text = "%s %s: partition %d was lost, its outcome is dropped"
            logger.warning(text, message.queue, message.id, message.partition)
        return False

    def _move(self, item: Delivery, policy: Policy, now: int) -> Transition:
        if item.part is None:
            return decide(item.lease, item.verdict, policy, now, self._at.rng)
        owner = self._owners[item.lease.message.queue]
        if item.back:
            return owner.given_back(item, now)
        move = decide(item.lease, item.verdict, policy, now, self._at.rng)
        owner.decided(item, move)
        return move

    # Renewing

    def _renew_loop(self) -> None:
        """Needs nothing of the handlers: one that blocks, or hogs the interpreter, stays leased."""
        tick = RENEW_TICK_S[1]
        while not self._quit.wait(tick):
            items = list(self._flying.copy().values())
            shortest = min((_length_ms(item.lease) for item in items), default=0)
            tick = max(RENEW_TICK_S[0], min(RENEW_TICK_S[1], shortest / 5000))
            try:
                self._renew(items)
            except Exception as error:
                logger.warning("leases not renewed: %s", error)

    def _renew(self, items: list[Delivery]) -> None:
        now = self._at.clock.now()
        due = [item for item in items if now >= item.deadline - _renewal_ms(item) * 2 // 3]
        for start in range(0, len(due), GROUP):
            part = due[start : start + GROUP]
            moves = [
                lifecycle.extended(item.lease, DEFAULTS, now, _renewal_ms(item) / 1000)
                for item in part
            ]
            answers = self._at.store.settle(moves, now)
            for item, move, answer in zip(part, moves, answers, strict=True):
                item.deadline = move.deadline
                if answer is not Settled.APPLIED and item.lease.token in self._flying:
                    logger.warning("%s: lease lost while it runs", item.lease.message.id)

    # Stopping

    def _finish_what_runs(self) -> bool:
        """Give back what never started, wait for the rest within the grace time."""
        for owner in self._owners.values():
            self._go_on(owner.clear())
        while self._buffer:
            try:
                self._finish(self._buffer.popleft())
            except IndexError:
                break
        for item in self._loop.drop_waiting():
            self._finish(item)
        until = self._at.clock.monotonic() + self._grace
        while self._flying and self._at.clock.monotonic() < until:
            self._quit.wait(0.01)
        if self._flying:
            logger.warning("%d deliveries still ran after %s s", len(self._flying), self._grace)
        return not self._flying


class _Pace:
    """How far to lease ahead of the handlers: what they worked off in PREFETCH_S lately, or in the
    time of two leases if that is longer. Otherwise a store that takes its time for a lease would be
    asked for ever less at a time, and would deliver ever less."""

    def __init__(self, at: Clock) -> None:
        self._clock = at
        self._since = at.monotonic()
        self._seen = 0
        self._rate = 0.0
        self._length_s = PREFETCH_S

    def leased(self, took_s: float) -> None:
        self._length_s = min(max(PREFETCH_S, 2 * took_s), PREFETCH_S_MAX)

    def ahead(self, settled: int) -> int:
        now = self._clock.monotonic()
        if now - self._since >= PREFETCH_S / 5:
            latest = (settled - self._seen) / (now - self._since)
            self._rate = max(latest, self._rate / 2)
            self._since, self._seen = now, settled
        return min(PREFETCH_MAX, int(self._rate * self._length_s))


class _Patience:
    """Waits longer each time something fails, and says so; for ever."""

    def __init__(self, trouble: dict[str, str], doing: str, quit: threading.Event) -> None:
        self._trouble = trouble
        self._doing = doing
        self._quit = quit
        self._pause = RECONNECT_S[0]

    def wait(self, error: Exception) -> None:
        self._trouble[self._doing] = str(error)
        known = isinstance(error, StoreError | CannotRun)
        unknown = None if known else error  # with where it came from
        text = "%s failed, again in %.1f s: %s"
        logger.warning(text, self._doing, self._pause, error, exc_info=unknown)
        self._quit.wait(self._pause)
        self._pause = min(self._pause * 2, RECONNECT_S[1])

    def reward(self) -> None:
        if self._trouble.pop(self._doing, None) is not None:
            self._pause = RECONNECT_S[0]
            logger.info("%s works again", self._doing)


_Handle = Callable[[Delivery], Coroutine[Any, Any, None]]


class _Loop:
    """An event loop in a thread of its own, made when the first async handler is needed."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[Delivery, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_ending = False

    def start(self, handle: _Handle, items: list[Delivery]) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._room = asyncio.Semaphore(self._concurrency)
            self._thread = threading.Thread(
                target=self._run_loop, args=(self._loop,), name="holdfast-loop", daemon=True
            )
            self._thread.start()
        self._waiting.update(dict.fromkeys(items))
        self._loop.call_soon_threadsafe(self._spawn, self._loop, handle, items)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until the worker ends it: a handler may stop it, or leave a task that calls sys.exit."""
        while not self.is_ending:
            try:
                loop.run_forever()
            except BaseException as error:
                logger.error("the event loop of handlers was left by %r, and goes on", type(error))

    def _spawn(
        self, loop: asyncio.AbstractEventLoop, handle: _Handle, items: list[Delivery]
    ) -> None:
        for item in items:
            task = loop.create_task(self._run(handle, item))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, handle: _Handle, item: Delivery) -> None:
        while True:
            try:
                await self._room.acquire()
                break
            except asyncio.CancelledError:
                if self.is_ending:
                    raise
                # A handler cancelled every task it found; this one had not begun.
        try:
            if self._waiting.pop(item, _GONE) is not _GONE:
                await handle(item)
        finally:
            self._room.release()

    def drop_waiting(self) -> list[Delivery]:
        """Those that never started; they will not start any more."""
        dropped: list[Delivery] = []
        while self._waiting:
            try:
                dropped.append(self._waiting.popitem()[0])
            except KeyError:
                break
        return dropped

    def stop(self) -> None:
        """Cancel what still runs: its lease runs out and it is delivered again."""
        loop = self._loop
        if loop is None:
            return
        self.is_ending = True
        loop.call_soon_threadsafe(lambda: loop.create_task(self._end(loop)))
        self._thread.join(LOOP_END_S)
        if not loop.is_running():
            loop.close()

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.shutdown_default_executor()
        loop.stop()


_GONE = object()
_STORE_IS_AT_FAULT = (StoreUnavailable, StoreReadOnly, StoreFull, StoreCorrupt, SchemaTooNew)


def check_handlers(handlers: list[Handler], executor: str, time_limit: float | None) -> None:
    """Whether they can be called, and ended where they have a limit, by this executor."""
    if executor not in ("thread", "process"):
        raise InvalidArgument("executor", f'must be "thread" or "process", not {executor!r}')
    for handler in handlers:
        handler.prepare()
        limited = handler.time_limit is not None or time_limit is not None
        if limited and executor == "thread" and not handler.is_async:
            raise InvalidArgument(
                "time_limit",
                f"a thread cannot be ended: run {handler.name} with executor='process'",
            )
    if executor == "process":
        check_picklable(handlers)


def _length_ms(lease: Lease) -> int:
    return lease.deadline - lease.leased_at


def _renewal_ms(item: Delivery) -> int:
    return max(RENEW_MIN_MS, _length_ms(item.lease))


def _unhandled(item: Delivery, error: BaseException) -> Verdict:
    """What should not have come out of a handler's call: its own message fails, nothing else."""
    logger.error("%s: its handling failed: %r", item.lease.message.id, type(error))
    return Verdict(problems=(problem(error, None),))


def _say(span: tracing.Handling, verdict: Verdict, *, recorded: bool) -> None:
    for told in verdict.problems:
        span.failed(told.code, told.message, recorded=recorded)


def _tell(item: Delivery, move: Transition, answer: Settled, now: int) -> None:
    message, verdict = item.lease.message, item.verdict
    what = f"{message.queue} {message.id} attempt {message.attempts}"
    said = "; ".join(map(_told, verdict.problems)) if verdict else ""
    if answer is Settled.STALE:
        logger.warning("%s: lease lost, its outcome (%s) is dropped", what, move.verb)
    elif move.verb is Verb.ACK:
        logger.debug("%s: done", what)
    elif move.verb is Verb.RELEASE:
        logger.info("%s: released", what)
    elif is_dlq(move.to_queue):
        logger.error("%s: dead: %s", what, said)
    elif move.target is Target.DONE:
        logger.error("%s: out of attempts, completed with errors: %s", what, said)
    else:
        logger.warning("%s: again in %.1f s: %s", what, (move.available_at - now) / 1000, said)


def _told(problem: Problem) -> str:
    where = f"\n{problem.traceback}" if problem.traceback else ""
    return f"{problem.code}: {problem.message}{where}"
