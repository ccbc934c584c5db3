"""One table of stories through the library, HTTP and gRPC: the same results, the same errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.client.remote import RemoteHoldfast
from holdfast.model.settings import Settings
from holdfast.stores import open_store
from holdfast.stores.contract import spec_of
from holdfast.testing import ManualClock
from holdfast.wire.operations import OPERATIONS, STREAMS
from holdfast.work import ledger
from servers import SHARED
from tests.plugins.stores import LentUrl
from tests.server.rig import serving
from tests.server.stories import STORIES, Scene, plain

DOORS = ["http", "grpc"]
PROMISES = {
    "bad_input": ["LIFE-11"],
    "bad_input_past_the_client": ["LIFE-11"],
    "payloads_of_every_kind": ["LIFE-11"],
    "the_five_errors_of_a_redrive": ["DEAD-8"],
    "the_five_errors_past_the_client": ["DEAD-8"],
    "redrive_with_every_option": ["DEAD-7"],
    "a_page_by_id_and_by_failure": ["DEAD-7"],
}
"""That a story proves beside SERVER-2."""


class Recorded:
    """A way to a server that remembers what was asked."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.asked: set[str] = set()

    def call(self, name: str, ask: Any, **options: Any) -> Any:
        self.asked.add(name)
        return self._transport.call(name, ask, **options)

    def __getattr__(self, name: str) -> Any:
        if name in ("leases", "events"):
            found = getattr(self._transport, name)
            self.asked.add({"leases": "Lease", "events": "Watch"}[name])
            return found
        return getattr(self._transport, name)


@dataclass
class Place:
    """A store for the library and another one for the server, which are alike."""

    library: Holdfast
    behind: Holdfast
    """What the server serves."""
    remote: dict[str, RemoteHoldfast]
    asked: dict[str, Recorded]

    def play(self, name: str, door: str) -> Any:
        """A story on an empty store, at the beginning of time, with dice that fall the same."""
        local = self.library if door == "library" else self.behind
        hf = self.library if door == "library" else self.remote[door]
        clock = local.context.clock = ManualClock()
        local.context.rng = Random(7)
        try:
            return plain(STORIES[name](Scene(hf, local.context, clock)))
        finally:
            _empty(local)


def _empty(hf: Holdfast) -> None:
    for topic in hf.topics():
        topic.delete(force=True)
    for queue in hf.queues():
        if spec_of(hf.store, queue.name) is not None:
            queue.delete(force=True)
    for kind in ("redrive", "action", ledger.QUERY, "report", "report-page"):
        while hf.store.drop_records(kind, limit=1000):
            pass


@contextmanager
def place(urls: list[str]) -> Iterator[Place]:
    """With a server that sweeps only when it is told to: stories say how much a sweep moves."""
    with ExitStack() as stack:
        library, behind = (
            stack.enter_context(holdfast.connect(open_store(url), clock=ManualClock()))
            for url in urls
        )
        quiet = Settings(overdue_check_interval_ms=3_600_000)
        doors = stack.enter_context(serving(behind, settings=quiet))
        remote: dict[str, RemoteHoldfast] = {}
        asked: dict[str, Recorded] = {}
        for door in DOORS:
            opened: Any = stack.enter_context(holdfast.connect(doors.url(door)))
            asked[door] = Recorded(opened._transport)
            remote[door] = RemoteHoldfast(asked[door], opened.url)  # type: ignore[arg-type]
        yield Place(library, behind, remote, asked)


@pytest.fixture(scope="module", params=SHARED)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def here(
    store_name: str,
    tmp_path_factory: pytest.TempPathFactory,
    lent_url: LentUrl,
    request: pytest.FixtureRequest,
) -> Iterator[Place]:
    with ExitStack() as stack:
        if store_name == "sqlite":
            folder = tmp_path_factory.mktemp("scenarios")
            urls = [f"sqlite:///{folder}/{name}.db" for name in ("library", "server")]
        else:
            server = request.getfixturevalue(f"{store_name}_server")
            urls = [stack.enter_context(lent_url(store_name, server)) for _ in range(2)]
        yield stack.enter_context(place(urls))


def _story(name: str) -> Any:
    marks = [pytest.mark.promise("SERVER-2", *PROMISES.get(name, []))]
    return pytest.param(name, marks=marks, id=name)


@pytest.mark.parametrize("name", [_story(name) for name in STORIES])
def test_every_door_means_the_same(here: Place, name: str) -> None:
    meant = here.play(name, "library")
    assert {door: list(differ(meant, here.play(name, door))) for door in DOORS} == {
        door: [] for door in DOORS
    }


def differ(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two results are not the same."""
    match one, other:
        case dict(), dict():
            for name in {**one, **other}:
                yield from differ(one.get(name), other.get(name), f"{path}.{name}")
        case list(), list() if len(one) == len(other):
            for n, (a, b) in enumerate(zip(one, other, strict=True)):
                yield from differ(a, b, f"{path}[{n}]")
        case _ if one != other:
            yield f"{path}: {one!r} in the library, and here {other!r}"
        case _:
            pass


@pytest.mark.promise("SERVER-2")
def test_the_stories_leave_no_operation_out() -> None:
    with place(["memory://", "memory://"]) as made:
        for name in STORIES:
            for door in DOORS:
                made.play(name, door)
        calls = {operation.name for operation in OPERATIONS if operation.in_http}
        assert calls - made.asked["http"].asked == set()
        assert {o.name for o in [*OPERATIONS, *STREAMS]} - made.asked["grpc"].asked == set()
