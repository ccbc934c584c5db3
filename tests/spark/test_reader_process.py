"""The process in which Spark keeps a stream's reader, with this test in the place of the JVM."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.serializers import CloudPickleSerializer, read_int, write_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as runner

import holdfast
from holdfast.spark import columns
from holdfast.spark.source import RUNNER, HoldfastSource

WITHIN_S = 60


@pytest.mark.parametrize("asked", [None, runner.INITIAL_OFFSET_FUNC_ID])
def test_it_says_nothing_when_spark_is_gone(tmp_path: Path, asked: int | None) -> None:
    """Spark closes its socket and kills it; what it printed of that stood on a user's terminal,
    whole or cut off."""
    url, where = f"sqlite:///{tmp_path}/test.db", str(tmp_path / "socket")
    with holdfast.connect(url) as hf:
        hf.queue("orders")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(where)
        listening.listen()
        listening.settimeout(WITHIN_S)
        process = subprocess.Popen(
            [sys.executable, "-m", RUNNER],
            env={**os.environ, "PYTHON_WORKER_FACTORY_SOCK_PATH": where},
            stderr=subprocess.PIPE,
            text=True,
        )
        with listening.accept()[0] as jvm, jvm.makefile("rwb") as wire:
            assert read_int(wire) == process.pid
            write_with_length(b"%d.%d" % sys.version_info[:2], wire)
            write_with_length(str(tmp_path).encode(), wire)
            write_int(0, wire)  # no files of Python's
            source = HoldfastSource({"url": url, "queue": "orders"})
            write_with_length(CloudPickleSerializer().dumps(source), wire)
            write_with_length(columns.SCHEMAS["ready"].json().encode(), wire)
            write_int(1000, wire)
            wire.flush()
            assert read_int(wire) == 0, "it has a reader"
            if asked is not None:
                write_int(asked, wire)
    _, said = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, said) == (1, "")
