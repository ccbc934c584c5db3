"""The examples on Spark, each as a program of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"


@pytest.mark.extended
def test_orders(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "orders.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        "99 orders in the lake",
        'dead: {"id":100} KeyError after 2 attempts',
    ]
    assert [*tmp_path.iterdir()] == []
