"""Settings from the environment, each with its default. A name that is not known is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidArgument, did_you_mean
from holdfast.model.policy import Policy

PREFIX = "HOLDFAST_"
FOREIGN = (PREFIX + "TEST_", PREFIX + "NO_DASHBOARD")
"""For the tests, and for the build: nothing that is set for a program."""


class Settings(msgspec.Struct, frozen=True):
    url: str | None = None
    """HOLDFAST_URL: the store of the command line. Default: a file in the user's data folder."""
    overdue_check_interval_ms: int = 5000
    """HOLDFAST_OVERDUE_CHECK_INTERVAL_MS: time between two sweeps. Default 5000."""
    requeue_batch_size: int = 100
    """HOLDFAST_REQUEUE_BATCH_SIZE: overdue messages put back in one step. Default 100."""
    ack_timeout_seconds: float | None = None
    """HOLDFAST_ACK_TIMEOUT_SECONDS: lease time where nothing nearer says one. Default 30."""
    max_attempts: int | None = None
    """HOLDFAST_MAX_ATTEMPTS: deliveries where nothing nearer says a number. Default 3."""
    partition_lease_ms: int = 15_000
    """HOLDFAST_PARTITION_LEASE_MS: how long an owner keeps a partition unheard. Default 15000."""
    partition_renew_ms: int = 3000
    """HOLDFAST_PARTITION_RENEW_MS: time between two renewals of that. Default 3000."""
    partition_rebalance_ms: int = 5000
    """HOLDFAST_PARTITION_REBALANCE_MS: time between two looks at the shares. Default 5000."""

    @property
    def policy(self) -> Policy:
        return Policy(ack_timeout=self.ack_timeout_seconds, max_attempts=self.max_attempts)


def load(environ: Mapping[str, str] | None = None) -> Settings:
    env = os.environ if environ is None else environ
    names = {PREFIX + field.upper(): field for field in Settings.__struct_fields__}
    given: dict[str, Any] = {}
    for name, text in env.items():
        if name.startswith(PREFIX) and not name.startswith(FOREIGN):
            if name not in names:
                raise InvalidArgument(name, f"no such setting; {did_you_mean(name, names)}")
            given[names[name]] = text
    return Settings(
        url=given.get("url"),
        overdue_check_interval_ms=_whole(given, "overdue_check_interval_ms", 5000, 10, 3_600_000),
        requeue_batch_size=_whole(given, "requeue_batch_size", 100, 1, 10_000),
        ack_timeout_seconds=_seconds(given, "ack_timeout_seconds"),
        max_attempts=_whole(given, "max_attempts", None, 1, 2**31 - 1),
        **_of_partitions(given),
    )


def _of_partitions(given: dict[str, str]) -> dict[str, int]:
    lease = _whole(given, "partition_lease_ms", 15_000, 100, 3_600_000)
    renew = _whole(given, "partition_renew_ms", 3000, 10, 3_600_000)
    if renew * 3 > lease:
        raise InvalidArgument(
            PREFIX + "PARTITION_RENEW_MS",
            f"{renew} is too long for a lease of {lease}: at most a third of it",
        )
    return {
        "partition_lease_ms": lease,
        "partition_renew_ms": renew,
        "partition_rebalance_ms": _whole(given, "partition_rebalance_ms", 5000, 10, 3_600_000),
    }


def _whole(given: dict[str, str], field: str, default: Any, low: int, high: int) -> Any:
    if field not in given:
        return default
    text = given[field]
    if not text.isdecimal() or not low <= int(text) <= high:
        raise InvalidArgument(PREFIX + field.upper(), f"must be {low} to {high}, not {text!r}")
    return int(text)


def _seconds(given: dict[str, str], field: str) -> float | None:
    if field not in given:
        return None
    try:
        value = float(given[field])
        Policy(ack_timeout=value)
    except ValueError:
        problem = f"must be a number of seconds above 0, not {given[field]!r}"
        raise InvalidArgument(PREFIX + field.upper(), problem) from None
    return value
