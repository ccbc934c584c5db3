"""What came of a delivery, as handlers report it, and what that means for the message."""

from __future__ import annotations

import logging
from random import Random
from typing import Any, Literal

import msgspec

from holdfast.model import payload
from holdfast.model.errortext import clean, shortened
from holdfast.model.message import ErrorInfo, Lease
from holdfast.model.moves import Transition
from holdfast.model.policy import Policy
from holdfast.rules import lifecycle
from holdfast.rules.lifecycle import NO_HANDLER_CODE, NO_HANDLER_REASON
from holdfast.rules.outcome import RESULT_MAX, cleaned

MISFIT_CODE = "MISFIT"
"""The payload does not fit the type that a handler annotates."""

logger = logging.getLogger("holdfast.worker")


class Problem(msgspec.Struct, frozen=True):
    """An error as a handler's process reports it; the worker adds the time and the lease."""

    message: str
    code: str
    handler: str | None = None
    traceback: str | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Which handlers succeeded on one delivery, and what the others raised."""

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


NO_HANDLER = Verdict(problems=(Problem(NO_HANDLER_REASON, NO_HANDLER_CODE),))


def decide(
    lease: Lease, verdict: Verdict | None, policy: Policy, now: int, rng: Random
) -> Transition:
    """What the verdict on a delivery means for its message; None if it never started."""
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
    if len(results) == 1:
        (result,) = results.values()
    else:
        result = {name: result for name, result in results.items() if result is not None} or None
    if result is None:
        return None
    try:
        return payload.encode(result, payload.JSON, RESULT_MAX)[0]
    except Exception as error:
        logger.warning("%s: its results are not kept: %s", lease.message.id, clean(error, 500))
        return None
