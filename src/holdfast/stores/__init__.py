"""Stores by URL. Each keeps messages and applies transitions; none of them decides anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from urllib.parse import parse_qsl, urlsplit

from holdfast.errors import InvalidArgument, MissingExtra, did_you_mean
from holdfast.stores.contract import Entry, LeaseAsk, Page, Store, View

SCHEMES = {
    "memory": ("holdfast.stores.memory", None),
    "mongodb": ("holdfast.stores.mongo", "mongo"),
    "mongodb+srv": ("holdfast.stores.mongo", "mongo"),
    "postgres": ("holdfast.stores.postgres", "postgres"),
    "postgresql": ("holdfast.stores.postgres", "postgres"),
    "redis": ("holdfast.stores.redis", "redis"),
    "redis+cluster": ("holdfast.stores.redis", "redis"),
    "redis+sentinel": ("holdfast.stores.redis", "redis"),
    "rediss": ("holdfast.stores.redis", "redis"),
    "rediss+cluster": ("holdfast.stores.redis", "redis"),
    "rediss+sentinel": ("holdfast.stores.redis", "redis"),
    "sqlite": ("holdfast.stores.sqlite", None),
}


def open_store(url: str) -> Store:
    """The store a URL names, with its schema in place."""
    try:
        scheme = urlsplit(url).scheme if isinstance(url, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    except ValueError:  # which may show the password
        raise InvalidArgument(
            "url", "not a store URL; write :/?#[]@% in a part of it as %xx"
        ) from None
    if not scheme or "://" not in url:
        raise InvalidArgument("url", f"{url!r} is not a store URL; try sqlite:///jobs.db")
    if scheme not in SCHEMES:
        raise InvalidArgument("url", f"no store {scheme}://; {did_you_mean(scheme, SCHEMES)}")
    module, extra = SCHEMES[scheme]
    try:
        opened: Store = import_module(module).open_url(url)
    except ModuleNotFoundError as error:
        if extra is None:
            raise
        raise MissingExtra(f"{scheme}:// needs: pip install 'holdfast[{extra}]'") from error
    try:
        opened.migrate()
    except BaseException:
        opened.close()
        raise
    return opened


def url_options(url: str, known: set[str]) -> dict[str, str]:
    """The query part of a store URL, refusing what the store does not know."""
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    for name in options:
        if name not in known:
            raise InvalidArgument(f"url option {name}", did_you_mean(name, known))
    return options


_CURSOR = re.compile(r"-?[0-9]{1,19}\.-?[0-9]{1,19}")
_CURSOR_MAX = 2**63 - 1
"""What every store can compare with; places in MongoDB have 63 bits. A cursor that somebody made up
is no fault of the store."""


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


def page_of(
    rows: Sequence[tuple[tuple[int, int], Entry]], view: View, limit: int, end: int
) -> Page:
    """A page of rows in order, each with its cursor; one beyond the limit says there are more."""
    if view.to is not None:
        last = read_cursor(view.to)
        rows = [row for row in rows if row[0] <= last]
    after = ".".join(map(str, rows[limit - 1][0])) if len(rows) > limit else None
    return Page([entry for _, entry in rows[:limit]], after, str(end))


def in_steps(ask: LeaseAsk, *, full: bool) -> Iterator[list[LeaseAsk]]:
    """The asks of many queues, in order, for stores where a look at a queue takes its time. If the
    last lease was full: first as many as may be enough, then more, then the rest. Else all."""
    asks = list(ask.each())
    few = 2 * -(-ask.limit // asks[0].limit) if full else len(asks)
    for step in (asks[:few], asks[few : 5 * few], asks[5 * few :]):
        if step:
            yield step
