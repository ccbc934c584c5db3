"""Every example runs, as a program of its own, in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "async_handlers": "20 done",
    "quickstart": "Edsger COMPLETED sent",
    "retry_and_dead_letters": "IT 22 redriven 1 times",
    "testing_handlers": "three tests passed",
    "transactional": "1 order, 1 letter, 1 done",
}


def test_each_example_is_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
