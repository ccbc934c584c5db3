"""A driver that runs handlers dies between the steps of a batch: each ends once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.rig import RUN_POINTS, Rig, each_once, rig_of, share

__all__ = ["rig_of", "share"]  # the fixtures


@pytest.mark.extended
@pytest.mark.promise("SPARK-1", "SPARK-2", "SPARK-5")
def test_handlers_whose_driver_dies_between_the_steps_of_a_batch(
    rig_of: Callable[..., Rig], spark: Any, share: slice
) -> None:
    rig = rig_of("handlers")
    points = RUN_POINTS[share]
    for point in points:
        rig.send(500)
        rig.start(point)
        rig.wait_for_death()
    rig.start()
    rig.wait_until(rig.is_empty)
    rig.stop()
    each_once(spark, rig, dead=5 * len(points))
    for entry in rig.queue.dlq.browse():
        message = entry.message
        assert message.attempts == 3
        assert {error.message for error in message.errors} == {f"never {message.payload}"}
