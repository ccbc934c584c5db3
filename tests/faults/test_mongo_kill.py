"""kill -9 before and after each command that a call sends, on a replica set and on a standalone."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import holdfast
from holdfast import Backoff, Holdfast, QueueNotFound, Release
from holdfast.model.moves import State
from holdfast.model.queues import partition_claim
from holdfast.stores.contract import BatchEnd, ByPartition, LeaseAsk, View
from holdfast.testing import ManualClock
from servers.mongo import MongoServer, running, with_database
from tests.plugins.sampling import more

sys.path.insert(0, str(Path(__file__).parent))
from mongo_place import SOON_OVER, MongoPlace, Victims
from mongo_victims import ACTIONS, N, ids

COMMANDS_MAX = 40
KINDS = ["enqueue", "lease", "ack", "nack", "sweep"]


@pytest.fixture(
    scope="module",
    params=["mongo", *more("mongo-standalone")],
)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def own_server(store_name: str) -> Iterator[MongoServer]:
    if store_name == "mongo":
        with running(parameters=SOON_OVER) as server:
            yield server
    else:
        with running(set_name=None) as server:
            yield server


@pytest.fixture(scope="module")
def place(
    own_server: MongoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MongoPlace]:
    url = with_database(own_server.url, f"test_{secrets.token_hex(6)}")
    place = MongoPlace(url, tmp_path_factory.mktemp("kill") / "ledger", own_server)
    yield place
    place.close()


@pytest.fixture(scope="module")
def victims(place: MongoPlace) -> Iterator[Victims]:
    victims = Victims(place)
    yield victims
    victims.close()


@pytest.fixture
def clock() -> ManualClock:
    """From now: a purge is told no time, and asks the server."""
    return ManualClock(round(time.time() * 1000))


@pytest.fixture
def hf(place: MongoPlace, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(place.url, clock=clock, backoff=Backoff(base=1)) as hf:
        yield hf


@pytest.mark.promise("LIFE-1", "LIFE-3", "LIFE-4", "LOG-1", "RETRY-4", "DEAD-3", "OVERDUE-1")
@pytest.mark.parametrize("action", [*KINDS, *more(*(a for a in ACTIONS if a not in KINDS))])
def test_killed_around_each_command(
    hf: Holdfast, place: MongoPlace, victims: Victims, clock: ManualClock, action: str
) -> None:
    """Before a command is after the one before it."""
    name = action.replace(" ", "-")
    for nth in count(1):
        queue = hf.queue(f"{name}-{nth}")
        died, sent = victims.die(action, queue.name, clock.now(), nth)
        clock.advance(4000)
        place.wait_until_victims_are_gone()
        try:
            check_after(hf, place, clock, action, queue.name)
        except BaseException as error:
            error.add_note(f"died after {sent}")
            raise
        place.get("meta").delete_many({"_id": {"$regex": "^gone/"}})  # what tidy looks for again
        if not died:
            break
    assert 2 < nth < COMMANDS_MAX


def check_moved(hf: Holdfast, place: MongoPlace, clock: ManualClock, name: str) -> None:
    """Each in one of two homes: the next sweep ends what was between them."""
    queue, there = hf.queue(name), hf.queue(f"{name}-to")
    clock.advance(60)
    hf.sweep()
    hf.store.tidy(clock.now() + 60_000, log_before=None)
    found = place.look()
    held = [found[queue.dlq.name], found[there.name]]
    assert sorted(id for each in held for id in each.waiting) == sorted(ids(name))
    assert not any(each.leased for each in held)
    for of in (queue, there):
        place.check_counts(hf, found, of.name)
        of.delete(force=True)


def check_after(
    hf: Holdfast, place: MongoPlace, clock: ManualClock, action: str, name: str
) -> None:
    if action == "delete":
        check_deleted(hf, place, name)
        return
    if action == "move":
        check_moved(hf, place, clock, name)
        return
    queue, all = hf.queue(name), ids(name)
    if action.startswith("fenced"):
        check_next_owner(hf, clock, name)
    hf.sweep()
    if action in ("hold", "fenced hold"):
        hf.store.settle(BatchEnd(name, "b", N, "COMPLETED"), clock.now())
    found = place.look()
    held = [id for each in (name, queue.dlq.name) for id in _all(found[each])]
    if action == "enqueue":
        assert sorted(held) in ([], sorted(all)), "a part of a batch"
    place.check_whole(hf, set(held) if action in ("enqueue", "purge") else set(all), name)
    queue.enqueue_many(batch_of(name))  # said again
    clock.advance(3600)
    hf.redrive(queue.dlq.name)
    while leases := queue.lease(N):
        queue.settle(leases)
    place.check_whole(hf, set(all), name)
    assert sorted(done.message.id for done in queue.log()) == sorted(all)
    queue.delete(force=True)


def check_next_owner(hf: Holdfast, clock: ManualClock, name: str) -> None:
    """It sees what the dead one may have got, all or nothing; else it has the head itself."""
    store, now = hf.store, clock.now()
    claim = store.claim(partition_claim(name, 0), "n", 60_000, now)
    assert claim is not None
    seen = [
        entry.message.id for entry in store.browse(View(name, State.LEASED), None, N, now).entries
    ]
    assert store.stats(ByPartition(name), now)[0].leased >= len(seen)
    ask = LeaseAsk(name, N, "n", secrets.token_hex(8), 1000, (0,), None, (claim.epoch,))
    leases = store.lease(ask, now)
    assert [lease.id for lease in leases] in ([], ids(name))
    assert leases or sorted(seen) == sorted(ids(name))
    hf.queue(name).settle([(lease, Release()) for lease in leases])


def batch_of(name: str) -> list[holdfast.Outgoing]:
    return [holdfast.Outgoing(n, id=id) for n, id in enumerate(ids(name))]


def _all(held: object) -> list[str]:
    return held.waiting + held.leased + held.log


def check_deleted(hf: Holdfast, place: MongoPlace, name: str) -> None:
    """All of it is there, or nothing is, once it was tidied; and it can be deleted again."""
    hf.store.tidy(hf.context.clock.now(), log_before=None)
    there = {doc["_id"]: doc["qid"] for doc in place.get("queues").find()}
    assert (name in there) == (f"{name}.dlq" in there)
    gone = {grave["q"] for grave in place.get("meta").find({"_id": {"$regex": "^gone/"}})}
    for kind in ("messages", "log", "counts"):
        assert not (gone - set(there.values())) & set(place.get(kind).distinct("q")), kind
    if name in there:
        place.check_whole(hf, set(ids(name)), name)
        hf.queue(name).delete(force=True)
    with pytest.raises(QueueNotFound):
        hf.queue(name, create=False).stats()
    fresh = hf.queue(name).stats()
    assert (fresh.ready, fresh.leased, fresh.done) == (0, 0, 0)
    hf.queue(name).delete()
