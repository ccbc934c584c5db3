"""A view, or a part of a batch, as Arrow batches: by columns where the store can, else by messages.

A read that breaks because the store is away goes on after the last row that was handed out.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from holdfast.errors import StoreUnavailable
from holdfast.model import clock
from holdfast.model.moves import State
from holdfast.queue.context import Context
from holdfast.spark import columns
from holdfast.spark.connections import PAUSE_S, logger, patiently
from holdfast.stores.contract import Columnar, View
from holdfast.telemetry.observe import unobserved
from holdfast.work import ledger
from holdfast.work.ledger import Part

PAGE = 5000


def view(
    at: Context, view: View, after: str | None, schema: pa.Schema, timeout: float
) -> Iterator[pa.RecordBatch]:
    now = at.clock.now()
    store = unobserved(at.store)
    if isinstance(store, Columnar) and (walks := store.arrow_walks(view)):
        for walk in range(walks):
            read = _Resumed(
                lambda last, walk=walk: store.read_arrow(view, last or after, now, walk),
                lambda raw: f"{raw.column('k1')[-1].as_py()}.{raw.column('k2')[-1].as_py()}",
                f"reading {view.queue}",
                timeout,
            )
            for raw in read:
                yield columns.of_raw(raw, view.queue, schema)
        return
    while True:
        page = patiently(
            lambda after=after: at.store.browse(view, after, PAGE, now),
            f"reading {view.queue}",
            timeout,
        )
        if page.entries:
            yield columns.of_entries(page.entries, schema)
        after = page.after
        if after is None:
            return


def held(
    at: Context, queue: str, part: Part, schema: pa.Schema, timeout: float
) -> Iterator[pa.RecordBatch]:
    """A part of a batch. One page is read sooner as messages than another connection is made."""
    store = unobserved(at.store)
    if part.rows > ledger.PAGE and isinstance(store, Columnar) and _walks(store, queue):
        read = _Resumed(
            lambda last: store.leased_arrow(queue, part.name, last),
            lambda raw: raw.column("id")[-1].as_py(),
            f"reading {queue}",
            timeout,
        )
        for raw in read:
            yield columns.of_raw(raw, queue, schema)
        return
    pages = ledger.read(
        at, queue, part.name, lambda page: patiently(page, f"reading {queue}", timeout)
    )
    for leases in pages:
        yield columns.of_messages([lease.message for lease in leases], schema)


def _walks(store: Columnar, queue: str) -> int:
    return store.arrow_walks(View(queue, State.LEASED))


class _Resumed:
    """Reads on after the last row when the store was away; patience as in `patiently`."""

    def __init__(
        self,
        start: Callable[[str | None], Iterator[pa.RecordBatch]],
        key: Callable[[pa.RecordBatch], str],
        doing: str,
        timeout: float,
    ) -> None:
        self._start = start
        self._key = key
        self._doing = doing
        self._timeout = timeout

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        last: str | None = None
        until: float | None = None
        pause: Any = PAUSE_S[0]
        while True:
            try:
                for raw in patiently(
                    lambda last=last: self._start(last), self._doing, self._timeout
                ):
                    if raw.num_rows:
                        last, until = self._key(raw), None
                        yield raw
                return
            except StoreUnavailable as error:
                now = clock.monotonic()
                until = until or now + self._timeout
                if now >= until:
                    raise
                logger.warning("%s: store away, again in %.1f s: %s", self._doing, pause, error)
                clock.sleep(pause)
                pause = min(pause * 2, PAUSE_S[1])
