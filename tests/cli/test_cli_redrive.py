"""holdfast redrive."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from holdfast import Holdfast, Outgoing
from holdfast.testing import wait_until

ID = "019a8f6e-0000-7000-8000-00000000000"


@pytest.fixture
def orders(hf: Holdfast):
    queue = hf.queue("orders")
    for n, code in enumerate(["Declined", "NoStock", "Declined"], 1):
        queue.enqueue_many(
            [
                Outgoing(
                    {"n": n, "customer": {"name": "ann" if n < 3 else "bob"}},
                    id=f"{ID}{n}",
                    key=f"c-{n % 2}",
                    type="placed" if n == 1 else "paid",
                    headers={"trace": f"t{n}"},
                )
            ]
        )
        queue.fail(queue.lease(owner="me")[0], f"because of {n}", code=code)
    return queue


def answer(redriven: int, **other: Any) -> dict[str, Any]:
    return {
        "dlq": "orders.dlq",
        "redriven": redriven,
        "looked": 3,
        "missing": 0,
        "skipped": 0,
        "cancelled": False,
        "dry_run": False,
        "to": "orders",
        **other,
    }


def test_redrive(cli, orders) -> None:
    assert cli.ok("redrive", "orders.dlq", "--count", "1") == "redrove 1 message of orders.dlq\n"
    assert [entry.message.id for entry in orders.browse()] == [f"{ID}1"]
    assert cli.docs("redrive", "orders.dlq") == [answer(2, looked=2)]
    assert (orders.stats().ready, orders.stats().dead) == (3, 0)
    orders.fail(orders.lease()[0], "again")
    assert "  redriven   1 times\n" in cli.ok("dlq", "show", "orders")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--id", f"{ID}3", "--id", f"{ID}1"], [1, 3]),
        (["--reason", "failed"], [1, 2, 3]),
        (["--code", "Declined"], [1, 3]),
        (["--key", "c-0"], [2]),
        (["--type", "paid"], [2, 3]),
        (["--older-than", "1h"], []),
        (["--newer-than", "1h"], [1, 2, 3]),
        (["--header", "trace=t2"], [2]),
        (["--field", "n=3"], [3]),
        (["--field", 'n="3"'], []),
        (["--field", "customer.name=ann"], [1, 2]),
        (["--field", 'customer.name="bob"', "--code", "Declined"], [3]),
        (["--rate", "1000"], [1, 2, 3]),
    ],
)
def test_which_ones(cli, orders, options: list[str], wanted: list[int]) -> None:
    assert cli.docs("redrive", "orders.dlq", *options, "--dry-run") == [
        answer(len(wanted), dry_run=True)
    ]
    assert orders.stats().dead == 3
    noun = "message" if len(wanted) == 1 else "messages"
    assert cli.ok("redrive", "orders.dlq", *options) == (
        f"redrove {len(wanted)} {noun} of orders.dlq\n"
    )
    assert [entry.message.id for entry in orders.browse()] == [f"{ID}{n}" for n in wanted]


def test_a_dry_run_says_so(cli, orders) -> None:
    assert cli.ok("redrive", "orders.dlq", "--dry-run", "--code", "NoStock") == (
        "would redrive 1 message of orders.dlq\n"
    )


def test_what_is_not_moved_is_told(cli, orders) -> None:
    orders.dlq.lease()
    asked = ["--id", f"{ID}1", "--id", f"{ID}2", "--id", f"{ID}9"]
    assert cli.ok("redrive", "orders.dlq", *asked) == (
        "redrove 1 message of orders.dlq; 1 not there; "
        "1 skipped: held by others, or there already\n"
    )


def test_to_another_queue(cli, orders, hf: Holdfast) -> None:
    other = hf.queue("repair", partitions=3)
    assert cli.ok("redrive", "orders.dlq", "--to", "repair") == (
        "redrove 3 messages of orders.dlq to repair\n"
    )
    assert (other.stats().ready, orders.stats().dead) == (3, 0)
    assert cli.fails(4, "redrive", "orders.dlq", "--to", "repare") == (
        "error: no queue 'repare'; did you mean 'repair'?\n"
    )
    assert cli.fails(2, "redrive", "orders.dlq", "--to", "repair.dlq").startswith("error: to: ")


def test_an_edited_payload(cli, orders) -> None:
    merge = '{"customer": null, "fixed": true}'
    cli.ok("redrive", "orders.dlq", "--id", f"{ID}1", "--merge", merge)
    assert orders.get(f"{ID}1").payload == {"n": 1, "fixed": True}
    cli.ok("redrive", "orders.dlq", "--id", f"{ID}2", "--payload", "null")
    assert orders.get(f"{ID}2").payload is None
    refused = cli.fails(2, "redrive", "orders.dlq", "--merge", merge)
    assert refused.startswith("error: stdin is no terminal to ask on; pass --yes")
    assert orders.stats().dead == 1
    cli.ok("redrive", "orders.dlq", "--merge", merge, "--yes")
    assert orders.get(f"{ID}3").payload == {"n": 3, "fixed": True}


def test_it_says_what_is_wrong(cli, orders, hf: Holdfast) -> None:
    assert cli.fails(2, "redrive", "") == "error: dlq: name a dead-letter queue, not ''\n"
    assert cli.fails(4, "redrive", "ordrs.dlq") == (
        "error: no queue 'ordrs.dlq'; did you mean 'orders.dlq'?\n"
    )
    assert cli.fails(2, "redrive", "orders") == (
        "error: dlq: 'orders' is not a dead-letter queue; did you mean orders.dlq?\n"
    )
    hf.queue("lone.dlq")
    assert cli.fails(5, "redrive", "lone.dlq") == (
        "error: lone.dlq: its queue 'lone' is gone; create it first\n"
    )
    for option, value, said in [
        ("--count", "-1", "error: count: "),
        ("--rate", "0", "error: rate: "),
        ("--id", "x", "error: id: must be a UUID"),
        ("--older-than", "-1", "error: where.older_than: "),
        ("--header", "x", "error: Invalid value for '--header'"),
        ("--field", "x", "error: Invalid value for '--field'"),
        ("--payload", "{", "error: Invalid value for '--payload': not JSON"),
        ("--merge", "7", "error: edit.merge: must be a mapping"),
    ]:
        assert cli.fails(2, "redrive", "orders.dlq", option, value).startswith(said)
    both = cli.fails(2, "redrive", "orders.dlq", "--payload", "1", "--merge", "{}")
    assert both.startswith("error: --payload or --merge, not both\n")
    assert orders.stats().dead == 3


def test_an_edit_that_cannot_be_names_the_message(cli, hf: Holdfast) -> None:
    queue = hf.queue("orders")
    queue.enqueue("plain", id=f"{ID}1", content_type="text/plain")
    queue.fail(queue.lease()[0])
    assert cli.fails(2, "redrive", "orders.dlq", "--merge", '{"a": 1}', "--yes") == (
        f"error: edit: {ID}1: merge: its payload is text/plain, not JSON (0 redriven before that)\n"
    )


def test_a_bar_on_a_terminal(on_terminal, orders) -> None:
    shown, code = on_terminal("redrive", "orders.dlq")
    assert code == 0
    assert "redriving orders.dlq" in shown
    assert shown.rstrip().endswith("redrove 3 messages of orders.dlq")


def test_ctrl_c_says_how_many_were_moved(start, orders) -> None:
    process = start("redrive", "orders.dlq", "--rate", "0.001")
    wait_until(lambda: orders.stats().ready == 1, 30)
    process.signal(signal.SIGINT)
    assert process.ends() == 130
    assert process.out == "redrove 1 message of orders.dlq; cancelled\n"
    assert process.err == ""
    assert (orders.stats().ready, orders.stats().dead) == (1, 2)
