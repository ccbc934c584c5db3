"""holdfast log and holdfast replay."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.cli.log import _Wanted
from holdfast.testing import ManualClock, MemoryStore

ID = "019a8f6e-0000-7000-8000-00000000000"


@pytest.fixture
def orders(hf: Holdfast):
    queue = hf.queue("orders", exhausted="complete", max_attempts=1)
    for n in (1, 2, 3):
        queue.enqueue({"n": n}, id=f"{ID}{n}")
        [lease] = queue.lease(owner="me")
        queue.nack(lease, "oh") if n == 2 else queue.ack(lease, result=n)
    return queue


def ids(docs: list[dict]) -> list[str]:
    return [doc["id"] for doc in docs]


def test_log(cli, orders, steady) -> None:
    text = steady(cli.ok("log", "orders"))
    lines = [line.split("  ") for line in text.splitlines()]
    assert lines[0] == [
        *("ID", "FINISHED", "STATUS", "ATTEMPTS", "TOOK", "CONSUMER", "PAYLOAD"),
    ]
    assert [(row[0], row[2], row[3], row[5], row[6]) for row in lines[1:]] == [
        (f"{ID}1", "COMPLETED", "1", "me", '{"n":1}'),
        (f"{ID}2", "COMPLETED_WITH_ERRORS", "1", "me", '{"n":2}'),
        (f"{ID}3", "COMPLETED", "1", "me", '{"n":3}'),
    ]


def test_log_for_programs(cli, orders) -> None:
    [doc] = cli.docs("log", "orders", "--status", "completed_with_errors")
    assert (doc["id"], doc["status"], doc["result"]) == (f"{ID}2", "COMPLETED_WITH_ERRORS", None)
    assert [error["message"] for error in doc["errors"]] == ["oh"]
    assert doc["finished_at"] >= doc["last_leased_at"] == doc["first_leased_at"]
    assert [doc["result"] for doc in cli.docs("log", "orders", "--limit", "1")] == [3]


def test_log_of_a_span(cli, orders) -> None:
    middle = cli.docs("log", "orders")[1]["finished_at"]
    everything = ids(cli.docs("log", "orders"))
    since = ids(cli.docs("log", "orders", "--since", str(middle), "--limit", "0"))
    until = ids(cli.docs("log", "orders", "--until", str(middle)))
    assert until + since == everything
    assert ids(cli.docs("log", "orders", "--since", "10m")) == everything
    assert ids(cli.docs("log", "orders", "--since", "2020-01-31T12:00")) == everything
    assert ids(cli.docs("log", "orders", "--since", "2099-01-31")) == []
    assert cli.ok("log", "orders", "--until", "1h") == "the log of orders holds nothing of that\n"


def test_the_newest_of_a_long_log() -> None:
    """However the finishing times lie: the last n, oldest first, each once."""
    from holdfast import connect

    clock = ManualClock()
    queue = connect(MemoryStore(), clock=clock).queue("q")
    for n in range(60):
        clock.advance((0, 0.5, 30, 7200)[n % 4])
        queue.enqueue(n)
        queue.ack(queue.lease()[0])
    rows = [*queue.log()]
    wanted = _Wanted(queue, None)
    for limit in (1, 2, 7, 59, 60, 100):
        assert wanted.newest(0, clock.now() + 1, limit) == rows[-limit:]
    start = rows[20].finished_at
    late = [row for row in rows if row.finished_at >= start]
    assert wanted.newest(start, clock.now() + 1, 100) == late


def test_log_refuses(cli, orders) -> None:
    assert "--since': 'soon': write 10m (ago), 2026-01-31T12:00 or milliseconds" in cli.fails(
        *(2, "log", "orders", "--since", "soon")
    )
    assert cli.fails(4, "log", "ordrs").startswith("error: no queue 'ordrs'; did you mean")


def test_replay_one(cli, orders) -> None:
    lines = cli.ok("replay", "orders", f"{ID}1").splitlines()
    [entry] = orders.browse()
    assert (entry.message.origin, entry.message.payload) == (f"{ID}1", {"n": 1})
    assert lines == [
        f"enqueued {entry.message.id}, a replay of {ID}1",
        "replayed 1 message of orders",
    ]


def test_replay_a_span(cli, orders) -> None:
    docs = cli.docs("replay", "orders", "--since", "1h")
    assert [doc["origin"] for doc in docs] == [f"{ID}1", f"{ID}2", f"{ID}3"]
    assert orders.stats().ready == 3
    assert cli.ok("replay", "orders", "--until", "1h") == "replayed 0 messages of orders\n"


def test_replay_refuses(cli, orders) -> None:
    help = "try: holdfast replay --help\n"
    assert cli.fails(2, "replay", "orders") == (
        f"error: name a message by ID, or a span by --since and --until\n{help}"
    )
    assert cli.fails(2, "replay", "orders", ID + "1", "--since", "1h") == (
        f"error: give ID, or --since and --until, not both\n{help}"
    )
    assert cli.fails(4, "replay", "orders", ID + "9") == (
        f"error: the log of orders has no message {ID}9\n"
    )
    assert orders.stats().ready == 0
