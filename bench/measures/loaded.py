"""How soon a busy worker starts on a message: at half of the drain rate it has just shown."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import quantiles

from bench.contenders.party import Party, Send
from bench.ledger import LEDGER, Ledger
from bench.measures import fleet
from bench.measures.throughput import Fresh, Tell
from bench.results import Result, Row
from bench.timing import payload

SHARE = 0.5
SECONDS, QUICK_SECONDS = 4.0, 1.0
TICK_S = 0.01
"""What has become due is sent together: nobody can send ten thousand a second one by one."""
WAIT_S = 30.0
KEPT_UP = 0.9


def latency(
    parties: list[Party], *, fresh: Fresh, repeats: int, seconds: float, tell: Tell
) -> Result:
    """The drain's rate and the latency in one minute: both are the machine's of that minute."""
    found: dict[str, dict[str, list[float]]] = {"p50": defaultdict(list), "p99": defaultdict(list)}
    notes: dict[str, str] = {}
    for repeat in range(repeats):
        for party in parties:
            name = party.who.name
            tell(f"repeat {repeat + 1} of {repeats}: {name}")
            wanted = SHARE * fleet.rate(party, fresh, party.n)
            taken, reached = _under_load(party, fresh, wanted, seconds)
            cuts = quantiles(taken, n=100)
            found["p50"][name].append(cuts[49] * 1000)
            found["p99"][name].append(cuts[98] * 1000)
            behind = "" if reached > KEPT_UP * wanted else f" of {wanted:,.0f}: all it can send"
            notes[name] = f"{reached:,.0f}/s{behind}"
    rows = [
        Row(
            f"{p.who.name}, {word}",
            p.who.kind,
            values[p.who.name],
            notes[p.who.name],
            p.who.acks,
            word,
        )
        for word, values in found.items()
        for p in parties
    ]
    title = "From enqueue to the start of the handler, at half of its own drain rate"
    return Result("latency-half", title, "ms", rows, more_is_better=False)


def _under_load(
    party: Party, fresh: Fresh, per_second: float, seconds: float
) -> tuple[list[float], float]:
    """How long each was on its way, and how many a second were sent."""
    n = max(100, int(per_second * seconds))
    with fresh() as home, fleet.ledger_of(n + 1) as (ledger, path):
        ledger.open_gate()
        with party.noting(home, {LEDGER: str(path)}) as (send, _):
            _warm_up(send, ledger, n)
            start = time.monotonic()
            _send(send, n, per_second)
            reached = n / (time.monotonic() - start)
            _wait(ledger, n, party)
        return ledger.times(n), reached


def _warm_up(send: Send, ledger: Ledger, last: int) -> None:
    """One more than is measured: the worker is there when it has come."""
    send([{**payload(last), "sent": time.monotonic()}])
    until = time.monotonic() + WAIT_S
    while not ledger.times(last + 1):
        if time.monotonic() > until:
            raise RuntimeError("the worker did not get its first message")
        time.sleep(TICK_S)


def _send(send: Send, n: int, per_second: float) -> None:
    start, sent = time.monotonic(), 0
    items = [payload(i) for i in range(n)]
    while sent < n:
        due = min(n, int((time.monotonic() - start) * per_second) + 1)
        now = time.monotonic()
        send([{**item, "sent": now} for item in items[sent:due]])
        sent = due
        time.sleep(max(0.0, start + sent / per_second + TICK_S - time.monotonic()))


def _wait(ledger: Ledger, n: int, party: Party) -> None:
    until = time.monotonic() + WAIT_S
    while len(ledger.times(n)) < n:
        if time.monotonic() > until:
            left = n - len(ledger.times(n))
            raise RuntimeError(f"{party.who.name}: {left} of {n} did not come in {WAIT_S:.0f} s")
        time.sleep(TICK_S)
