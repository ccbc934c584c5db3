"""Leasing, and settling what was leased."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from holdfast.errors import FailedPrecondition, HoldfastError, InvalidArgument, LeaseLost
from holdfast.model.message import NO_HISTORY, Lease, Message, check_id
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.model.payload import JSON
from holdfast.queue.checks import check_text
from holdfast.rules.decide import decide, encode_result
from holdfast.rules.outcome import Done, Extend, Fail, Outcome, Release, Reported, Retry
from holdfast.server.auth import Principal
from holdfast.server.grouping import Grouped, Grouping
from holdfast.server.handles import Handles
from holdfast.server.ordered import Seat, Seats
from holdfast.server.polling import Polls
from holdfast.stores.contract import held_in
from holdfast.wire import shapes as s


class Settlement(msgspec.Struct, frozen=True):
    """How one lease ends, decoded and checked."""

    id: str
    token: str
    owner: str | None
    outcome: Outcome


class Leases:
    def __init__(
        self,
        handles: Handles,
        threads: Executor,
        polls: Polls,
        seats: Seats,
        *,
        run: Callable[..., Awaitable[Any]],
        still: Callable[[Principal], Callable[[], None] | None],
    ) -> None:
        """`run` calls a function in a thread; `still(who)` gives a function that raises when the
        caller's key is no longer valid."""
        self._handles = handles
        self._at = handles.context
        self._run = run
        self._polls = polls
        self._seats = seats
        self._still = still
        self._settles = Grouping(threads, self._settle_group)
        self._loop = asyncio.get_running_loop()

    async def lease_batch(self, ask: s.LeaseAsk, who: Principal) -> s.LeasesDoc:
        try:
            leases = await self._polls.lease(ask, still=self._still(who))
        except FailedPrecondition:  # it is ordered
            leases = await self._lease_in_order(ask, who)
        return s.LeasesDoc([s.LeaseDoc.of(lease) for lease in leases])

    async def _lease_in_order(self, ask: s.LeaseAsk, who: Principal) -> list[Lease]:
        if ask.partitions is not None:
            raise InvalidArgument("partitions", f"{ask.queue} is ordered: they are shared out")
        seat = await self._seats.named(ask.queue, ask.owner)
        seat.waiting += 1
        try:
            leases = await self._polls.lease(ask, seat, self._still(who))
        finally:
            seat.waiting -= 1
        seat.sent(leases)
        return leases

    async def give_back(self, answer: s.LeasesDoc) -> None:
        """Nobody was there any more to hear it: these deliveries do not count."""
        for lease in answer.leases:
            item = s.SettleItem(lease.message.id, lease.token, "release", owner=lease.owner)
            await self._settles.add(lease.message.queue, _checked(item))

    async def settle(self, ask: s.SettleAsk) -> s.SettledsDoc:
        items: list[Settlement] = []
        for n, item in enumerate(ask.items):
            with _Item(n):
                items.append(_checked(item))
        done = await self._run(self._settle_group, ask.queue, items)
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

    def _settle_group(self, queue: str, items: Sequence[Settlement]) -> Grouped[s.SettledDoc]:
        """What was leased in order goes through its consumer; the rest in one write."""
        done: dict[int, s.SettledDoc | HoldfastError] = {}
        rest: list[tuple[int, Settlement]] = []
        for n, item in enumerate(items):
            seat = self._seats.of(queue, item.id, item.token)
            if seat is None or isinstance(item.outcome, Extend):
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
        self, queue: str, seat: Seat, item: Settlement
    ) -> s.SettledDoc | HoldfastError:
        assert not isinstance(item.outcome, Extend)
        try:
            seat.settle(item.token, item.outcome)
            status = Settled.APPLIED
        except LeaseLost:
            status = Settled.STALE
        except HoldfastError as error:
            return error
        self._polls.settled([item.token])
        self._loop.call_soon_threadsafe(self._polls.serve, queue)
        return s.SettledDoc(item.id, status.value)

    def _settle_at_once(self, queue: str, items: Sequence[Settlement]) -> list[s.SettledDoc]:
        """Rules need the message; only an ack does without it."""
        policy, now = self._handles.queue(queue).policy, self._at.clock.now()
        wanted = [item.id for item in items if not isinstance(item.outcome, Done)]
        held = {m.id: m for m in held_in(self._at.store, queue, wanted)} if wanted else {}
        moves: list[Transition] = []
        for item in items:
            message = held.get(item.id) or _unknown(queue, item.id)
            lease = Lease(message, item.token, 0, 0, item.owner or self._at.owner)
            if message.queue != queue:  # moved on to its dead letters, or back
                moves.append(_nowhere(queue, item))
            else:
                moves.append(decide(lease, item.outcome, policy, now, self._at.rng))
        answers = self._at.store.settle(moves, now)
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
        self._polls.settled(move.token for move in moves if move.target is not Target.LEASED)
        for move, answer in zip(moves, answers, strict=True):
            if move.target is Target.LEASED and answer is Settled.APPLIED:
                self._polls.extended(move.token or "", move.deadline)
                self._seats.extended(move.token or "", move.deadline)


class _Item:
    """An error inside is that of the n-th item of a batch."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InvalidArgument):
            error.index = self._n


def _checked(item: s.SettleItem) -> Settlement:
    """Before it goes into one write with others, which must not fail because of it."""
    outcome = _outcome(item)
    if isinstance(outcome, Done) and outcome.result is not None:
        encode_result(outcome.result)
    check_text("token", item.token)
    check_text("owner", item.owner)
    return Settlement(check_id(item.id), item.token, item.owner, outcome)


def _outcome(item: s.SettleItem) -> Outcome:
    match item.outcome:
        case "done":
            return Done(decoded("result", item.result))
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


def decoded(field: str, raw: Raw | UnsetType) -> Any:
    """Decode a Raw, which was only skipped when the document was read."""
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
    Done: Verb.ACK,
    Retry: Verb.NACK,
    Fail: Verb.FAIL,
    Release: Verb.RELEASE,
    Extend: Verb.EXTEND,
}


def _nowhere(queue: str, item: Settlement) -> Transition:
    """The store finds nothing to apply it to, but knows a call that was repeated."""
    return Transition(
        _VERBS[type(item.outcome)],
        queue,
        item.id,
        Target.WAITING,
        item.token,
        to_queue=queue,
    )
