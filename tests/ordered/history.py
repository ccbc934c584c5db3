"""What consumers of an ordered queue noted, and whether it keeps the promises."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from consumer import CONCURRENCY


@dataclass(frozen=True)
class Note:
    what: str
    name: str
    partition: int
    key: str
    n: int
    attempt: int
    at: int


@dataclass
class Life:
    """What was done to one consumer, in nanoseconds as in the notes."""

    name: str
    killed_at: int | None = None
    frozen: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """From when to when it was stopped for longer than its partitions are kept."""


@dataclass(frozen=True)
class Run:
    """One delivery: from its start to its end, or to the moment its consumer was ended."""

    start: Note
    end: int
    late: bool
    """Handed out before its consumer was frozen, begun after it, and dropped in the end."""


def read(file: Path) -> list[Note]:
    found: list[Note] = []
    for line in file.read_text().splitlines():
        what, name, partition, key, n, attempt, at = line.split()
        found.append(Note(what, name, int(partition), key, int(n), int(attempt), int(at)))
    return sorted(found, key=lambda note: note.at)


Settled = set[tuple[str, int, int]]
"""By whom, which number, at which attempt, as the log has it."""


def runs(notes: Iterable[Note], lives: dict[str, Life], settled: Settled) -> list[Run]:
    """Deliveries in order of their start. One that was running when its consumer was frozen for
    long ends there: it goes on afterwards, but whatever comes of it counts no more."""
    begun: dict[tuple[str, int, int], Note] = {}
    ends: dict[tuple[str, int, int], int] = {}
    for note in notes:
        if note.what == "lost":
            continue
        of = (note.name, note.n, note.attempt)
        if note.what == "start":
            assert of not in begun, f"{note}: one attempt was started twice"
            begun[of] = note
        else:
            ends[of] = note.at
    found: list[Run] = []
    seen: set[tuple[str, int, int]] = set()
    excused: Counter[tuple[str, int]] = Counter()
    for of, start in sorted(begun.items(), key=lambda pair: pair[1].at):
        life = lives[start.name]
        end = ends.get(of, life.killed_at)
        assert end is not None, f"{start}: it never ended, and nobody killed its consumer"
        for since, _ in life.frozen:
            if start.at <= since < end:
                end = since
        late = False
        if thawed := max((until for _, until in life.frozen if until < start.at), default=None):
            # One for each thread at most, and in each partition only the first that it starts: what
            # it starts later it was given later.
            is_first = (start.name, thawed, start.partition) not in seen
            late = is_first and of not in settled and excused[start.name, thawed] < CONCURRENCY
            excused[start.name, thawed] += late
            seen.add((start.name, thawed, start.partition))
        found.append(Run(start, end, late))
    return found


def check_one_at_a_time(found: list[Run]) -> int:
    """In no partition do two run at once, whoever runs them. Returns how many owners there were."""
    owners = 0
    by_partition: dict[int, list[Run]] = defaultdict(list)
    for run in found:
        if not run.late:
            by_partition[run.start.partition].append(run)
    for in_order in by_partition.values():
        for before, after in itertools.pairwise(in_order):
            assert before.end <= after.start.at, f"{before} and {after} at once"
            owners += before.start.name != after.start.name
    return owners


def check_order(
    found: list[Run], dead: set[int], step: int, lives: dict[str, Life], lost: list[Note]
) -> None:
    """Of a key the next is begun when the one before is finished; it may be begun again only where
    its consumer was ended before it could say so, or lost the partition: while it was frozen, or
    as it noted because the machine was too busy."""
    done: dict[str, int] = {}
    last: dict[str, Note] = {}
    excused: dict[str, set[int]] = defaultdict(set)
    for run in found:
        start = run.start
        if run.late:  # or in time, and its consumer was killed before it could say so
            excused[start.key].add(start.n)
            continue
        known = done.get(start.key)
        if known is None or start.n > known:
            before = range(int(start.key[1:]) if known is None else known + step, start.n, step)
            skipped = [n for n in before if n not in dead and n not in excused[start.key]]
            assert not skipped, f"{start}: {skipped} of its key were to come first"
            done[start.key] = start.n
        elif start.n < known:
            previous = last[start.key]
            assert (
                previous.name != start.name
                or was_frozen(lives[start.name], previous, start)
                or has_lost(lost, previous, start)
            ), f"{start} after {known}, by the same consumer"
            done[start.key] = start.n
        last[start.key] = start


def was_frozen(life: Life, before: Note, after: Note) -> bool:
    return any(before.at <= until <= after.at for _, until in life.frozen)


def has_lost(lost: list[Note], before: Note, after: Note) -> bool:
    return any(
        (note.name, note.partition) == (after.name, after.partition)
        and before.at <= note.at <= after.at
        for note in lost
    )


def check_frozen(found: list[Run], lives: dict[str, Life], settled: Settled) -> int:
    """What was in hand when a consumer was frozen for long, it did not settle."""
    in_hand = 0
    for run in found:
        start = run.start
        for since, until in lives[start.name].frozen:
            if start.at <= since == run.end:
                in_hand += 1
                of = (start.name, start.n, start.attempt)
                assert of not in settled, f"{start}: settled, though frozen {since} to {until}"
    return in_hand
