"""Enqueue and ack inside the caller's own transaction, on one SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import (
    FailedPrecondition,
    Holdfast,
    InvalidArgument,
    Lease,
    LeaseLost,
    Outgoing,
    Queue,
    QueueNotFound,
    StoreError,
    StoreFull,
)
from holdfast.stores.sqlite import own
from holdfast.testing import drain, wait_until


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def hf(file: Path, store_name: str) -> Iterator[Holdfast]:
    with holdfast.connect(f"sqlite:///{file}") as hf:
        yield hf


@pytest.fixture
def queue(hf: Holdfast) -> Queue:
    return hf.queue("orders")


@pytest.fixture
def mine(file: Path, hf: Holdfast) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE sale (id INTEGER)")
    connection.commit()
    yield connection
    connection.close()


def sales(connection: sqlite3.Connection) -> list[int]:
    return [id for (id,) in connection.execute("SELECT id FROM sale ORDER BY id")]


@pytest.mark.promise("TX-1")
def test_an_enqueue_commits_with_the_callers_writes(queue: Queue, mine: sqlite3.Connection) -> None:
    mine.execute("INSERT INTO sale VALUES (1)")
    sent = queue.enqueue({"sale": 1}, within=mine)
    assert queue.stats().ready == 0  # nobody sees it yet
    assert queue.lease() == []
    mine.commit()
    assert queue.get(sent.id) == sent
    assert queue.stats().ready == 1


@pytest.mark.promise("TX-1")
def test_an_enqueue_rolls_back_with_the_callers_writes(
    queue: Queue, mine: sqlite3.Connection
) -> None:
    queue.enqueue_many([1, 2], within=mine)  # also as the first thing in the transaction
    mine.execute("INSERT INTO sale VALUES (1)")
    mine.rollback()
    assert sales(mine) == []
    assert queue.stats().ready == 0
    assert list(queue.browse()) == []


@pytest.mark.promise("TX-1")
def test_it_commits_with_the_callers_own_begin(queue: Queue, file: Path, hf: Holdfast) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    with pytest.raises(InvalidArgument, match="within"):
        queue.enqueue(1, within=connection)
    connection.execute("BEGIN")
    queue.enqueue(1, within=connection)
    connection.execute("COMMIT")
    connection.close()
    assert queue.stats().ready == 1


@pytest.mark.promise("TX-1")
def test_a_bad_message_leaves_the_callers_transaction_whole(
    hf: Holdfast, queue: Queue, mine: sqlite3.Connection
) -> None:
    gone = hf.queue("gone")
    mine.execute("INSERT INTO sale VALUES (1)")
    with pytest.raises(InvalidArgument, match="priority"):
        queue.enqueue(1, priority=99, within=mine)
    gone.enqueue(1, within=mine)
    mine.commit()
    gone.delete(force=True)
    mine.execute("INSERT INTO sale VALUES (2)")
    with pytest.raises(QueueNotFound):
        gone.enqueue(2, within=mine)
    mine.commit()
    assert sales(mine) == [1, 2]
    assert queue.stats().ready == 0


@pytest.mark.promise("TX-1")
def test_an_error_in_the_middle_leaves_nothing_of_the_batch(
    queue: Queue, mine: sqlite3.Connection
) -> None:
    mine.execute(
        "CREATE TRIGGER no_nines BEFORE INSERT ON holdfast_message WHEN new.priority = 9 "
        "BEGIN SELECT RAISE(ABORT, 'no nines here'); END"
    )
    mine.execute("INSERT INTO sale VALUES (1)")
    with pytest.raises(StoreError, match="no nines here"):
        queue.enqueue_many([1, 2, Outgoing(3, priority=9)], within=mine)
    mine.commit()
    assert sales(mine) == [1]
    assert list(queue.browse()) == []
    assert queue.stats().ready == 0


@pytest.mark.promise("TX-1")
def test_a_full_disk_takes_the_whole_transaction(queue: Queue, mine: sqlite3.Connection) -> None:
    mine.execute("INSERT INTO sale VALUES (1)")
    (pages,) = mine.execute("PRAGMA page_count").fetchone()
    mine.execute(f"PRAGMA max_page_count = {pages + 20}")
    with pytest.raises(StoreFull):
        queue.enqueue_many([b"x" * 1000] * 500, within=mine)
    mine.commit()
    assert (sales(mine), list(queue.browse()), queue.stats().ready) == ([], [], 0)


@pytest.mark.promise("TX-1")
def test_a_commit_wakes_a_waiting_consumer(
    queue: Queue, mine: sqlite3.Connection, hf: Holdfast
) -> None:
    seen: list[int] = []
    hf.handler("orders")(lambda payload: seen.append(payload))  # noqa: PLW0108
    worker = hf.worker(concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    queue.enqueue(7, within=mine)
    mine.commit()
    wait_until(lambda: seen == [7])
    worker.stop()
    thread.join()


@pytest.mark.promise("TX-2")
def test_an_ack_commits_or_rolls_back_with_the_callers_writes(
    queue: Queue, mine: sqlite3.Connection
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    mine.execute("INSERT INTO sale VALUES (1)")
    queue.ack(lease, within=mine)
    mine.rollback()
    assert (queue.stats().leased, queue.stats().done, sales(mine)) == (1, 0, [])
    mine.execute("INSERT INTO sale VALUES (1)")
    queue.ack(lease, result="sold", within=mine)
    mine.commit()
    assert (queue.stats().leased, queue.stats().done, sales(mine)) == (0, 1, [1])
    assert [done.result for done in queue.log()] == ["sold"]


@pytest.mark.promise("TX-2")
def test_a_repeated_ack_does_not_commit_the_callers_writes_twice(
    queue: Queue, mine: sqlite3.Connection
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    with mine:
        mine.execute("INSERT INTO sale VALUES (1)")
        queue.ack(lease, within=mine)
    mine.execute("INSERT INTO sale VALUES (2)")
    with pytest.raises(LeaseLost, match="settled before"):
        queue.ack(lease, within=mine)
    mine.rollback()
    assert mine.execute("SELECT * FROM sale").fetchall() == [(1,)]
    queue.ack(lease)  # without writes of one's own there is nothing to lose


@pytest.mark.promise("TX-2")
def test_a_lost_lease_can_still_be_rolled_back(queue: Queue, mine: sqlite3.Connection) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    queue.release(lease)
    mine.execute("INSERT INTO sale VALUES (1)")
    with pytest.raises(LeaseLost):
        queue.ack(lease, within=mine)
    mine.rollback()
    assert sales(mine) == []
    assert queue.stats().ready == 1


@pytest.mark.promise("TX-2")
def test_a_handlers_writes_and_its_ack_are_one(
    hf: Holdfast, queue: Queue, file: Path, mine: sqlite3.Connection
) -> None:
    @hf.handler("orders")
    def sell(id: int, lease: Lease) -> None:
        connection = sqlite3.connect(file)
        try:
            with connection:
                connection.execute("INSERT INTO sale VALUES (?)", (id,))
                queue.ack(lease, within=connection)
                if id == 2 and lease.message.attempts == 1:
                    raise RuntimeError("after the ack, before the commit")
        finally:
            connection.close()

    queue.enqueue_many([1, 2, 3])
    drain(hf)
    assert sales(mine) == [1, 3]
    (again,) = queue.browse("delayed")
    assert again.message.payload == 2
    assert sorted(done.message.payload for done in queue.log()) == [1, 3]


@pytest.mark.promise("TX-1")
def test_within_must_be_a_connection_to_the_same_file(queue: Queue, tmp_path: Path) -> None:
    for wrong in ("connection", 5, object()):
        with pytest.raises(InvalidArgument, match=r"within: must be a sqlite3\.Connection"):
            queue.enqueue(1, within=wrong)
    for name in (":memory:", str(tmp_path / "other.db")):
        other = sqlite3.connect(name)
        with pytest.raises(InvalidArgument, match="within: the connection must be to"):
            queue.enqueue(1, within=other)
        other.close()
    memory = holdfast.connect("memory://").queue("orders")
    with pytest.raises(InvalidArgument, match="within"):
        memory.enqueue(1, within=object())
    assert memory.stats().ready == 0


OWN = "this thread has a transaction of its own open"


@pytest.mark.promise("TX-1")
def test_a_queue_that_is_made_inside_the_transaction_is_refused_at_once(
    hf: Holdfast, mine: sqlite3.Connection
) -> None:
    mine.execute("INSERT INTO sale VALUES (1)")
    with pytest.raises(FailedPrecondition, match=OWN) as refused:
        hf.queue("new").enqueue(1, within=mine)
    assert "create and change queues before the transaction" in str(refused.value)
    mine.rollback()
    new = hf.queue("new")
    mine.execute("INSERT INTO sale VALUES (1)")
    with pytest.raises(FailedPrecondition, match=OWN):
        hf.queue("new", max_attempts=7)
    hf.queue("new").enqueue(1, within=mine)  # nothing to make, nothing to change
    mine.commit()
    assert new.stats().ready == 1


@pytest.mark.promise("TX-1", "TX-2")
@pytest.mark.parametrize("check_thread", [True, False])
def test_a_call_that_forgot_the_transaction_is_refused_at_once(
    queue: Queue, file: Path, mine: sqlite3.Connection, check_thread: bool
) -> None:
    queue.enqueue_many([1, 2])
    first, second = queue.lease(2)
    pooled = sqlite3.connect(file, check_same_thread=check_thread)
    pooled.execute("INSERT INTO sale VALUES (1)")
    queue.ack(first, within=pooled)
    for forgot in (lambda: queue.enqueue(3), lambda: queue.ack(second)):
        with pytest.raises(FailedPrecondition, match=OWN):
            forgot()
    pooled.commit()
    pooled.close()
    queue.ack(second)
    assert (queue.stats().done, sales(mine)) == (2, [1])


@pytest.mark.promise("TX-1")
def test_a_transaction_of_another_thread_is_waited_for(
    hf: Holdfast, queue: Queue, file: Path, mine: sqlite3.Connection
) -> None:
    mine.execute("INSERT INTO sale VALUES (1)")
    failed: list[BaseException] = []

    def enqueue() -> None:
        try:
            queue.enqueue(1)
        except BaseException as error:
            failed.append(error)

    waits = threading.Thread(target=enqueue)
    waits.start()
    waits.join(0.3)  # it has looked, and goes on waiting
    assert waits.is_alive()
    mine.commit()
    waits.join(30)
    assert (failed, queue.stats().ready) == ([], 1)


def test_what_this_thread_has_open(hf: Holdfast, file: Path, tmp_path: Path) -> None:
    assert own.open_here(file, None) is None
    plain, other = sqlite3.connect(file), sqlite3.connect(tmp_path / "other.db")
    for connection in (plain, other):
        connection.execute("CREATE TABLE note (id INTEGER)")
    other.execute("INSERT INTO note VALUES (1)")
    assert own.open_here(file, None) is None  # a file of its own
    plain.execute("BEGIN")
    plain.execute("SELECT * FROM note").fetchall()
    assert own.open_here(file, None) == "open"  # it may only read
    plain.execute("INSERT INTO note VALUES (1)")
    assert own.open_here(file, None) == "writes"
    plain.rollback()
    assert own.open_here(file, None) is None
    shared = sqlite3.connect(file, check_same_thread=False)
    shared.execute("INSERT INTO note VALUES (1)")
    assert own.open_here(file, None) is None  # perhaps another thread's
    assert own.open_here(file, id(shared)) == "writes"
    for connection in (plain, other, shared):
        connection.close()
