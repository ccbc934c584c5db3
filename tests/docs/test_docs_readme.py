"""The README's code runs as printed."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
STOP_JOBS = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
"""Else a server in the background outlives a command that fails, and keeps the pipes open."""


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of one language: the line each begins at, and its text."""
    tokens = MarkdownIt().parse(page.read_text())
    return [
        (token.map[0] + 1, token.content)
        for token in tokens
        if token.type == "fence" and token.info == language and token.map
    ]


def need_curl() -> None:
    """A curl that knows --json, and jq. Without them: skipped at home, failed in CI."""
    found = shutil.which("jq") and shutil.which("curl")
    said = subprocess.run(["curl", "--help", "all"], capture_output=True).stdout if found else b""
    if b"--json" in said:
        return
    reason = "the HTTP examples need curl 7.82 or later, and jq: apt-get install curl jq"
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


def on_free_ports(text: str) -> str:
    """Where a server is started by default there may be one already."""
    with socket.create_server(("127.0.0.1", 0)) as http:
        port = http.getsockname()[1]
    told = text.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    return told.replace("holdfast serve", f"holdfast serve --http 127.0.0.1:{port} --no-grpc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTEST_"))}
    return {**clean, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def printed(folder: Path, environment: dict[str, str]) -> str:
    """Every Python block, one after the other, in one process; lines keep their numbers."""
    lines = [""] * README.read_text().count("\n")
    for start, text in blocks(README, "python"):
        lines[start : start + text.count("\n")] = text.splitlines()
    script = folder / "readme.py"
    script.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_blocks_run(printed: str) -> None:
    assert "shipping order 1\n1 done\n" in printed
    assert "['applied', 'applied', 'applied', 'applied']" in printed


@pytest.mark.usefixtures("printed")
def test_the_shell_blocks_run(folder: Path, environment: dict[str, str]) -> None:
    found = [(start, on_free_ports(text)) for start, text in blocks(README, "sh")]
    assert found
    for start, text in found:
        if "curl" in text:
            need_curl()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", STOP_JOBS + text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"README.md:{start}: {done.stderr}"
