"""All of the lake on a cluster of processes, one step after the other; tests kill executors of it.

python lake_cluster.py '{"url": ..., "target": ..., "folder": ..., "rate": 500}'
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def fix(message: Any) -> Any:
    return {**message.payload, "fixed": True}


def main(told: dict[str, Any]) -> None:
    import holdfast
    from holdfast import spark as hs

    options = os.environ["SPARK_SUBMIT_OPTS"]
    conf = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": options}
    spark = hs.session("lake-cluster", "local-cluster[2,1,1024]", conf)
    hf = holdfast.connect(told["url"])
    lake = f"{told['folder']}/lake"
    archived = hs.archive(hf, lake, spark=spark)
    made = hs.report(lake, spark=spark)
    assert made.rows == archived.log + archived.dead, (made.rows, archived)
    dead = hs.triage(hf, "orders.dlq", spark=spark).where("cause LIKE 'no rate%'")
    receipt = f"{told['folder']}/receipt"
    done = hs.redrive(dead, edit=fix, rate=told["rate"], tasks=2, receipt=receipt)
    print(json.dumps({"redriven": done.redriven, "total": done.total}), flush=True)
    copied = hs.copy(hf, told["target"], ["orders"], spark=spark)
    print(json.dumps({"copied": sum(one.count for one in copied.sums)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
