"""Parts of a batch: messages leased under one name, without a deadline.

A task reads one part, as often as it must, and always sees the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.model.message import Lease
from holdfast.model.moves import Settled, Transition
from holdfast.queue.context import Context
from holdfast.stores.contract import batch_in

PART_ROWS = 10_000
"""How many messages one name holds at most: one step of the store, and one task's share."""
PAGE = 2000

Fetch = Callable[[Callable[[], list[Lease]]], list[Lease]]


class Part(msgspec.Struct, frozen=True):
    """The share of a batch that one task reads."""

    name: str
    rows: int


def part_name(hold: str, n: int) -> str:
    return f"{hold}.{n}"


def read(
    at: Context, queue: str, part: str, fetch: Fetch = lambda page: page()
) -> Iterator[list[Lease]]:
    """The messages of a part by id, in pages.

    `fetch` calls the function that reads one page, and may call it again.
    """
    after: str | None = None
    while True:
        leases = fetch(lambda after=after: batch_in(at.store, queue, part, after, PAGE))
        if leases:
            yield leases
        if len(leases) < PAGE:
            return
        after = leases[-1].id


def release(at: Context, queue: str, part: str, move: Callable[[Lease, int], Transition]) -> int:
    """Settle all that a part still holds by `move`; returns how many messages moved."""
    n = 0
    while leases := batch_in(at.store, queue, part, None, PAGE):
        now = at.clock.now()
        answers = at.store.settle([move(lease, now) for lease in leases], now)
        moved = sum(answer is Settled.APPLIED for answer in answers)
        n += moved
        if not moved:
            break  # another process is settling them
    return n
