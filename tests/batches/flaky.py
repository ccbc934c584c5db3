"""A store whose calls fail: before they are made, after (the answer is lost), or long after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.stores.contract import BatchEnd, ReserveAsk, Store


class Died(BaseException):
    """The process was killed: nothing of it may catch this."""


KINDS = {ReserveAsk: "reserve", BatchEnd: "end batch"}


class Flaky:
    """Passes every call on, but for one: the n-th, of all or of a name.

    Leases for a batch have the name "reserve", settlements of a batch "end batch"."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name: str | None = None
        self._left = 0
        self._when = ""
        self._late: list[Callable[[], object]] = []
        self._first: dict[str, Callable[[], None]] = {}
        self.died = False

    def fail(self, name: str | None, n: int, when: str) -> None:
        """The n-th call from now on dies, `when`: before it is made, after, or it comes late."""
        self._name, self._left, self._when, self.died = name, n, when, False

    def before(self, name: str, act: Callable[[], None]) -> None:
        self._first[name] = act

    def now_they_come(self) -> None:
        """What was under way when its process died reaches the store."""
        late, self._late = self._late, []
        for call in late:
            call()

    def __getattr__(self, name: str) -> Any:
        real, method = getattr(self._store, name), name
        if not callable(real):
            return real

        def call(*args: Any, **options: Any) -> Any:
            name = KINDS.get(type(args[0]), method) if args else method
            if name in self._first:
                self._first[name]()
            if self._left and self._name in (None, name):
                self._left -= 1
                if not self._left:
                    self.died = True
                    if self._when == "after":
                        real(*args, **options)
                    if self._when == "late":
                        self._late.append(lambda: real(*args, **options))
                    raise Died(f"{name}, {self._when}")
            return real(*args, **options)

        return call
