"""The model: every store must behave like this one. Plain scans, one lock, nothing clever.

Fit for tests; what it holds is gone with the process.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model import clock
from holdfast.model.message import Finished, Lease, Message, dlq_of, home_of, is_dlq
from holdfast.model.moves import Enqueued, Settled, State, Target, Transition, Verb
from holdfast.model.queues import Depth, QueueSpec, partition_claim
from holdfast.stores import url_options
from holdfast.stores.base import StoreBase, last_of_each
from holdfast.stores.contract import (
    NO_DEADLINE,
    BatchEnd,
    Claim,
    Cut,
    Entry,
    Event,
    LeaseAsk,
    Page,
    QueueStats,
    Record,
    View,
)
from holdfast.stores.kit.batches import fits, lost
from holdfast.stores.kit.claims import claimed, owns
from holdfast.stores.kit.pages import page_of, read_cursor
from holdfast.stores.kit.specs import must_exist


@dataclass
class _Row:
    message: Message
    seq: int
    place: int
    lane: int
    token: str | None = None
    verb: Verb | None = None
    """How the last lease ended; None while one is held."""
    lease: Lease | None = None
    batch: str | None = None


@dataclass(frozen=True)
class _Done:
    finished: Finished
    seq: int
    token: str | None
    verb: Verb


@dataclass
class _State:
    specs: dict[str, QueueSpec] = field(default_factory=dict[str, QueueSpec])
    rows: dict[tuple[str, str], _Row] = field(default_factory=dict[tuple[str, str], _Row])
    log: dict[str, dict[str, list[_Done]]] = field(
        default_factory=dict[str, dict[str, list["_Done"]]]
    )
    done: dict[str, int] = field(default_factory=dict[str, int])
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])
    records: dict[tuple[str, str], Record] = field(default_factory=dict[tuple[str, str], Record])


def open_url(url: str) -> MemoryStore:
    url_options(url, set())
    return MemoryStore()


class _Held:
    """What it all stands on: the state, and one lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._seq = 0
        self._state = _State()
        self._events: deque[Event] = deque(maxlen=1000)
        self._event_seq = itertools.count(1)

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _waiting(self, queue: str) -> list[_Row]:
        rows = self._state.rows.values()
        return [row for row in rows if row.message.queue == queue and row.lease is None]

    def _held(self, queue: str) -> list[_Row]:
        rows = self._state.rows.values()
        return [row for row in rows if row.message.queue == queue and row.lease]

    def _must_exist(self, queue: str) -> QueueSpec:
        return must_exist(queue, self._state.specs.get(queue))


class _Board(_Held):
    """Claims, records and events."""

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        with self._lock:
            claim = claimed(self._state.claims.get(name), name, owner, ttl_ms, now)
            if claim is not None:
                self._state.claims[name] = claim
            return claim if ttl_ms else None

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        with self._lock:
            return [self._state.claims.get(name) for name in names]

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        with self._lock:
            records = self._state.records
            stored = records.get((kind, name))
            known = stored.revision if stored else 0
            if revision is not None and revision != known:
                return False
            if value is None:
                records.pop((kind, name), None)
            else:
                records[kind, name] = Record(name, value, known + 1, now)
            return True

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        with self._lock:
            found = [r for (k, _), r in sorted(self._state.records.items()) if k == kind]
        return [r for r in found if r.name.startswith(prefix) and r.name > after][:limit]

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        with self._lock:
            found = self.records(kind, prefix=prefix, limit=2**62)
            drop = [r for r in found if before is None or r.updated_at < before][:limit]
            for record in drop:
                del self._state.records[kind, record.name]
            return len(drop)

    def publish(self, events: Sequence[Event]) -> None:
        with self._changed:
            for event in events:
                self._events.append(msgspec.structs.replace(event, seq=next(self._event_seq)))
            self._changed.notify_all()

    def subscribe(self, after: int | None = None) -> _Subscription:
        with self._lock:
            newest = self._events[-1].seq if self._events else 0
        return _Subscription(self, newest if after is None else after)

    def events_after(self, seq: int, timeout: float) -> list[Event]:
        def news() -> list[Event]:
            return [event for event in self._events if event.seq > seq]

        with self._changed:
            self._changed.wait_for(news, timeout)
            return news()


class _Reads(_Held, StoreBase):
    def _read_overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        with self._lock:
            held = [(row.lease, row.seq) for row in self._held(queue) if row.lease]
            late = [(lease.deadline, seq, lease) for lease, seq in held if lease.deadline <= now]
            return [lease for _, _, lease in sorted(late, key=lambda late: late[:2])[:limit]]

    def _read_batch(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        with self._lock:
            self._must_exist(queue)
            rows = [row for row in self._held(queue) if row.batch == batch]
            held = sorted((row.lease for row in rows if row.lease), key=lambda lease: lease.id)
            return [lease for lease in held if lease.id > (after or "")][:limit]

    def _read_page(self, view: View, after: str | None, limit: int, now: int) -> Page:
        with self._lock:
            keyed = self._in_order(view, now)
            end = self._seq
        if view.upto is not None:
            keyed = [pair for pair in keyed if pair[1].place <= int(view.upto or 0)]
        start = read_cursor(after)
        return page_of([pair for pair in keyed if pair[0] > start], view, limit, end)

    def split(self, view: View, parts: int, now: int) -> list[str]:
        with self._lock:
            keyed = self._in_order(view, now)
        step = max(1, -(-len(keyed) // parts))
        return [".".join(map(str, key)) for key, _ in keyed[step - 1 : -1 : step]]

    def _in_order(self, view: View, now: int) -> list[tuple[tuple[int, int], Entry]]:
        self._must_exist(view.queue)
        return sorted(self._entries(view, now), key=lambda pair: pair[0])

    def _entries(self, view: View, now: int) -> Iterable[tuple[tuple[int, int], Entry]]:
        if view.state is State.LOG:
            for done in chain.from_iterable(self._state.log[view.queue].values()):
                wanted = view.id in (None, done.finished.message.id)
                if wanted and _between(done.finished.finished_at, view):
                    entry = Entry(done.finished.message, done.seq, finished=done.finished)
                    yield (done.finished.finished_at, done.seq), entry
            return
        for row in self._state.rows.values():
            if row.message.queue == view.queue and _between(row.message.enqueued_at, view):
                entry = Entry(row.message, row.place, row.lease)
                if view.state is State.LEASED and row.lease:
                    yield (row.lease.deadline, row.seq), entry
                elif row.lease is None:
                    due = row.message.available_at <= now
                    if view.state is State.READY and due:
                        yield (9 - row.lane, row.place), entry
                    elif view.state is State.DELAYED and not due:
                        yield (row.message.available_at, row.seq), entry

    def find(self, queue: str, ids: Sequence[str], *, log: bool = True) -> list[Entry | None]:
        with self._lock:
            return super().find(queue, ids, log=log)

    def _find_held(self, queue: str, ids: Sequence[str]) -> list[Entry]:
        self._must_exist(queue)
        keys = [(home_of(queue), id) for id in ids]
        rows = [self._state.rows[key] for key in keys if key in self._state.rows]
        return [Entry(row.message, 0, row.lease) for row in rows]

    def _find_logged(self, queue: str, ids: Sequence[str]) -> Mapping[str, Entry]:
        logs = [self._state.log.get(name, {}) for name in (home_of(queue), dlq_of(queue))]
        past = [done for log in logs for id in ids for done in log.get(id, [])]
        return last_of_each(
            [Entry(one.finished.message, one.seq, finished=one.finished) for one in past]
        )

    def _count_queues(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        with self._lock:
            return [self._stats(self._must_exist(queue), now) for queue in queues]

    def _stats(self, spec: QueueSpec, now: int) -> QueueStats:
        waiting = self._waiting(spec.name)
        ready = [row for row in waiting if row.message.available_at <= now]
        ready.sort(key=lambda row: row.place, reverse=True)
        heads = {(r.message.partition, r.lane): r.message.enqueued_at for r in ready}
        dead = 0
        if not is_dlq(spec.name):
            dlq = dlq_of(spec.name)
            dead = sum(row.message.queue == dlq for row in self._state.rows.values())
        return QueueStats(
            queue=spec.name,
            ready=len(ready),
            delayed=len(waiting) - len(ready),
            leased=len(self._held(spec.name)),
            dead=dead,
            done=self._state.done[spec.name],
            oldest_age=max(0, now - min(heads.values())) / 1000 if heads else None,
            paused=spec.paused,
        )

    def _count_partitions(self, queue: str, now: int) -> list[Depth]:
        with self._lock:
            spec = self._must_exist(queue)
            return [self._depth(queue, part, now) for part in range(spec.partitions)]

    def _depth(self, queue: str, part: int, now: int) -> Depth:
        waiting = [row for row in self._waiting(queue) if row.message.partition == part]
        ready = [row for row in waiting if row.message.available_at <= now]
        ready.sort(key=lambda row: row.place, reverse=True)
        heads = {row.lane: row.message.enqueued_at for row in ready}
        leased = sum(row.message.partition == part for row in self._held(queue))
        oldest = min(heads.values(), default=None)
        return Depth(part, len(ready), len(waiting) - len(ready), leased, oldest)


class MemoryStore(_Reads, _Board):
    def migrate(self) -> None: ...

    def close(self) -> None: ...

    def time(self) -> int:
        return clock.wall_ms()

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        with self._changed:
            stored = self._state.specs
            if any(getattr(stored.get(s.name), "revision", 0) != s.revision for s in specs):
                return False
            for spec in specs:
                stored[spec.name] = msgspec.structs.replace(spec, revision=spec.revision + 1)
                self._state.log.setdefault(spec.name, {})
                self._state.done.setdefault(spec.name, 0)
            self._changed.notify_all()
            return True

    def queues(
        self, names: Sequence[str] | None = None, *, overdue: int | None = None
    ) -> list[QueueSpec]:
        with self._lock:
            if names is not None:
                return [spec for name in names if (spec := self._state.specs.get(name))]
            specs = [spec for _, spec in sorted(self._state.specs.items())]
            return [spec for spec in specs if overdue is None or self._is_late(spec, overdue)]

    def _is_late(self, spec: QueueSpec, now: int) -> bool:
        leases = (row.lease for row in self._held(spec.name))
        return any(lease is not None and lease.deadline <= now for lease in leases)

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        with self._lock:
            rows = self._state.rows
            held = [key for key, row in rows.items() if row.message.queue in names]
            if held and only_empty:
                return False
            for key in held:
                del rows[key]
            for name in names:
                self._state.specs.pop(name, None)
                self._state.log.pop(name, None)
                self._state.done.pop(name, None)
            return True

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any = None,
        receipt: str | None = None,
        finished_since: Mapping[int, int] | None = None,
    ) -> list[Enqueued]:
        _no_transaction(within)
        with self._changed:
            for message in messages:
                self._must_exist(message.queue)
            if receipt is not None and not self.put_record("receipt", receipt, b"", 0, now):
                return [Enqueued.HELD] * len(messages)
            since = finished_since or {}
            answers = [self._enqueue(message, since.get(n)) for n, message in enumerate(messages)]
            self._changed.notify_all()
            return answers

    def _enqueue(self, message: Message, since: int | None) -> Enqueued:
        key = (home_of(message.queue), message.id)
        if key in self._state.rows:
            return Enqueued.HELD
        if since is not None:
            for queue in (key[0], dlq_of(message.queue)):
                past = self._state.log.get(queue, {}).get(message.id, [])
                if any(done.finished.finished_at >= since for done in past):
                    return Enqueued.HELD
        lane = 0 if is_dlq(message.queue) else message.priority
        seq = self._next_seq()
        self._state.rows[key] = _Row(message, seq, seq, lane)
        return Enqueued.STORED

    def _take_leases(self, ask: LeaseAsk, now: int) -> list[Lease]:
        with self._lock:
            if ask.others:
                return self._lease_many(ask, now)
            if self._must_exist(ask.queue).paused:
                return []
            parts = self._given(ask, now)
            ready = [
                row
                for row in self._waiting(ask.queue)
                if row.message.available_at <= now
                and (parts is None or row.message.partition in parts)
            ]
            ready.sort(key=lambda row: (-row.lane, row.place))
            return [self._lease(row, ask, now) for row in ready[: ask.limit]]

    def _lease_many(self, ask: LeaseAsk, now: int) -> list[Lease]:
        leases: list[Lease] = []
        for one in ask.each():
            limit = min(one.limit, ask.limit - len(leases))
            if limit and one.queue in self._state.specs:
                leases += self._take_leases(msgspec.structs.replace(one, limit=limit), now)
        return leases

    def _given(self, ask: LeaseAsk, now: int) -> Sequence[int] | None:
        """The partitions that an ask may take from: all, those named, or those of them it owns."""
        if ask.partitions is None or ask.epochs is None:
            return ask.partitions
        return [
            part
            for part, epoch in zip(ask.partitions, ask.epochs, strict=True)
            if owns(self._state.claims.get(partition_claim(ask.queue, part)), ask.owner, epoch, now)
        ]

    def _reserve(self, ask: LeaseAsk, now: int) -> int:
        with self._lock:
            leases = self._take_leases(ask, now)
            for lease in leases:
                row = self._state.rows[home_of(ask.queue), lease.id]
                row.lease = msgspec.structs.replace(lease, deadline=NO_DEADLINE)
            return len(leases)

    def _end_batch(self, end: BatchEnd, now: int) -> int:
        queue, status = end.queue, end.status
        with self._lock:
            held = self._read_batch(queue, end.batch, None, end.limit)
            for lease in held:
                ack = Transition(Verb.ACK, queue, lease.id, Target.DONE, lease.token, status=status)
                self._finish(self._state.rows[home_of(queue), lease.id], ack, now)
            return len(held)

    def _lease(self, row: _Row, ask: LeaseAsk, now: int) -> Lease:
        message = row.message
        own = message.ack_timeout
        deadline = now + (ask.timeout_ms if own is None else round(own * 1000))
        first = now if message.first_leased_at is None else message.first_leased_at
        row.message = msgspec.structs.replace(
            message, attempts=message.attempts + 1, first_leased_at=first
        )
        row.token, row.verb, row.batch = f"{ask.token}.{row.seq}", None, ask.batch
        row.lease = Lease(row.message, row.token, deadline, now, ask.owner)
        return row.lease

    def _apply(self, moves: Sequence[Transition], now: int, within: Any) -> list[Settled]:
        _no_transaction(within)
        with self._changed:
            answers = [self._settle(move, now) for move in moves]
            self._changed.notify_all()
            return answers

    def _settle(self, move: Transition, now: int) -> Settled:
        row = self._state.rows.get((home_of(move.queue), move.id))
        if row is None or row.message.queue != move.queue or not self._fits(row, move):
            return self._lost(row, move)
        match move.target:
            case Target.LEASED:
                assert row.lease is not None
                row.lease = msgspec.structs.replace(row.lease, deadline=move.deadline)
            case Target.WAITING:
                return self._put_back(row, move)
            case Target.DONE:
                self._finish(row, move, now)
        return Settled.APPLIED

    def _fits(self, row: _Row, move: Transition) -> bool:
        return fits(
            move,
            leased=row.lease is not None,
            place=row.place,
            same_token=row.token == move.token,
            deadline=row.lease and row.lease.deadline,
        )

    def _lost(self, row: _Row | None, move: Transition) -> Settled:
        past = self._state.log.get(move.queue, {}).get(move.id, [])
        last: Sequence[_Row | _Done] = past if row is None else [row]
        return lost(move, move.token, [(one.token, one.verb) for one in last])

    def _put_back(self, row: _Row, move: Transition) -> Settled:
        old, target = (home_of(move.queue), move.id), (home_of(move.to_queue), move.id)
        taken = target != old and target in self._state.rows
        if move.to_queue not in self._state.specs or taken:
            return Settled.STALE
        history = row.message.history if move.history is None else move.history
        del self._state.rows[old]
        self._state.rows[target] = replace(
            row,
            message=msgspec.structs.replace(
                row.message,
                queue=move.to_queue,
                available_at=move.available_at,
                attempts=move.attempts,
                history=history,
                partition=row.message.partition if move.partition is None else move.partition,
                body=row.message.body if move.body is None else move.body,
                content_type=move.content_type or row.message.content_type,
            ),
            place=self._place(row, move),
            lane=move.lane,
            token=move.token,
            verb=move.verb,
            lease=None,
            batch=None,
        )
        return Settled.APPLIED

    def _place(self, row: _Row, move: Transition) -> int:
        if move.tail:
            return self._next_seq()
        return row.place if move.to_queue == move.queue else row.seq

    def _finish(self, row: _Row, move: Transition, now: int) -> None:
        del self._state.rows[home_of(move.queue), move.id]
        self._state.done[move.queue] += 1
        if move.status is None:
            return
        message = row.message
        if move.history is not None:
            message = msgspec.structs.replace(message, history=move.history)
        finished = Finished(
            message,
            move.status,
            now,
            message.first_leased_at,
            row.lease.leased_at if row.lease else None,
            row.lease.owner if row.lease else None,
            None if move.result is None else msgspec.json.decode(move.result),
        )
        done = _Done(finished, row.seq, move.token, move.verb)
        self._state.log[move.queue].setdefault(message.id, []).append(done)

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        with self._lock:
            self._must_exist(queue)
            log = self._state.log[queue]
            new = 0
            for row in rows:
                past = log.setdefault(row.message.id, [])
                if all(done.finished.finished_at != row.finished_at for done in past):
                    self._state.done[queue] += 1
                    past.append(_Done(row, self._next_seq(), None, Verb.ACK))
                    new += 1
            return new

    def _drop_logged(self, cuts: Sequence[Cut]) -> list[int]:
        return [self._trim(cut) for cut in cuts]

    def _trim(self, cut: Cut) -> int:
        with self._lock:
            log = self._state.log.get(cut.queue, {})
            oldest = sorted(
                chain.from_iterable(log.values()), key=lambda d: (d.finished.finished_at, d.seq)
            )
            over = 0 if cut.keep is None else max(0, len(oldest) - cut.keep)
            drop = [
                done
                for n, done in enumerate(oldest)
                if n < over or (cut.before is not None and done.finished.finished_at < cut.before)
            ][: cut.limit]
            for done in drop:
                log[done.finished.message.id].remove(done)
                if not log[done.finished.message.id]:
                    del log[done.finished.message.id]
            return len(drop)

    def tidy(self, now: int, *, log_before: int | None) -> None: ...

    def _drop_waiting(self, queue: str, limit: int) -> int:
        with self._lock:
            drop = [row.message.id for row in self._waiting(queue)][:limit]
            for id in drop:
                del self._state.rows[home_of(queue), id]
            return len(drop)

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        with self._changed:
            names = {queue for queue in queues if not self._must_exist(queue).paused}
            due = [
                row.message.available_at
                for row in self._state.rows.values()
                if row.lease is None
                and row.message.queue in names
                and (partitions is None or row.message.partition in partitions)
            ]
            ahead = [(at - now) / 1000 for at in due if at > now]
            if len(ahead) < len(due):
                return True
            return self._changed.wait(min([timeout, *ahead])) or min([timeout, *ahead]) < timeout


class _Subscription:
    def __init__(self, store: _Board, after: int) -> None:
        self._store = store
        self._after = after

    def next(self, timeout: float) -> list[Event]:
        events = self._store.events_after(self._after, timeout)
        self._after = events[-1].seq if events else self._after
        return events

    def close(self) -> None: ...


def _no_transaction(within: Any) -> None:
    if within is not None:
        raise InvalidArgument("within", "the memory store has no transactions to join")


def _between(at: int, view: View) -> bool:
    return (view.since is None or at >= view.since) and (view.until is None or at < view.until)
