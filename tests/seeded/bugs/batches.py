"""Bugs in batches, which Spark reads."""

from __future__ import annotations

from tests.seeded.bug import Bug

BUGS = [
    Bug(
        name="a sweep gives back a sealed batch",
        where="sweep",
        old="unsealed = query.hold and not query.sealed and query.expires_at <= now",
        new="unsealed = query.hold and query.expires_at <= now",
        caught_by="batches/test_batches.py",
        test="test_after_sealing_the_same_rows_are_read_again",
    ),
    Bug(
        name="a batch is acked before its verdicts are applied",
        where="Batches._finish",
        old="retried, dead = apply_verdicts(self._at, query)\n        finish(self._at, query)",
        new="finish(self._at, query)\n        retried, dead = apply_verdicts(self._at, query)",
        caught_by="batches/test_batches.py",
    ),
    Bug(
        name="unpublished verdicts are applied",
        where="apply_verdicts",
        old='prefix = f"{query.hold}/{query.judged}/"',
        new='prefix = f"{query.hold}/"',
        caught_by="batches/test_batches.py",
        test="test_only_the_published_attempt_counts",
    ),
    Bug(
        name="a second process does not fence off the first",
        where="Batches._take_up",
        old="run=query.run + 1,",
        new="run=query.run,",
        caught_by="batches/test_batches.py",
        test="test_the_process_before_is_fenced_off",
    ),
    Bug(
        name="messages held after a batch was given back stay held",
        where="sweep",
        old="n += release_strays(at, query)",
        new="pass",
        caught_by="batches/test_batches.py",
        test="test_a_process_that_is_fenced_while_it_takes_holds_nothing_for_long",
    ),
    Bug(
        name="a batch that was never read counts as an attempt",
        where="release_strays",
        old="return lifecycle.released(lease, now)",
        new="return replace(lifecycle.released(lease, now), attempts=1)",
        caught_by="batches/test_batches.py",
    ),
    Bug(
        name="a batch that another process reserved is settled",
        where="Batches._settle",
        old="if query.hold and query.hold != start.hold:",
        new="if False:",
        caught_by="batches/test_batches.py",
        test="test_two_on_one_checkpoint_lose_nothing",
    ),
    Bug(
        name="a query continues from an old checkpoint",
        where="Batches._settle",
        old="if start.batch < query.settled:",
        new="if False:",
        caught_by="batches/test_batches.py",
        test="test_an_old_checkpoint_is_refused",
    ),
]
