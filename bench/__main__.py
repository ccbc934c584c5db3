"""Run the measures, show them, and write them down if asked to."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console

from bench import joined, machine, page, plan_mongo, plan_redis, postgres, profiling, report, sqlite
from bench.console import folder_on_disk, progress
from bench.plan import Setting
from bench.processes import ROOT
from bench.results import Result, Run
from bench.timing import BATCH, PAYLOAD_BYTES

STORES = {"sqlite": sqlite, "postgres": postgres, "redis": plan_redis, "mongo": plan_mongo}
REPEATS, QUICK_REPEATS = 5, 2
SHORT = ("enqueue-bulk", "drain", "latency", "drain-2", "failing", "recovery", "depth")
SHORT_SCALE = 4
"""All stores in ten minutes: what the targets are about, once, with a quarter of the messages."""
HOLD_S, QUICK_HOLD_S = 180.0, 20.0


def main() -> None:
    options = _parse()
    # Ignored where we were started in the background; workers inherit that, and end by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 160)
    logging.getLogger("huey").setLevel(logging.ERROR)
    with folder_on_disk() as folder:
        if options.profile:
            plan = STORES[options.store or "sqlite"]
            with plan.stage(folder) as (fresh, _):
                profiling.show(plan.OURS, fresh, console)
            return
        runs = [_kept(_run(options, folder, store), options, console) for store in _stores(options)]
    if len(runs) > 1:
        joined.show(runs, console)
        if options.write:
            console.print(f"written: {joined.write(runs, ROOT / 'docs')}")


def _stores(options: argparse.Namespace) -> list[str]:
    return list(STORES) if options.store is None else [options.store]


def _kept(run: Run, options: argparse.Namespace, console: Console) -> Run:
    """Shown and written as soon as its store is done: a later one may fail."""
    report.show(run, console)
    if options.json:
        path = Path(options.json)
        if options.store is None:
            path = path.with_name(f"{path.stem}-{run.store}{path.suffix}")
        path.write_bytes(msgspec.json.format(msgspec.json.encode(run)))
    if options.write:
        console.print(f"written: {page.write(run, ROOT / 'docs')}")
    return run


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__)
    parser.add_argument("--store", choices=STORES, help="one of them; without it, all")
    parser.add_argument("--all", action="store_true", help="every store: as without --store")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, a few minutes at most")
    names = dict.fromkeys(name for plan in STORES.values() for name in plan.MEASURES)
    parser.add_argument("--only", metavar="NAME", help=f"of the store: {', '.join(names)}")
    parser.add_argument(
        "--hold",
        metavar="SECONDS",
        type=float,
        help=f"load beside a transaction held open, {HOLD_S:.0f}; --quick {QUICK_HOLD_S:.0f}",
    )
    parser.add_argument("--json", metavar="FILE", help="also write every sample to a file")
    parser.add_argument("--write", action="store_true", help="write the page of the store in docs")
    parser.add_argument("--profile", action="store_true", help="show where time goes instead")
    options = parser.parse_args()
    if options.all and options.store:
        parser.error("--all and --store: one of them")
    known = dict.fromkeys(n for store in _stores(options) for n in STORES[store].MEASURES)
    if options.only and options.only not in known:
        parser.error(f"--only {options.only}: must be one of {', '.join(known)}")
    if options.write and (options.only or options.quick or options.hold is not None):
        parser.error("--write needs the whole run: leave out --only, --quick and --hold")
    return options


def _run(options: argparse.Namespace, folder: Path, store: str) -> Run:
    plan = STORES[store]
    short = options.quick and options.store is None
    facts, steal, start = machine.facts(folder), machine.Steal(), time.monotonic()
    repeats = 1 if short else QUICK_REPEATS if options.quick else REPEATS
    results: list[Result] = []
    usual = QUICK_HOLD_S if options.quick else HOLD_S
    hold = usual if options.hold is None else options.hold
    with plan.stage(folder) as (fresh, own):
        for name in _names(options, store):
            with progress(f"{store}, {name}") as tell:
                scale = SHORT_SCALE if short else 1
                at = Setting(fresh, repeats, tell, hold, options.quick, scale)
                try:
                    results += plan.MEASURES[name](at)
                except Exception as error:
                    if options.only or options.write:
                        raise
                    tell(f"failed: {error}")
                    own[f"failed: {name}"] = repr(error)[:200]
    settings = {
        "repeats": str(repeats),
        "payload": f"{PAYLOAD_BYTES} bytes of JSON",
        "batches": str(BATCH),
        "taken by others": f"{steal.percent():.0f} % of the processor (steal)",
        "load after": f"{os.getloadavg()[0]:.1f}",
        "run time": f"{time.monotonic() - start:.0f} s",
    }
    return Run(store, settings, {**facts, **own}, plan.PARTIES, results)


def _names(options: argparse.Namespace, store: str) -> list[str]:
    known = STORES[store].MEASURES
    if options.only:
        return [options.only] if options.only in known else []
    return [name for name in known if options.store or not options.quick or name in SHORT]


if __name__ == "__main__":
    main()
