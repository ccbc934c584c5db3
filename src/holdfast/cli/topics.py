"""`holdfast topic`: what is published to a topic reaches each of its groups, which are queues."""

from __future__ import annotations

import os
from typing import Any

import click

from holdfast import InvalidArgument, QueueNotEmpty, QueueStats
from holdfast.cli import shapes, show
from holdfast.cli.base import App, Group, busy, confirm, pass_app
from holdfast.cli.kinds import HEADER, SECONDS
from holdfast.cli.queues import policy_fields
from holdfast.cli.show import Column, ago, count, length, number
from holdfast.model.payload import JSON
from holdfast.queue.interface import TopicStats

TOPICS = [
    Column("TOPIC", elastic=True),
    number("GROUPS"),
    number("RETAINED"),
    Column("OLDEST"),
    Column("RETENTION"),
]
GROUPS = [
    Column("GROUP", elastic=True),
    Column("STATE"),
    number("READY"),
    number("DELAYED"),
    number("LEASED"),
    number("DEAD"),
    number("DONE"),
    Column("OLDEST"),
]


@click.group("topic", cls=Group)
def topic() -> None:
    """Set up topics, bind groups to them, publish."""


@topic.command("create")
@click.argument("name")
@click.option("--log/--no-log", default=None, help="Retain for groups bound later. Default yes.")
@click.option("--retention", type=SECONDS, help="How long; 0 for ever. Default 7d.")
@pass_app
def create(app: App, name: str, log: bool | None, retention: float | None) -> None:
    """Create a topic; one that is there gets the settings given here."""
    with app.connect() as hf:
        stats = hf.topic(name, log=log, retention=retention).stats()
    if app.json:
        return show.documents([_doc(stats)])
    return click.echo(f"{name} retains {_retention(stats)}")


@topic.command("list")
@pass_app
def list_(app: App) -> None:
    """Every topic with its groups and what it retains."""
    with app.connect() as hf:
        found = [each.stats() for each in hf.topics()]
    if app.json:
        return show.documents(_doc(stats) for stats in found)
    rows = [_row(stats) for stats in found]
    return show.table(TOPICS, rows, empty="no topics yet; holdfast topic create NAME makes one")


@topic.command("show")
@click.argument("name")
@pass_app
def show_(app: App, name: str) -> None:
    """The groups of a topic with what they hold, and what is retained for those to come."""
    with app.connect() as hf:
        stats = hf.topic(name, create=False).stats()
    if app.json:
        return show.documents([_doc(stats)])
    age = "" if stats.oldest_age is None else f", oldest {length(int(stats.oldest_age))}"
    show.heading(name)
    show.pairs(
        [("retained", f"{stats.retained:,}{age}"), ("retention", _retention(stats))], indent=2
    )
    rows = [_group_row(group, of, stats) for group, of in stats.groups.items()]
    empty = f"no groups yet; holdfast topic bind {name} GROUP binds one"
    return show.table(GROUPS, rows, empty=empty)


@topic.command("bind")
@click.argument("name", metavar="TOPIC")
@click.argument("group")
@click.option("--start", metavar="WHERE", default="now", help="now or earliest. Default now.")
@click.option("--partitions", type=int, help="More can be added later. Default 1.")
@click.option("--ordered", is_flag=True, default=None, help="Each partition is worked in order.")
@click.option("--max-attempts", type=int, help="Deliveries before a message is dead. Default 3.")
@click.option("--ack-timeout", type=SECONDS, help="How long a lease holds. Default 30s.")
@click.option("--backoff-base", type=SECONDS, help="Wait after the first failure. Default 5s.")
@click.option("--backoff-factor", type=float, help="Growth with each attempt. Default 2.")
@click.option("--backoff-max", type=SECONDS, help="Longest wait. Default 30m.")
@click.option("--jitter", metavar="KIND", help="none, full or decorrelated. Default full.")
@pass_app
def bind(app: App, name: str, group: str, start: Any, **options: Any) -> None:
    """Bind a group: from now on, or with all that the topic retains.

    The group is the queue TOPIC@GROUP; `queue create` sets the rest of its policy.
    """
    shape = {what: options.pop(what) for what in ("partitions", "ordered")}
    with app.connect() as hf:
        to = hf.topic(name, create=False)
        known = group in to.groups()
        with busy(f"binding {group}"):
            queue = to.bind(group, start=start, **shape, **policy_fields(options))
        spec, stats = queue.spec, queue.stats()
    if app.json:
        doc = {"topic": name, "group": group, **shapes.of_spec(spec), "bound": not known}
        return show.documents([{**doc, "ready": stats.ready, "delayed": stats.delayed}])
    if known:
        return click.echo(f"{group} is bound already; its queue is {queue.name}")
    held = count(stats.ready + stats.delayed, "message")
    return click.echo(f"bound {group}; its queue is {queue.name}, with {held}")


@topic.command("unbind")
@click.argument("name", metavar="TOPIC")
@click.argument("group")
@click.option("--force", is_flag=True, help="Also when it or its dead letters hold messages.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def unbind(app: App, name: str, group: str, force: bool, yes: bool) -> None:
    """Delete a group with its queue, its dead letters and its log."""
    with app.connect() as hf:
        of = hf.topic(name, create=False)
        queue = of.group(group).name
        confirm(f"Delete {queue} and its log?", yes=yes)
        try:
            with busy(f"deleting {queue}"):
                of.unbind(group, force=force)
        except QueueNotEmpty as error:
            problem = f"{queue} or its dead letters hold messages; --force deletes them too"
            raise QueueNotEmpty(problem) from error
    if app.json:
        return show.documents([{"topic": name, "group": group, "unbound": True}])
    return click.echo(f"unbound {group}")


@topic.command("publish")
@click.argument("name", metavar="TOPIC")
@click.argument("payload")
@click.option("--text", is_flag=True, help="The payload is text, not JSON.")
@click.option("--key", help="Messages of one key go to one partition.")
@click.option("--type", "type_", metavar="TYPE", help="Handlers may ask for one type.")
@click.option("--priority", type=int, default=0, help="0 to 9, highest first. Default 0.")
@click.option("--delay", type=SECONDS, help="Hold it back so long: 30, 5m, 2h.")
@click.option("--header", type=HEADER, multiple=True, help="May be given several times.")
@click.option("--id", "id_", metavar="UUID", help="Your own; one that is held adds nothing.")
@pass_app
def publish(app: App, name: str, payload: str, text: bool, **options: Any) -> None:
    """Publish PAYLOAD, which is JSON, to every group of a topic."""
    headers = dict(options.pop("header")) or None
    names = {"id": options.pop("id_"), "type": options.pop("type_")}
    kind = "text/plain" if text else JSON
    with app.connect() as hf:
        to = hf.topic(name, create=False)
        try:
            message = to.publish(
                os.fsencode(payload), headers=headers, content_type=kind, **names, **options
            )
        except InvalidArgument as error:
            if error.field == "payload" and error.problem.startswith("not JSON"):
                raise InvalidArgument("payload", f"{error.problem}; --text sends text") from error
            raise
        groups = len(to.groups())
    if app.json:
        doc = {**shapes.of_message(message), "duplicate": message.duplicate}
        return show.documents([{"topic": doc.pop("queue"), **doc, "groups": groups}])
    if message.duplicate:
        return click.echo(f"{name} holds {message.id} already; nothing was stored")
    due = ago(message.available_at, message.enqueued_at)
    when = "" if due == "now" else f", due {due}"
    return click.echo(f"published {message.id} to {count(groups, 'group')} of {name}{when}")


@topic.command("delete")
@click.argument("name")
@click.option("--force", is_flag=True, help="Also when its groups hold messages.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def delete(app: App, name: str, force: bool, yes: bool) -> None:
    """Delete a topic with its groups and what it retains."""
    with app.connect() as hf:
        gone = hf.topic(name, create=False)
        stats = gone.stats()
        held = f"{count(len(stats.groups), 'group')}, {count(stats.retained, 'message')} retained"
        confirm(f"Delete {name} ({held})?", yes=yes)
        try:
            with busy(f"deleting {name}"):
                gone.delete(force=force)
        except QueueNotEmpty as error:
            problem = f"groups of {name} hold messages; --force deletes them too"
            raise QueueNotEmpty(problem) from error
    if app.json:
        return show.documents([{"topic": name, "deleted": True}])
    return click.echo(f"deleted {name}")


COMMANDS = [topic]


def _doc(stats: TopicStats) -> dict[str, Any]:
    age = stats.oldest_age
    groups = [
        {"group": name, "filling": name in stats.filling, **shapes.of_stats(of)}
        for name, of in stats.groups.items()
    ]
    return {
        "topic": stats.topic,
        "log": stats.log,
        "retention": stats.retention,
        "retained": stats.retained,
        "oldest_age_ms": None if age is None else round(age * 1000),
        "groups": groups,
    }


def _retention(stats: TopicStats) -> str:
    if not stats.log:
        return "nothing"
    return length(stats.retention) if stats.retention else "for ever"


def _row(stats: TopicStats) -> list[show.Cell]:
    return [
        stats.topic,
        f"{len(stats.groups):,}",
        f"{stats.retained:,}",
        "" if stats.oldest_age is None else length(int(stats.oldest_age)),
        _retention(stats),
    ]


def _group_row(group: str, of: QueueStats, stats: TopicStats) -> list[show.Cell]:
    paused = ("paused", "yellow") if of.paused else "open"
    return [
        group,
        ("filling", "yellow") if group in stats.filling else paused,
        f"{of.ready:,}",
        f"{of.delayed:,}",
        f"{of.leased:,}",
        (f"{of.dead:,}", "red" if of.dead else ""),
        f"{of.done:,}",
        "" if of.oldest_age is None else length(int(of.oldest_age)),
    ]
