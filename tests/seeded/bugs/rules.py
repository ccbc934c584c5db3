"""Bugs in the rules: retries, backoff, dead letters, payloads and pages."""

from __future__ import annotations

from tests.seeded.bug import Bug

BUGS = [
    Bug(
        name="a message gets one attempt too many",
        where="nacked",
        old="if lease.message.attempts >= (rules.max_attempts or 1):",
        new="if lease.message.attempts > (rules.max_attempts or 1):",
        caught_by="conformance/test_retrying.py",
    ),
    Bug(
        name="an overdue message is never dead-lettered",
        where="_silent",
        old="if message.attempts >= (rules.max_attempts or 1):",
        new="if False:",
        caught_by="conformance/test_overdue.py",
    ),
    Bug(
        name="a sweep ignores an extended lease",
        where="expired",
        old="return msgspec.structs.replace(move, overdue_at=now)",
        new="return move",
        caught_by="conformance/test_overdue.py",
        test="test_an_extension_that_came_before_the_sweep_wins",
    ),
    Bug(
        name="a release counts as an attempt",
        where="released",
        old="return _back(Verb.RELEASE, lease, available_at, lease.message.attempts - 1, history)",
        new="return _back(Verb.RELEASE, lease, available_at, lease.message.attempts, history)",
        caught_by="conformance/test_fencing.py",
        test="test_a_released_message_is_back_at_once_and_uncounted",
    ),
    Bug(
        name="a redrive keeps the attempts",
        where="redriven",
        old="attempts=0,",
        new="attempts=message.attempts,",
        caught_by="conformance/test_dead.py",
    ),
    Bug(
        name="dead letters keep the order in which they were enqueued",
        where="_dead",
        old="tail=True,",
        new="",
        caught_by="conformance/test_dead.py",
    ),
    Bug(
        name="the queue's policy overrides the message's own",
        where="for_message",
        old="return own.over(policy)",
        new="return policy.over(own)",
        caught_by="conformance/test_retrying.py",
    ),
    Bug(
        name="an explicit delay is ignored",
        where="_later",
        old="if delay is None and rules.backoff is not None:",
        new="if rules.backoff is not None:",
        caught_by="conformance/test_retrying.py",
    ),
    Bug(
        name="a redrive to another queue keeps the partition",
        where="redriven",
        old="partition=elsewhere and home_partition(message.key, message.id, elsewhere),",
        new="partition=None,",
        caught_by="conformance/test_redriving.py",
        test="test_redrive_to_another_queue",
    ),
    Bug(
        name="the backoff is one step ahead",
        where="Backoff.raw",
        old="self.factor ** (attempt - 1)",
        new="self.factor**attempt",
        caught_by="unit/test_backoff.py",
    ),
    Bug(
        name="the backoff has no jitter",
        where="Backoff.delay",
        old="return rng.uniform(0.0, self.raw(attempt))",
        new="return self.raw(attempt)",
        caught_by="conformance/test_retrying.py",
    ),
    Bug(
        name="NaN is stored as null",
        where="_to_json",
        old="if not same:",
        new="if False:",
        caught_by="conformance/test_enqueueing.py",
    ),
    Bug(
        name="a page of a split ends before its last row",
        where="page_of",
        old="rows = [row for row in rows if row[0] <= last]",
        new="rows = [row for row in rows if row[0] < last]",
        caught_by="conformance/test_splitting.py",
    ),
]
