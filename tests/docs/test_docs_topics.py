"""docs/topics.md and docs/partitions.md are programs that run, and so is each example of topics."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "topics"
SAYS = {
    "orders": [
        "billing: 2 done, 1 dead; letters: ['Ada', 'Grace', 'Laura']",
        "billing: 3 done, 0 dead; letters: ['Ada', 'Grace', 'Laura']",
        "audit begins with ['Ada', 'Grace', 'Laura']",
        "orders@audit: 3 ready, 0 done",
        "orders@billing: 0 ready, 3 done",
        "orders@mail: 0 ready, 3 done",
    ]
}


def run(program: Path, folder: Path) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_example_is_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    said = run(EXAMPLES / f"{name}.py", tmp_path).splitlines()
    assert [line for line in said if not line.startswith(" ")] == SAYS[name]


@pytest.mark.parametrize("name", ["topics", "partitions"])
def test_the_page_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks))
    run(program, tmp_path)
