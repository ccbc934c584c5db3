"""Why targets are missed: what the profiles say, and what it would take. Figures are the page's."""

from __future__ import annotations

HALF = (
    "Why: half of our drain rate is many times the messages a second of the others' halves, on "
    "the same two cores: batches grow, and a message waits for the one before its own."
)

WHY: dict[str, dict[str, str]] = {
    "sqlite": {
        "enqueue-bulk": (
            "Why: half of our time is Python: ids, JSON there and back to see that it comes out "
            "equal, the messages that are returned. The other half is SQLite: by hand there is "
            "one index of small numbers; ours has another that finds an id again, and rows with "
            "a text id, times and a partition. It would take ids of 16 bytes in the table, or "
            "code in C."
        ),
        "lease-ack": (
            "Why: by hand an ack deletes a row. Ours writes it to the log first, with two "
            "indexes of its own, compares every token, and keeps counts. It would take a log "
            "without an index by time."
        ),
        "drain": (
            "Why: leasing, handling and settling are threads of one interpreter, so that their "
            "times add up (see where a message's time goes); by hand there is no worker at all. "
            "persist-queue with one reader has no leases: what a process had read when it died "
            "is gone. It would take an interpreter without a lock, or code in C."
        ),
    },
    "postgres": {
        "enqueue-bulk-100": (
            "Why: the sync of a commit is the same for everybody, and weighs most in small "
            "batches. Larger ones meet the target."
        ),
        "lease-ack": (
            "Why: by hand an ack deletes rows. Ours compares every token and writes the log in "
            "the same statement."
        ),
        "drain": (
            "Why: pgqueuer works in batches too, and the last line says how far ahead of it the "
            "least code is. What is between that and ours is the log, and our worker's own time "
            "(see where a message's time goes)."
        ),
        "latency": (
            "Why: the tail is the disk's: every enqueue and every lease is a synced commit."
        ),
        "latency-half": HALF,
    },
    "redis": {
        "enqueue-one": (
            "Why: huey pushes to a list. Ours runs a script that knows whether the id is held, "
            "counts, and wakes a worker."
        ),
        "latency": (
            "Why: huey's worker pops the message itself, in one round trip: it is gone from "
            "Redis before it runs, and lost with its worker. Ours is woken, and then leases: two "
            "round trips. Redis has no script that waits, which could do both."
        ),
        "latency-half": HALF,
    },
    "mongo": {
        "enqueue-bulk-100": (
            "Why: by hand there is one insert. Ours counts in the same transaction, and tells "
            "who waits. Larger batches come closer."
        ),
        "latency": (
            "Why: a worker hears of a message by the change stream, when a majority has it, and "
            "then leases it with several commands; the peers ask every 10 ms and take it with "
            "one. It would take an index that hands out single messages, beside the one for "
            "batches."
        ),
        "latency-half": HALF,
    },
}
"""By store, then by the name of the measure."""
