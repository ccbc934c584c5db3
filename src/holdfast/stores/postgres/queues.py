"""Queues: their settings and numbers, as they are stored and as they are remembered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import HoldfastError
from holdfast.model.queues import QueueSpec
from holdfast.stores.kit.specs import Remembered, must_exist
from holdfast.stores.postgres import statements as texts
from holdfast.stores.postgres import upkeep
from holdfast.stores.postgres.connections import UPKEEP_S, Connections
from holdfast.stores.sql import queues
from holdfast.stores.sql.store import Rows, read_spec

SPLIT_MAX = 10_000
"""Messages that are marked at a time when a queue gets a second partition."""
FOLD_EVERY = 256
"""Writes of one process after which it folds the counts."""

_Known = tuple[QueueSpec, int]
"""A queue's settings and its qid."""


class Queues:
    def __init__(self, db: Connections) -> None:
        self._db = db
        self._known: Remembered[_Known] = Remembered()
        self._unfolded = 0

    # As they are remembered

    def look_up(self, name: str) -> _Known | None:
        return self._known.get(name) or self._read([name]).get(name)

    def look_up_all(self, names: Sequence[str]) -> dict[str, _Known]:
        """Those that exist; all that are not remembered in one statement."""
        found = {name: known for name in names if (known := self._known.get(name))}
        missing = [name for name in names if name not in found]
        return found | self._read(missing) if missing else found

    def _read(self, names: Sequence[str]) -> dict[str, _Known]:
        rows = self._db.rows(texts.SPECS_OF, {"names": self._db.listed(names)})
        found = {row[1]: (read_spec(row), row[0]) for row in rows}
        for name in names:
            self._known.put(name, found.get(name))
        return found

    def spec(self, name: str) -> QueueSpec:
        return must_exist(name, self.look_up(name))[0]

    def qid(self, name: str) -> int:
        return must_exist(name, self.look_up(name))[1]

    def forget(self, *names: str) -> None:
        """These, or all of them."""
        self._known.forget(*names)

    def forget_unless(self, name: str, partitions: int) -> None:
        """Nobody who has seen a queue's new partitions is shown its old settings after that."""
        known = self._known.last(name)
        if known is not None and known[0].partitions != partitions:
            self._known.forget(name)

    # As they are stored

    def put(self, specs: Sequence[QueueSpec]) -> bool:
        self.forget()
        for spec in specs:
            if spec.revision and spec.partitions > 1:
                self._split(spec.name)

        def put(rows: Rows) -> bool:
            rows(texts.LOCK, {"name": f"{self._db.where.schema}.queue"})
            return queues.put(rows, texts, specs, list)

        done = self._db.transact(put)
        self.forget()
        return done

    def _split(self, name: str) -> None:
        """Mark the messages of a queue that has one partition, before it gets a second one: from
        then on they are found by their partition only if they are marked. In steps, so that nobody
        waits for long. What is leased is marked when it comes back."""
        for (qid,) in self._db.rows(texts.SPLIT_NEW, {"name": name}):
            bind = {"qid": qid, "limit": SPLIT_MAX}
            for statement in texts.SPLIT.values():
                while self._db.rows(statement, bind)[0][0]:
                    pass

    def delete(self, names: Sequence[str], *, only_empty: bool) -> bool:
        def delete(rows: Rows) -> bool:
            rows("SET LOCAL statement_timeout = 0", {})
            return queues.delete(rows, texts, names, list, only_empty=only_empty)

        self.forget()
        deleted = self._db.transact(delete, timeout=UPKEEP_S)
        self.forget()
        return deleted

    def fold(self, queues: int = 1) -> None:
        """Counts must not pile up where no sweeper runs. A write adds one for each queue."""
        self._unfolded += queues
        if self._unfolded >= FOLD_EVERY:
            self._unfolded = 0
            with suppress(HoldfastError):  # the call that it follows has succeeded, and must say so
                self._db.rows(upkeep.FOLD, {"limit": FOLD_EVERY * 4})
