"""One session and one query, then a line. python -m bench.spark.start_run plain|holdfast

Imports nothing of the benchmark: that would be in the time.
"""

from __future__ import annotations

import sys

MASTER = "local[2]"

if sys.argv[1] == "plain":
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(MASTER).getOrCreate()
else:
    from holdfast.spark import session

    spark = session("bench-start", MASTER)

assert spark.range(1).count() == 1
print("answered", flush=True)
spark.stop()
