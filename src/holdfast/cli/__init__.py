"""The command line. It reads, asks the library and shows: no rule about messages lives here."""

from __future__ import annotations

from holdfast.cli import (
    dead,
    demo_data,
    doctor,
    enqueue,
    keys,
    leases,
    log,
    messages,
    queues,
    redrive,
    serve,
    spark,
    stats,
    topics,
    work,
)
from holdfast.cli.base import root

__all__ = ["main", "root"]

for module in (
    queues,
    enqueue,
    topics,
    messages,
    leases,
    work,
    serve,
    spark,
    stats,
    dead,
    redrive,
    log,
    keys,
    doctor,
    demo_data,
):
    for command in module.COMMANDS:
        root.add_command(command)


def main() -> None:
    root.main(prog_name="holdfast")
