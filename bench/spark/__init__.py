"""The queue on Spark, beside what Spark brings itself: `script/bench --spark`."""
