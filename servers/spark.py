"""A Spark cluster of our own on loopback: a master and workers from the pip package."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from servers import base, spark_classes
from servers.base import HOST, Missing, free_port, skipping

START_S = 120.0
STOP_S = 15.0
DEPLOY = "org.apache.spark.deploy"


class Cluster:
    """A master and its workers, each in a process group of its own, with its executors."""

    def __init__(self, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.folder = Path(mkdtemp(prefix="holdfast-spark-"))
        self.workers = workers
        self.cores = cores
        self.memory = memory
        self.url = f"spark://{HOST}:{free_port()}"
        self._web = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._env = _environment()

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        ports = ["--port", port, "--webui-port", str(self._web)]
        self._spawn("master", f"{DEPLOY}.master.Master", "--host", HOST, *ports)
        self._wait_for_workers(0)
        for number in range(self.workers):
            self.start_worker(number)
        self._wait_for_workers(self.workers)

    def start_worker(self, number: int) -> None:
        size = ["--cores", str(self.cores), "--memory", self.memory]
        where = ["--host", HOST, "--work-dir", str(self.folder / f"work-{number}")]
        ports = ["--webui-port", str(free_port())]
        self._spawn(f"worker-{number}", f"{DEPLOY}.worker.Worker", *where, *size, *ports, self.url)

    def kill_worker(self, number: int) -> None:
        """SIGKILL to the worker and its executors, as a machine that goes down."""
        self._end(self._processes.pop(f"worker-{number}"), signal.SIGKILL)

    def close(self) -> None:
        for name in sorted(self._processes, reverse=True):  # workers before their master
            self._end(self._processes[name], signal.SIGTERM)
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text()[-4000:] if path.exists() else ""

    def _spawn(self, name: str, *command: str) -> None:
        program = Path(self._env["SPARK_HOME"], "bin/spark-class")
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(program), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def _wait_for_workers(self, count: int) -> None:
        until = time.monotonic() + START_S
        while self._registered() < count:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise Missing(f"{name} ended:\n{self.log(name)}")
            if time.monotonic() > until:
                raise Missing(f"not ready after {START_S:.0f} s:\n{self.log('master')}")
            time.sleep(0.1)

    def _registered(self) -> int:
        """How many workers the master knows; -1 while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web}/json/", timeout=5) as answer:
                return json.load(answer)["aliveworkers"]
        except (OSError, ValueError):
            return -1

    def _end(self, process: subprocess.Popen[bytes], how: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with suppress(ProcessLookupError):  # an executor that outlived its worker, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def standalone(workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[str]:
    """The URL of a master, for a fixture."""
    with base.running(lambda: Cluster(workers=workers, cores=cores, memory=memory)) as cluster:
        yield cluster.url


def _environment() -> dict[str, str]:
    try:
        import pyspark

        from holdfast.spark.java import NoJava, find_java
    except ImportError as error:
        raise Missing("no Spark here: pip install 'holdfast[spark]'") from error
    try:
        java = find_java()
    except NoJava as error:
        raise Missing(str(error)) from error
    return {
        **os.environ,
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": spark_classes.options(),
    }


def need_java() -> None:
    """For fixtures: skip without a Java that Spark can use."""
    from holdfast.spark.java import NoJava, find_java

    with skipping():
        try:
            find_java()
        except NoJava as missing:
            raise Missing(str(missing)) from missing
