"""Tests of the tests: they must fail if there is a bug in the sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from servers import SHARED, STORES
from tests.seeded import forks
from tests.seeded.bug import SRC, Bug, DoesNotApply, apply, find_tests
from tests.seeded.bugs import BUGS

Fail = Callable[[str, str, Path, str], bool]


def test_every_bug_applies() -> None:
    problems: list[str] = []
    for bug in BUGS:
        try:
            check(bug)
        except DoesNotApply as error:
            problems.append(str(error))
    assert not problems, "\n".join(problems)


def check(bug: Bug) -> None:
    apply(bug)
    find_tests(bug)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"where": "no_such_function"}, "0 times"),
        ({"old": "no such statement"}, "0 times"),
        ({"old": "lease"}, "[2-9] times"),
        ({"new": BUGS[0].old}, "changes nothing"),
        ({"new": "("}, "does not compile"),
        ({"caught_by": "no_such_file.py"}, "there is no tests/no_such_file.py"),
        ({"test": "test_nothing"}, "has no test_nothing"),
    ],
)
def test_a_bug_that_does_not_apply_is_reported(change: dict[str, str], problem: str) -> None:
    with pytest.raises(DoesNotApply, match=problem):
        check(replace(BUGS[0], **change))


@pytest.fixture
def tests_fail(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fail:
    """Whether tests fail on a store when one file of the sources has another text."""

    def run(tests: str, store: str, file: Path, text: str) -> bool:
        env = {"HOLDFAST_TEST_UNRECORDED": "1"}
        if store != "sqlite":
            variable = import_module(f"servers.{store}").URL_VARIABLE
            env[variable] = request.getfixturevalue(f"{store}_server")
        others = " and ".join(f"not {other}" for other in STORES if other != store)
        arguments = ["-q", "-x", "--all", "-k", others, tests]
        done = forks.run(arguments, file, text, tmp_path_factory.mktemp("run"), env)
        if done.code is None:  # a bug may make them hang
            return True
        # Not the exit code alone: it is the same if a fixture has an error, without a server.
        failed = re.search(r"^\d+ failed\b", done.output, re.MULTILINE) is not None
        assert done.code == failed, done.output
        return failed

    return run


@pytest.mark.extended
def test_the_tests_pass_without_a_bug(tests_fail: Fail) -> None:
    file = Path("holdfast/__init__.py")
    text = (SRC / file).read_text()
    for store in SHARED:
        assert not tests_fail("tests/conformance/test_keeping.py", store, file, text)
    assert not tests_fail("tests/batches/test_batches.py", "sqlite", file, text)


@pytest.mark.extended
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_seeded_bug_is_caught(bug: Bug, tests_fail: Fail) -> None:
    assert tests_fail(find_tests(bug), bug.store or "sqlite", *apply(bug)), "nothing noticed"
