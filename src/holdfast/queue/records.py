"""Reads the store's records, of which one kind may have many."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.stores.contract import Record, Store

PAGE = 1000


def find_record(store: Store, kind: str, name: str) -> Record | None:
    for record in store.records(kind, prefix=name, limit=1):
        if record.name == name:
            return record
    return None


def each_record(store: Store, kind: str, *, prefix: str = "", page: int = PAGE) -> Iterator[Record]:
    """Every record of a kind by name, read in pages."""
    after = ""
    while records := store.records(kind, prefix=prefix, after=after, limit=page):
        yield from records
        after = records[-1].name
