"""gRPC as others speak it: by stubs that protoc made from our file, without a line of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grpc_tools import protoc

import holdfast
from tests.server.rig import serving

HERE = Path(__file__).parent
FILE = HERE.parents[1] / "src/holdfast/wire/holdfast.proto"
SERVING = 1


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client saw. It is a program of its own: stubs and server name the same messages."""
    folder = tmp_path_factory.mktemp("stubs")
    options = [f"-I{FILE.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", *options, FILE.name]) == 0
    with (
        holdfast.connect(f"sqlite:///{folder}/test.db") as hf,
        serving(hf) as doors,
    ):
        client = [sys.executable, HERE / "plain_client.py", doors.grpc.removeprefix("grpc://")]
        done = subprocess.run(
            client,
            env={"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.promise("SERVER-2")
def test_a_message_from_end_to_end(seen: dict[str, Any]) -> None:
    assert seen["in force"] == [2, 0.0, True]
    assert seen["sent"] == ["orders", 0, False, False]
    assert seen["refused"].startswith("INVALID_ARGUMENT payload: is missing")
    assert seen["leased"] == [["null", ""], ['{"id": 1}', ""], ["", "00ff"]]
    assert seen["carried"] == ["k", {"h": "x"}]
    assert seen["settled"] == ["applied"] * 3
    assert seen["again"] == [2, "nacked"]
    assert seen["longer"] is True
    assert seen["stale"].startswith("ABORTED")
    assert seen["stats"] == [0, 0, 1, 2, False]


@pytest.mark.promise("DEAD-8", "SERVER-2")
def test_the_errors_of_a_redrive_are_statuses(seen: dict[str, Any]) -> None:
    assert seen["redrive errors"] == [
        "INVALID_ARGUMENT dlq: name a dead-letter queue, not ''",
        "NOT_FOUND no queue 'nowhere'",
        "NOT_FOUND no queue 'nowhere.dlq'",
        "INVALID_ARGUMENT dlq: 'orders' is not a dead-letter queue; did you mean orders.dlq?",
        "FAILED_PRECONDITION lone.dlq: its queue 'lone' is gone; create it first",
    ]
    assert seen["redriven"] == [0, 1, 0]


@pytest.mark.promise("SERVER-1")
def test_health_and_reflection(seen: dict[str, Any]) -> None:
    ours = ["holdfast.v1.AdminService", "holdfast.v1.MessageService"]
    assert seen["health"] == dict.fromkeys(["", *ours], SERVING)
    others = ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    assert seen["services"] == sorted([*ours, *others])
