"""The memory store and a real one side by side, through random histories.

Every step does the same to both and compares answers and whole contents. Old leases stay in play;
the clock moves to the edges of deadlines and due times, one millisecond either way. What must hold
whatever the model says is stated apart, in `nothing_is_lost_or_doubled`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import holdfast
from holdfast import (
    Backoff,
    Done,
    Extend,
    Fail,
    Holdfast,
    Lease,
    Outgoing,
    Release,
    Retry,
    Settled,
    State,
)
from holdfast.model.message import Status, home_of
from holdfast.stores import open_store
from holdfast.stores.contract import BatchEnd, ReserveAsk, Store, View, batch_in, held_in
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

HOMES = ["a", "b"]
QUEUES = ["a", "a.dlq", "b", "b.dlq"]
IDS = [f"01890000-0000-7000-8000-0000000000{n:02}" for n in range(16)]
NAMES = ["s", "t"]
STATES = [State.READY, State.DELAYED, State.LEASED, State.LOG]

outgoing = st.builds(
    Outgoing,
    payload=st.integers(0, 9),
    id=st.sampled_from(IDS),
    key=st.sampled_from([None, "x", "y"]),
    priority=st.sampled_from([0, 0, 5, 9]),
    delay=st.sampled_from([None, None, 0.001, 5, 30]),
    ack_timeout=st.sampled_from([None, None, 5]),
    max_attempts=st.sampled_from([None, None, 1, 2]),
)
outcomes = st.sampled_from(
    [
        Done(),
        Done({"ok": True}),
        Retry("later"),
        Retry("in five", delay=5),
        Retry("now", delay=0),
        Fail("never"),
        Release(),
        Extend(),
        Extend(60),
    ]
)


Lend = Callable[[], AbstractContextManager[str]]


class SideBySide(RuleBasedStateMachine):
    lend: Lend
    """The URL of an empty store, for one history."""
    open_real: Callable[[str], Store]

    @initialize(seed=st.integers(0, 2**32), partitions=st.sampled_from([1, 3]))
    def begin(self, seed: int, partitions: int) -> None:
        self.lent = ExitStack()
        self.url = self.lent.enter_context(type(self).lend())
        self.clock = ManualClock()
        self.memory = MemoryStore()
        self.rngs = Random(seed), Random(seed)
        self._connect()
        for hf in (self.model, self.real):
            hf.queue(
                "a", partitions=partitions, retention_count=6, ack_timeout=10, duplicate_window=30
            )
            hf.queue("b", exhausted="complete", max_attempts=2, backoff=Backoff(base=3))
        self.leases: list[tuple[Lease, Lease]] = []
        self.edges = [self.clock.now()]
        self.held: dict[str, set[str]] = {"a": set(), "b": set()}
        self.calls = 0

    def _connect(self) -> None:
        stores = self.memory, type(self).open_real(self.url)
        self.model, self.real = (
            holdfast.connect(store, clock=self.clock, rng=rng)
            for store, rng in zip(stores, self.rngs, strict=True)
        )

    def _both(self, act: Callable[[Holdfast], Any]) -> tuple[Any, Any]:
        return act(self.model), act(self.real)

    def _same(self, act: Callable[[Holdfast], Any]) -> Any:
        model, real = self._both(act)
        assert model == real
        return real

    @rule(name=st.sampled_from(HOMES), batch=st.lists(outgoing, min_size=1, max_size=5))
    def enqueue(self, name: str, batch: list[Outgoing]) -> None:
        finished = self._finished_lately(name)
        sent = self._same(lambda hf: hf.queue(name).enqueue_many(batch))
        for message in sent:
            assert message.duplicate == (message.id in self.held[name] | finished)
            if message.id not in finished:
                self.held[name].add(message.id)
            self.edges.append(message.available_at)

    def _finished_lately(self, name: str) -> set[str]:
        queue = self.model.queue(name)
        since = self.clock.now() - round((queue.policy.duplicate_window or 0) * 1000)
        logs = [*queue.log(since=since), *queue.dlq.log(since=since)]
        return {row.message.id for row in logs} - self.held[name]

    @rule(name=st.sampled_from(QUEUES), limit=st.integers(1, 5), batch=st.sampled_from([None, "s"]))
    def lease(self, name: str, limit: int, batch: str | None) -> None:
        exhausted = self._exhausted()
        model, real = self._both(lambda hf: hf.queue(name).lease(limit, owner="me", batch=batch))
        assert [_shown(lease) for lease in model] == [_shown(lease) for lease in real]
        ended = exhausted - self._exhausted()  # a lease settles what is overdue, if it looks
        assert name == "b" or not ended
        self.held["b"] -= ended
        self.leases += list(zip(model, real, strict=True))
        self.edges += [lease.deadline for lease in real]

    @rule(name=st.sampled_from(QUEUES), limit=st.integers(1, 5), batch=st.sampled_from(NAMES))
    def hold(self, name: str, limit: int, batch: str) -> None:
        self.calls += 1
        ask = ReserveAsk(name, limit, "me", f"{self.calls:016x}", batch)
        now = self.clock.now()
        if self._same(lambda hf: hf.store.lease(ask, now)):
            model, real = self._both(lambda hf: batch_in(hf.store, name, batch, None, 100))
            known = {lease.token for _, lease in self.leases}
            pairs = zip(model, real, strict=True)
            self.leases += [pair for pair in pairs if pair[1].token not in known]

    @rule(name=st.sampled_from(QUEUES), batch=st.sampled_from(NAMES), limit=st.sampled_from([1, 9]),
          status=st.sampled_from(["COMPLETED", "COMPLETED_WITH_ERRORS", None]))  # fmt: skip
    def finish(self, name: str, batch: str, limit: int, status: Status | None) -> None:
        now = self.clock.now()
        held = [lease.id for lease in batch_in(self.real.store, name, batch, None, limit)]
        n = self._same(lambda hf: hf.store.settle(BatchEnd(name, batch, limit, status), now))
        assert n == len(held)
        self.held[home_of(name)] -= set(held)

    @rule(name=st.sampled_from(QUEUES), batch=st.sampled_from(NAMES))
    def give_back(self, name: str, batch: str) -> None:
        """A whole batch, as a query that is gone has it released."""
        self._same(
            lambda hf: hf.queue(name).settle(
                [(lease, Release()) for lease in batch_in(hf.store, name, batch, None, 100)]
            )
        )

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Any leases ever given, in any order, twice if it comes so."""
        name = data.draw(st.sampled_from(sorted({m.message.queue for m, _ in self.leases})))
        known = [pair for pair in self.leases if pair[0].message.queue == name]
        picks = data.draw(
            st.lists(st.tuples(st.sampled_from(known), outcomes), min_size=1, max_size=5)
        )
        model = self.model.queue(name).settle([(pair[0], outcome) for pair, outcome in picks])
        real = self.real.queue(name).settle([(pair[1], outcome) for pair, outcome in picks])
        assert model == real
        for (pair, outcome), answer in zip(picks, real, strict=True):
            message = pair[1].message
            if answer is Settled.APPLIED and isinstance(outcome, Done):
                self.held[home_of(name)].discard(message.id)
            if answer is Settled.APPLIED and name == "b" and isinstance(outcome, Retry):
                limit = message.max_attempts or 2
                if message.attempts >= limit:
                    self.held["b"].discard(message.id)
        self.edges += [m.available_at for m in held_in(self.real.store, name, list(IDS))]

    @rule(data=st.data(), off=st.sampled_from([-1, 0, 0, 1]))
    def to_an_edge(self, data: st.DataObject, off: int) -> None:
        ahead = sorted({edge + off for edge in self.edges if edge + off > self.clock.now()})
        if ahead:
            self.clock.advance((data.draw(st.sampled_from(ahead)) - self.clock.now()) / 1000)

    @rule()
    def sweep(self) -> None:
        ended = self._exhausted()
        swept = self._same(lambda hf: hf.sweep())
        assert swept.completed == len(ended)
        self.held["b"] -= ended

    def _exhausted(self) -> set[str]:
        """The overdue messages of "b" that are out of attempts: they go into the log, not back."""
        late = [entry.message for entry in self.real.queue("b").browse("leased") if entry.lease
                and entry.lease.deadline <= self.clock.now()]  # fmt: skip
        return {m.id for m in late if m.attempts >= (m.max_attempts or 2)}

    @rule(name=st.sampled_from(HOMES), count=st.integers(0, 3))
    def redrive(self, name: str, count: int) -> None:
        self._same(lambda hf: hf.redrive(f"{name}.dlq", count))

    @rule(name=st.sampled_from(QUEUES))
    def pause_or_resume(self, name: str) -> None:
        paused = self.real.queue(name).spec.paused
        self._both(lambda hf: hf.queue(name).resume() if paused else hf.queue(name).pause())

    @rule(name=st.sampled_from(QUEUES))
    def purge(self, name: str) -> None:
        waiting = {
            entry.message.id
            for state in (State.READY, State.DELAYED)
            for entry in self.real.queue(name).browse(state)
        }
        assert self._same(lambda hf: hf.queue(name).purge()) == len(waiting)
        self.held[home_of(name)] -= waiting

    @rule(name=st.sampled_from(HOMES), state=st.sampled_from(STATES), parts=st.integers(1, 4))
    def split(self, name: str, state: State, parts: int) -> None:
        store, now = self.real.store, self.clock.now()
        cuts = store.split(View(name, state), parts, now)
        assert len(cuts) < parts
        pieces = [
            store.browse(View(name, state, to=stop), start, 100, now).entries
            for start, stop in zip([None, *cuts], [*cuts, None], strict=True)
        ]
        assert [entry for piece in pieces for entry in piece] == self.rows[name, state]

    @rule()
    def reopen(self) -> None:
        """Other processes take over: everything must be in the store. Both, as a connection
        remembers when it last looked for overdue messages."""
        self.real.close()
        self._connect()

    @invariant()
    def the_store_equals_the_model(self) -> None:
        model, real = self._both(self._contents)
        assert model == real
        self.nothing_is_lost_or_doubled()

    def _contents(self, hf: Holdfast) -> tuple[Any, ...]:
        """Every row of every state, and the counts; of the real store also for the check below."""
        now = self.clock.now()
        self.rows = {
            (name, state): hf.store.browse(View(name, state), None, 1000, now).entries
            for name in QUEUES
            for state in STATES
        }
        self.counts = hf.store.stats(QUEUES, now)
        shown = {
            view: [(e.message, e.lease and _shown(e.lease), e.finished) for e in entries]
            for view, entries in self.rows.items()
        }
        batches = [batch_in(hf.store, name, batch, None, 100) for name in QUEUES for batch in NAMES]
        return shown, self.counts, [[_shown(lease) for lease in batch] for batch in batches]

    def nothing_is_lost_or_doubled(self) -> None:
        now = self.clock.now()
        for counts in self.counts:
            ready, delayed, leased, _ = (self.rows[counts.queue, state] for state in STATES)
            assert counts.ready == len(ready)
            assert counts.delayed == len(delayed)
            assert counts.leased == len(leased)
            assert all(e.message.available_at <= now for e in ready)
            assert all(e.message.available_at > now for e in delayed)
            tokens = [e.lease.token for e in leased if e.lease]
            assert len(tokens) == len(set(tokens)) == len(leased)
            if counts.queue in HOMES:
                priorities = [e.message.priority for e in ready]
                assert priorities == sorted(priorities, reverse=True)
        for home in HOMES:
            places = [
                entry.message.id
                for name in (home, f"{home}.dlq")
                for state in STATES[:3]
                for entry in self.rows[name, state]
            ]
            assert len(places) == len(set(places))
            assert set(places) == self.held[home]

    def teardown(self) -> None:
        if hasattr(self, "real"):
            self.real.close()
            self.lent.close()


def _shown(lease: Lease) -> tuple[Any, ...]:
    """All of a lease but its token, which is each store's own."""
    return lease.message, lease.deadline, lease.leased_at, lease.owner


def check(lend: Lend, histories: int, open_real: Callable[[str], Store] = open_store) -> None:
    """Play so many histories of fifty steps each."""

    class Machine(SideBySide):
        pass

    Machine.lend = staticmethod(lend)
    Machine.open_real = staticmethod(open_real)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=histories,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
