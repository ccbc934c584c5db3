"""A driver that tests kill: works a queue on Spark until it is told to stop, or dies where it is
told to.

    python driver.py '{"url": ..., "mode": "stream", "sink": ..., "checkpoint": ..., ...}'

A point to die at is "name:n", the n-th time it comes by. The process dies with all it started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

POISON = 100
"""Every so many-th message fails for ever; the one after it fails once."""


def die(point: str) -> None:
    """Called at every point; counts in files, for several processes share the points."""
    wanted, _, n = os.environ.get("DIE_AT", "").partition(":")
    if point != wanted:
        return
    count = os.environ["DIE_COUNT"]
    with open(count, "a") as file:
        file.write("x")
    if os.path.getsize(count) >= int(n):
        os.killpg(int(os.environ["DIE_GROUP"]), signal.SIGKILL)


def poison(n: int, attempt: int) -> dict[str, int]:
    """The handler: the same for every mode that has one."""
    if n % POISON == 0:
        raise ValueError(f"never {n}")
    if n % POISON == 1 and attempt == 1:
        raise ValueError(f"not yet {n}")
    return {"n": n}


def main(told: dict[str, Any]) -> None:
    os.environ["DIE_GROUP"] = str(os.getpgid(0))
    os.environ["DIE_AT"] = told.get("die_at", "")
    os.environ["DIE_COUNT"] = told["checkpoint"] + ".deaths"
    import killing

    from holdfast.spark.sessions import session

    conf = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
    spark = session("driver", told.get("master", "local[2]"), conf)
    spark.dataSource.register(killing.KillingSource)
    if told["mode"] == "stream":
        query = stream(spark, told)
    else:
        query = handlers(spark, told)
    signal.signal(signal.SIGTERM, lambda *_: query.stop())
    print("started", flush=True)
    query.awaitTermination()


def stream(spark: Any, told: dict[str, Any]) -> Any:
    source = (
        spark.readStream.format("holdfast")
        .option("url", told["url"])
        .option("queue", told["queue"])
        .option("maxMessagesPerTrigger", told["max"])
        .load()
    )
    return (
        source.writeStream.format("parquet")
        .option("path", told["sink"])
        .option("checkpointLocation", told["checkpoint"])
        .start()
    )


def handlers(spark: Any, told: dict[str, Any]) -> Any:
    import killing

    import holdfast
    from holdfast import spark as hs

    hf = holdfast.connect(told["url"])
    hf.handler(told["queue"])(killing.handler)
    killing.arm_runner()
    return hs.run(
        hf,
        told["queue"],
        sink=told["sink"],
        checkpoint=told["checkpoint"],
        spark=spark,
        max_messages=told["max"],
        wait=False,
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
