"""Executors in processes of their own: handlers of a script and of modules beside it reach them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Outgoing
from servers import spark as servers_spark

BESIDE = """
from __future__ import annotations
import msgspec

class Order(msgspec.Struct):
    n: int

def count(order: Order) -> dict[str, int]:
    if order.n % 100 == 0:
        raise ValueError(f"never {order.n}")
    return {"n": order.n}
"""
PROGRAM = """
from __future__ import annotations
import json, os, sys
import beside
import holdfast
from holdfast import spark as hs

def own(order: dict[str, int], attempt: int) -> str:
    if order["n"] % 100 == 1 and attempt == 1:
        raise ValueError("not yet")
    return os.environ["SPARK_EXECUTOR_DIRS"]

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    options = os.environ["SPARK_SUBMIT_OPTS"]
    conf = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": options}
    spark = hs.session("cluster", told["master"], conf)
    hf = holdfast.connect(told["url"])
    hf.handler("orders", type="beside")(beside.count)
    hf.handler("orders", type="own")(own)
    for executor in ("process", "thread"):  # the second has what failed at first
        hs.run(
            hf, "orders", checkpoint=told["checkpoint"], sink=told["sink"], spark=spark,
            executor=executor, until_empty=True,
        )
    spark.stop()
"""


@pytest.mark.extended
@pytest.mark.promise("SPARK-5", "SPARK-9")
@pytest.mark.parametrize(
    "kind", [pytest.param("local-cluster", marks=pytest.mark.soak), "standalone"]
)
def test_handlers_run_on_executors(kind: str, postgres_url: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    # Each cluster with another store: both work from processes that only know an address.
    url = postgres_url if kind == "standalone" else f"sqlite:///{tmp_path}/test.db"
    backoff = Backoff(base=0, max=0)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text(BESIDE)
    with holdfast.connect(url) as hf:
        queue = hf.queue("orders", max_attempts=2, backoff=backoff)
        kinds = ("beside", "own")
        sent = queue.enqueue_many(Outgoing({"n": n}, type=kinds[n % 2]) for n in range(500))
        told: dict[str, Any] = {
            "url": url,
            "sink": str(tmp_path / "sink"),
            "checkpoint": str(tmp_path / "c"),
        }
        cluster = (
            servers_spark.standalone(workers=2, cores=1, memory="600m")
            if kind == "standalone"
            else nullcontext("local-cluster[2,1,1024]")
        )
        with cluster as master:
            ran = subprocess.run(
                [sys.executable, "program.py", json.dumps({**told, "master": master})],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=240,
            )
        assert ran.returncode == 0, ran.stderr[-6000:]
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased) == (0, 0, 0)
        bad = {message.id for n, message in enumerate(sent) if n % 100 == 0}
        letters = {entry.message.id: entry.message.errors for entry in queue.dlq.browse()}
        assert {id: [error.code for error in errors] for id, errors in letters.items()} == {
            id: ["ValueError"] * 2 for id in bad
        }
        logged = {finished.message.id: finished.result for finished in queue.log()}
        rows = pq.read_table(told["sink"]).to_pylist()
        assert Counter(row["id"] for row in rows) == Counter(m.id for m in sent if m.id not in bad)
        assert {row["id"]: json.loads(row["result"]) for row in rows} == logged
        executors = {logged[m.id] for n, m in enumerate(sent) if n % 2}
        assert executors and all(isinstance(name, str) for name in executors)
        assert {logged[m.id]["n"] for n, m in enumerate(sent) if not n % 2 and m.id not in bad} == {
            n for n in range(0, 500, 2) if n % 100
        }


TRAVELS = """
from __future__ import annotations
import dataclasses, subprocess, sys
import msgspec
from holdfast.work.handlers import Handler
from holdfast.model.message import Lease, Message
from holdfast.model.policy import DEFAULTS
from holdfast.spark import pickling
from holdfast.spark.plan import Plan

@dataclasses.dataclass
class Data:
    n: int

class Struct(msgspec.Struct):
    n: int

def data(order: Data) -> int:
    return order.n

def struct(order: Struct) -> int:
    return order.n

THERE = "import sys; from holdfast.spark.pickling import load_plan; print(load_plan(sys.argv[1])())"

def call(plan):
    message = Message("", "q", 0, 0, None, None, b'{"n": 7}', "application/json", {}, 0, 0, 1)
    handler = plan.handlers[0]
    return handler.function(*handler.arguments(Lease(message, "", 0, 0, "")))

if __name__ == "__main__":
    handler = Handler(globals()[sys.argv[1]], "q", None, None, None)
    handler.prepare()
    plan = Plan(DEFAULTS, handlers=[handler.portable()])
    text = pickling.dump_plan(lambda: call(plan))
    subprocess.run([sys.executable, "-c", THERE, text], check=True)
"""


@pytest.mark.extended
@pytest.mark.promise("SPARK-5")
@pytest.mark.parametrize("kind", ["data", "struct"])
def test_types_of_the_script_travel_with_its_handlers(kind: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAVELS)
    ran = subprocess.run(
        [sys.executable, "program.py", kind], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.stdout == "7\n", ran.stderr[-2000:]
