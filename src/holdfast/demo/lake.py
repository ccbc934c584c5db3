"""The last act: the day's orders on Spark, into Parquet, every row with its own retry."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import Backoff, Queue
from holdfast.demo import plan, shop
from holdfast.demo.screen import Screen
from holdfast.demo.shop import NoSuchRate, Order, hf
from holdfast.demo.story import Stuck

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = 3000
BATCH = 1000
PATIENCE_S = 120.0
SCHEMA = "number long, country string, item string, cents long, charged long"
Row = dict[str, Any]


def enriching(vat: dict[str, int]) -> Callable[[Order], Row]:
    """What runs on the executors, with the rates of its release."""

    def enrich(order: Order) -> Row:
        if order.country not in vat:
            raise NoSuchRate(f"no VAT rate for {order.country}")
        charged = order.cents * (1000 + vat[order.country]) // 1000
        return {
            "number": order.number,
            "country": order.country,
            "item": order.item,
            "cents": order.cents,
            "charged": charged,
        }

    return enrich


def tell(screen: Screen, folder: Path, page: Path) -> bool:
    """Run it and check it; whether every number fits. `page`: where to leave the day's report."""
    from holdfast import spark as hs

    todo = [plan.order(number) for number in range(1, ORDERS + 1)]
    screen.act(f"{ORDERS} orders go through Spark, into Parquet")
    began = time.monotonic()
    spark = hs.session(app="holdfast-demo", master="local[2]")
    screen.say(f"A session on two cores, no jar beside PySpark: {time.monotonic() - began:.1f} s.")
    try:
        lake = hf.queue("lake", max_attempts=2, backoff=Backoff(base=0.05))
        lake.enqueue_many(todo)
        dead = _first_release(screen, spark, lake, folder)
        _second_release(screen, spark, lake, folder)
        fits = _add_up(screen, spark, lake, folder, todo, dead)
        return _report(screen, spark, folder, page) and fits
    finally:
        spark.stop()


def _report(screen: Screen, spark: SparkSession, folder: Path, page: Path) -> bool:
    """What the shop's queues did, all day: archived, and looked at."""
    from holdfast import spark as hs

    began = time.monotonic()
    archive = str(folder / "archive")
    added = hs.archive(hf, archive, spark=spark)
    made = hs.report(archive, hf=hf, title="A shop's worst day", spark=spark)
    hs.forget(hf, archive, spark)
    said = made.summary
    screen.say(
        f"The log of the day is archived and reported: {said['done']} done, {said['dead']} died, "
        f"{said['failure_groups']} kinds of failure, {said['amplification']:.2f} deliveries for "
        f"each that was done: {time.monotonic() - began:.1f} s."
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_bytes(Path(made.page.removeprefix("file:")).read_bytes())
    screen.say(f"Its page: {page}")
    found, wanted = (said["done"], said["dead"]), (added.log, added.dead)
    screen.check(
        "the report has all of the log", ok=found == wanted, wrong=f"{found}, not {wanted}"
    )
    return found == wanted


def _first_release(screen: Screen, spark: SparkSession, lake: Queue, folder: Path) -> int:
    rates = {country: rate for country, rate in shop.VAT.items() if country != "LI"}
    with screen.live(lambda: screen.depth(lake.stats(), [])):
        took = _work(spark, lake, folder, rates)
    stats = lake.stats()
    screen.say(
        f"{stats.done} enriched, in batches of {BATCH}, {took:.1f} s. {stats.dead} rows failed "
        "twice and are dead letters; not one of them held up its batch."
    )
    (letter, *_) = lake.dlq.browse()
    screen.lines([f"{letter.message.id}: {error.message}" for error in letter.message.errors])
    return stats.dead


def _second_release(screen: Screen, spark: SparkSession, lake: Queue, folder: Path) -> None:
    redriven = hf.redrive("lake.dlq").redriven
    with screen.live(lambda: screen.depth(lake.stats(), [])):
        took = _work(spark, lake, folder, {**shop.VAT, "LI": 81})
    screen.say(
        f"The rate is added, {redriven} rows are redriven, the stream goes on where it was "
        f"(the same checkpoint): {took:.1f} s."
    )


def _work(spark: SparkSession, lake: Queue, folder: Path, vat: dict[str, int]) -> float:
    """Until the queue is empty; how long that took."""
    from holdfast import spark as hs

    began = time.monotonic()
    enrich = hs.transform(hf, lake.name, schema=SCHEMA)(enriching(vat))
    query = enrich.run(
        sink=str(folder / "lake"),
        checkpoint=str(folder / "checkpoint"),
        spark=spark,
        max_messages=BATCH,
        wait=False,
    )
    try:
        while (stats := lake.stats()).ready or stats.delayed or stats.leased:
            failed = query.exception()
            if failed is not None:
                raise failed
            if time.monotonic() - began > PATIENCE_S:
                raise Stuck(f"Spark did not empty the queue in {PATIENCE_S:.0f} s: {stats}")
            time.sleep(0.05)
    finally:
        query.stop()
    return time.monotonic() - began


def _add_up(
    screen: Screen, spark: SparkSession, lake: Queue, folder: Path, todo: list[Order], dead: int
) -> bool:
    rows: DataFrame = spark.read.parquet(str(folder / "lake"))
    rows.createOrReplaceTempView("lake")
    report = spark.sql(
        "SELECT country, count(*) AS orders, sum(charged) AS charged FROM lake "
        "GROUP BY country ORDER BY country"
    ).collect()
    screen.table(
        ("country", "orders", "charged"),
        [(row.country, f"{row.orders}", f"{row.charged / 100:,.2f}") for row in report],
        right=(1, 2),
    )
    enrich = enriching({**shop.VAT, "LI": 81})
    expected = sum(enrich(order)["charged"] for order in todo)
    numbers = sorted(row.number for row in rows.select("number").collect())
    log = (
        spark.read.format("holdfast")
        .option("url", hf.url or "")
        .option("queue", lake.name)
        .option("view", "log")
        .load()
    )
    stats = lake.stats()
    left = stats.ready + stats.delayed + stats.leased + stats.dead
    checks = [
        ("every order is in the lake, once", numbers, [order.number for order in todo]),
        ("the sum that was charged", sum(row.charged for row in report), expected),
        ("as many died as had no rate", dead, sum(order.country == "LI" for order in todo)),
        ("the log, read with Spark, has each of them", log.count(), ORDERS),
        ("nothing is left in the queue", left, 0),
    ]
    for what, found, wanted in checks:
        wrong = f"{str(found)[:60]}, not {str(wanted)[:60]}"
        screen.check(what, ok=found == wanted, wrong=wrong)
    return all(found == wanted for _, found, wanted in checks)
