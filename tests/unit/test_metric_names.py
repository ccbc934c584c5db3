"""Metrics are called what Prometheus wants them called, and what docs/operations.md says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

import holdfast
from holdfast import Holdfast
from holdfast.metrics import LOOK_S, PARTITIONS_MAX, QUEUES_MAX, Metrics
from holdfast.testing import drain
from servers import prometheus

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
UNITS = ("minutes", "hours", "days", "ms", "milliseconds", "microseconds", "kb", "percent")
"""Prometheus counts in seconds, bytes and ratios."""


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.connect("memory://") as hf:
        yield hf


@pytest.fixture
def page(hf: Holdfast) -> str:
    """With something in every family."""
    metrics = Metrics().watch(hf)
    hf.handler("orders")(lambda payload: None)
    hf.queue("orders", partitions=2).enqueue(1)
    hf.queue("letters", ordered=True).enqueue(1)
    drain(hf)
    text = metrics.render()[0].decode()
    assert [*open_metrics(metrics.render("application/openmetrics-text")[0].decode())]
    return text


@pytest.fixture
def families(page: str) -> list[Metric]:
    return [*plain(page)]


def test_names_types_and_help(families: list[Metric]) -> None:
    for family in families:
        assert re.fullmatch(r"holdfast_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge", "histogram")
        assert family.samples, family.name
        assert not set(UNITS) & set(family.name.split("_")), family.name
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_info", "_total"))
        assert family.type not in family.name
        names = {sample.name.removeprefix(family.name) for sample in family.samples}
        wanted = {"counter": {"_total"}, "gauge": {""}, "histogram": {"_bucket", "_count", "_sum"}}
        assert names == wanted[family.type]
        for sample in family.samples:
            assert sample.labels.keys() <= {"queue", "partition", "le"}


def test_the_page_has_them_all(families: list[Metric]) -> None:
    told = re.findall(
        r"^\| `(holdfast_\w+)` \| (\w+) \|([^|]*)\| (.*) \|$", OPERATIONS.read_text(), re.MULTILINE
    )
    rows = {name: (kind, labels.strip(), help) for name, kind, labels, help in told}
    assert rows == {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            ", ".join(_labels(family)),
            family.documentation,
        )
        for family in families
    }


def test_the_page_has_the_limits() -> None:
    text = " ".join(OPERATIONS.read_text().split())
    assert f"The first {QUEUES_MAX} queues" in text
    assert f"the first {PARTITIONS_MAX} partitions of each" in text
    assert f"does not answer within {LOOK_S:.0f} seconds" in text


def test_promtool_has_nothing_to_say(page: str) -> None:
    command = [str(prometheus.need("promtool")), "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _labels(family: Metric) -> list[str]:
    names = {name for sample in family.samples for name in sample.labels} - {"le"}
    return sorted(names, reverse=True)
