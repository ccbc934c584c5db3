"""Many queues at once, as the archive reads them: one plan, and pieces that run in parallel."""

# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.errors import QueueNotFound
from holdfast.model.message import is_dlq
from holdfast.model.moves import State
from holdfast.spark import arrow, columns
from holdfast.spark.connections import context, logger, patiently
from holdfast.spark.lake import tables
from holdfast.spark.options import STORE_TIMEOUT_S
from holdfast.stores.contract import View

NAME = "holdfast-archive"
DEAD = (State.READY, State.DELAYED, State.LEASED)


class Window(msgspec.Struct, frozen=True):
    """What to read of one queue: finished in this time; of dead letters always all."""

    queue: str
    since: int | None = None
    until: int | None = None


class Ask(msgspec.Struct, frozen=True):
    url: str
    table: str
    windows: list[Window]
    slices: int
    """Of each queue."""
    timeout: float = STORE_TIMEOUT_S


def dumped(ask: Ask) -> str:
    return msgspec.json.encode(ask).decode()


class Piece(InputPartition):
    def __init__(self, number: int, view: View, after: str | None) -> None:
        super().__init__(number)
        self.view = view
        self.after = after


class ArchiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return tables.READ[self._ask().table]

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self._ask(), schema)

    def _ask(self) -> Ask:
        return msgspec.json.decode(self.options["ask"], type=Ask)


class Reader(DataSourceReader):
    def __init__(self, ask: Ask, schema: StructType) -> None:
        self._ask = ask
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        ask = self._ask
        at = context(ask.url, timeout=ask.timeout)
        pieces: list[Piece] = []

        def plan(window: Window) -> list[tuple[View, str | None]]:
            now = at.clock.now()
            found: list[tuple[View, str | None]] = []
            for state in (State.LOG,) if ask.table == "log" else DEAD:
                view = View(window.queue, state, window.since, window.until)
                if state is not State.LOG:
                    end = at.store.browse(view, None, 1, now).end
                    view = msgspec.structs.replace(view, upto=end)
                cuts = at.store.split(view, ask.slices, now)
                for after, to in zip([None, *cuts], [*cuts, None], strict=True):
                    found.append((msgspec.structs.replace(view, to=to), after))
            return found

        for window in ask.windows:
            try:
                found = patiently(
                    lambda window=window: plan(window), f"planning {window.queue}", ask.timeout
                )
            except QueueNotFound:
                continue  # deleted since the run began: it has nothing to archive
            pieces += [Piece(len(pieces) + n, *one) for n, one in enumerate(found)]
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        ask, view = self._ask, partition.view
        at = context(ask.url, timeout=ask.timeout)
        schema = columns.arrow_schema(self._schema)
        plain = columns.arrow_schema(tables.PLAIN[ask.table])
        try:
            for batch in arrow.view(at, view, partition.after, plain, ask.timeout):
                yield tables.with_causes(batch, schema)
        except QueueNotFound:
            kind = "dead letters" if is_dlq(view.queue) else "log"
            logger.warning("%s was deleted while its %s was read", view.queue, kind)
