"""Calls handlers, and makes a verdict of what they return and raise."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Sequence
from typing import Any

from holdfast.model import payload
from holdfast.model.backoff import SECONDS_MAX
from holdfast.model.errortext import TRACEBACK_MAX, clean, traceback_of
from holdfast.model.message import ERROR_TEXT_MAX, Lease
from holdfast.rules.outcome import RESULT_MAX, Done, Extend, Fail, Release, Retry, describe
from holdfast.telemetry import tracing
from holdfast.work.handlers import Handler, Misfit
from holdfast.work.verdict import MISFIT_CODE, Problem, Verdict

Attempt = tuple[Handler, Any, BaseException | None]
_OUTCOMES = (Done, Retry, Fail, Release, Extend)
_PUT_OFF = (Release, Extend)

logger = logging.getLogger("holdfast.worker")


class CannotRun(Exception):
    """The handler was not called: no process or thread could be started for it. The message
    is not to blame."""


class TimeLimitExceeded(Exception):
    """A handler ran longer than its hard limit and was ended."""


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


def attempt(handler: Handler, lease: Lease) -> Attempt:
    try:
        result = handler.function(*handler.arguments(lease))
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
            result = await handler.function(*handler.arguments(lease))
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
    """Treats an outcome the same whether it is returned or raised."""
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


def verdict_of(attempts: list[Attempt]) -> Verdict:
    """A problem makes the message wait or fail, whatever other handlers ask for; a release comes
    before an extension."""
    results: dict[str, Any] = {}
    raised: list[tuple[Handler, BaseException]] = []
    for handler, result, error in attempts:
        if error is None:
            results[handler.name] = None if result is None else _plain(handler, result)
        else:
            raised.append((handler, error))
    return _verdict_of_raised(results, raised) if raised else Verdict(results)


def _verdict_of_raised(
    results: dict[str, Any], raised: list[tuple[Handler, BaseException]]
) -> Verdict:
    failed = [(handler, error) for handler, error in raised if not isinstance(error, _PUT_OFF)]
    if failed:
        problems = tuple(problem(error, handler.name) for handler, error in failed)
        fatal = any(isinstance(error, Fail) for _, error in failed)
        retries = [error for _, error in failed if isinstance(error, Retry)]
        return Verdict(results, problems, fatal, _longest_delay(retries))
    releases = [error for _, error in raised if isinstance(error, Release)]
    if releases:
        return Verdict(results, delay=_longest_delay(releases), ending="release")
    extensions = [error for _, error in raised if isinstance(error, Extend)]
    return Verdict(results, ending="extend", hold=extensions[0].seconds)


def _longest_delay(outcomes: Sequence[Retry | Release]) -> float | None:
    return max((delay for outcome in outcomes for delay in _delay_of(outcome)), default=None)


def _delay_of(outcome: Retry | Release) -> list[float]:
    """Checked again: a handler may have changed it."""
    delay: Any = outcome.delay
    if isinstance(delay, int | float) and math.isfinite(delay) and 0 <= delay <= SECONDS_MAX:
        return [float(delay)]
    return []


def problem(error: BaseException, handler: str | None) -> Problem:
    """An exception as it is stored. Never raises, whatever the exception does."""
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
    """A result as the log will show it; a handler is not retried because its result is not JSON."""
    try:
        return payload.decode(*payload.encode(result, payload.JSON, RESULT_MAX))
    except Exception as error:
        logger.warning("handler %s: its result is not kept: %s", handler.name, clean(error, 500))
        return None
