"""Pages of what the store holds, by keyset cursor, each an index walk of the page's own length."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from pymongo.collection import Collection

from holdfast.errors import StoreCorrupt
from holdfast.model.moves import State
from holdfast.stores.contract import Entry, View
from holdfast.stores.mongo.layout import DELAYED, LEASED, READY, Doc
from holdfast.stores.mongo.rows import (
    all_of,
    position,
    read_finished,
    read_lease,
    read_message,
    tick,
)

Cursor = tuple[int, int]
Keyed = tuple[Cursor, Doc]

KEYS = {
    State.READY: ("rk", "pl"),
    State.DELAYED: ("av", "sq"),
    State.LEASED: ("dl", "sq"),
    State.LOG: ("fa", "sq"),
}
MERGED_MAX = 100
"""Partitions that the server walks at once, as one line; of more, the lines are merged here."""


def of_partitions(partitions: Iterable[int]) -> list[Any]:
    """What a filter says of `pt`: one for each walk."""
    numbers = list(partitions)
    walks = [numbers[n : n + MERGED_MAX] for n in range(0, len(numbers), MERGED_MAX)]
    return [walk[0] if len(walk) == 1 else {"$in": walk} for walk in walks]


def page(
    at: Collection[Doc], view: View, q: int, partitions: int, after: Cursor, limit: int, now: int
) -> list[tuple[Cursor, Entry]]:
    """Rows after a cursor with the cursor of each."""
    found: dict[Cursor, Entry] = {}
    for key, doc in _walk(at, view, q, partitions, after, now, limit):
        try:
            found[key] = _entry(doc, view)
        except StoreCorrupt:
            continue  # see `holdfast doctor`
        if len(found) == limit:
            break
    return list(found.items())


def _walk(
    at: Collection[Doc],
    view: View,
    q: int,
    partitions: int,
    after: Cursor,
    now: int,
    size: int,
    only: Doc | None = None,
) -> Iterator[Keyed]:
    between = _between(view)
    if view.state is State.LOG:
        base: Doc = {"q": q}
        if view.id is not None:
            base["_id"] = all_of(q, view.id)
        return _from(at, base, State.LOG, after, size, between, {}, only)
    rest: Doc = {"ea": between} if between else {}
    if view.upto is not None:
        rest["pl"] = {"$lte": tick(int(view.upto))}
    if view.state is State.LEASED:
        return _from(at, {"q": q, "st": LEASED}, State.LEASED, after, size, {}, rest, only)
    if view.state is State.DELAYED:
        ahead = {"$gt": now}
        return _from(at, {"q": q, "st": DELAYED}, State.DELAYED, after, size, ahead, rest, only)
    # Due, but no lease has come by to make them ready. First: one that is made ready meanwhile is
    # then seen twice, not never.
    due: Doc = {"q": q, "st": DELAYED, "av": {"$lte": now}}
    early = list(_from(at, due, State.READY, after, size, {}, rest, only))
    walks = [
        _from(at, {"q": q, "st": READY, "pt": of}, State.READY, after, size, {}, rest, only)
        for of in of_partitions(range(partitions))
    ]
    return heapq.merge(early, *walks, key=lambda pair: pair[0])


def _from(
    at: Collection[Doc],
    base: Doc,
    state: State,
    after: Cursor,
    size: int,
    between: Doc,
    rest: Doc,
    only: Doc | None,
) -> Iterator[Keyed]:
    """In the order of the state's keys, those that follow a cursor; two walks, each of one range:
    as one question with an $or it would be sorted in memory."""
    first, second = KEYS[state]
    for step in _steps(first, second, after, between):
        asked = {**base, **step}
        for name, condition in rest.items():
            asked[name] = {**asked[name], **condition} if name in asked else condition
        # With one value of the first key the server would not merge partitions by both.
        order = [(second, 1)] if isinstance(step.get(first), int) else [(first, 1), (second, 1)]
        cursor = at.find(asked, only).sort(order).batch_size(max(size, 2))
        with cursor:
            for doc in cursor:
                try:
                    key = position(doc, first, second)
                except StoreCorrupt:
                    continue  # see `holdfast doctor`
                yield key, doc


def _steps(first: str, second: str, after: Cursor, between: Doc) -> Iterator[Doc]:
    a, b = after
    if a < 0:
        yield {first: between} if between else {}
        return
    if _holds(a, between):
        yield {first: a, second: {"$gt": tick(b)}}
    yield {first: {**between, "$gt": max(a, between.get("$gt", a))}}


def _holds(value: int, between: Doc) -> bool:
    tests: dict[str, Callable[[int], bool]] = {
        "$gt": lambda bound: value > bound,
        "$gte": lambda bound: value >= bound,
        "$lt": lambda bound: value < bound,
    }
    return all(tests[name](bound) for name, bound in between.items())


def _between(view: View) -> Doc:
    bounds = {"$gte": view.since, "$lt": view.until}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def split(
    at: Collection[Doc], view: View, q: int, partitions: int, parts: int, now: int, n: int
) -> list[str]:
    """Cuts `n` rows into pieces: from each cut, the server skips to the next."""
    step, cuts = max(1, -(-n // parts)), list[Cursor]()
    keys = dict.fromkeys(KEYS[view.state], 1)
    while (len(cuts) + 1) * step < n:
        after = cuts[-1] if cuts else (-1, -1)
        walk = _walk(at, view, q, partitions, after, now, 1000, only=keys)
        cut = next(islice(walk, step - 1, None), None)
        if cut is None:
            break
        cuts.append(cut[0])
    return [f"{first}.{second}" for first, second in cuts]


def count(at: Collection[Doc], view: View, q: int, now: int) -> int:
    states: dict[State, Doc] = {
        State.READY: {"st": READY},
        State.DELAYED: {"st": DELAYED, "av": {"$gt": now}},
        State.LEASED: {"st": LEASED},
        State.LOG: {},
    }
    between = _between(view)
    asked = {"q": q, **states[view.state]}
    if between:
        asked["fa" if view.state is State.LOG else "ea"] = between
    n = at.count_documents(asked)
    if view.state is State.READY:
        n += at.count_documents({**asked, "st": DELAYED, "av": {"$lte": now}})
    return n


def found(doc: Doc, queue: str) -> Entry:
    """A message that was looked for by its id; without its lease if that cannot be read."""
    if doc.get("st") == LEASED:
        with suppress(StoreCorrupt):
            lease = read_lease(doc, queue)
            return Entry(lease.message, 0, lease)
    return Entry(read_message(doc, queue), 0)


def logged(doc: Doc, queue: str) -> Entry:
    finished = read_finished(doc, queue)
    return Entry(finished.message, position(doc, "fa", "sq")[1], finished=finished)


def _entry(doc: Doc, view: View) -> Entry:
    if view.state is State.LOG:
        return logged(doc, view.queue)
    place = position(doc, "rk", "pl")[1]
    if view.state is State.LEASED:
        lease = read_lease(doc, view.queue)
        return Entry(lease.message, place, lease)
    return Entry(read_message(doc, view.queue), place)
