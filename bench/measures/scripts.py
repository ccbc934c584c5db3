"""How long our scripts keep everybody else waiting: the longest, by the server's own slow log."""

from __future__ import annotations

from collections.abc import Callable

from redis import Redis

import holdfast
from bench.contenders.ours import Ours, fill
from bench.measures.throughput import Fresh, Tell, round_of
from bench.results import Result, Row, Target
from bench.timing import payloads

SIZE, BACKLOG = 1_000, 10_000
SLOWER_US, KEPT = 1_000, 1_000
"""Not 0: that would log what is called inside a script, and cost time itself."""
SCRIPTS, SCRIPTS_RUN = (b"EVAL", b"FCALL"), ("cmdstat_eval", "cmdstat_fcall")
LONGEST_MS = 10.0
DAY_S = 86_400.0


def longest(ours: Ours, fresh: Fresh, repeats: int, tell: Tell) -> Result:
    samples: dict[str, list[float]] = {}
    with fresh() as url, Redis.from_url(url) as client, ours.opened(url) as (hf, queue):
        fill(queue, BACKLOG)
        client.config_set("slowlog-max-len", KEPT)
        before = client.config_get("slowlog-log-slower-than")
        client.config_set("slowlog-log-slower-than", SLOWER_US)
        for repeat in range(-1, repeats):
            tell(round_of(repeat, repeats))
            for name, step in _steps(hf, queue).items():
                client.slowlog_reset()
                step()
                if repeat >= 0:
                    samples.setdefault(name, []).append(_longest_ms(client))
        client.config_set("slowlog-log-slower-than", *before.values())
        assert any(name.startswith(SCRIPTS_RUN) for name in client.info("commandstats"))
    note = f"{SLOWER_US / 1000:g} stands for anything shorter"
    rows = [Row(name, "ours", values, note) for name, values in samples.items()]
    worst = max(row.high for row in rows)
    target = Target("The longest script", worst, LONGEST_MS, False, " ms")
    title = f"The longest script at batches of {SIZE:,}"
    return Result("scripts", title, "ms", rows, [target], more_is_better=False)


def _steps(hf: holdfast.Holdfast, queue: holdfast.Queue) -> dict[str, Callable[[], object]]:
    """In this order: what one leases, the next one ends."""
    items, held = payloads(SIZE), list[holdfast.Lease]()

    def lease() -> None:
        held[:] = queue.lease(SIZE)
        assert len(held) == SIZE

    def end(outcome: holdfast.Retry | holdfast.Fail) -> Callable[[], object]:
        def step() -> None:
            lease()
            queue.settle([(each, outcome) for each in held])

        return step

    return {
        "enqueue_many": lambda: queue.enqueue_many(items),
        "lease": lease,
        "settle, acked": lambda: queue.settle(held),
        "lease and settle, to be retried": end(holdfast.Retry(delay=DAY_S)),
        "lease and settle, dead": end(holdfast.Fail()),
        "redrive": lambda: hf.redrive(queue.dlq.name),
    }


def _longest_ms(client: Redis) -> float:
    took = [
        entry["duration"]
        for entry in client.slowlog_get(KEPT)
        if entry["command"].upper().startswith(SCRIPTS)
    ]
    return max([SLOWER_US, *took]) / 1000
