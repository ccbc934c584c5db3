"""Bugs in the server, topics and API keys."""

from __future__ import annotations

from tests.seeded.bug import Bug

BUGS = [
    Bug(
        name="a publish misses groups that were added meanwhile",
        where="Publisher._store",
        old="self._catch_up(setup, messages, now, within)",
        new="pass",
        caught_by="conformance/test_topics.py",
        test="test_a_publish_that_is_overtaken_by_a_bind_reaches_the_group",
    ),
    Bug(
        name="an expired key is accepted",
        where="Key.state",
        old="self.expires_at <= now",
        new="self.expires_at < now",
        caught_by="server/test_keys.py",
        test="test_it_expires_on_the_millisecond",
    ),
    Bug(
        name="a client that reconnects gets its last event again",
        where="Events._since",
        old="[event for event in self._kept if event.seq > last]",
        new="[event for event in self._kept if event.seq >= last]",
        caught_by="server/test_events.py",
        test="test_who_comes_back_gets_exactly_what_he_missed",
    ),
    Bug(
        name="a zero in a gRPC field is read as absent",
        where="_field",
        old='if kind == "scalar" and not field.required and field.default:',
        new="if False:",
        caught_by="server/test_proto.py",
    ),
    Bug(
        name="a lost lease is reported as settled",
        where="Leases._settle_one",
        old="if done.status == Settled.STALE:",
        new="if False:",
        caught_by="server/test_scenarios.py",
        test="test_every_door_means_the_same[sqlite-leases_that_are_lost]",
    ),
    Bug(
        name="one invalid message fails its whole batch",
        where="LocalQueue.enqueue_each",
        old="except InvalidArgument as error:",
        new="except KeyError as error:",
        caught_by="server/test_scenarios.py",
        test="test_every_door_means_the_same[sqlite-bad_input]",
    ),
]
