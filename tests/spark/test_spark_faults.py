"""A driver dies by kill -9 at every point of a batch: the sink holds each message once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.rig import STREAM_POINTS, Rig, competing, each_once, rig_of, share

__all__ = ["rig_of", "share"]  # the fixtures


@pytest.mark.extended
@pytest.mark.promise("SPARK-1", "SPARK-9")
def test_a_driver_that_dies_at_every_point(
    rig_of: Callable[..., Rig], spark: Any, share: slice
) -> None:
    rig = rig_of("stream")
    with competing(rig):
        for point in STREAM_POINTS[share]:
            rig.send(800)
            rig.start(point)
            rig.wait_for_death()
        rig.start()
        rig.wait_until(rig.is_empty)
        rig.stop()
    each_once(spark, rig)
