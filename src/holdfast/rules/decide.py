"""What an outcome means for a lease."""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast.errors import (
    InvalidArgument,
)
from holdfast.model import payload
from holdfast.model.message import (
    Lease,
)
from holdfast.model.moves import Transition
from holdfast.model.policy import Policy
from holdfast.rules import lifecycle
from holdfast.rules.outcome import (
    RESULT_MAX,
    Done,
    Extend,
    Fail,
    Outcome,
    Release,
    Retry,
    error_info,
)


def decide(
    lease: Lease,
    outcome: Outcome,
    policy: Policy,
    now: int,
    rng: Random,
) -> Transition:
    """What an outcome means for a lease, by the rules."""
    match outcome:
        case Done(result=result):
            return lifecycle.acked(lease, policy, None if result is None else encode_result(result))
        case Retry():
            errors = [error_info(outcome, lease, now, traceback_max=policy.traceback_max or 0)]
            return lifecycle.nacked(lease, errors, policy, now, rng, delay=outcome.delay)
        case Fail():
            errors = [error_info(outcome, lease, now, traceback_max=policy.traceback_max or 0)]
            return lifecycle.failed(lease, errors, now)
        case Release():
            return lifecycle.released(lease, now, delay=outcome.delay)
        case Extend(seconds=length):
            return lifecycle.extended(lease, policy, now, length)


def encode_result(result: Any) -> bytes:
    try:
        return payload.encode(result, payload.JSON, RESULT_MAX)[0]
    except InvalidArgument as error:
        field = error.field.replace("payload", "result", 1)
        raise InvalidArgument(field, error.problem) from error
