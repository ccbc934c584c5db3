"""Cursors and pages of `Store.browse`, and the steps of a lease from many queues."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holdfast.errors import InvalidArgument
from holdfast.stores.contract import Entry, LeaseAsk, Page, View

_CURSOR = re.compile(r"-?[0-9]{1,19}\.-?[0-9]{1,19}")
_CURSOR_MAX = 2**63 - 1
"""What every store can compare with; positions in MongoDB have 63 bits. A larger number was made
up by the caller, which is no fault of the store."""

Keyed = tuple[tuple[int, int], Entry]
"""A row of a page with its cursor."""


def read_cursor(after: str | None) -> tuple[int, int]:
    """A page's cursor as two numbers; before everything when there is none."""
    if after is None:
        return -1, -1
    if not _CURSOR.fullmatch(after):
        raise InvalidArgument("after", f"{after[:100]!r} is not a cursor of this queue")
    first, second = map(int, after.split("."))
    if max(abs(first), abs(second)) > _CURSOR_MAX:
        raise InvalidArgument("after", f"{after!r} is not a cursor of this queue")
    return first, second


def page_of(rows: Sequence[Keyed], view: View, limit: int, end: int) -> Page:
    """A page of rows in order, each with its cursor; one beyond the limit says there are more."""
    if view.to is not None:
        last = read_cursor(view.to)
        rows = [row for row in rows if row[0] <= last]
    after = ".".join(map(str, rows[limit - 1][0])) if len(rows) > limit else None
    return Page([entry for _, entry in rows[:limit]], after, str(end))


def in_steps(ask: LeaseAsk, *, full: bool) -> Iterator[list[LeaseAsk]]:
    """Split an ask for many queues, in order, for stores where looking at a queue takes time.

    After a full lease: first as many queues as may be enough, then more, then the rest. Otherwise
    all of them at once.
    """
    asks = list(ask.each())
    few = 2 * -(-ask.limit // asks[0].limit) if full else len(asks)
    for step in (asks[:few], asks[few : 5 * few], asks[5 * few :]):
        if step:
            yield step
