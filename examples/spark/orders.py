"""Orders into Parquet on Spark: a bad row is retried and dead-lettered, the others arrive.

    pip install 'holdfast[spark]'
    python examples/spark/orders.py

Runs on this machine, with a SQLite file, and leaves nothing behind.
"""

import tempfile

import holdfast
from holdfast import spark as hs


def main(folder: str) -> None:
    url = f"sqlite:///{folder}/jobs.db"
    hf = holdfast.connect(url)
    orders = hf.queue("orders", max_attempts=2, backoff=holdfast.Backoff(base=0))
    orders.enqueue_many([{"id": n, "cents": 100 * n} for n in range(1, 100)])
    orders.enqueue({"id": 100})  # has no price

    @hs.transform(hf, "orders", schema="order_id long, total double")
    def priced(order: dict):
        return {"order_id": order["id"], "total": order["cents"] / 100}

    spark = hs.session(app="orders", master="local[2]")
    for _ in range(2):  # the second run tries what failed in the first
        priced.run(
            sink=f"{folder}/lake", checkpoint=f"{folder}/checkpoint", spark=spark, until_empty=True
        )

    lake = spark.read.parquet(f"{folder}/lake")
    print(lake.count(), "orders in the lake")
    dead = (
        spark.read.format("holdfast")
        .option("url", url)
        .option("queue", "orders")
        .option("view", "dead")
        .load()
    )
    for row in dead.select("payload", "error_code", "attempts").collect():
        print("dead:", row.payload, row.error_code, "after", row.attempts, "attempts")
    spark.stop()
    hf.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
