"""`holdfast demo-data`: something of everything, on every store; what is there is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast import State
from holdfast.queue.failures import failure_groups
from servers import SHARED
from tests.cli.conftest import Cli

pytestmark = pytest.mark.promise("SETUP-1")


@pytest.mark.parametrize("store_name", SHARED)
def test_there_is_something_of_everything(cli: Cli, store_url: str) -> None:
    done = cli("--url", store_url, "demo-data")
    assert done.exit_code == 0, done.output
    assert "serve, then open http://127.0.0.1:8080/" in done.output
    with holdfast.connect(store_url) as hf:
        stats = {one.queue: one for one in hf.stats()}
        orders = stats["orders"]
        assert min(orders.ready, orders.delayed, orders.leased, orders.dead, orders.done) > 5
        assert stats["newsletter"].paused
        assert len(failure_groups(hf.context, "orders.dlq").groups) >= 2
        assert len(failure_groups(hf.context, "webhooks.dlq").groups) >= 2
        owners = [part.owner for part in hf.queue("payments", create=False).partitions()]
        assert len({*owners}) == 4 and None in owners
        [topic] = hf.topics()
        groups = topic.stats().groups
        assert groups["audit"].lag > groups["billing"].lag
        now = hf.context.clock.now()
        held = [entry.lease for entry in hf.queue("orders").browse(State.LEASED)]
        soon = [lease for lease in held if lease and lease.deadline < now + 60_000]
        assert soon and len(soon) < len(held)
        hour = [entry.finished for entry in hf.queue("thumbnails").browse(State.LOG)]
        assert now - 3_700_000 < hour[0].finished_at < now - 3_000_000  # type: ignore[union-attr]


def test_what_is_there_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with holdfast.connect(url) as hf:
        hf.queue("orders").enqueue("mine")
        done = cli("--url", url, "demo-data")
        assert (done.exit_code, done.output.count("orders already")) == (5, 1)
        assert [queue.name for queue in hf.queues()] == ["orders", "orders.dlq"]
        assert cli("--url", url, "demo-data", "--force").exit_code == 0
        payloads = [entry.message.payload for entry in hf.queue("orders").browse()]
        assert payloads and "mine" not in payloads


def test_for_programs(cli: Cli, tmp_path: Path) -> None:
    done = cli("--url", f"sqlite:///{tmp_path}/jobs.db", "--json", "demo-data")
    made = [json.loads(line) for line in done.output.splitlines()]
    assert {"orders", "payments", "shop.events@audit"} <= {one["queue"] for one in made}


def test_a_server_is_refused(cli: Cli) -> None:
    done = cli("--url", "http://127.0.0.1:1", "demo-data")
    assert done.exit_code == 5
    assert "needs the store itself" in done.output
