"""Every example of docs/cli.md, run from top to bottom, prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

# What differs from run to run, and the word that stands for it.
VARYING = [
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\b[0-9a-f]{16}\.\d+\.\d+", "TOKEN"),
    (r"\bhf_[a-z2-7]{12}_[\w-]{43}", "KEY"),
    (r"\b[a-z2-7]{12}\b", "KEY_ID"),  # and any word that long, on both sides
    (r"\b\d{13}\b", "MS"),
    (r'"oldest_age_ms":\d+', '"oldest_age_ms":N'),
    (r"[\w.-]+:\d+:[0-9a-f]{6}", "WORKER"),
    (r"[\w.-]+@[\w.-]+", "ME"),
    (r"\[\d+\]", "[PID]"),
    (r"\bnow\b|\b\d+ (s|min|h) ago\b|\bin \d+ (s|min|h)\b", "AGO"),
    (r"\d+(\.\d+)? (ms|s)\b", "LENGTH"),
    (r"\d+(\.\d+)? (bytes|[kMGT]B)\b", "SIZE"),
    (r"\d+\.\d+\.\d+", "VERSION"),
    (r"\b(schema|version) \d+", "SCHEMA"),
    (r" {2,}", "  "),
]


def examples(page: str) -> list[tuple[str, str]]:
    """Each command with what it is said to print."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def run(command: str, folder: Path) -> str:
    """As a user would see it, with `holdfast` on the path and a store in the folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOLDFAST_URL": "sqlite:///jobs.db"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    ).stdout


def write_files(page: str, folder: Path) -> None:
    """Python blocks that open with a file's name."""
    for name, text in re.findall(
        r"^```python\n# (\w+\.py)\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ):
        (folder / name).write_text(text)


def steady(output: str) -> list[str]:
    for pattern, word in VARYING:
        output = re.sub(pattern, word, output)
    return sorted(output.splitlines())  # threads log in no order


def test_the_examples_are_true(tmp_path: Path) -> None:
    page = PAGE.read_text()
    write_files(page, tmp_path)
    found = examples(page)
    assert len(found) > 40
    for command, said in found:
        assert (command, steady(run(command, tmp_path))) == (command, steady(said))


def test_every_command_is_on_the_page() -> None:
    from holdfast.cli import root

    page = PAGE.read_text()
    for name, command in root.commands.items():
        subcommands = getattr(command, "commands", {"": None})
        for words in (f"{name} {sub}".strip() for sub in subcommands):
            assert re.search(rf"holdfast {words}\b|`{words}\b", page), words
