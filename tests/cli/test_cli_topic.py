"""holdfast topic."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.testing import wait_until

ID = "01a1e160-0000-7000-8000-000000000001"


def test_create_and_delete(cli, hf: Holdfast) -> None:
    assert cli.ok("topic", "create", "orders") == "orders retains 7 d\n"
    assert cli.ok("topic", "create", "orders", "--retention", "0") == "orders retains for ever\n"
    assert cli.ok("topic", "create", "orders", "--no-log") == "orders retains nothing\n"
    [doc] = cli.docs("topic", "create", "orders", "--log", "--retention", "2h")
    assert doc == {
        "topic": "orders",
        "log": True,
        "retention": 7200.0,
        "retained": 0,
        "oldest_age_ms": None,
        "groups": [],
    }
    hf.topic("orders").bind("billing")
    hf.topic("orders").publish(1)
    error = "error: groups of orders hold messages; --force deletes them too\n"
    assert cli.fails(5, "topic", "delete", "orders", "--yes") == error
    assert cli.fails(2, "topic", "delete", "orders").startswith("error: stdin is no terminal")
    assert cli.ok("topic", "delete", "orders", "--yes", "--force") == "deleted orders\n"
    cli.ok("topic", "create", "orders")
    assert cli.docs("topic", "delete", "orders", "--yes") == [{"topic": "orders", "deleted": True}]
    assert hf.topics() == []


def test_list(cli, hf: Holdfast, steady) -> None:
    assert cli.ok("topic", "list") == "no topics yet; holdfast topic create NAME makes one\n"
    assert cli.docs("topic", "list") == []
    hf.topic("orders").publish(1)
    hf.topic("mail", log=False).bind("smtp")
    wait_until(lambda: (hf.topic("orders").stats().oldest_age or 0) >= 1)
    assert cli.ok("topic", "list").splitlines() == [
        "TOPIC   GROUPS  RETAINED  OLDEST  RETENTION",
        "mail         1         0          nothing",
        "orders       0         1  1 s     7 d",
    ]
    mail, orders = cli.docs("topic", "list")
    assert (mail["topic"], [g["queue"] for g in mail["groups"]]) == ("mail", ["mail@smtp"])
    assert (orders["topic"], orders["retained"]) == ("orders", 1)
    assert orders["oldest_age_ms"] >= 1000


def test_show(cli, hf: Holdfast) -> None:
    topic = hf.topic("orders")
    assert cli.ok("topic", "show", "orders") == (
        "orders\n  retained   0\n  retention  7 d\n"
        "no groups yet; holdfast topic bind orders GROUP binds one\n"
    )
    topic.bind("mail").pause()
    billing = topic.bind("billing", max_attempts=1)
    topic.publish_many([1, 2])
    billing.fail(billing.lease()[0], "no")
    shown = cli.ok("topic", "show", "orders").replace(" 1 s", " 0 s")
    assert shown.splitlines() == [
        "orders",
        "  retained   2, oldest 0 s",
        "  retention  7 d",
        "GROUP    STATE   READY  DELAYED  LEASED  DEAD  DONE  OLDEST",
        "billing  open        1        0       0     1     0  0 s",
        "mail     paused      2        0       0     0     0  0 s",
    ]
    [doc] = cli.docs("topic", "show", "orders")
    group = doc["groups"][0]
    assert (group["group"], group["queue"], group["filling"]) == (
        "billing",
        "orders@billing",
        False,
    )
    assert (group["ready"], group["dead"], group["paused"]) == (1, 1, False)


def test_hidden_queues_stay_so(cli, hf: Holdfast) -> None:
    hf.topic("orders").bind("billing")
    hf.topic("orders").publish(1)
    for command in (["queue", "list"], ["stats"]):
        assert "@." not in cli.ok(*command)
        assert [doc["queue"] for doc in cli.docs(*command)] == ["orders@billing"]


def test_bind(cli, hf: Holdfast) -> None:
    topic = hf.topic("orders")
    topic.publish_many([1, 2])
    assert cli.ok("topic", "bind", "orders", "mail") == (
        "bound mail; its queue is orders@mail, with 0 messages\n"
    )
    assert cli.ok("topic", "bind", "orders", "mail") == (
        "mail is bound already; its queue is orders@mail\n"
    )
    [doc] = cli.docs(
        *("topic", "bind", "orders", "billing", "--start", "earliest", "--partitions", "8"),
        *("--ordered", "--max-attempts", "5", "--ack-timeout", "1m", "--backoff-base", "1s"),
        *("--backoff-factor", "3", "--backoff-max", "1h", "--jitter", "none"),
    )
    assert (doc["topic"], doc["group"], doc["queue"]) == ("orders", "billing", "orders@billing")
    assert (doc["partitions"], doc["bound"], doc["ready"], doc["delayed"]) == (8, True, 2, 0)
    assert doc["policy_given"] == {
        "max_attempts": 5,
        "ack_timeout": 60.0,
        "backoff": {"base": 1.0, "factor": 3.0, "max": 3600.0, "jitter": "none"},
    }
    assert topic.group("billing").spec.ordered


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["bind", "orders", "a@b"], 2, "error: group: 'a@b': letters, digits"),
        (["bind", "orders", "x", "--start", "late"], 2, 'error: start: must be "now" or "earl'),
        (["bind", "orders", "mail", "--partitions", "0"], 2, "error: partitions: must be 1 to"),
        (["bind", "ordrs", "x"], 4, "error: no topic 'ordrs'; did you mean 'orders'?\n"),
        (["show", "ordrs"], 4, "error: no topic 'ordrs'; did you mean 'orders'?\n"),
        (["publish", "ordrs", "1"], 4, "error: no topic 'ordrs'; did you mean 'orders'?\n"),
        (["delete", "ordrs"], 4, "error: no topic 'ordrs'; did you mean 'orders'?\n"),
        (["unbind", "orders", "mial"], 4, "error: topic 'orders' has no group 'mial'; did you m"),
        (["publish", "orders", "hi"], 2, "error: payload: not JSON: JSON is malformed"),
        (["publish", "orders", "1", "--id", "x"], 2, "error: id: must be a UUID, not 'x'\n"),
        (["create", "a@b"], 2, "error: topic: 'a@b': letters, digits"),
    ],
)
def test_refused(cli, hf: Holdfast, arguments: list[str], code: int, error: str) -> None:
    topic = hf.topic("orders")
    topic.bind("mail")
    assert cli.fails(code, "topic", *arguments).startswith(error)
    assert topic.groups() == ["mail"] and topic.stats().retained == 0


def test_unbind(cli, hf: Holdfast) -> None:
    topic = hf.topic("orders")
    topic.bind("mail")
    topic.bind("billing")
    topic.publish(1)
    topic.group("mail").purge()
    assert cli.ok("topic", "unbind", "orders", "mail", "--yes") == "unbound mail\n"
    error = "error: orders@billing or its dead letters hold messages; --force deletes them too\n"
    assert cli.fails(5, "topic", "unbind", "orders", "billing", "--yes") == error
    assert cli.fails(2, "topic", "unbind", "orders", "billing").startswith("error: stdin is no")
    assert cli.docs("topic", "unbind", "orders", "billing", "--yes", "--force") == [
        {"topic": "orders", "group": "billing", "unbound": True}
    ]
    assert topic.groups() == []


def test_publish(cli, hf: Holdfast) -> None:
    topic = hf.topic("orders")
    mail, billing = topic.bind("mail"), topic.bind("billing")
    said = cli.ok("topic", "publish", "orders", '{"n": 1}', "--id", ID, "--delay", "2h")
    assert said == f"published {ID} to 2 groups of orders, due in 2 h\n"
    assert cli.ok("topic", "publish", "orders", "2", "--id", ID) == (
        f"orders holds {ID} already; nothing was stored\n"
    )
    [doc] = cli.docs(
        *("topic", "publish", "orders", "hi", "--text", "--key", "k", "--type", "t"),
        *("--priority", "4", "--header", "a=b"),
    )
    assert (doc["topic"], doc["groups"], doc["duplicate"]) == ("orders", 2, False)
    assert (doc["payload"], doc["key"], doc["type"], doc["priority"]) == ("hi", "k", "t", 4)
    for queue in (mail, billing):
        message = queue.lease()[0].message
        assert (message.id, message.payload, message.headers) == (doc["id"], "hi", {"a": "b"})
        assert queue.stats().delayed == 1
