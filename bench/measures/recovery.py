"""What becomes of messages whose worker is killed (SIGKILL) while it handles them.

A worker finishes some, then hangs in handlers; it is killed as soon as it does, before a time-out
of its own can end the handlers, and another one starts at once. By the ledger: when each of the
interrupted ran again, how many did not, how many ran twice. Who still misses some after twice the
time-out gets one more message: some look after the dead only when there is work. All parties at the
same time, since all of it is waiting. The start of the second worker is in the time where it
takes longer than the time-out: on a machine that is busy with other things it does.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.contenders import tasks
from bench.contenders.party import Party
from bench.ledger import LEDGER, SLOT, Ledger
from bench.measures.fleet import ledger_of
from bench.measures.throughput import Fresh, Tell
from bench.processes import Child
from bench.results import Result, Row, Target

MESSAGES, FINISHED = 60, 20
ACK_TIMEOUT_S, SLACK_S = 5.0, 1.0
WAIT_S, QUICK_WAIT_S = 75.0, 20.0
"""The longest that a peer adds to its time-out is 60 s."""
MORE_S = 2 * ACK_TIMEOUT_S
"""After the kill: when one more message comes."""
BEGIN_S, STEADY_S, LOOK_S = 30.0, 1.0, 0.02
NAME = "recovery"


class Case:
    """One party from the kill on: who was interrupted, and when it ran again."""

    def __init__(self, party: Party, home: Any, ledger: Ledger, path: Path) -> None:
        self.party, self._home, self._ledger, self._path = party, home, ledger, path
        self._at = self._look = 0.0
        self._starts = b""
        self.again: dict[int, float] = {}
        self.victims: list[int] = []
        self.missing = MESSAGES
        self.more: Future[None] | None = None

    def fill(self) -> None:
        self._ledger.open_gate()
        self.party.fill(self._home, MESSAGES)

    def begin(self, stack: ExitStack) -> None:
        self._victim = stack.enter_context(self._worker(1, {tasks.HANG_FROM: str(FINISHED)}))

    def hangs(self) -> bool:
        """Whether something hangs and nothing more has begun for a while."""
        starts = self._ledger.starts(MESSAGES)
        if starts != self._starts:
            self._starts, self._look = starts, time.monotonic()
        return self.began() and time.monotonic() - self._look > STEADY_S

    def began(self) -> bool:
        return any(self._starts[FINISHED:])

    def kill(self, stack: ExitStack) -> None:
        self._victim.kill()
        self._at = time.monotonic()
        starts, ends = self._ledger.starts(MESSAGES), self._ledger.ends(MESSAGES)
        self.victims = [n for n in range(MESSAGES) if starts[n] and not ends[n]]
        stack.enter_context(self._worker(2, {}))

    def look(self, wait: float, pool: ThreadPoolExecutor) -> bool:
        """Whether everything has run, the interrupted and the rest, or its time is up."""
        since = time.monotonic() - self._at
        if not self.missing or since > wait:
            return True
        ends = self._ledger.ends(MESSAGES)
        for n in self.victims:
            if ends[n] and n not in self.again:
                self.again[n] = since
        self.missing = ends.count(0)
        if self.missing and self.more is None and since > MORE_S:
            # In a thread: the others are looked at meanwhile.
            self.more = pool.submit(self.party.fill, self._home, 1)
        return not self.missing

    def twice(self) -> int:
        """Finished, and run once more: what was interrupted has finished once."""
        first = 0 if self.more is None else 1  # the one more was the first one again
        return sum(runs > 1 for runs in self._ledger.ends(MESSAGES)[first:])

    def _worker(self, slot: int, more: dict[str, str]) -> Child:
        given = {LEDGER: os.fspath(self._path), SLOT: str(slot), tasks.RECOVER: str(ACK_TIMEOUT_S)}
        return self.party.start(self._home, {**given, **more})


def measure(parties: list[Party], *, fresh: Fresh, quick: bool, tell: Tell) -> list[Result]:
    wait = QUICK_WAIT_S if quick else WAIT_S
    with ExitStack() as stack:
        os.environ[tasks.RECOVER] = str(
            ACK_TIMEOUT_S
        )  # for what is said when a message is enqueued
        stack.callback(os.environ.pop, tasks.RECOVER)
        cases = [
            Case(party, stack.enter_context(fresh()), *stack.enter_context(ledger_of(MESSAGES)))
            for party in parties
        ]
        failed = _killed(cases, stack, tell)
        tell(f"killed; waiting for {wait:.0f} s at most")
        killed = [case for case in cases if case not in failed]
        with ThreadPoolExecutor(len(cases)) as pool:
            while _left(killed, wait, pool):
                time.sleep(LOOK_S)
        for case in killed:
            if case.more is not None:
                case.more.result()
        return [_result([_row(case, wait, failed) for case in cases], cases, wait)]


def _killed(cases: list[Case], stack: ExitStack, tell: Tell) -> list[Case]:
    """Who never got so far as to handle a message."""
    for case in cases:
        tell(f"filling: {case.party.who.name}")
        case.fill()
    tell("everybody begins")
    for case in cases:
        case.begin(stack)
    alive, until = cases, time.monotonic() + BEGIN_S
    while alive and time.monotonic() < until:
        time.sleep(LOOK_S)
        hanging = [case for case in alive if case.hangs()]
        for case in hanging:
            case.kill(stack)
        alive = [case for case in alive if case not in hanging]
    for case in alive:
        if case.began():
            case.kill(stack)
    return [case for case in alive if not case.began()]


def _left(cases: list[Case], wait: float, pool: ThreadPoolExecutor) -> bool:
    """Everybody is looked at, whoever is done: the moment of each counts."""
    return sum(case.look(wait, pool) for case in cases) < len(cases)


def _row(case: Case, wait: float, failed: list[Case]) -> Row:
    who, recovers = case.party.who, case.party.recovers or "nothing brings them back"
    if case in failed:
        return Row(who.name, who.kind, [wait], f"did not begin within {BEGIN_S:.0f} s", who.acks)
    held, back = len(case.victims), len(case.again)
    late = f"not within {wait:.0f} s: " if case.missing else ""
    note = (
        f"{late}{held} in handling, {back} ran again; {case.missing} of {MESSAGES} not done, "
        f"{case.twice()} finished twice; {recovers}"
    )
    took = wait if case.missing else max(case.again.values(), default=0.0)
    return Row(who.name, who.kind, [max(took, LOOK_S)], note, who.acks)


def _result(rows: list[Row], cases: list[Case], wait: float) -> Result:
    ours = next(case for case in cases if case.party.who.kind == "ours")
    took = next(row for row in rows if row.kind == "ours").median
    targets = [
        Target(
            f"After kill -9, with an ack time-out of {ACK_TIMEOUT_S:.0f} s, all ran again within",
            took, ACK_TIMEOUT_S + SLACK_S, False, " s",
        ),
        Target("After kill -9, messages lost", ours.missing, 0, False, ""),
    ]  # fmt: skip
    title = f"From kill -9 until what it handled has run again, in {wait:.0f} s at most"
    return Result(NAME, title, "s", rows, targets, more_is_better=False)
