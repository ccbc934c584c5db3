"""The record that script/promises reads: which promise was proven where, by which test."""

from __future__ import annotations

import json
import os

import pytest

from tests.plugins.parts import ROOT, part_of

PROVEN = ROOT / ".build" / "promises.json"


def pytest_configure(config: pytest.Config) -> None:
    if "HOLDFAST_TEST_UNRECORDED" in os.environ:  # a run on a copy with a bug in it
        return
    if not hasattr(config, "workerinput"):  # with xdist: the controller sees every report
        config.pluginmanager.register(_Record())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("promise"):
            item.user_properties.extend(("promise", id) for id in mark.args)
        item.user_properties.append(("part", part_of(item)))


class _Record:
    def __init__(self) -> None:
        self.passed: list[dict[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            part = next((v for k, v in report.user_properties if k == "part"), "")
            for name, value in report.user_properties:
                if name == "promise":
                    row = {"promise": str(value), "part": str(part), "test": report.nodeid}
                    self.passed.append(row)

    def pytest_sessionfinish(self) -> None:
        if self.passed:
            PROVEN.parent.mkdir(exist_ok=True)
            known = json.loads(PROVEN.read_text()) if PROVEN.exists() else []
            rows = {json.dumps(row, sort_keys=True): row for row in [*known, *self.passed]}
            PROVEN.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1))
