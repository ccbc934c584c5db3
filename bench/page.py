"""A run as a page of docs. Every figure comes from the run; so does where we lose."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench import plot
from bench.report import RANGE, cells, comparisons, number, verdict
from bench.results import Result, Run
from bench.why import WHY

HEAD = """\
# {title}

Written by `script/bench{option} --write`; do not edit. Holdfast runs beside the
hand-written limit of its store (the same database, driven by the least code that hands out each
message once) and beside its peers: in one run, one after the other in turn, each on a fresh
{home}. Read the ratios (of each repeat, then the median); the absolute figures are those of one
shared machine at one hour.

    script/bench{option}            # everything, {takes}
    script/bench{option} --quick    # fewer repeats
    script/bench{option} --only drain
    script/bench{option} --profile  # where a message's time goes
"""

SPARK_HEAD = """\
# {title}

Written by `script/bench{option} --write`; do not edit. The queue on Spark beside what Spark brings
itself, in one JVM on `local[2]`, one after the other in turn, each on a fresh {home} (reading: on
the same one). PostgreSQL syncs every commit. Read the ratios (of each repeat, then the median); the
absolute figures are those of one shared machine at one hour, with the database, the JVM and the
Python workers on the same cores.

    script/bench{option}            # everything, {takes}
    script/bench{option} --quick    # small, and each once
    script/bench{option} --only read
"""


class Page(msgspec.Struct, frozen=True):
    """What the page of a store is called, and how its run is started."""

    file: str
    title: str
    option: str
    home: str
    takes: str
    head: str = HEAD


PAGES = {
    "sqlite": Page(
        "benchmarks-sqlite.md",
        "Benchmarks on SQLite",
        " --store sqlite",
        "file",
        "about ten minutes",
    ),
    "postgres": Page(
        "benchmarks-postgres.md",
        "Benchmarks on PostgreSQL",
        " --store postgres",
        "database",
        "about ten minutes",
    ),
    "redis": Page(
        "benchmarks-redis.md",
        "Benchmarks on Redis",
        " --store redis",
        "database",
        "about ten minutes",
    ),
    "mongo": Page(
        "benchmarks-mongo.md",
        "Benchmarks on MongoDB",
        " --store mongo",
        "database",
        "about fifteen minutes",
    ),
    "spark": Page(
        "benchmarks-spark.md",
        "Benchmarks on Spark",
        " --spark",
        "database",
        "about fifteen minutes",
        SPARK_HEAD,
    ),
}

LOSSES = """\
## Where we lose

To our own targets, and to peers on their own terms: what each keeps, and how safely, is below.
"""


def write(run: Run, docs: Path) -> Path:
    """Where it is written to: every store has a page and a picture of its own."""
    page = PAGES[run.store]
    picture = f"img/bench-{run.store}.svg"
    rates = [result for result in run.results if is_race(result)]
    (docs / "img").mkdir(exist_ok=True)
    (docs / picture).write_text(plot.bars(rates))
    head = page.head.format(**msgspec.structs.asdict(page))
    parts = [head, f"![Messages a second, logarithmic]({picture})\n", _targets(run), _losses(run)]
    parts += [_result(result) for result in run.results]
    parts += [_parties(run), _machine(run)]
    path = docs / page.file
    path.write_text("\n".join(parts))
    return path


def is_race(result: Result) -> bool:
    """Rates of several parties: what a picture can compare."""
    return result.unit.endswith("/s") and len({row.kind for row in result.rows}) > 1


def _targets(run: Run) -> str:
    rows = [[t.text, *verdict(t)] for result in run.results for t in result.targets]
    return "## What we aim at\n\n" + table(["", "measured", "target", ""], rows)


def _losses(run: Run) -> str:
    told = "\n".join(losses(run)) or "Nowhere in this run."
    return f"{LOSSES}\n{told}\n"


def losses(run: Run) -> list[str]:
    """What was missed, measure by measure, each with its reason; then who was better."""
    lines: list[str] = []
    for result in run.results:
        missed = [target for target in result.targets if not target.met]
        lines += [f"- Target missed: {t.text}: {verdict(t)[0]}, {verdict(t)[1]}." for t in missed]
        if missed:
            reason = WHY.get(run.store, {}).get(result.name, "")
            lines += [f"  {line}" for line in (reason, _the_limit_itself(result)) if line]
    for result in run.results:
        lines += _beaten(result)
    return lines


def _the_limit_itself(result: Result) -> str:
    """Where even the least code would be no further ahead of a peer than that."""
    limit, peers = result.first("limit"), result.peers()
    ratio = result.ratio(limit, peers[0]) if limit and peers else None
    return f"The limit itself is {ratio:.1f} times {peers[0].name}." if ratio else ""


def _beaten(result: Result) -> list[str]:
    lines: list[str] = []
    for row in (row for row in result.rows if row.kind == "ours"):
        for peer in result.peers(row.group):
            more = peer.median > row.median
            if more == result.more_is_better and peer.median != row.median:
                figures = f"{number(row.median)} against {number(peer.median)} {result.unit}"
                lines.append(f"- {result.title}: {peer.name} is better, {figures}.")
    return lines


def _result(result: Result) -> str:
    headings = ["", f"median, {result.unit}", RANGE, *comparisons(result), ""]
    rows = [[row.name, *cells(result, row), row.note] for row in result.rows]
    return f"## {result.title}\n\n" + table(headings, rows)


def _parties(run: Run) -> str:
    rows = [[w.name, w.version, w.settings, w.durability, w.delivery] for w in run.parties]
    headings = ["", "version", "settings", "durability", "delivery"]
    return "## Who, and on which terms\n\n" + table(headings, rows)


def _machine(run: Run) -> str:
    rows = [[name, value] for name, value in {**run.machine, **run.options}.items()]
    return "## The machine and the run\n\n" + table(["", ""], rows)


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
