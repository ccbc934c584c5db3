"""docs/guarantees.md names tests that exist, and tests name promises that it makes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
SOURCES = {
    path: path.read_text()
    for folder in ("tests", "src/holdfast/testing")
    for path in (ROOT / folder).rglob("*.py")
}


def test_every_promise_names_tests_that_exist() -> None:
    defined = {name for text in SOURCES.values() for name in re.findall(r"def (test_\w+)", text)}
    promises = re.split(r"^- \*\*", PAGE, flags=re.MULTILINE)[1:]
    assert len(promises) > 50
    for promise in promises:
        named = re.findall(r"\btest_\w+(?!\w*\.py)", re.sub(r"\S+\.py", "", promise))
        assert named, f"no test: {promise[:60]}"
        assert set(named) <= defined, promise[:60]


def test_every_marked_promise_is_on_the_page() -> None:
    made = set(re.findall(r"^- \*\*([A-Z]+-\d+)\*\*", PAGE, flags=re.MULTILINE))
    marks = [
        id
        for text in SOURCES.values()
        for arguments in re.findall(r"mark\.promise\(([^)]*)\)", text)
        for id in re.findall(r'"([A-Z]+-\d+)"', arguments)
    ]
    assert set(marks) == made
