"""SETUP-2: the built package, installed beside its declared dependencies and nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.server.pages import Pages

ROOT = Path(__file__).parents[2]
DRIVERS = ["psycopg", "redis", "pymongo", "fastapi", "grpc", "pyspark", "uvicorn", "starlette"]


HAS_DASHBOARD = Pages().is_built or "CI" in os.environ
"""Where the dashboard could not be built, the wheel is tested without it; in CI that fails."""
NOT_BUILT = (
    "the dashboard is not built: script/setup builds it, which needs the npm registry; "
    ".build/web.log has the error of the last try"
)


def call(*command: str | Path, cwd: Path | None = None) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "PYTEST_", "PYTHON", "VIRTUAL_ENV"))
    }
    if not HAS_DASHBOARD:
        clean["HOLDFAST_NO_DASHBOARD"] = "1"
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel, as a user would have it."""
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    call(sys.executable, "-m", "venv", folder / "venv")
    bin = folder / "venv/bin"
    pip = [bin / "python", "-m", "pip", "install", "--quiet"]
    call(*pip, "--require-hashes", "-r", ROOT / "requirements/runtime.txt")
    call(*pip, "--no-deps", wheel)
    return bin


@pytest.mark.extended
@pytest.mark.promise("SETUP-2")
def test_it_needs_what_it_declares_and_nothing_else(bin: Path) -> None:
    assert "No broken requirements" in call(bin / "python", "-m", "pip", "check")
    listed = call(bin / "python", "-m", "pip", "list", "--format", "freeze")
    names = {line.partition("==")[0].lower() for line in listed.splitlines()}
    lock = (ROOT / "requirements/runtime.txt").read_text()
    expected = set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)) | {"holdfast"}
    assert names - {"pip", "setuptools"} == expected


@pytest.mark.promise("SETUP-2")
def test_import_brings_no_driver_and_nothing_for_people(bin: Path) -> None:
    code = f"""
import sys
from importlib.util import find_spec
import holdfast
assert not [name for name in {DRIVERS} if find_spec(name)]
extra = {{"click", "rich", "platformdirs", *{DRIVERS}}} & set(sys.modules)
assert not extra, extra
"""
    call(bin / "python", "-I", "-c", code)


@pytest.mark.promise("SETUP-2")
def test_the_command_line_and_the_embedded_store_work(bin: Path, tmp_path: Path) -> None:
    assert "0.1.0" in call(bin / "holdfast", "--version")
    code = """
import holdfast
with holdfast.connect("sqlite:///jobs.db") as hf:
    orders = hf.queue("orders")
    sent = orders.enqueue({"id": 1})
    (lease,) = orders.lease()
    assert lease.message.payload == {"id": 1}
    orders.ack(lease)
    assert orders.stats().done == 1
"""
    call(bin / "python", "-I", "-c", code, cwd=tmp_path)
    assert "orders" in call(bin / "holdfast", "--url", "sqlite:///jobs.db", "stats", cwd=tmp_path)


@pytest.mark.promise("SETUP-2")
@pytest.mark.skipif(not HAS_DASHBOARD, reason=NOT_BUILT)
def test_the_dashboard_is_in_it(bin: Path) -> None:
    code = """
from pathlib import Path
import holdfast
static = Path(holdfast.__file__).parent / "server/static"
page = (static / "index.html").read_text()
scripts = [path.name for path in (static / "assets").glob("*.js")]
assert any(name in page for name in scripts), (page, scripts)
"""
    call(bin / "python", "-I", "-c", code)
