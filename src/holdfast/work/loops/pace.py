"""How far a worker leases ahead of its handlers."""

from __future__ import annotations

from holdfast.model.clock import Clock

PREFETCH_MAX = 1000
PREFETCH_S, PREFETCH_S_MAX = 0.05, 0.5
"""Beyond what can run at once, lease no more than what was worked off in this time lately. A store
whose leases take longer than the first one is asked for more, up to the second one."""


class Pace:
    """What the handlers worked off in PREFETCH_S lately, or in the time of two leases if that is
    longer. Otherwise a slow store would be asked for less and less at a time, and would deliver
    less and less."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._seen = 0
        self._rate = 0.0
        self._length_s = PREFETCH_S

    def leased(self, took_s: float) -> None:
        self._length_s = min(max(PREFETCH_S, 2 * took_s), PREFETCH_S_MAX)

    def ahead(self, settled: int) -> int:
        now = self._clock.monotonic()
        if now - self._since >= PREFETCH_S / 5:
            latest = (settled - self._seen) / (now - self._since)
            self._rate = max(latest, self._rate / 2)
            self._since, self._seen = now, settled
        return min(PREFETCH_MAX, int(self._rate * self._length_s))
