"""SETUP-1: in a fresh clone, one command runs the demo and one runs the tests."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A folder with the files that git tracks or would add: no .venv, no caches."""
    known = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert known.returncode == 0, f"this test clones the checkout: {known.stderr}"
    target = tmp_path / "a clone"  # a space in the path must not matter
    for name in filter(None, known.stdout.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    yield target
    shutil.rmtree(target)  # its .venv is large, and pytest keeps old folders


def run(clone: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a script from another folder, outside of any virtual environment."""
    mine = str(ROOT / ".venv")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "PYTEST_", "VIRTUAL_ENV", "PYTHON", "SPARK_"))
        or name == "HOLDFAST_SETUP_APT"  # a ban on apt-get applies here, too
    }
    env["PATH"] = ":".join(p for p in env["PATH"].split(":") if not p.startswith(mine))
    return subprocess.run(
        [str(clone / command[0]), *command[1:]],
        cwd=clone.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.extended
@pytest.mark.promise("SETUP-1")
def test_one_command_runs_the_demo_and_one_the_tests(clone: Path) -> None:
    demo = run(clone, "script/demo")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "every number fits" in demo.stdout
    assert "WRONG" not in demo.stdout
    assert "setup: tests on Spark: Java " in demo.stderr  # it comes with the locked packages

    again = run(clone, "script/setup")
    said = [line for line in again.stderr.splitlines() if "dashboard is not built" not in line]
    assert (again.returncode, again.stdout, said) == (0, "", [])

    tests = run(clone, "script/test", "tests/setup/test_setup_requirements.py", "-q", "-x")
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert " passed" in tests.stdout


@pytest.mark.promise("SETUP-1")
def test_setup_says_what_it_cannot_do(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", "python-that-is-not-there")
    failed = subprocess.run(
        [str(clone / "script/setup")], capture_output=True, text=True, timeout=60
    )
    assert failed.returncode == 1
    assert "no Python 3.11 or later" in failed.stderr
    assert "sudo apt-get install python3" in failed.stderr


def test_the_demo_notices_a_number_that_is_off() -> None:
    code = """
import sys
from holdfast.demo import plan, story, sums
from holdfast.demo.screen import Screen
from holdfast.demo.shop import orders
seen = story.Seen(accepted={"an id": plan.make_orders()[0]}, last=orders.stats())
sys.exit(0 if sums.add_up(Screen(plain=True), seen) else 1)
"""
    done = subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-c", code],
        env={**os.environ, "SHOP_URL": "memory://"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "WRONG" in done.stdout


def test_scripts_can_be_run() -> None:
    scripts = [path for path in (ROOT / "script").iterdir() if path.is_file()]
    for script in [*scripts, ROOT / ".ci/run"]:
        assert os.access(script, os.X_OK), script
