"""The dashboard's unit tests in web/, which move a fake clock: countdown and effects of events."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(__file__).parents[2]


@pytest.mark.extended
@pytest.mark.promise("DASH-2", "DASH-3")
def test_the_pages_own_tests_pass() -> None:
    done = subprocess.run(
        [*need_npm(), "test", "--silent"],
        cwd=ROOT / "web",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def need_npm() -> list[str]:
    """How to call npm. Without it or the packages of web/: skipped at home, failed in CI."""
    try:
        if not hatch_build.Web().is_installed():
            raise hatch_build.NoDashboard(
                "the packages of web/ are not installed: script/setup installs them, which needs "
                "the npm registry; .build/web.log has the error of the last try"
            )
        return hatch_build.find_npm()
    except hatch_build.NoDashboard as missing:
        if "CI" in os.environ:
            pytest.fail(str(missing))
        pytest.skip(str(missing))
