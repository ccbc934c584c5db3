"""Columns straight from the wire are the columns that messages make, in every view."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Backoff, Holdfast, Outgoing
from holdfast.errors import StoreUnavailable
from holdfast.model.moves import State
from holdfast.queue.context import Context
from holdfast.spark import arrow, columns
from holdfast.stores.contract import ReserveAsk, View, batch_in
from holdfast.work import ledger
from holdfast.work.ledger import Part

VIEWS = {
    "ready": ("work", State.READY),
    "delayed": ("work", State.DELAYED),
    "leased": ("work", State.LEASED),
    "dead": ("work.dlq", State.READY),
    "log": ("work", State.LOG),
}


@pytest.fixture
def hf(postgres_url: str) -> Any:
    with holdfast.connect(postgres_url) as made:
        yield made


def fill(hf: Holdfast) -> None:
    queue = hf.queue("work", max_attempts=2, backoff=Backoff(base=0), ack_timeout=60)
    odd = [
        Outgoing({"n": 1}, key="clé", type="t", headers={"a": "b", "ü": ""}, priority=3),
        Outgoing(b"\xff\x00", ack_timeout=7.5, max_attempts=9),
        Outgoing("naïve", content_type="text/plain; charset=utf-8"),
        Outgoing(None),
    ]
    for _ in range(8):
        queue.enqueue_many(odd)
    queue.enqueue_many([Outgoing(n, delay=3600) for n in range(3)])
    for lease in queue.lease(4):
        queue.fail(lease, "no")
    for lease in queue.lease(4):
        queue.ack(lease, result={"ok": [1, "ü"]})
    for lease in queue.lease(4):
        queue.nack(lease, "again")
    queue.lease(5)


def by_messages(at: Context, view: View, schema: pa.Schema) -> pa.Table:
    entries: list[Any] = []
    after: str | None = None
    while True:
        page = at.store.browse(view, after, 5, at.clock.now())
        entries += page.entries
        after = page.after
        if after is None:
            return pa.Table.from_batches([columns.of_entries(entries, schema)], schema)


@pytest.mark.promise("SPARK-3")
@pytest.mark.parametrize("name", VIEWS)
def test_both_ways_give_the_same_rows(hf: Holdfast, name: str) -> None:
    fill(hf)
    queue, state = VIEWS[name]
    schema = columns.arrow_schema(columns.SCHEMAS[name])
    view = View(queue, state)
    fast = pa.Table.from_batches(list(arrow.view(hf.context, view, None, schema, 5)), schema)
    slow = by_messages(hf.context, view, schema)
    assert fast.num_rows == slow.num_rows > 0
    assert fast.to_pylist() == slow.to_pylist()


def test_a_part_of_a_batch_comes_whole_and_by_id(hf: Holdfast) -> None:
    fill(hf)
    at = hf.context
    n = at.store.lease(ReserveAsk("work", 50, "me", "t", "it's.0"), at.clock.now())
    schema = columns.arrow_schema(columns.MESSAGE)
    batch = list(arrow.held(at, "work", Part("it's.0", ledger.PAGE + 1), schema, 5))
    ids = [row["id"] for part in batch for row in part.to_pylist()]
    assert ids == [lease.id for lease in batch_in(at.store, "work", "it's.0", None, 100)]
    assert len(ids) == n > 0


def test_a_read_that_breaks_goes_on_after_the_last_row(hf: Holdfast) -> None:
    rows = [pa.RecordBatch.from_pydict({"id": [str(n)]}) for n in range(6)]
    asked: list[str | None] = []

    def start(last: str | None) -> Any:
        asked.append(last)
        for n in range(0 if last is None else int(last) + 1, 6):
            if len(asked) < 3 and n == len(asked) * 2:
                raise StoreUnavailable("gone")
            yield rows[n]

    read = arrow._Resumed(start, lambda raw: raw.column("id")[-1].as_py(), "reading", 5)
    assert [batch.column("id")[0].as_py() for batch in read] == [str(n) for n in range(6)]
    assert asked == [None, "1", "3"]
