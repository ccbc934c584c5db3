"""The source of Holdfast, with points to die at. Imported by name in every process of Spark's."""

from __future__ import annotations

from typing import Any

from driver import die, poison

from holdfast.spark import options
from holdfast.spark.source import HoldfastSource, StreamReader
from holdfast.work.ledger import batches


class KillingSource(HoldfastSource):
    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def streamReader(self, schema: Any) -> StreamReader:
        return KillingReader(options.parse(self.options, options.STREAM), schema)


class KillingReader(StreamReader):
    def latestOffset(self, start: dict, limit: Any) -> dict:
        arm_batches()
        if start["batch"]:
            die("before-settle")
        end = super().latestOffset(start, limit)
        if end != start:
            die("after-reserve")
        return end

    def partitions(self, start: dict, end: dict) -> Any:
        die("before-seal")
        parts = super().partitions(start, end)
        die("after-seal")
        return parts

    def read(self, partition: Any) -> Any:
        for batch in super().read(partition):
            yield batch
            die("in-read")


def handler(n: int, attempt: int) -> dict[str, int]:
    return poison(n, attempt)


_finish = batches.finish


def arm_batches() -> None:
    """In the process of the reader: die when everything is acked, and not yet written down."""

    def finish(at: Any, query: Any) -> None:
        _finish(at, query)
        die("in-settle")

    batches.finish = finish


def arm_runner() -> None:
    """On the driver: die between the steps of a batch."""
    from holdfast.spark import runner

    deliver, judge = runner._Query._deliver, runner._Query._judge

    def _deliver(self: Any, *args: Any) -> None:
        die("after-stage")
        deliver(self, *args)
        die("after-sink")

    def _judge(self: Any, *args: Any) -> None:
        judge(self, *args)
        die("after-publish")

    runner._Query._deliver = _deliver
    runner._Query._judge = _judge
