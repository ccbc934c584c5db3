"""A cluster with executors in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from servers import spark as servers_spark

PROGRAM = """
import json, os, sys
from holdfast.spark.sessions import session
options = os.environ["SPARK_SUBMIT_OPTS"]
conf = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": options}
spark = session(master=sys.argv[1], conf=conf)
import beside
from pyspark import BarrierTaskContext

def work(rows):
    BarrierTaskContext.get().barrier()  # both at once, so on two executors of one core each
    yield os.environ["SPARK_EXECUTOR_DIRS"], sum(beside.one(row) for row in rows)

seen = spark.sparkContext.parallelize(range(1000), 2).barrier().mapPartitions(work).collect()
print(json.dumps(seen))
spark.stop()
"""


@pytest.mark.extended
def test_a_session_counts_on_two_executors(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("def one(row):\n    return 1\n")
    with servers_spark.standalone(workers=2, cores=1, memory="600m") as url:
        done = subprocess.run(
            [sys.executable, "program.py", url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert sum(count for _, count in seen) == 1000
    assert len({executor for executor, _ in seen}) == 2
