"""`holdfast queue`: set queues up, look at them, pause them, empty them, delete them."""

from __future__ import annotations

from typing import Any

import click

from holdfast import Backoff, PartitionStats, Policy, QueueNotEmpty, QueueStats
from holdfast.cli import dead, shapes, show
from holdfast.cli.base import App, Group, busy, confirm, find_queue, pass_app
from holdfast.cli.kinds import SECONDS
from holdfast.cli.show import Column, ago, clean, count, length, number, size
from holdfast.model import settings
from holdfast.model.message import dlq_of
from holdfast.model.queues import QueueSpec

COLUMNS = [
    Column("QUEUE", elastic=True),
    Column("STATE"),
    number("PARTITIONS", optional=True),
    number("READY"),
    number("DELAYED"),
    number("LEASED"),
    number("DEAD"),
    Column("CREATED", optional=True),
]
PARTITIONS = [
    Column("PARTITION"),
    number("READY"),
    number("DELAYED"),
    number("LEASED"),
    number("LAG"),
    number("OLDEST"),
    Column("OWNER", elastic=True),
]


@click.group("queue", cls=Group)
def queue() -> None:
    """Set up, look at, pause, empty and delete queues."""


@queue.command("create")
@click.argument("name")
@click.option("--max-attempts", type=int, help="Deliveries before a message is dead. Default 3.")
@click.option("--ack-timeout", type=SECONDS, help="How long a lease holds. Default 30s.")
@click.option("--backoff-base", type=SECONDS, help="Wait after the first failure. Default 5s.")
@click.option("--backoff-factor", type=float, help="Growth with each attempt. Default 2.")
@click.option("--backoff-max", type=SECONDS, help="Longest wait. Default 30m.")
@click.option("--jitter", metavar="KIND", help="none, full or decorrelated. Default full.")
@click.option(
    "--overdue-backoff/--no-overdue-backoff",
    default=None,
    help="Whether a message whose lease ran out also waits its backoff. Default no.",
)
@click.option("--exhausted", metavar="HOW", help="Out of attempts: dead or complete. Default dead.")
@click.option("--log/--no-log", default=None, help="Keep finished messages. Default yes.")
@click.option("--retention", type=SECONDS, help="How long the log keeps them; 0 ever. Default 7d.")
@click.option("--retention-count", type=int, help="How many it keeps; 0 no limit. Default 0.")
@click.option("--duplicate-window", type=SECONDS, help="Refuse finished ids; 0 off. Default 1d.")
@click.option("--payload-max", type=int, help="Bytes a payload may have. Default 1 MiB.")
@click.option("--partitions", type=int, help="They can be added, not taken away. Default 1.")
@click.option(
    "--ordered",
    is_flag=True,
    default=None,
    help="One consumer at a time for each partition, in order. Set at creation.",
)
@click.option("--on-failure", metavar="HOW", help="Ordered: block its key, or skip. Default block.")
@click.option("--on-misfit", metavar="HOW", help="Payload of another type: dead or retry.")
@click.option("--traceback-max", type=int, help="Characters of a traceback; 0 none. Default 16384.")
@pass_app
def create(
    app: App, name: str, partitions: int | None, ordered: bool | None, **options: Any
) -> None:
    """Create a queue and its dead-letter queue; one that is there gets the policy given here."""
    policy = policy_fields(options)
    with app.connect() as hf:
        before = hf.context.spec(name)
        spec = hf.queue(name, partitions=partitions, ordered=ordered, **policy).spec
        if app.json:
            return show.documents([{**shapes.of_spec(spec), "created": before is None}])
        click.echo(_created(spec, before))
    return None


@queue.command("list")
@pass_app
def list_(app: App) -> None:
    """Every queue with what it holds; dead letters are counted with their queue."""
    with app.connect() as hf:
        specs = {spec.name: spec for spec in hf.store.queues()}
        found = [(specs[stats.queue], stats) for stats in hf.stats() if stats.queue in specs]
        now = hf.context.clock.now()
    if app.json:
        docs = [{**shapes.of_spec(spec), **shapes.of_stats(stats)} for spec, stats in found]
        return show.documents(docs)
    rows = [_row(spec, stats, now) for spec, stats in found]
    return show.table(COLUMNS, rows, empty="no queues yet; holdfast queue create NAME makes one")


@queue.command("show")
@click.argument("name")
@pass_app
def show_(app: App, name: str) -> None:
    """How a queue is set up, its policy, what it and its partitions hold, why messages died."""
    with app.connect() as hf:
        handle = find_queue(hf, name)
        spec, policy, stats = handle.spec, handle.policy, handle.stats()
        partitions = handle.partitions()
        groups = dead.groups(hf, handle.dlq.name, dead.SCAN)
        now = hf.context.clock.now()
    if app.json:
        doc = {
            **shapes.of_spec(spec),
            "policy": shapes.of_policy(policy),
            "stats": shapes.of_stats(stats),
            "partitions_in_use": [shapes.of_partition(part) for part in partitions],
            "dead_letters": [group.doc() for group in groups],
        }
        return show.documents([doc])
    show.heading(name)
    show.pairs(_facts(spec, stats, now), indent=2)
    if len(partitions) > 1 or spec.ordered:
        show.heading("partitions")
        rows = [_partition_row(part, spec) for part in partitions]
        show.table(PARTITIONS, [*rows, _sum_row(stats)], empty="")
    show.heading("policy")
    show.pairs(_policy_lines(spec, policy), indent=2)
    if groups:
        dead.show_groups(groups, now)
    return None


@queue.command("pause")
@click.argument("name")
@pass_app
def pause(app: App, name: str) -> None:
    """Lease nothing from a queue any more; it still accepts messages."""
    _set_paused(app, name, paused=True)


@queue.command("resume")
@click.argument("name")
@pass_app
def resume(app: App, name: str) -> None:
    """Let a paused queue go on where it was."""
    _set_paused(app, name, paused=False)


@queue.command("delete")
@click.argument("name")
@click.option("--force", is_flag=True, help="Also when it or its dead letters hold messages.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def delete(app: App, name: str, force: bool, yes: bool) -> None:
    """Delete a queue with its dead letters and its log."""
    with app.connect() as hf:
        handle = find_queue(hf, name)
        confirm(f"Delete {name} ({_held(handle.stats())}) and its log?", yes=yes)
        try:
            with busy(f"deleting {name}"):
                handle.delete(force=force)
        except QueueNotEmpty as error:
            problem = f"{name} or its dead letters hold messages; --force deletes them too"
            raise QueueNotEmpty(problem) from error
    _done(app, name, "deleted", f"deleted {name}")


@queue.command("purge")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def purge(app: App, name: str, yes: bool) -> None:
    """Drop every waiting message, without a trace; leased ones stay."""
    with app.connect() as hf:
        handle = find_queue(hf, name)
        stats = handle.stats()
        waiting = count(stats.ready + stats.delayed, "waiting message")
        confirm(f"Drop {waiting} of {name} without a trace?", yes=yes)
        with busy(f"purging {name}"):
            purged = handle.purge()
    _done(app, name, "purged", f"dropped {count(purged, 'message')} of {name}", purged)


COMMANDS = [queue]


def _created(spec: QueueSpec, before: QueueSpec | None) -> str:
    if before is None:
        return "created " + " and ".join(dict.fromkeys([spec.name, dlq_of(spec.name)]))
    if spec.spread != before.spread:
        return f"{spec.name} has {spec.spread} partitions now, {before.spread} before"
    if spec.revision != before.revision:
        return f"updated the policy of {spec.name}"
    return f"{spec.name} is there already; nothing to change"


def policy_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The policy that the options give; the library checks it."""
    given = {name: value for name, value in options.items() if value is not None}
    names = {f"backoff_{part}": part for part in ("base", "factor", "max")} | {"jitter": "jitter"}
    backoff = {part: given.pop(name) for name, part in names.items() if name in given}
    return {**given, "backoff": Backoff(**backoff)} if backoff else given


def _row(spec: QueueSpec, stats: QueueStats, now: int) -> list[show.Cell]:
    return [
        spec.name,
        ("paused", "yellow") if spec.paused else "open",
        str(spec.spread),
        f"{stats.ready:,}",
        f"{stats.delayed:,}",
        f"{stats.leased:,}",
        (f"{stats.dead:,}", "red" if stats.dead else ""),
        ago(spec.created_at, now),
    ]


def _facts(spec: QueueSpec, stats: QueueStats, now: int) -> list[tuple[str, str]]:
    age = stats.oldest_age
    return [
        ("state", "paused: leases nothing" if spec.paused else "open"),
        ("partitions", _spread(spec)),
        ("created", ago(spec.created_at, now)),
        ("ready", f"{stats.ready:,}" + ("" if age is None else f", oldest {length(int(age))}")),
        ("delayed", f"{stats.delayed:,}"),
        ("leased", f"{stats.leased:,}"),
        ("dead", f"{stats.dead:,}"),
        ("done", f"{stats.done:,}"),
    ]


def _spread(spec: QueueSpec) -> str:
    older = spec.starts[-1]
    also = f", and {older} from before it had so many" if older else ""
    return f"{spec.spread}{', ordered' if spec.ordered else ''}{also}"


def _partition_row(part: PartitionStats, spec: QueueSpec) -> list[show.Cell]:
    age = part.oldest_age
    return [
        f"{part.partition}" + (" (old)" if part.partition < spec.starts[-1] else ""),
        f"{part.ready:,}",
        f"{part.delayed:,}",
        f"{part.leased:,}",
        f"{part.lag:,}",
        "-" if age is None else length(int(age)),
        (part.owner or ("nobody" if spec.ordered else "-"), "" if part.owner else "yellow"),
    ]


def _sum_row(stats: QueueStats) -> list[show.Cell]:
    age = stats.oldest_age
    oldest = "-" if age is None else length(int(age))
    counts = [f"{n:,}" for n in (stats.ready, stats.delayed, stats.leased, stats.lag)]
    return ["all", *counts, oldest, ""]


def _policy_lines(spec: QueueSpec, policy: Policy) -> list[tuple[str, str]]:
    """Every field with its value and who said so."""
    given = {**spec.policy.to_dict(), **{f"backoff_{k}": 1 for k in _given_backoff(spec)}}
    surrounding = settings.load().policy.to_dict()
    lines: list[tuple[str, str]] = []
    for name, value in _flat(shapes.of_policy(policy)).items():
        who = "this queue" if name in given else "environment" if name in surrounding else "default"
        lines.append((name.replace("_", "-"), f"{_readable(name, value)}  ({who})"))
    return lines


def _given_backoff(spec: QueueSpec) -> dict[str, Any]:
    return spec.policy.backoff.to_dict() if spec.policy.backoff else {}


def _flat(policy: dict[str, Any]) -> dict[str, Any]:
    backoff = {f"backoff_{name}": value for name, value in policy["backoff"].items()}
    return {**{k: v for k, v in policy.items() if k != "backoff"}, **backoff}


def _readable(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in ("retention", "retention_count") and not value:
        return "for ever" if name == "retention" else "no limit"
    if name == "duplicate_window" and not value:
        return "off"
    if name in ("ack_timeout", "retention", "duplicate_window", "backoff_base", "backoff_max"):
        return length(value)
    return size(value) if name == "payload_max" else clean(f"{value}")


def _set_paused(app: App, name: str, *, paused: bool) -> None:
    with app.connect() as hf:
        handle = find_queue(hf, name)
        handle.pause() if paused else handle.resume()
    word = "paused" if paused else "resumed"
    _done(app, name, word, f"{word} {name}")


def _held(stats: QueueStats) -> str:
    held = stats.ready + stats.delayed + stats.leased
    return f"{count(held, 'message')}, {count(stats.dead, 'dead letter')}"


def _done(app: App, name: str, what: str, said: str, value: Any = True) -> None:
    if app.json:
        show.documents([{"queue": name, what: value}])
    else:
        click.echo(said)
