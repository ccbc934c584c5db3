"""Handlers: what is registered for which message, and what came of calling it."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from random import Random
from typing import Any, Literal, get_type_hints

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model import payload
from holdfast.model.backoff import SECONDS_MAX
from holdfast.model.errortext import TRACEBACK_MAX, clean, shortened, traceback_of
from holdfast.model.message import ERROR_TEXT_MAX, ErrorInfo, Lease, Message, check_queue_name
from holdfast.model.moves import Transition
from holdfast.model.policy import Policy, positive
from holdfast.rules import lifecycle
from holdfast.rules.lifecycle import NO_HANDLER_CODE, NO_HANDLER_REASON
from holdfast.rules.outcome import RESULT_MAX, Done, Extend, Fail, Release, Retry, cleaned, describe
from holdfast.telemetry import tracing

logger = logging.getLogger("holdfast.worker")


MISFIT_CODE = "MISFIT"


class Problem(msgspec.Struct, frozen=True):
    """An error as a handler's process reports it; the worker knows when and in whose hands."""

    message: str
    code: str
    handler: str | None = None
    traceback: str | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What came of one delivery: which handlers succeeded, what the others said."""

    results: dict[str, Any] = {}
    problems: tuple[Problem, ...] = ()
    fatal: bool = False
    delay: float | None = None
    """Of a retry or a release."""
    ending: Literal["done", "release", "extend"] = "done"
    """Where there is no problem: what a handler asked for."""
    hold: float | None = None
    """Of an extension: seconds, or None for the message's own time-out."""

    @property
    def is_done(self) -> bool:
        return not self.problems and self.ending == "done"


class Misfit(InvalidArgument):
    """The payload does not fit the type that the handler annotates."""

    def __reduce__(self) -> tuple[type[InvalidArgument], tuple[str, str]]:
        return Misfit, (self.field, self.problem)


class CannotRun(Exception):
    """The handler was not called: no process or thread could be started for it. That is not the
    message's fault."""


NO_HANDLER = Verdict(problems=(Problem(NO_HANDLER_REASON, NO_HANDLER_CODE),))


class Handler:
    """One registered function. Its signature is read when it is first needed, not before, so
    that it may name types that are defined further down."""

    def __init__(
        self,
        function: Callable[..., Any],
        queue: str,
        type: str | None,
        name: str | None,
        time_limit: float | None,
    ) -> None:
        if not callable(function):
            raise InvalidArgument("handler", f"must be a function, not {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument("handler", f"{function!r} is a generator: its body would not run")
        positive("time_limit", time_limit)
        self.function = function
        self.queue = check_queue_name(queue)
        self.type = type
        self.name = name or getattr(function, "__qualname__", repr(function))
        self.time_limit = time_limit
        self.is_async = inspect.iscoroutinefunction(function)
        self._arguments: Callable[[Lease], tuple[Any, ...]] | None = None
        self._hints: dict[str, Any] | None = None

    def portable(self) -> Handler:
        """The same with the types it annotates beside it: where a function arrives by value, the
        names in its annotations may say nothing."""
        other = copy(self)
        other._hints = _hints(self.function)
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arguments": None}

    def call(self, lease: Lease) -> Any:
        """Call it; an async one returns its coroutine."""
        if self._arguments is None:
            self.prepare()
        assert self._arguments is not None
        return self.function(*self._arguments(lease))

    def prepare(self) -> None:
        """Read the signature: a `Message`, a `Lease`, `attempt`, and one parameter for the payload.

        Raises InvalidArgument for a signature that cannot be filled.
        """
        hints = self._hints or _hints(self.function)
        makers: list[Callable[[Lease], Any]] = []
        payload_name: str | None = None
        for name, parameter in inspect.signature(self.function).parameters.items():
            maker = _special(name, hints.get(name, Any))
            if maker is None:
                if payload_name is not None and parameter.default is not parameter.empty:
                    break
                if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    continue
                if payload_name is not None or parameter.kind is parameter.KEYWORD_ONLY:
                    raise InvalidArgument(
                        f"handler {self.name}",
                        f"cannot fill parameter {name!r}: it may take the payload, and `message`, "
                        "`lease` or `attempt`",
                    )
                payload_name = name
                maker = _payload_maker(self.name, hints.get(name, Any))
            makers.append(maker)
        if len(makers) == 1:
            only = makers[0]
            self._arguments = lambda lease: (only(lease),)
        else:
            self._arguments = lambda lease: tuple(make(lease) for make in makers)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError) as error:
        raise InvalidArgument(
            f"handler {getattr(function, '__qualname__', function)}",
            f"its annotations cannot be read: {error}",
        ) from error


def _special(name: str, hint: Any) -> Callable[[Lease], Any] | None:
    if hint is Message or (name == "message" and hint is Any):
        return lambda lease: _own(lease.message)
    if hint is Lease or (name == "lease" and hint is Any):
        return lambda lease: msgspec.structs.replace(lease, message=_own(lease.message))
    if name == "attempt" and hint in (int, Any):
        return lambda lease: lease.message.attempts
    return None


def _own(message: Message) -> Message:
    """A message that a handler may change: messages share what is empty in them."""
    history = msgspec.structs.replace(message.history, handled=dict(message.history.handled))
    return msgspec.structs.replace(message, headers=dict(message.headers), history=history)


def _payload_maker(handler: str, hint: Any) -> Callable[[Lease], Any]:
    try:
        decode = payload.decoder(hint)
    except TypeError as error:
        raise InvalidArgument(
            f"handler {handler}", f"cannot decode a payload into {hint!r}: {error}"
        ) from error

    def make(lease: Lease) -> Any:
        try:
            return decode(lease.message.body, lease.message.content_type)
        except Exception as error:  # pydantic's errors have no base in common with msgspec's
            raise Misfit("payload", f"does not fit {_shown(hint)}: {error}") from None

    return make


def _shown(hint: Any) -> str:
    return "JSON" if hint is Any else getattr(hint, "__name__", str(hint))


class Registry:
    """All handlers of one connection, by queue and message type."""

    def __init__(self) -> None:
        self._handlers: list[Handler] = []
        self._found: dict[tuple[str, str | None], tuple[Handler, ...]] = {}

    def add(self, handler: Handler) -> None:
        for other in self._handlers:
            if (other.queue, other.name) == (handler.queue, handler.name):
                raise InvalidArgument(
                    "name",
                    f"queue {handler.queue} has a handler {handler.name!r}; pass another name=",
                )
        self._handlers.append(handler)
        self._found.clear()

    def all(self) -> list[Handler]:
        return list(self._handlers)

    def queues(self) -> list[str]:
        return list(dict.fromkeys(handler.queue for handler in self._handlers))

    def matching(self, message: Message) -> tuple[Handler, ...]:
        """Every handler for its queue whose type is the message's, or that takes any."""
        key = (message.queue, message.type)
        found = self._found.get(key)
        if found is None:
            found = tuple(
                handler
                for handler in self._handlers
                if handler.queue == message.queue and handler.type in (None, message.type)
            )
            self._found[key] = found
        return found

    def due(self, message: Message) -> Sequence[Handler]:
        """Those that have not succeeded on this message yet."""
        handled, matching = message.history.handled, self.matching(message)
        if not handled:
            return matching
        return [handler for handler in matching if handler.name not in handled]

    def nothing_due(self, message: Message) -> Verdict:
        """On one for which `due` is empty: all have succeeded before (and the ack was lost), or
        there is none."""
        return Verdict() if self.matching(message) else NO_HANDLER


def decide(
    lease: Lease, verdict: Verdict | None, policy: Policy, now: int, rng: Random
) -> Transition:
    """What the verdict on a delivery means for its message; None: it never started."""
    if verdict is None:
        return lifecycle.released(lease, now)
    delay, handled = verdict.delay, verdict.results
    if verdict.problems:
        errors = [_error(problem, lease, policy, now) for problem in verdict.problems]
        misfit = policy.on_misfit != "retry" and any(e.code == MISFIT_CODE for e in errors)
        if verdict.fatal or misfit:
            return lifecycle.failed(lease, errors, now, handled=handled)
        return lifecycle.nacked(lease, errors, policy, now, rng, delay=delay, handled=handled)
    if verdict.ending == "release":
        return lifecycle.released(lease, now, delay=delay, handled=handled)
    if verdict.ending == "extend":
        return lifecycle.extended(lease, policy, now, verdict.hold)
    return lifecycle.acked(lease, policy, result_of(lease, verdict))


def _error(problem: Problem, lease: Lease, policy: Policy, now: int) -> ErrorInfo:
    where = problem.traceback and shortened(problem.traceback, policy.traceback_max or 0)
    return cleaned(
        ErrorInfo(
            problem.message,
            problem.code,
            now,
            lease.message.attempts,
            lease.owner,
            problem.handler,
            where or None,
        )
    )


def result_of(lease: Lease, verdict: Verdict) -> bytes | None:
    """One handler: its result. Several: by name."""
    handled = lease.message.history.handled
    results = {**handled, **verdict.results} if handled else verdict.results
    told = {name: result for name, result in results.items() if result is not None}
    if not told:
        return None
    result = told if len(results) > 1 else next(iter(told.values()))
    try:
        return payload.encode(result, payload.JSON, RESULT_MAX)[0]
    except Exception as error:
        logger.warning("%s: its results are not kept: %s", lease.message.id, clean(error, 500))
        return None


def run(handlers: Sequence[Handler], lease: Lease) -> Verdict:
    """Call each; one that raises does not stop the others."""
    return verdict_of([attempt(handler, lease) for handler in handlers])


async def run_async(handlers: Sequence[Handler], lease: Lease) -> Verdict:
    """The same on an event loop; plain functions go to a thread.

    Raises CannotRun where no thread can be started.
    """
    import asyncio  # here: it costs a third of `import holdfast`

    outcomes: list[Attempt] = []
    for handler in handlers:
        if handler.is_async:
            outcomes.append(await attempt_async(handler, lease))
            continue
        try:
            outcomes.append(await asyncio.to_thread(attempt, handler, lease))
        except RuntimeError as error:  # what the handler raises is in the attempt
            raise CannotRun(f"no thread for a handler: {error}") from error
    return verdict_of(outcomes)


Attempt = tuple[Handler, Any, BaseException | None]
_OUTCOMES = (Done, Retry, Fail, Release, Extend)


def attempt(handler: Handler, lease: Lease) -> Attempt:
    try:
        result = handler.call(lease)
        if result is not None and inspect.isawaitable(result):
            import asyncio

            result = asyncio.run(_awaited(result))
        return _attempted(handler, result)
    except BaseException as error:
        return _raised(handler, error)


async def attempt_async(handler: Handler, lease: Lease) -> Attempt:
    import asyncio

    try:
        async with asyncio.timeout(handler.time_limit):
            result = await handler.call(lease)
            if result is not None and inspect.isawaitable(result):
                result = await result
            return _attempted(handler, result)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the worker stops: this delivery stays open and becomes overdue
        return _raised(handler, error)
    except TimeoutError as error:
        late = TimeLimitExceeded(f"ran longer than {handler.time_limit} s")
        return _raised(handler, error if handler.time_limit is None else late)
    except BaseException as error:
        return _raised(handler, error)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _attempted(handler: Handler, result: Any) -> Attempt:
    """An outcome counts the same whether it is returned or raised."""
    if result is None:
        return handler, None, None
    outcome: Any = result
    if (
        isinstance(outcome, type) and outcome in _OUTCOMES
    ):  # the class alone, as `raise Retry` allows
        outcome = outcome()
    if isinstance(outcome, _OUTCOMES):
        return _raised(handler, outcome)
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
        raise TypeError(f"the handler returned {type(result).__name__}, which nobody runs")
    return handler, result, None


def _raised(handler: Handler, error: BaseException) -> Attempt:
    if isinstance(error, Done):
        return handler, error.result, None
    return handler, None, error


class TimeLimitExceeded(Exception):
    """A handler ran longer than its hard limit and was ended."""


def verdict_of(attempts: list[Attempt]) -> Verdict:
    """One problem makes the message wait or fail; a handler that only releases or extends comes
    second to that."""
    results: dict[str, Any] = {}
    problems: list[Problem] = []
    given_back: list[Release] = []
    extended: list[Extend] = []
    fatal = False
    delays: list[float] = []
    for handler, result, error in attempts:
        if error is None:
            results[handler.name] = None if result is None else _plain(handler, result)
        elif isinstance(error, Release):
            given_back.append(error)
        elif isinstance(error, Extend):
            extended.append(error)
        else:
            problems.append(problem(error, handler.name))
            fatal = fatal or isinstance(error, Fail)
            if isinstance(error, Retry):
                delays += _delay_of(error)
    if problems:
        return Verdict(results, tuple(problems), fatal, max(delays, default=None))
    if given_back:
        delay = max((d for one in given_back for d in _delay_of(one)), default=None)
        return Verdict(results, delay=delay, ending="release")
    if extended:
        return Verdict(results, ending="extend", hold=extended[0].seconds)
    return Verdict(results)


def _delay_of(outcome: Retry | Release) -> list[float]:
    """Checked again: a handler may have changed it."""
    delay: Any = outcome.delay
    if isinstance(delay, int | float) and math.isfinite(delay) and 0 <= delay <= SECONDS_MAX:
        return [float(delay)]
    return []


def problem(error: BaseException, handler: str | None) -> Problem:
    """What an exception says, as what is kept. Never raises, whatever the exception does."""
    cause = _cause_of(error)
    if cause is not None:
        tracing.record(cause)
    where = cause and traceback_of(cause, TRACEBACK_MAX, skip=__file__)
    try:
        if isinstance(error, Misfit):
            return Problem(clean(error, ERROR_TEXT_MAX), MISFIT_CODE, handler)
        if isinstance(error, Retry | Fail):
            inner, own = error.error, type(error).__name__.upper()
            if isinstance(inner, BaseException):
                own = type(inner).__name__
            return Problem(clean(inner, ERROR_TEXT_MAX), error.code or own, handler, where)
        text, code = describe(error)
        return Problem(text, code, handler, where)
    except BaseException:
        return Problem("an exception that cannot be read", "UnreadableError", handler, where)


def _cause_of(error: BaseException) -> BaseException | None:
    """The exception to show: a Retry or Fail is an answer, and what it carries is the error."""
    if isinstance(error, Misfit):
        return None
    if not isinstance(error, Retry | Fail):
        return error
    return error.error if isinstance(error.error, BaseException) else error.__cause__


def _plain(handler: Handler, result: Any) -> Any:
    """A result as the log will show it; one that is no JSON value is not worth a retry."""
    try:
        return payload.decode(*payload.encode(result, payload.JSON, RESULT_MAX))
    except Exception as error:
        logger.warning("handler %s: its result is not kept: %s", handler.name, clean(error, 500))
        return None
