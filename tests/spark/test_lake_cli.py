"""`holdfast spark archive, report, redrive, copy`: one after the other, in one program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.spark.lakes import send, shop, work

PROGRAM = """
import json, sys
from holdfast.cli import root
for words in json.loads(sys.argv[1]):
    try:
        root.main(words, prog_name="holdfast")
    except SystemExit as end:
        print(f"exit {end.code}", flush=True)
"""


def ran(tmp_path: Path, commands: list[list[str]]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
    )
    noise = ("WARN", "Setting default", "To adjust", "Using", "WARNING", "22:", "23:")
    return [line for line in done.stdout.splitlines() if not _noise(line, noise)]


def _noise(line: str, noise: tuple[str, ...]) -> bool:
    return not line.strip() or line.startswith(noise) or " WARN " in line


@pytest.mark.extended
@pytest.mark.promise("SPARK-7", "SPARK-8")
def test_the_lake_from_the_command_line(tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path}/jobs.db", f"sqlite:///{tmp_path}/other.db"
    with holdfast.connect(url) as hf:
        queue = shop(hf)
        send(queue, 100)
        work(queue)
        lake, master = str(tmp_path / "lake"), ["--master", "local[2]"]
        redrive = ["spark", "redrive", "orders.dlq", "--receipt", str(tmp_path / "r"), *master]
        where = ["--where", "parsed:n::int < 50", "--edit", "to_json(named_struct('n', 1))"]
        lines = ran(
            tmp_path,
            [
                ["--url", url, "spark", "archive", lake, *master],
                ["--url", url, "spark", "report", lake, "--title", "A day", *master],
                ["spark", "report", lake, "--json", *master],
                ["--url", url, *redrive, "--where", "no such thing"],
                ["--url", url, *redrive, *where],
                ["--url", url, "spark", "copy", target, "--queue", "orders", *master],
                ["--url", url, "spark", "archive", lake, "--forget", *master],
                ["--url", url, "spark", "report", str(tmp_path / "none"), *master],
            ],
        )
        codes = [line for line in lines if line.startswith("exit")]
        assert codes == [f"exit {code}" for code in (0, 0, 0, 2, 0, 0, 0, 2)], lines
        said = [line for line in lines if not line.startswith("exit")]
        assert said[0] == f"added 90 rows of the log, 10 dead letters; {lake} holds 90 rows"
        assert said[1] == "90 messages done, 10 died, 2 kinds of failure, 0 storms"
        assert Path(said[2]).read_text().count("A day") == 2
        told: dict[str, Any] = json.loads(said[3])
        assert (told["rows"], told["done"], told["dead"]) == (100, 90, 10)
        assert "--where" in said[4] and said[4].startswith("error:")
        assert "redrove 5 messages of orders.dlq to orders" in said
        copied = "copied 1 queue: 5 waiting, 5 dead, 90 in the log; equal on both sides"
        assert copied in said
        assert any(line.startswith("retention no longer waits") for line in said)
        assert "holds no archive" in said[-1] or "holds no archive" in said[-2]
        assert {m.message.payload["n"] for m in queue.browse()} == {1}
        assert len(hf.store.records("report")) == 1
        assert not hf.store.records("archive")
