"""Bugs in the store on Redis and its Lua scripts."""

from __future__ import annotations

from functools import partial

from tests.seeded.bug import Bug

redis_bug = partial(Bug, store="redis")

BUGS = [
    redis_bug(
        name="a paused queue hands out messages",
        where="lease.lua",
        old="if known[4] == '1' then return { 'ok', {}, {}, {} } end",
        new="",
        caught_by="conformance/test_leasing.py",
        test="test_a_paused_queue_accepts_and_gives_none",
    ),
    redis_bug(
        name="any token settles",
        where="expected.lua",
        old="fits = (row.state == 'F' or row.state == 'L') and row.token == token",
        new="fits = row.state == 'F' or row.state == 'L'",
        caught_by="conformance/test_fencing.py",
    ),
    redis_bug(
        name="a sweep ignores an extended lease",
        where="expected.lua",
        old="if fits and overdue ~= '' then",
        new="if false then",
        caught_by="conformance/test_overdue.py",
        test="test_an_extension_that_came_before_the_sweep_wins",
    ),
    redis_bug(
        name="an acked batch removes what others hold",
        where="finish.lua",
        old="if pending[1] == 0 or string.sub(pending[2], 1, 15) > last then",
        new="if true then",
        caught_by="conformance/test_holding.py",
    ),
    redis_bug(
        name="a delayed message loses its priority",
        where="promote.lua",
        old="score(row.lane, row.place), ids[i])",
        new="score(0, row.place), ids[i])",
        caught_by="conformance/test_leasing.py",
    ),
    redis_bug(
        name="a retry goes to the end of the queue",
        where="settle.lua",
        old="if tail == '1' then",
        new="if true then",
        caught_by="conformance/test_retrying.py",
    ),
    redis_bug(
        name="an id that exists is stored again",
        where="enqueue.lua",
        old="if not held[i] and not fresh[ids[i]] then",
        new="if not fresh[ids[i]] then",
        caught_by="conformance/test_enqueueing.py",
    ),
    redis_bug(
        name="an id that finishes again takes its first log entry with it",
        where="finish.lua",
        old="id, id, with_entry(flag, logged[i], entry)",
        new="id, id, entry",
        caught_by="conformance/test_holding.py",
    ),
    redis_bug(
        name="a purge drops leased messages",
        where="drop.lua",
        old="purging and '(' .. progress(stream) or '-'",
        new="'-'",
        caught_by="conformance/test_counting.py",
    ),
    redis_bug(
        name="retention keeps one too many",
        where="trim.lua",
        old="or 0) - keep or 0",
        new="or 0) - keep - 1 or 0",
        caught_by="conformance/test_finishing.py",
    ),
    redis_bug(
        name="a queue's spec overwrites a newer revision",
        where="queues.lua",
        old="if (call('HGET', c, 'rev' .. flag) or '0') ~= ARGV[i + 2] then return 0 end",
        new="",
        caught_by="conformance/test_keeping.py",
    ),
    redis_bug(
        name="a record overwrites any revision",
        where="record.lua",
        old="if expected ~= '' and expected ~= revision then return 0 end",
        new="",
        caught_by="conformance/test_recording.py",
    ),
    redis_bug(
        name="a receipt does not stop the same batch a second time",
        where="enqueue.lua",
        old="kept = call('HGET', key('rv'), receipt)",
        new="kept = name ~= '' and call('HGET', key('rv'), receipt)",
        caught_by="conformance/test_recording.py",
    ),
    redis_bug(
        name="a message that has arrived arrives again",
        where="enqueue.lua",
        old="kept = call('HGET', key('rv'), receipt)",
        new="kept = name == '' and call('HGET', key('rv'), receipt)",
        caught_by="redis/test_redis_moving.py",
    ),
    redis_bug(
        name="a recreated queue accepts what the deleted one refused",
        where="enqueue.lua",
        old=" or call('HGET', c, 'born' .. flags) ~= name",
        new="",
        caught_by="redis/test_redis_moving.py",
        test="test_what_comes_to_a_queue_that_is_gone_goes_back_to_its_place",
    ),
    redis_bug(
        name="a deleted queue loses its record of arrivals",
        where="Queues._drop_all",
        old="self._mover.finish(queue=name)",
        new="pass",
        caught_by="redis/test_redis_moving.py",
        test="test_what_arrived_does_not_come_back_when_its_queue_is_deleted",
    ),
    redis_bug(
        name="a message that changes partition is counted in the old one",
        where="settle.lua",
        old="'W', to, part, lane, attempts, available",
        new="'W', to, row.part, lane, attempts, available",
        caught_by="conformance/test_moving.py",
    ),
    redis_bug(
        name="held messages have a deadline",
        where="lease.lua",
        old="num(now + timeout) or ARGV[10]",
        new="num(now + timeout) or num(now)",
        caught_by="conformance/test_holding.py",
    ),
    redis_bug(
        name="an owner leases with an old epoch",
        where="lease.lua",
        old="given and at == epoch and by == owner",
        new="given and by == owner",
        caught_by="conformance/test_owning.py",
    ),
]
