"""The suite itself is tested: with a bug put in, it must fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from bugs import BUGS, Bug

from servers import SHARED, STORES

ROOT = Path(__file__).parent.parent.parent
TIME_S = 60
"""A bug that makes the suite hang is caught too."""


Suite = Callable[..., int]


@pytest.fixture
def run_suite(source: Path, request: pytest.FixtureRequest) -> Suite:
    """Runs tests on the copy, with one store. Its server is that of this run: a test has a schema
    or a prefix of its own, so no bug sees what another left."""

    def run(tests: str, store: str = "sqlite") -> int:
        env = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
        env |= {"PYTHONPATH": str(source), "HOLDFAST_TEST_UNRECORDED": "1"}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what is run needs none, and they load slowly
        if store != "sqlite":
            variable = import_module(f"servers.{store}").URL_VARIABLE
            env[variable] = request.getfixturevalue(f"{store}_server")
        others = " and ".join(f"not {other}" for other in STORES if other != store)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, "-k", others, tests],
                cwd=ROOT,
                env=env,
                capture_output=True,
                timeout=TIME_S,
            )
        except subprocess.TimeoutExpired:
            return 1
        # Only a test that failed has noticed: a server that is away makes errors of the fixtures.
        summary = done.stdout.splitlines()[-1]
        noticed = re.match(rb"\d+ failed\b", summary) is not None
        assert done.returncode == noticed, done.stdout.decode()
        return done.returncode

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "src", tmp_path / "src"))


def test_the_suite_passes_on_a_copy_without_a_bug(source: Path, run_suite: Suite) -> None:
    for store in SHARED:
        assert run_suite("tests/conformance/test_keeping.py", store) == 0
    assert run_suite("tests/batches/test_batches.py") == 0
    where = [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"]
    env = {**os.environ, "PYTHONPATH": str(source)}
    shown = subprocess.run(where, env=env, capture_output=True, text=True, check=True).stdout
    assert shown.startswith(str(source))  # it was the copy that ran


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_caught(source: Path, run_suite: Suite, bug: Bug) -> None:
    file = source / "holdfast" / bug.file
    text = file.read_text()
    assert text.count(bug.old) == 1, "this bug no longer applies: mend it"
    file.write_text(text.replace(bug.old, bug.new))
    store = next((name for name in SHARED if f"stores/{name}/" in bug.file), "sqlite")
    tests = bug.caught_by if "/" in bug.caught_by else f"conformance/{bug.caught_by}"
    assert run_suite(f"tests/{tests}", store) == 1, "nothing noticed"
