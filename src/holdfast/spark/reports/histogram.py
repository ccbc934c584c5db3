"""Times in milliseconds counted into buckets: exact below 128 ms, within 0.8 % above.

Each power of two has 64 buckets of equal width. Counts of different files, hours and queues add up,
which percentiles do not.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

EXACT = 128
STEPS = 64
BUCKETS = EXACT + STEPS * 35
"""Up to 2 ** 42 ms, which is more than a century."""


def buckets(times: Any) -> Any:
    """The bucket of each of an array of times. Those up to a minute are looked up."""
    times = np.maximum(times, 0)
    if len(times) and times.max() < len(_KNOWN):
        return _KNOWN[times]
    return _buckets(times)


def _buckets(times: Any) -> Any:
    values = np.clip(times, 0, (1 << 42) - 1)
    power = np.frexp(np.maximum(values, 1).astype(np.float64))[1].astype(np.int64) - 1
    above = np.maximum(power - 6, 0)
    in_octave = (values >> above) - STEPS
    return np.where(values < EXACT, values, EXACT + (above - 1) * STEPS + in_octave)


_KNOWN = _buckets(np.arange(1 << 16))


def coarse(buckets: Any) -> Any:
    """Eight of them as one, named by the first: by hour and queue there are too many otherwise."""
    return buckets & ~7


def middle(bucket: int) -> float:
    """The time that a bucket stands for."""
    if bucket < EXACT:
        return float(bucket)
    above, step = divmod(bucket - EXACT, STEPS)
    width = 1 << (above + 1)
    return (STEPS + step) * width + (width - 1) / 2


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The time within which this share of all stayed: of the least rank that reaches it."""
    total = sum(counts.values())
    if not total:
        return None
    wanted = max(1, -int(-share * total // 1))
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            return middle(bucket)
    raise AssertionError("a share is at most 1")


def added(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for counts in histograms:
        for bucket, n in counts.items():
            total[bucket] = total.get(bucket, 0) + n
    return total
