"""holdfast dlq."""

from __future__ import annotations

import pytest

from holdfast import Holdfast

ID = "019a8f6e-0000-7000-8000-00000000000"


@pytest.fixture
def orders(hf: Holdfast):
    queue = hf.queue("orders")
    for n, code in enumerate(["Declined", "NoStock", "Declined"], 1):
        queue.enqueue({"n": n}, id=f"{ID}{n}", key="c-1", headers={"trace": "t1"})
        queue.fail(queue.lease(owner="me")[0], f"because of {n}", code=code)
    return queue


def test_list_groups_by_what_they_died_of(cli, orders, steady) -> None:
    assert steady(cli.ok("dlq", "list")) == (
        "DEAD LETTERS OF  REASON  LAST ERROR  COUNT  OLDEST  FOR EXAMPLE\n"
        "orders  failed  Declined  2  T  because of 1\n"
        "orders  failed  NoStock  1  T  because of 2\n"
    )
    first, second = cli.docs("dlq", "list", "orders")
    assert first == {
        "dlq": "orders.dlq",
        "reason": "failed",
        "code": "Declined",
        "count": 2,
        "oldest_dead_at": orders.get(f"{ID}1").dead_at,
        "oldest_id": f"{ID}1",
        "example": "because of 1",
    }
    assert second["count"] == 1


def test_list_counts_those_that_somebody_holds(cli, orders) -> None:
    [lease] = orders.dlq.lease()
    orders.dlq.nack(orders.dlq.lease()[0], delay=600)
    assert lease.id == f"{ID}1"
    assert [doc["count"] for doc in cli.docs("dlq", "list")] == [2, 1]


def test_list_says_when_it_did_not_look_at_all(cli, orders) -> None:
    said = cli.ok("dlq", "list", "--scan", "2").splitlines()[-1]
    assert said == "the oldest 2 of 3 were looked at; --scan N looks at more"


def test_no_dead_letters(cli, hf: Holdfast) -> None:
    hf.queue("orders")
    assert cli.ok("dlq", "list") == "no dead letters\n"
    assert cli.ok("dlq", "show", "orders") == "orders.dlq holds no dead letters\n"
    assert cli.docs("dlq", "list", "orders.dlq") == []


def test_show_one(cli, hf: Holdfast, steady) -> None:
    queue = hf.queue("orders")
    queue.enqueue({"n": [1]}, id=f"{ID}1", key="k", type="placed", priority=2, headers={"a": "b"})
    queue.nack(queue.lease(owner="me")[0], "first\nline \x1b[31m", delay=0)
    queue.fail(queue.lease(owner="you")[0], "last", code="BAD")
    assert steady(cli.ok("dlq", "show", "orders", f"{ID}1")) == (
        f"{ID}1\n"
        "  died  T: failed\n"
        "  came from  orders\n"
        "  enqueued  T\n"
        "  attempts  2\n"
        "  key  k\n"
        "  type  placed\n"
        "  priority  2\n"
        "  headers  a=b\n"
        "  payload  {\n"
        '  "n": [\n'
        "  1\n"
        "  ]\n"
        "  }\n"
        "  attempt 1  ERROR, T, me\n"
        "  first\n"
        "  line \\x1b[31m\n"
        "  attempt 2  BAD, T, you\n"
        "  last\n"
        "\n"
    )


def test_show_has_the_traceback(cli, hf: Holdfast) -> None:
    def find_customer() -> None:
        raise LookupError("no such customer")

    queue = hf.queue("orders", max_attempts=1)
    hf.handler("orders")(lambda payload: find_customer())
    queue.enqueue(1)
    hf.work(until_empty=True)
    shown = cli.ok("dlq", "show", "orders")
    assert "no such customer\n" in shown
    assert "Traceback (most recent call last):\n" in shown
    assert "in find_customer\n" in shown


def test_show_some(cli, orders) -> None:
    text = cli.ok("dlq", "show", "orders.dlq", "--limit", "2")
    assert [line for line in text.splitlines() if line.startswith(ID)] == [f"{ID}1", f"{ID}2"]
    assert text.splitlines()[-1] == "2 of 3 shown; --limit N shows more"
    docs = cli.docs("dlq", "show", "orders")
    assert [(doc["id"], doc["reason"], doc["source"], doc["queue"]) for doc in docs] == [
        (f"{ID}{n}", "failed", "orders", "orders.dlq") for n in (1, 2, 3)
    ]
    assert docs[0]["errors"] == [
        {
            "message": "because of 1",
            "code": "Declined",
            "at": docs[0]["dead_at"],
            "attempt": 1,
            "consumer": "me",
        }
    ]


def test_show_what_is_not_there(cli, orders) -> None:
    orders.enqueue("alive", id=f"{ID}9")
    assert cli.fails(4, "dlq", "show", "orders", f"{ID}9") == (
        f"error: {ID}9 is not dead: it is in orders\n"
    )
    assert cli.fails(4, "dlq", "show", "orders", f"{ID}8") == (
        f"error: orders.dlq holds no message {ID}8\n"
    )
    assert cli.fails(4, "dlq", "list", "ordrs") == (
        "error: no queue 'ordrs.dlq'; did you mean 'orders.dlq'?\n"
    )
