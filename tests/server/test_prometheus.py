"""A real Prometheus scrapes a real server, and knows what the queue knows."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.testing import wait_until
from servers import prometheus
from tests.server.rig import Program

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.mark.promise("SERVER-6")
def test_prometheus_scrapes_it(tmp_path: Path) -> None:
    with (
        Program(f"sqlite:///{tmp_path}/test.db") as server,
        holdfast.connect(server.http) as hf,
        prometheus.running(urllib.parse.urlsplit(server.http).netloc) as url,
    ):
        queue = hf.queue("orders", max_attempts=1)
        queue.enqueue_many(range(5))
        done, failed, _held = queue.lease(3)
        queue.ack(done)
        queue.nack(failed, "no")

        def value(metric: str) -> float | None:
            found = ask(url, "query", query=f'{metric}{{queue="orders"}}')["result"]
            return float(found[0]["value"][1]) if found else None

        expected = {
            "holdfast_messages_produced_total": 5,
            "holdfast_messages_leased_total": 3,
            "holdfast_messages_acked_total": 1,
            "holdfast_messages_dead_total": 1,
            "holdfast_wait_seconds_count": 3,
            "holdfast_depth": 2,
            "holdfast_leased": 1,
            "holdfast_dead": 1,
        }
        wait_until(lambda: {name: value(name) for name in expected} == expected, 30)
        (target,) = ask(url, "targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert kinds(url) == documented()


def kinds(url: str) -> dict[str, str]:
    """What Prometheus took each metric of ours for. A counter's family is named without _total."""
    told = ask(url, "targets/metadata", match_target='{job="holdfast"}')
    return {row["metric"].removesuffix("_total"): row["type"] for row in told}


def documented() -> dict[str, str]:
    rows = re.findall(r"^\| `(holdfast_\w+)` \| (\w+) \|", OPERATIONS.read_text(), re.MULTILINE)
    return {name.removesuffix("_total"): kind for name, kind in rows}


def ask(url: str, what: str, **query: str) -> Any:
    asked = f"{url}/api/v1/{what}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return json.load(answer)["data"]
