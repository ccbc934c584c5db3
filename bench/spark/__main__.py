"""Run the measures on Spark, show them, and write them down if asked to."""

from __future__ import annotations

import argparse
import logging
import os
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from bench import machine, page, report, server
from bench.console import folder_on_disk, progress
from bench.processes import ROOT
from bench.results import Result, Run
from bench.spark import bulk, lake, memory, starting, streams
from bench.spark.stage import (
    JDBC_JAR,
    LEFT_OUT,
    PARTIES,
    SQLITE_DURABLE,
    Measure,
    Setting,
    jdbc_fact,
    spark_facts,
    stop_session,
)
from bench.timing import PAYLOAD_BYTES

# Sessions of their own come first: what ours sets in the environment is not theirs.
MEASURES: dict[str, Measure] = {
    "start": starting.measure,
    "memory": memory.measure,
    "read": bulk.read,
    "write": bulk.write,
    "stream": streams.streams,
    "handlers": streams.handlers,
    "one": streams.one,
    "archive": lake.archive,
    "report": lake.report,
    "redrive": lake.redrive,
}
REPEATS, QUICK_REPEATS = 3, 1
INTERRUPTED = 130


def main() -> None:
    options = _parse()
    console = Console(width=None if sys.stdout.isatty() else 160)
    _log_to_stderr()
    try:
        with folder_on_disk() as folder:
            run = _run(options, folder)
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    report.show(run, console)
    if options.json:
        Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(run)))
    if options.write:
        console.print(f"written: {page.write(run, ROOT / 'docs')}")


def _log_to_stderr() -> None:
    """Warnings, but not the stacks that py4j logs when a call is interrupted: it raises as well."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: "while sending command" not in record.getMessage())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/bench --spark", description=__doc__)
    parser.add_argument("--spark", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="small, and each once")
    parser.add_argument("--only", metavar="NAME", choices=MEASURES, help=", ".join(MEASURES))
    parser.add_argument(
        "--jdbc",
        metavar="JAR",
        type=Path,
        default=JDBC_JAR,
        help=f"PostgreSQL's driver, {JDBC_JAR}",
    )
    parser.add_argument("--json", metavar="FILE", help="also write every sample to a file")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-spark.md")
    options = parser.parse_args()
    if options.write and (options.only or options.quick):
        parser.error("--write needs the whole run: leave out --only and --quick")
    return options


def _run(options: argparse.Namespace, folder: Path) -> Run:
    facts, steal, start = machine.facts(folder), machine.Steal(), time.monotonic()
    repeats = QUICK_REPEATS if options.quick else REPEATS
    jdbc = options.jdbc.resolve() if options.jdbc.exists() else None
    if jdbc is None:
        print(f"bench: left out: {LEFT_OUT}", file=sys.stderr)
    results: list[Result] = []
    with server.stage(folder) as (fresh, own):
        at = Setting(fresh, folder, repeats, options.quick, jdbc)
        try:
            for name in [options.only] if options.only else MEASURES:
                with progress(name) as tell:
                    results += MEASURES[name](replace(at, tell=tell))
            lite = f"{sqlite3.sqlite_version}: WAL, synchronous=NORMAL: {SQLITE_DURABLE}"
            own |= {"SQLite": lite, **spark_facts(), "JDBC driver": jdbc_fact(at)}
        finally:
            stop_session()
    settings = {
        "repeats": f"{repeats}, in turn; memory once",
        "payload": f"{PAYLOAD_BYTES} bytes of JSON",
        "taken by others": f"{steal.percent():.0f} % of the processor (steal)",
        "load after": f"{os.getloadavg()[0]:.1f}",
        "run time": f"{time.monotonic() - start:.0f} s",
    }
    named = {row.name for result in results for row in result.rows}
    parties = [who for who in (*PARTIES, *lake.PARTIES) if who.kind == "ours" or who.name in named]
    return Run("spark", settings, {**facts, **own}, parties, results)


if __name__ == "__main__":
    main()
