"""Stores by URL. Each keeps messages and applies transitions; none of them decides anything."""

from __future__ import annotations

from importlib import import_module
from urllib.parse import parse_qsl, urlsplit

from holdfast.errors import InvalidArgument, MissingExtra, did_you_mean
from holdfast.stores.contract import Store
from holdfast.stores.kit.pages import in_steps as in_steps
from holdfast.stores.kit.pages import page_of as page_of
from holdfast.stores.kit.pages import read_cursor as read_cursor

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
