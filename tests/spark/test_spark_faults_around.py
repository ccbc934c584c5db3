"""Executors die by kill -9, stores go away, everything at random: the sink holds each once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from servers.postgres import PostgresServer, running
from tests.spark.rig import Rig, competing, each_once, rig_of

__all__ = ["rig_of"]  # the fixture


@pytest.mark.soak
@pytest.mark.promise("SPARK-1")
@pytest.mark.parametrize("mode", ["stream", "handlers"])
def test_twenty_thousand_messages_and_fifteen_kills(
    rig_of: Callable[..., Rig], spark: Any, mode: str
) -> None:
    rig = rig_of(mode, max=1500)
    rng = random.Random(15)
    with competing(rig) if mode == "stream" else ExitStack():
        for _ in range(15):
            rig.send(1200)
            before = rig.runs()
            rig.start()
            rig.wait_until(lambda before=before: rig.runs() > before)
            time.sleep(rng.uniform(0.0, 4.0))  # anywhere in what it does
            rig.kill()
        rig.send(2000)
        rig.start()
        rig.wait_until(rig.is_empty)
        rig.stop()
    each_once(spark, rig, dead=0 if mode == "stream" else 200)


def executors_of(driver: int) -> list[int]:
    """The executors that a driver on local-cluster started, by their command lines."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                group = os.getpgid(int(folder.name))
                if b"CoarseGrainedExecutorBackend" in command and group == driver:
                    found.append(int(folder.name))
    return found


@pytest.mark.extended
@pytest.mark.promise("SPARK-1", "SPARK-9")
def test_an_executor_that_dies(postgres_url: str, tmp_path: Path, spark: Any) -> None:
    rig = Rig(postgres_url, tmp_path, "stream", master="local-cluster[2,1,1024]", max=1000)
    try:
        rig.send(1000)
        rig.start()
        rig.wait_until(lambda: rig.queue.stats().done >= 1000)
        for _ in range(3):
            rig.send(2000)
            done = rig.queue.stats().done
            rig.wait_until(lambda: rig.queue.stats().leased > 0)
            victims = executors_of(rig.driver.pid if rig.driver else 0)
            assert victims
            os.kill(victims[0], signal.SIGKILL)
            rig.wait_until(lambda done=done: rig.queue.stats().done >= done + 2000)
        rig.wait_until(rig.is_empty)
        rig.stop()
        each_once(spark, rig)
    finally:
        rig.kill()
        rig.hf.close()


@pytest.mark.extended
@pytest.mark.promise("SPARK-1")
def test_a_postgres_that_is_restarted(tmp_path: Path, spark: Any) -> None:
    with running(settings={"fsync": "off"}) as server:
        assert isinstance(server, PostgresServer)
        rig = Rig(server.url, tmp_path, "stream", max=1000)
        try:
            rig.send(500)
            rig.start()
            rig.wait_until(lambda: rig.queue.stats().done >= 500)
            for _ in range(3):
                rig.send(3000)
                rig.wait_until(lambda: rig.queue.stats().leased > 0)
                server.kill()
                server.start()
            rig.wait_until(lambda: _empty_now(rig.hf, rig))
            rig.stop()
            each_once(spark, rig)
        finally:
            rig.kill()
            rig.hf.close()


def _empty_now(hf: Holdfast, rig: Rig) -> bool:
    with suppress(holdfast.StoreUnavailable):
        return rig.is_empty()
    return False
