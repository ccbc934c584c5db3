"""holdfast queue."""

from __future__ import annotations

import re

import pytest

from holdfast import Backoff, Holdfast, Outgoing

EMPTY = {
    "ready": 0,
    "delayed": 0,
    "leased": 0,
    "dead": 0,
    "done": 0,
    "lag": 0,
    "oldest_age_ms": None,
}
PLAIN = {"ordered": False, "first_partition": 0}


def test_create_says_what_it_did(cli) -> None:
    assert cli.ok("queue", "create", "orders") == "created orders and orders.dlq\n"
    assert cli.ok("queue", "create", "orders") == "orders is there already; nothing to change\n"
    assert cli.ok("queue", "create", "orders", "--log") == "updated the policy of orders\n"
    assert cli.ok("queue", "create", "lone.dlq") == "created lone.dlq\n"


def test_create_takes_every_policy_field(cli, hf: Holdfast) -> None:
    [doc] = cli.docs(
        *("queue", "create", "orders", "--max-attempts", "5", "--ack-timeout", "1m"),
        *("--backoff-base", "250ms", "--backoff-factor", "3", "--backoff-max", "1h"),
        *("--jitter", "none", "--overdue-backoff", "--exhausted", "complete", "--no-log"),
        *(
            "--retention",
            "2d",
            "--retention-count",
            "9",
            "--duplicate-window",
            "1h",
            "--payload-max",
            "100",
        ),
        *("--partitions", "4", "--ordered", "--on-failure", "skip"),
    )
    policy = {
        "max_attempts": 5,
        "ack_timeout": 60.0,
        "backoff": {"base": 0.25, "factor": 3.0, "max": 3600.0, "jitter": "none"},
        "overdue_backoff": True,
        "exhausted": "complete",
        "log": False,
        "retention": 172800.0,
        "retention_count": 9,
        "duplicate_window": 3600.0,
        "payload_max": 100,
        "on_failure": "skip",
    }
    assert doc == {
        "queue": "orders",
        "partitions": 4,
        "ordered": True,
        "first_partition": 0,
        "paused": False,
        "created_at": doc["created_at"],
        "revision": 1,
        "policy_given": policy,
        "created": True,
    }
    assert hf.queue("orders").spec.policy.to_dict() == policy


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["bad name"], "error: queue: 'bad name': letters, digits"),
        (["q", "--jitter", "fll"], "error: backoff.jitter: 'fll'; did you mean 'full'?\n"),
        (["q", "--exhausted", "x"], 'error: exhausted: must be "dead" or "complete", not \'x\'\n'),
        (["q", "--ack-timeout", "0"], "error: ack_timeout: must be more than 0 seconds\n"),
        (["q", "--ack-timeout", "soon"], "error: Invalid value for '--ack-timeout': 'soon': write"),
        (["q", "--partitions", "0"], "error: partitions: must be 1 to 256, not 0\n"),
        (["q", "--retentoin", "1"], "error: No such option '--retentoin'"),
    ],
)
def test_create_refuses(cli, hf: Holdfast, options: list[str], error: str) -> None:
    assert cli.fails(2, "queue", "create", *options).startswith(error)
    assert hf.queues() == []


@pytest.mark.promise("PART-7")
def test_partitions_are_added_and_not_taken_away(cli) -> None:
    cli.ok("queue", "create", "orders")
    grown = "orders has 4 partitions now, 1 before\n"
    assert cli.ok("queue", "create", "orders", "--partitions", "4") == grown
    error = "error: partitions: orders has 4; they can be added, not taken away\n"
    assert cli.fails(2, "queue", "create", "orders", "--partitions", "2") == error


@pytest.mark.promise("PART-9")
def test_show_tells_of_partitions(cli, hf: Holdfast, steady) -> None:
    queue = hf.queue("orders", partitions=2, ordered=True)
    queue.enqueue_many(Outgoing(n, key=key) for n, key in enumerate(["a", "user-1", "b", "a"]))
    with hf.consumer("orders", background=False) as consumer:
        consumer.tick()
        assert len(consumer.lease(2)) == 2
        said = steady(cli.ok("queue", "show", "orders")).splitlines()
        owner = consumer.name
        [doc] = cli.docs("queue", "show", "orders")
    rows = [re.sub(r"\d+ s", "T", row) for row in said[said.index("partitions") + 1 :]]
    rows = rows[: rows.index("policy")]
    assert rows == [
        "PARTITION  READY  DELAYED  LEASED  LAG  OLDEST  OWNER",
        f"0  0  0  1  1  -  {owner}",
        f"1  2  0  1  3  T  {owner}",
        "all  2  0  2  4  T",
    ]
    assert [part["lag"] for part in doc["partitions_in_use"]] == [1, 3]
    assert doc["partitions_in_use"][0] == {
        "partition": 0,
        "ready": 0,
        "delayed": 0,
        "leased": 1,
        "lag": 1,
        "oldest_age_ms": None,
        "owner": owner,
        "epoch": 1,
    }
    hf.queue("orders", partitions=3)
    said = steady(cli.ok("queue", "show", "orders"))
    assert "  partitions  3, ordered, and 2 from before it had so many\n" in said
    assert re.search(r"\n1 \(old\)  3  0  0  3  \d+ s  nobody\n", said)


def test_list(cli, hf: Holdfast, steady) -> None:
    assert cli.ok("queue", "list") == "no queues yet; holdfast queue create NAME makes one\n"
    assert cli.docs("queue", "list") == []
    hf.queue("orders", max_attempts=7).enqueue_many([1, 2])
    hf.queue("mail", partitions=3).pause()
    assert steady(cli.ok("queue", "list")) == (
        "QUEUE  STATE  PARTITIONS  READY  DELAYED  LEASED  DEAD  CREATED\n"
        "mail  paused  3  0  0  0  0  T\n"
        "orders  open  1  2  0  0  0  T\n"
    )
    mail, orders = cli.docs("queue", "list")
    assert mail == {
        "queue": "mail",
        "partitions": 3,
        **PLAIN,
        "paused": True,
        "created_at": mail["created_at"],
        "revision": 2,
        "policy_given": {},
        **EMPTY,
    }
    assert (orders["ready"], orders["policy_given"]) == (2, {"max_attempts": 7})


def test_show(cli, hf: Holdfast, steady, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = hf.queue("orders", max_attempts=1, backoff=Backoff(base=0.25), retention=0)
    queue.enqueue("bad")
    queue.fail(queue.lease()[0], "no such customer", code="NoCustomer")
    monkeypatch.setenv("HOLDFAST_ACK_TIMEOUT_SECONDS", "90")
    assert steady(cli.ok("queue", "show", "orders")) == (
        "orders\n"
        "  state  open\n"
        "  partitions  1\n"
        "  created  T\n"
        "  ready  0\n"
        "  delayed  0\n"
        "  leased  0\n"
        "  dead  1\n"
        "  done  0\n"
        "policy\n"
        "  ack-timeout  1 min 30 s  (environment)\n"
        "  max-attempts  1  (this queue)\n"
        "  overdue-backoff  no  (default)\n"
        "  exhausted  dead  (default)\n"
        "  log  yes  (default)\n"
        "  retention  for ever  (this queue)\n"
        "  retention-count  no limit  (default)\n"
        "  duplicate-window  1 d  (default)\n"
        "  payload-max  1.0 MB  (default)\n"
        "  on-failure  block  (default)\n"
        "  on-misfit  dead  (default)\n"
        "  traceback-max  16384  (default)\n"
        "  backoff-base  250 ms  (this queue)\n"
        "  backoff-factor  2.0  (default)\n"
        "  backoff-max  30 min  (default)\n"
        "  backoff-jitter  full  (default)\n"
        "DEAD LETTERS OF  REASON  LAST ERROR  COUNT  OLDEST  FOR EXAMPLE\n"
        "orders  failed  NoCustomer  1  T  no such customer\n"
    )


def test_show_for_programs(cli, hf: Holdfast) -> None:
    hf.queue("orders", max_attempts=5)
    [doc] = cli.docs("queue", "show", "orders")
    assert doc == {
        "queue": "orders",
        "partitions": 1,
        **PLAIN,
        "paused": False,
        "created_at": doc["created_at"],
        "revision": 1,
        "policy_given": {"max_attempts": 5},
        "policy": {
            "ack_timeout": 30.0,
            "max_attempts": 5,
            "backoff": {"base": 5.0, "factor": 2.0, "max": 1800.0, "jitter": "full"},
            "overdue_backoff": False,
            "exhausted": "dead",
            "log": True,
            "retention": 604800.0,
            "retention_count": 0,
            "duplicate_window": 86400.0,
            "payload_max": 1048576,
            "on_failure": "block",
            "on_misfit": "dead",
            "traceback_max": 16384,
        },
        "partitions_in_use": [
            {
                "partition": 0,
                "ready": 0,
                "delayed": 0,
                "leased": 0,
                "lag": 0,
                "oldest_age_ms": None,
                "owner": None,
                "epoch": 0,
            }
        ],
        "stats": {"queue": "orders", "paused": False, **EMPTY},
        "dead_letters": [],
    }


def test_pause_and_resume(cli, hf: Holdfast) -> None:
    queue = hf.queue("orders")
    queue.enqueue(1)
    assert cli.ok("queue", "pause", "orders") == "paused orders\n"
    assert queue.lease() == []
    assert cli.docs("queue", "resume", "orders") == [{"queue": "orders", "resumed": True}]
    assert len(queue.lease()) == 1


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "delete", "purge"])
def test_a_queue_that_is_not_there(cli, hf: Holdfast, verb: str) -> None:
    hf.queue("orders")
    error = "error: no queue 'ordrs'; did you mean 'orders'?\n"
    assert cli.fails(4, "queue", verb, "ordrs") == error


def test_nothing_is_destroyed_without_a_yes(cli, hf: Holdfast) -> None:
    hf.queue("orders").enqueue(1)
    refused = "error: stdin is no terminal to ask on; pass --yes if you mean it\n"
    for verb in ("delete", "purge"):
        assert cli.fails(2, "queue", verb, "orders") == (
            f"{refused}try: holdfast queue {verb} --help\n"
        )
    assert hf.queue("orders").stats().ready == 1


def test_a_terminal_asks(on_terminal, hf: Holdfast) -> None:
    hf.queue("orders").enqueue(1)
    asked = "Drop 1 waiting message of orders without a trace? [y/N]: "
    shown, code = on_terminal("queue", "purge", "orders", when="[y/N]", keys=b"n\n")
    assert (shown, code) == (f"{asked}n\nerror: nothing was changed\n", 1)
    assert hf.queue("orders").stats().ready == 1
    shown, code = on_terminal("queue", "purge", "orders", when="[y/N]", keys=b"y\n")
    assert (shown.startswith(f"{asked}y\n"), code) == (True, 0)
    assert shown.endswith("dropped 1 message of orders\n")
    assert hf.queue("orders").stats().ready == 0


def test_purge(cli, hf: Holdfast) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many([1, 2, 3])
    queue.lease()
    assert cli.ok("queue", "purge", "orders", "--yes") == "dropped 2 messages of orders\n"
    assert cli.docs("queue", "purge", "orders", "--yes") == [{"queue": "orders", "purged": 0}]
    assert queue.stats().leased == 1


def test_delete(cli, hf: Holdfast) -> None:
    hf.queue("orders").enqueue(1)
    error = "error: orders or its dead letters hold messages; --force deletes them too\n"
    assert cli.fails(5, "queue", "delete", "orders", "--yes") == error
    assert cli.fails(5, "queue", "delete", "orders.dlq", "--yes") == (
        "error: orders.dlq goes with its queue: delete orders, or purge this one\n"
    )
    assert cli.ok("queue", "delete", "orders", "--yes", "--force") == "deleted orders\n"
    assert hf.queues() == []
