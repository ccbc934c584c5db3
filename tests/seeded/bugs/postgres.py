"""Bugs in the store on PostgreSQL."""

from __future__ import annotations

from functools import partial

from tests.seeded.bug import Bug

postgres_bug = partial(Bug, store="postgres")

BUGS = [
    postgres_bug(
        name="an ack needs no token",
        where="HELD",
        old="\n    AND token = ANY(%(tokens)s)",
        new="",
        caught_by="conformance/test_fencing.py",
    ),
    postgres_bug(
        name="a nack needs no token",
        where="_fits",
        old="same_token=row[_TOKEN] == read_token(move.token),",
        new="same_token=True,",
        caught_by="conformance/test_fencing.py",
    ),
    postgres_bug(
        name="a repeated settle is stale",
        where="lost",
        old="return Settled.ALREADY if (token, move.verb.value) in ends else Settled.STALE",
        new="return Settled.STALE",
        caught_by="conformance/test_fencing.py",
        test="test_a_batch_answers_item_by_item",
    ),
    postgres_bug(
        name="a sweep ignores an extended lease",
        where="fits",
        old="return move.overdue_at is None or deadline <= move.overdue_at",
        new="return True",
        caught_by="conformance/test_overdue.py",
        test="test_an_extension_that_came_before_the_sweep_wins",
    ),
    postgres_bug(
        name="what finished lately and is taken back is still counted",
        where="TAKE_BACK",
        old="-count(*) FILTER (WHERE state = 0)",
        new="0",
        caught_by="conformance/test_enqueueing.py",
    ),
    postgres_bug(
        name="a dead letter keeps its place",
        where="_Batch._places",
        old="places.append(next(fresh))",
        new="places.append(row[_SEQ])",
        caught_by="conformance/test_dead.py",
    ),
    postgres_bug(
        name="acks are not counted",
        where="_finish_alike",
        old="SELECT qid, part, 1 AS ended, 0 AS kept FROM gone",
        new="SELECT qid, part, 0 AS ended, 0 AS kept FROM gone",
        caught_by="conformance/test_counting.py",
    ),
    postgres_bug(
        name="a paused queue hands out messages",
        where="_take",
        old="WHERE name = %(queue)s AND NOT paused)",
        new="WHERE name = %(queue)s)",
        caught_by="conformance/test_leasing.py",
        test="test_a_paused_queue_accepts_and_gives_none",
    ),
    postgres_bug(
        name="messages are leased in the wrong order",
        where="_pick",
        old="ORDER BY rank, place",
        new="ORDER BY rank DESC, place DESC",
        caught_by="conformance/test_leasing.py",
    ),
    postgres_bug(
        name="a delayed message is due a millisecond late",
        where="Leasing._promote",
        old="if paused or due is None or due > now:",
        new="if paused or due is None or due >= now:",
        caught_by="conformance/test_leasing.py",
    ),
    postgres_bug(
        name="a lease counts no attempt",
        where="_take",
        old="attempts = attempts + 1, owner",
        new="attempts = attempts + 0, owner",
        caught_by="conformance/test_fencing.py",
        test="test_a_released_message_is_back_at_once_and_uncounted",
    ),
    postgres_bug(
        name="stats do not count due messages as ready",
        where="queue_stats",
        old="ready=ready + due,\n        delayed=delayed - due,",
        new="ready=ready,\n        delayed=delayed,",
        caught_by="conformance/test_counting.py",
    ),
    postgres_bug(
        name="a batch is stored in reverse order",
        where="_enqueue",
        old="ORDER BY n",
        new="ORDER BY -n",
        caught_by="conformance/test_enqueueing.py",
    ),
    postgres_bug(
        name="held messages have a deadline",
        where="HOLD_UNTIL",
        old="str(NO_DEADLINE)",
        new='"%(now)s + %(timeout)s"',
        caught_by="conformance/test_holding.py",
    ),
    postgres_bug(
        name="a batch is finished in every queue",
        where="OF_BATCH",
        old="WHERE batch = %(batch)s AND qid = %(qid)s AND state = 2",
        new="WHERE batch = %(batch)s AND state = 2",
        caught_by="conformance/test_holding.py",
        test="test_the_same_name_in_two_queues",
    ),
    postgres_bug(
        name="a record overwrites any revision",
        where="CHANGE",
        old="AND revision = %(revision)s RETURNING 1",
        new="AND revision > 0 RETURNING 1",
        caught_by="conformance/test_recording.py",
    ),
    postgres_bug(
        name="a receipt does not stop the same batch a second time",
        where="Enqueueing.within",
        old="if receipt is not None and not self._note(",
        new="if receipt is not None and None is self._note(",
        caught_by="conformance/test_recording.py",
        test="test_a_batch_with_a_receipt_is_stored_once",
    ),
    postgres_bug(
        name="an owner leases with an old epoch",
        where="OWNED",
        old="AND claim.epoch = a.epoch AND expires_at",
        new="AND expires_at",
        caught_by="conformance/test_owning.py",
    ),
    postgres_bug(
        name="a message that changes partition is counted in the old one",
        where="_Batch._move",
        old="self.counts.move(to_qid, part, state, 1)",
        new="self.counts.move(to_qid, row[_PART], state, 1)",
        caught_by="conformance/test_moving.py",
        test="test_a_new_partition_is_where_it_is_found_and_counted",
    ),
    postgres_bug(
        name="a new payload is lost",
        where="PUT_BACK_EDITED",
        old="body = coalesce(a.body, m.body),",
        new="body = m.body,",
        caught_by="conformance/test_moving.py",
    ),
]
