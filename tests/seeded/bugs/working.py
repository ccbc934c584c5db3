"""Bugs in workers, handlers and the sweeper."""

from __future__ import annotations

from tests.seeded.bug import Bug

BUGS = [
    Bug(
        name="a sweep stops after one batch",
        where="Sweeper._requeue",
        old="swept += step",
        new="return swept + step",
        caught_by="conformance/test_overdue.py",
    ),
    Bug(
        name="a failed tick stops the sweeper",
        where="Sweeper.run",
        old='logger.exception("sweep failed; trying again in %s ms", self._interval_ms)',
        new="return",
        caught_by="conformance/test_overdue.py",
        test="test_a_tick_that_fails_does_not_stop_the_next",
    ),
    Bug(
        name="acks are dropped while the store is unreachable",
        where="Settling.run",
        old="patience.wait(error)",
        new="group.clear()",
        caught_by="conformance/test_handling.py",
        test="test_acks_are_grouped_and_none_is_lost_when_the_store_is_away",
    ),
    Bug(
        name="leases are not renewed",
        where="Renewing.run",
        old="self._renew(items)",
        new="pass",
        caught_by="conformance/test_handling.py",
        test="test_a_long_handler_keeps_its_lease",
    ),
    Bug(
        name="a message that was never started counts as failed",
        where="decide",
        old="if verdict is None:\n        return lifecycle.released(lease, now)",
        new="if verdict is None:\n        return lifecycle.nacked(lease, [], policy, now, rng)",
        caught_by="conformance/test_handling.py",
        test="test_a_stop_lets_handlers_finish_and_gives_back_the_rest",
    ),
    Bug(
        name="handlers that succeeded run again",
        where="Registry.due",
        old="if handler.name not in handled]",
        new="]",
        caught_by="conformance/test_handling.py",
    ),
]
