"""Bugs in redrives and redrive jobs."""

from __future__ import annotations

from tests.seeded.bug import Bug

BUGS = [
    Bug(
        name="a redrive moves messages that died again meanwhile",
        where="walk",
        old="View(plan.dlq, upto=tally.end)",
        new="View(plan.dlq)",
        caught_by="conformance/test_dead.py",
        test="test_redriving_all_ends_though_everything_dies_again",
    ),
    Bug(
        name="a dry run moves messages",
        where="_move",
        old="if plan.options.dry_run:",
        new="if False:",
        caught_by="conformance/test_redriving.py",
        test="test_a_dry_run_moves_nothing",
    ),
    Bug(
        name="skipped messages use up the count",
        where="_left",
        old="max(0, count - tally.redriven) if count",
        new="max(0, count - tally.redriven - tally.skipped) if count",
        caught_by="conformance/test_redriving.py",
        test="test_what_others_took_meanwhile_is_skipped",
    ),
    Bug(
        name="a filter by age takes the younger messages",
        where="_died_between",
        old="dead_at <= now - ms(where.older_than)",
        new="dead_at >= now - ms(where.older_than)",
        caught_by="unit/test_redrive_filter.py",
    ),
    Bug(
        name="a redrive catches up after a delay and exceeds its rate",
        where="due",
        old="max(last, now) + moved / rate",
        new="last + moved / rate",
        caught_by="unit/test_redrive_filter.py",
        test="test_no_stretch_of_time_sees_more_than_its_rate",
    ),
    Bug(
        name="a job moves messages that died after it started",
        where="start_redrive",
        old="Tally(end=end)",
        new="Tally()",
        caught_by="conformance/test_redriving.py",
        test="test_a_job_leaves_alone_what_died_after_it_was_started",
    ),
    Bug(
        name="a job is taken from a live runner",
        where="RedriveRunner._takes",
        old='job.state == "running" and job.expires_at <= now and',
        new='job.state == "running" and',
        caught_by="conformance/test_redriving.py",
        test="test_a_job_goes_on_after_its_runner_died",
    ),
    Bug(
        name="a job ignores its cancellation",
        where="_Work._save",
        old="cancelling=stored.cancelling",
        new="cancelling=False",
        caught_by="conformance/test_redriving.py",
        test="test_a_job_is_cancelled_from_another_connection",
    ),
    Bug(
        name="an unfinished job is forgotten after a day",
        where="forget",
        old="(job.finished_at or now) <",
        new="(job.finished_at or job.created_at) <",
        caught_by="conformance/test_redriving.py",
        test="test_only_finished_jobs_are_forgotten_after_a_day",
    ),
]
