"""Handlers with bugs: what one raises, returns or leaves behind affects its own message only."""

# pyright: basic

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

import holdfast
from holdfast import (
    Backoff,
    Done,
    Extend,
    Fail,
    Holdfast,
    InvalidArgument,
    Lease,
    Message,
    Queue,
    Release,
    Retry,
)
from holdfast.errors import StoreError
from holdfast.model.errortext import TRACEBACK_MAX
from holdfast.model.message import ERROR_TEXT_MAX
from holdfast.stores.contract import Store
from holdfast.testing import ManualClock, dead_letters, drain, finished, wait_until
from holdfast.testing.conformance.fixtures import whereabouts
from holdfast.testing.conformance.handling import Running


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text today")


class NoText(Exception):
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307  # that is the point


def endless(n: int = 0) -> int:
    return endless(n + 1)


def chained(n: int) -> Exception:
    error = ValueError("the first")
    for step in range(n):
        outer = ValueError(f"step {step}")
        outer.__cause__ = error
        error = outer
    return error


def changed_delay() -> Retry:
    retry = Retry("later")
    retry.delay = "soon"  # type: ignore
    return retry


def in_a_circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


ERRORS: dict[str, Callable[[], BaseException]] = {
    "a number as code": lambda: Retry("x", code=404),
    "a number as code, for ever": lambda: Fail("x", code=404),
    "bytes as code": lambda: Fail("x", code=b"\xff"),
    "a lone surrogate": lambda: FileNotFoundError("no file \udcff"),
    "a lone surrogate as code": lambda: Fail("x", code="\udcff"),
    "a NUL": lambda: ValueError("a\0b"),
    "a huge text": lambda: ValueError("x" * 3_000_000),
    "no readable text": Unreadable,
    "a text that is none": NoText,
    "no text in a Retry": lambda: Retry(Unreadable()),
    "any object in a Fail": lambda: Fail(object()),
    "a strange class": lambda: type("Bad\udc80", (Exception,), {})("x"),
    "a changed delay": changed_delay,
    "exit": lambda: SystemExit(3),
    "Ctrl-C": KeyboardInterrupt,
    "end of a generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "stop": StopAsyncIteration,
    "an error of ours": lambda: holdfast.StoreUnavailable("the store is away"),
    "a lost lease": lambda: holdfast.LeaseLost("lost"),
    "a long chain": lambda: chained(5000),
    "a circle": in_a_circle,
    "a group": lambda: BaseExceptionGroup("many", [SystemExit(), ValueError("\udcff")]),
    "what cannot be pickled": lambda: ValueError(threading.Lock()),
}


@pytest.mark.promise("HANDLER-9")
@pytest.mark.parametrize("mode", ["plain", "async"])
def test_whatever_a_handler_raises_fails_its_own_message_only(
    hf: Holdfast, clock: ManualClock, mode: str
) -> None:
    queue = hf.queue("orders", max_attempts=2, backoff=Backoff(base=0))

    def handle(what: Any) -> str:
        if what == "recursion":
            endless()
        if what in ERRORS:
            raise ERRORS[what]()
        return "shipped"

    async def awaited(what: Any) -> str:
        await asyncio.sleep(0)
        return handle(what)

    hf.handler("orders")(handle if mode == "plain" else awaited)
    bad = [*ERRORS, "recursion"]
    queue.enqueue_many([each for n, what in enumerate(bad) for each in (what, n)])
    drain(hf)
    clock.advance(3600)
    drain(hf)
    hf.sweep()
    assert sorted(row.message.payload for row in finished(hf, "orders")) == [*range(len(bad))]
    dead = {message.payload: message for message in dead_letters(hf, "orders")}
    assert dead.keys() == set(bad)
    for message in dead.values():
        for error in message.errors:
            assert (error.message + error.code + (error.traceback or "")).encode()
            assert error.code and len(error.message) <= ERROR_TEXT_MAX
        assert message.reason
    assert dead["a number as code"].errors[0].code == "404"
    assert "whose text cannot be read" in dead["no readable text"].errors[0].message
    assert dead["a lone surrogate"].errors[0].message == "no file \\udcff"
    assert queue.stats().lag == 0
    assert hf.redrive("orders.dlq").redriven == len(bad)


RESULTS: dict[str, Callable[[], Any]] = {
    "an object": object,
    "a function": lambda: endless,
    "no number": lambda: float("nan"),
    "bytes": lambda: b"\xff",
    "a lone surrogate": lambda: "\udcff",
    "too much": lambda: "x" * 3_000_000,
    "a circle": lambda: [circle := [], circle.append(circle)],
    "numbers as keys": lambda: {1: object()},
    "an exception": lambda: ValueError("not raised"),
    "an outcome with anything": lambda: Done(object()),
}


@pytest.mark.promise("HANDLER-9")
def test_a_result_that_cannot_be_kept_is_left_out(hf: Holdfast, queue: Queue) -> None:
    @hf.handler("orders")
    def handle(what: str) -> Any:
        return RESULTS[what]()

    queue.enqueue_many(list(RESULTS))
    drain(hf)
    rows = {row.message.payload: row.result for row in finished(hf, "orders")}
    assert rows.keys() == RESULTS.keys()
    kept = {what for what, result in rows.items() if result is not None}
    assert kept <= {"numbers as keys"}


@pytest.mark.promise("HANDLER-9")
def test_a_message_that_a_handler_changes_is_its_own(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", max_attempts=2, backoff=Backoff(base=0))

    @hf.handler("orders")
    def handle(what: str, message: Message, lease: Lease) -> None:
        for given in (message, lease.message):
            given.headers["x"] = "\udcff"
            given.history.handled["somebody"] = object()
        if what == "bad" or message.attempts == 1:
            raise ValueError("changed what it was given")

    queue.enqueue_many(["bad", *["good"] * 20])
    drain(hf)
    assert [row.message.payload for row in finished(hf, "orders")] == ["good"] * 20
    (dead,) = dead_letters(hf, "orders")
    assert (dead.headers, dead.history.handled) == ({}, {})


@pytest.mark.promise("HANDLER-9")
def test_what_nobody_would_run_is_an_error(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", max_attempts=1)

    async def later(what: str) -> str:
        return what.upper()

    @hf.handler("orders")
    def handle(what: str) -> Any:
        if what == "a generator":
            return (n for n in range(3))
        return later(what)

    queue.enqueue_many(["a generator", "a coroutine"])
    drain(hf)
    assert [row.result for row in finished(hf, "orders")] == ["A COROUTINE"]
    (dead,) = dead_letters(hf, "orders")
    assert "generator" in dead.errors[0].message

    def makes(what: str):
        yield what

    with pytest.raises(InvalidArgument, match="generator"):
        hf.handler("orders", name="makes")(makes)


@pytest.mark.promise("HANDLER-9")
def test_what_a_handler_does_to_the_event_loop_is_its_own_affair(
    hf: Holdfast, clock: ManualClock
) -> None:
    queue = hf.queue("orders", max_attempts=1)
    left: list[Any] = []

    async def leave() -> None:
        raise SystemExit("left behind")

    @hf.handler("orders")
    async def handle(what: Any) -> str:
        if what == "stops":
            asyncio.get_running_loop().stop()
        if what == "leaves":
            left.append(asyncio.create_task(leave()))
        if what == "cancels itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)
        return "shipped"

    bad = ["stops", "leaves", "cancels itself"]
    queue.enqueue_many([*bad, *range(20), *bad, *range(20, 40)])
    drain(hf)
    done = [row.message.payload for row in finished(hf, "orders")]
    assert sorted(n for n in done if isinstance(n, int)) == [*range(40)]
    assert [m.payload for m in dead_letters(hf, "orders")] == ["cancels itself"] * 2
    assert whereabouts(queue).keys() == {"log", "dead"}
    for task in left:
        assert isinstance(task.exception(), SystemExit)


@pytest.mark.promise("HANDLER-2", "HANDLER-9")
@pytest.mark.parametrize("way", ["returned", "raised"])
@pytest.mark.parametrize("mode", ["plain", "async"])
def test_an_outcome_may_be_returned_or_raised(
    hf: Holdfast, clock: ManualClock, way: str, mode: str
) -> None:
    queue = hf.queue("orders", max_attempts=2)
    outcomes = {
        "done": Done("shipped"),
        "retry": Retry("busy", delay=7),
        "fail": Fail("gone", code="GONE"),
        "release": Release(delay=9),
        "extend": Extend(60),
    }

    def handle(what: str) -> Any:
        if way == "raised":
            raise outcomes[what]
        return outcomes[what]

    async def awaited(what: str) -> Any:
        return handle(what)

    hf.handler("orders")(handle if mode == "plain" else awaited)
    sent = {what: queue.enqueue(what).id for what in outcomes}
    now = clock.now()
    drain(hf)
    (done,) = finished(hf, "orders")
    assert (done.message.id, done.result) == (sent["done"], "shipped")
    (dead,) = dead_letters(hf, "orders")
    assert (dead.id, dead.errors[0].code) == (sent["fail"], "GONE")
    waiting = {
        entry.message.id: (entry.message.available_at - now, entry.message.attempts)
        for entry in queue.browse("delayed")
    }
    assert waiting == {sent["retry"]: (7000, 1), sent["release"]: (9000, 0)}
    (held,) = queue.browse("leased")
    assert held.lease is not None
    assert (held.message.id, held.lease.deadline - now) == (sent["extend"], 60_000)
    queue.ack(held.lease)  # whoever was given the lease


@pytest.mark.promise("HANDLER-2")
def test_a_release_by_one_handler_keeps_what_the_others_did(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    calls: list[str] = []

    @hf.handler("orders")
    def first() -> str:
        calls.append("first")
        return "one"

    @hf.handler("orders")
    def second() -> str:
        calls.append("second")
        if len(calls) < 5:
            raise Release
        return "two"

    queue.enqueue(1)
    drain(hf)
    assert calls == ["first", "second", "second", "second", "second"]
    (row,) = finished(hf, "orders")
    assert row.message.attempts == 1
    assert row.result == {
        "test_a_release_by_one_handler_keeps_what_the_others_did.<locals>.first": "one",
        "test_a_release_by_one_handler_keeps_what_the_others_did.<locals>.second": "two",
    }


@pytest.mark.promise("FENCE-4")
def test_a_release_may_say_when(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    queue.release(lease, delay=5)
    assert queue.lease() == []
    clock.advance(5)
    (again,) = queue.lease()
    assert again.message.attempts == 1


@pytest.mark.promise("HANDLER-2")
def test_a_payload_that_does_not_fit_is_dead_at_once(hf: Holdfast, queue: Queue) -> None:
    @hf.handler("orders")
    def handle(payload: list[int]) -> None: ...

    queue.enqueue([1, "two"])
    drain(hf)
    (dead,) = dead_letters(hf, "orders")
    (error,) = dead.errors
    assert error.code == "MISFIT"
    assert error.message.startswith("payload: does not fit ")
    assert "$[1]" in error.message
    assert dead.attempts == 1


@pytest.mark.promise("HANDLER-2")
def test_a_payload_that_does_not_fit_may_be_retried(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", max_attempts=2, on_misfit="retry", backoff=Backoff(base=0))

    @hf.handler("orders")
    def handle(payload: list[int]) -> None: ...

    queue.enqueue("no list")
    drain(hf)
    (dead,) = dead_letters(hf, "orders")
    assert [error.attempt for error in dead.errors] == [1, 2]


def _deep(n: int) -> None:
    if n:
        return _deep(n - 1)
    raise ValueError("at the bottom")


@pytest.mark.promise("HANDLER-9")
def test_a_traceback_is_kept_with_each_error(hf: Holdfast, queue: Queue) -> None:
    @hf.handler("orders")
    def handle(what: str) -> None:
        try:
            _deep(2)
        except ValueError as error:
            if what == "wrapped":
                raise Fail("no use") from error
            raise

    queue.enqueue_many(["wrapped", "plain"])
    drain(hf)
    (dead,) = dead_letters(hf, "orders")
    (waiting,) = queue.browse("delayed")
    for message in (dead, waiting.message):
        shown = message.errors[0].traceback or ""
        assert shown.startswith("Traceback (most recent call last):\n")
        assert shown.endswith("ValueError: at the bottom\n")
        assert "in _deep" in shown
        assert "holdfast/work/" not in shown


@pytest.mark.promise("HANDLER-9")
def test_a_traceback_is_as_long_as_the_policy_says(hf: Holdfast, clock: ManualClock) -> None:
    @hf.handler("orders")
    def handle(n: int) -> None:
        _deep(n)

    @hf.handler("quiet")
    def quietly(n: int) -> None:
        _deep(n)

    queue = hf.queue("orders", traceback_max=300, max_attempts=1)
    silent = hf.queue("quiet", traceback_max=0, max_attempts=1)
    queue.enqueue(30)
    silent.enqueue(30)
    drain(hf)
    (dead,) = dead_letters(hf, "orders")
    shown = dead.errors[0].traceback or ""
    assert len(shown) == 300
    assert "characters left out" in shown
    assert shown.endswith("ValueError: at the bottom\n")
    (dead,) = dead_letters(hf, "quiet")
    assert dead.errors[0].traceback is None
    assert dead.errors[0].message == "at the bottom"


def test_all_tracebacks_of_a_message_stay_bounded(hf: Holdfast, clock: ManualClock) -> None:
    attempts = 2 * TRACEBACK_MAX // 9000
    queue = hf.queue("orders", max_attempts=attempts, backoff=Backoff(base=0))

    @hf.handler("orders")
    def handle() -> None:
        raise ValueError("x\n" * 4500)

    queue.enqueue(1)
    drain(hf)
    (dead,) = dead_letters(hf, "orders")
    kept = [error.traceback for error in dead.errors]
    assert len(kept) == attempts
    assert kept[-1] and not kept[0]
    assert sum(len(text or "") for text in kept) <= TRACEBACK_MAX


@pytest.mark.promise("HANDLER-9")
def test_an_error_that_a_consumer_reports_has_its_traceback(queue: Queue) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    try:
        _deep(1)
    except ValueError as error:
        queue.fail(lease, error)
    (dead,) = queue.dlq.browse()
    assert "in _deep" in (dead.message.errors[0].traceback or "")


class Refusing:
    """A store that takes everything but what it is told to refuse."""

    def __init__(self, store: Store, refuses: Callable[[Any], bool]) -> None:
        self._store = store
        self._refuses = refuses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def settle(self, moves: Any, now: int, *, within: Any = None) -> Any:
        if any(map(self._refuses, moves)):
            raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
        return self._store.settle(moves, now, within=within)


@pytest.mark.promise("HANDLER-9")
def test_an_outcome_that_the_store_refuses_takes_no_neighbour_with_it(
    store: Store, clock: ManualClock
) -> None:
    refusing: Any = Refusing(store, lambda move: move.result == b'"refused"')
    hf = holdfast.connect(refusing, clock=clock)
    queue = hf.queue("orders")
    hf.handler("orders")(lambda what: "refused" if what in (7, 40, 41) else "fine")
    queue.enqueue_many(range(60))
    drain(hf, concurrency=8)
    done = sorted(row.message.payload for row in finished(hf, "orders"))
    assert done == [n for n in range(60) if n not in (7, 40, 41)]
    dead = dead_letters(hf, "orders")
    assert sorted(message.payload for message in dead) == [7, 40, 41]
    for message in dead:
        assert "could not be stored: 'utf-8' codec" in message.errors[0].message
        assert message.errors[0].code == "OutcomeRefused"


@pytest.mark.promise("HANDLER-9")
def test_an_outcome_that_is_refused_in_every_form_runs_out(
    store: Store, clock: ManualClock
) -> None:
    refused: list[str] = []
    refusing: Any = Refusing(store, lambda move: move.id in refused)
    hf = holdfast.connect(refusing, clock=clock)
    queue = hf.queue("orders", max_attempts=1)
    hf.handler("orders")(lambda payload: payload)
    refused.append(queue.enqueue_many(["bad", "good"])[0].id)
    drain(hf)
    assert [row.message.payload for row in finished(hf, "orders")] == ["good"]
    assert queue.stats().leased == 1
    refused.clear()
    clock.advance(31)
    hf.sweep()
    assert [message.reason for message in dead_letters(hf, "orders")] == ["ack timeout exceeded"]


@pytest.mark.promise("HANDLER-9", "HANDLER-8")
def test_a_store_that_takes_no_writes_at_all_is_waited_for(
    store: Store, clock: ManualClock
) -> None:
    refused: list[str] = []

    class Forbidden:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def settle(self, moves: Any, now: int, *, within: Any = None) -> Any:
            return self._unless_forbidden("settle", lambda: store.settle(moves, now, within=within))

        def claim(self, *ask: Any) -> Any:
            return self._unless_forbidden("claim", lambda: store.claim(*ask))

        def _unless_forbidden(self, what: str, call: Callable[[], Any]) -> Any:
            if len(refused) < 6:
                refused.append(what)
                raise StoreError("permission denied")
            return call()

    forbidden: Any = Forbidden()
    hf = holdfast.connect(forbidden, clock=clock)
    queue = hf.queue("orders", max_attempts=1)
    hf.handler("orders")(lambda payload: payload)
    queue.enqueue_many(range(20))
    drain(hf, concurrency=4)
    assert {"settle", "claim"} == set(refused)
    assert queue.stats().done == 20


@pytest.mark.promise("HANDLER-9")
def test_an_observer_may_raise_anything(hf: Holdfast, queue: Queue) -> None:
    class Bad:
        def __getattr__(self, name: str) -> Callable[..., None]:
            def fail(*_: Any) -> None:
                raise SystemExit("an observer")

            return fail

        def __repr__(self) -> str:
            raise ValueError("no text")

    hf.context.observe(cast(Any, Bad()))
    hf.handler("orders")(lambda payload: payload)
    queue.enqueue_many(range(10))
    drain(hf)
    assert len(finished(hf, "orders")) == 10


def test_a_lease_of_a_millisecond_is_kept_without_haste(hf: Holdfast) -> None:
    """It is renewed for a second at a time: the renewer must not write all the time."""
    queue = hf.queue("orders", ack_timeout=0.001)
    go_on, renewed = threading.Event(), []

    class Watch:
        def enqueued(self, *_: Any) -> None: ...
        def leased(self, *_: Any) -> None: ...
        def handled(self, *_: Any) -> None: ...
        def settled(self, moves: Any, answers: Any) -> None:
            renewed.extend(m.deadline for m in moves if m.verb == "extend")

    hf.context.observe(cast(Any, Watch()))

    @hf.handler("orders")
    def handle(message: Message, lease: Lease) -> None:
        assert go_on.wait(30)

    queue.enqueue(1)
    with Running(hf, concurrency=1):
        wait_until(lambda: renewed)
        assert renewed[0] == hf.context.clock.now() + 1000
        go_on.set()
        wait_until(lambda: queue.stats().done == 1)
