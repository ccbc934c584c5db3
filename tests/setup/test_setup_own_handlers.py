"""SETUP-3: users can test their own handlers; docs/testing.md shows how, and runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/testing.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# (\w+\.py)\n")


def files(page: str) -> dict[str, str]:
    """A block that begins with a file's name starts that file; the others go on with the last."""
    made: dict[str, str] = {}
    name = ""
    for text in BLOCK.findall(page):
        named = NAME.match(text)
        name = named[1] if named else name
        made[name] = made.get(name, "") + text + "\n\n"
    return made


@pytest.mark.promise("SETUP-3")
def test_the_page_is_a_test_suite_that_passes(tmp_path: Path) -> None:
    for name, text in files(PAGE.read_text()).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = len(re.findall(r"^def test_", (tmp_path / "test_shop.py").read_text(), re.MULTILINE))
    assert f"{written} passed" in done.stdout
