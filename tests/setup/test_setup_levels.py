"""The levels of tests: what runs by default and what --all adds are everything, without overlap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def collected(*arguments: str) -> set[str]:
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.extended
def test_the_two_levels_are_everything_and_share_nothing() -> None:
    usual, rest, all = collected(), collected("--rest"), collected("--all")
    assert usual and rest
    assert not usual & rest
    assert usual | rest == all


def test_a_test_that_is_named_runs_whatever_its_level() -> None:
    name = "tests/seeded/test_seeded_bugs.py::test_the_tests_pass_without_a_bug"
    assert collected(name) == {name}


def test_what_only_checks_arguments_runs_on_one_store() -> None:
    names = collected("tests/conformance/test_leasing.py", "-k", "bad_limit")
    assert names
    assert all("[memory-" in name for name in names)
