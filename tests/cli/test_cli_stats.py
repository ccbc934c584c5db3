"""holdfast stats and holdfast sweep."""

from __future__ import annotations

import json
import re
import signal

from holdfast import Holdfast
from holdfast.stores.contract import overdue_in
from holdfast.testing import wait_until


def test_stats(cli, hf: Holdfast) -> None:
    assert cli.ok("stats") == "no queues yet; holdfast queue create NAME makes one\n"
    orders = hf.queue("orders")
    orders.enqueue_many(range(1, 5))
    orders.ack(orders.lease()[0])
    orders.fail(orders.lease()[0])
    orders.lease()
    orders.enqueue("later", delay=60)
    hf.queue("mail").pause()
    assert re.sub(r" {2,}", "  ", re.sub(r"\d+ s ", "T ", cli.ok("stats"))) == (
        "QUEUE  READY  DELAYED  LEASED  DEAD  DONE  OLDEST  STATE\n"
        "mail  0  0  0  0  0  paused\n"
        "orders  1  1  1  1  1  T  open\n"
    )
    [doc] = cli.docs("stats", "orders")
    assert doc == {
        "queue": "orders",
        "ready": 1,
        "delayed": 1,
        "leased": 1,
        "dead": 1,
        "done": 1,
        "oldest_age_ms": doc["oldest_age_ms"],
        "paused": False,
        "lag": 3,
    }
    assert 0 <= doc["oldest_age_ms"] < 60_000
    assert [doc["queue"] for doc in cli.docs("stats", "orders.dlq", "mail")] == [
        *("orders.dlq", "mail"),
    ]


def test_stats_refuses(cli, hf: Holdfast) -> None:
    hf.queue("orders")
    assert cli.fails(4, "stats", "ordrs") == "error: no queue 'ordrs'; did you mean 'orders'?\n"
    assert cli.fails(2, "stats", "--watch", "--interval", "0").startswith(
        "error: --interval must be at least 0.1 seconds\n"
    )


def test_watch_for_programs(hf: Holdfast, start) -> None:
    queue = hf.queue("orders")
    watching = start("stats", "orders", "--watch", "--interval", "0.1", "--json")
    wait_until(lambda: watching.out.count("\n") >= 1, 30)
    queue.enqueue(1)
    wait_until(lambda: '"ready":1' in watching.out, 30)
    watching.signal(signal.SIGINT)
    assert watching.ends() == 130
    docs = [json.loads(line) for line in watching.out.splitlines()]
    assert (docs[0]["ready"], docs[-1]["ready"]) == (0, 1)
    assert [doc["at"] for doc in docs] == sorted(doc["at"] for doc in docs)
    assert watching.err.strip() == ""


def test_watch_elsewhere_is_plain(hf: Holdfast, start) -> None:
    hf.queue("orders")
    watching = start("stats", "--watch", "--interval", "0.1")
    wait_until(lambda: "DONE/S" in watching.out, 30)
    watching.signal(signal.SIGINT)
    assert watching.ends() == 130
    assert "\x1b" not in watching.out


def test_watch_on_a_terminal(hf: Holdfast, on_terminal) -> None:
    hf.queue("orders")
    shown, code = on_terminal(
        *("stats", "--watch", "--interval", "0.1"), when="0.0", keys=b"\x03", insist=True
    )
    assert code == 130
    assert "orders" in shown
    assert "Traceback" not in shown


def test_tables_fit_a_terminal(hf: Holdfast, on_terminal) -> None:
    queue = hf.queue("a-queue-with-a-name-" + "x" * 80)
    for columns in (80, 140):
        shown, code = on_terminal("stats", columns=columns)
        lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
        assert code == 0
        assert max(map(len, lines)) <= columns
        assert lines[2].startswith("a-queue-with-a-name-")
    assert queue.name in on_terminal("stats", columns=200)[0]


def test_sweep(cli, hf: Holdfast) -> None:
    assert cli.ok("sweep") == (
        "0 messages back in line, 0 dead, 0 completed with errors; 0 log rows dropped\n"
    )
    queue = hf.queue("orders", ack_timeout=0.001)
    queue.enqueue("again")
    queue.enqueue("dead", max_attempts=1)
    queue.lease(2)
    wait_until(lambda: len(overdue_in(hf.store, "orders", hf.context.clock.now(), 9)) == 2)
    swept = cli.docs("sweep")[0]
    assert swept == {"requeued": 1, "dead": 1, "completed": 0, "trimmed": 0}
