"""The suite itself is tested: with a bug put in, it must fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from bugs import BUGS, Bug

ROOT = Path(__file__).parent.parent.parent
OTHERS = ["memory", "sqlite", "postgres", "redis", "cluster"]
TIME_S = 60
"""A bug that makes the suite hang is caught too."""


def run_suite(source: Path, tests: list[str], store: str = "sqlite") -> int:
    env = {**os.environ, "PYTHONPATH": str(source), "HOLDFAST_TEST_UNRECORDED": "1"}
    for name in [name for name in env if name.startswith("PYTEST_")]:
        del env[name]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-k",
        " and ".join(f"not {other}" for other in OTHERS if other != store),
        "-p",
        "no:cacheprovider",
    ]
    try:
        done = subprocess.run(
            [*command, *tests], cwd=ROOT, env=env, capture_output=True, timeout=TIME_S
        )
    except subprocess.TimeoutExpired:
        return 1
    assert done.returncode in (0, 1), done.stdout.decode()
    return done.returncode


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "src", tmp_path / "src"))


def test_the_suite_passes_on_a_copy_without_a_bug(source: Path) -> None:
    for store in ("sqlite", "postgres", "redis"):
        assert run_suite(source, ["tests/conformance/test_keeping.py"], store) == 0
    assert run_suite(source, ["tests/batches/test_batches.py"]) == 0
    where = [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"]
    env = {**os.environ, "PYTHONPATH": str(source)}
    shown = subprocess.run(where, env=env, capture_output=True, text=True, check=True).stdout
    assert shown.startswith(str(source))  # it was the copy that ran


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_caught(source: Path, bug: Bug) -> None:
    file = source / "holdfast" / bug.file
    text = file.read_text()
    assert text.count(bug.old) == 1, "this bug no longer applies: mend it"
    file.write_text(text.replace(bug.old, bug.new))
    store = next((name for name in ("postgres", "redis") if name in bug.file), "sqlite")
    tests = bug.caught_by if "/" in bug.caught_by else f"conformance/{bug.caught_by}"
    assert run_suite(source, [f"tests/{tests}"], store) == 1, "nothing noticed"
