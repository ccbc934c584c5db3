"""Drains by workers in processes of their own: two of them, or one whose handlers sometimes fail.

Everybody is measured alike: the workers start, the first handlers wait at the gate of the ledger
until every worker has one there, the gate opens, and time runs until the ledger has every message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec

from bench.contenders import tasks
from bench.contenders.party import Party
from bench.ledger import LEDGER, SLOT, Ledger
from bench.measures.throughput import Entrant, Fresh, Tell, compare
from bench.results import Result, Target

FAIL_EVERY = 100
GATE_S, LOOK_S = 10.0, 0.002
SHORT = "not all workers got one to begin with: the first had taken all"
DRAIN_S = 90.0

Judge = Callable[[Result], list[Target]]


def drain(
    parties: list[Party], judge: Judge, *, workers: int, fresh: Fresh, repeats: int, tell: Tell
) -> Result:
    alone = set[str]()
    entrants = [
        Entrant(party.who, _draining(party, workers, alone), party.n, f"{party.n:,} messages")
        for party in parties
    ]
    title = f"Drain by {workers} worker processes, no-op handlers"
    name = f"drain-{workers}"
    result = compare(name, title, entrants, judge, fresh=fresh, repeats=repeats, tell=tell)
    rows = [
        msgspec.structs.replace(row, note=f"{row.note}; {SHORT}") if row.name in alone else row
        for row in result.rows
    ]
    return msgspec.structs.replace(result, rows=rows)


def failing(
    parties: list[Party], judge: Judge, *, fresh: Fresh, repeats: int, tell: Tell
) -> Result:
    """One in a hundred raises on its first run: how fast until every message has ended well."""
    given = {tasks.FAIL_EVERY: str(FAIL_EVERY)}
    entrants = [
        Entrant(
            party.who,
            _draining(party, 1, set(), given),
            party.n,
            f"{party.n:,}, again {party.retries}",
        )
        for party in parties
        if party.retries
    ]
    title = f"Drain by one worker process, one in {FAIL_EVERY} fails once"
    return compare("failing", title, entrants, judge, fresh=fresh, repeats=repeats, tell=tell)


def rate(party: Party, fresh: Fresh, n: int) -> float:
    """Messages a second by one worker process."""
    with fresh() as home:
        return n / _draining(party, 1, set())(home, n)


def _draining(
    party: Party, workers: int, alone: set[str], given: dict[str, str] | None = None
) -> Callable[[Any, int], float]:
    def run(home: Any, n: int) -> float:
        party.fill(home, n)
        with ledger_of(n) as (ledger, path), ExitStack() as stack:
            together = workers if n == party.n else 1  # too few for more, when it only warms up
            for slot in range(1, together + 1):
                named = {**(given or {}), LEDGER: str(path), SLOT: str(slot)}
                stack.enter_context(party.start(home, named))
            _until(lambda: ledger.at_gate() == together, GATE_S)
            if not ledger.at_gate():
                raise RuntimeError(f"{party.who.name}: no worker came in {GATE_S:.0f} s")
            if ledger.at_gate() < together:
                alone.add(party.who.name)
            start = time.perf_counter()
            ledger.open_gate()
            if not _until(lambda: 0 not in ledger.ends(n), DRAIN_S):
                left = ledger.ends(n).count(0)
                raise RuntimeError(f"{party.who.name}: {left} of {n} not done in {DRAIN_S:.0f} s")
            return time.perf_counter() - start

    return run


@contextmanager
def ledger_of(n: int) -> Iterator[tuple[Ledger, Path]]:
    """In memory if the machine has a place for it: its pages must not wait for a disk."""
    shared = Path("/dev/shm")
    with NamedTemporaryFile(prefix="bench-", dir=shared if shared.is_dir() else None) as file:
        path = Path(file.name)
        yield Ledger.make(path, n), path


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True
