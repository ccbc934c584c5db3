"""The conformance suite through a server: a connection over HTTP or gRPC means what a store means.

A test applies unless it reaches behind the verbs: for the store itself, a worker, owners of
partitions, a transaction. What a test reaches for is read from its code, so that a new one is run
here without a list; the few that have other reasons are named.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from random import Random
from types import FunctionType
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Queue
from holdfast.model.settings import Settings
from holdfast.queue.expiry import Looks
from holdfast.testing import ManualClock, MemoryStore, conformance
from tests.server.rig import Doors, serving

CALLED_BACK = "a function that is called back"
TOLD = "owners of partitions that do as they are told"
FIXTURES = {
    "store": "the store itself",
    "store_factory": "the store itself",
    "join": TOLD,
    "monkeypatch": "the inside of the process",
}
ATTRIBUTES = {"store": "the store itself", "context": "the store itself"}
CALLS = {
    "worker": "a worker",
    "drain": "a worker",
    "Running": "a worker",
    "redrive_runner": "a runner of redrives, and the server has its own",
}
KEYWORDS = {
    "background": TOLD,
    "within": "a transaction",
    "batch": "leases that a batch holds",
    "progress": CALLED_BACK,
    "cancel": CALLED_BACK,
}
"""What a test needs that uses one of these names, itself or through a function of its module."""

OTHERS = {
    "test_an_edited_payload": CALLED_BACK,
    "test_an_edit_that_cannot_be_names_the_message": CALLED_BACK,
    "test_an_ordered_queue_is_leased_by_owners_only": "no server, which owns for who has a name",
    "test_an_ack_during_a_sweep_wins_or_loses": "nothing of a server, in hundreds of races",
}
PACKAGE = conformance.__name__


def why_not(test: FunctionType) -> str | None:
    """What a test needs that is not behind a server; None: it applies."""
    needs = [FIXTURES.get(name) for name in inspect.signature(test).parameters]
    needs += [need for code in reached(test) for need in needed(code)]
    return next((need for need in needs if need), OTHERS.get(test.__name__))


def needed(code: FunctionType | type) -> Iterator[str | None]:
    for node in ast.walk(tree(code)):
        match node:
            case ast.Attribute(attr=name):
                yield ATTRIBUTES.get(name)
            case ast.keyword(arg="edit", value=ast.Lambda()):
                yield CALLED_BACK
            case ast.keyword(arg=str(name)):
                yield KEYWORDS.get(name)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                yield CALLS.get(name)
            case _:
                pass


def reached(test: FunctionType) -> list[Any]:
    """The test, and all of the suite's functions and classes that it names, and so on."""
    found: list[Any] = [test]
    for one in found:
        known = vars(sys.modules[one.__module__])
        named = {node.id for node in ast.walk(tree(one)) if isinstance(node, ast.Name)}
        for value in [known.get(name) for name in sorted(named)]:
            ours = getattr(value, "__module__", "").startswith(PACKAGE)
            if ours and isinstance(value, FunctionType | type) and value not in found:
                found.append(value)
    return found


@cache
def tree(code: FunctionType | type) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(code)))


def suite() -> dict[str, Any]:
    """All tests of the suite and their fixtures, by name."""
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(conformance.__path__):
        for name, value in vars(import_module(f"{PACKAGE}.{info.name}")).items():
            is_test = name.startswith("test_")
            assert not is_test or name not in found, f"{name} is there twice"
            if is_test or (info.name != "fixtures" and "FixtureFunction" in type(value).__name__):
                found[name] = value
    return found


SUITE = suite()
TESTS = {name: value for name, value in SUITE.items() if name.startswith("test_")}
APPLIES = {name: value for name, value in SUITE.items() if name not in TESTS or not why_not(value)}
globals().update(APPLIES)


@pytest.fixture(scope="module")
def local() -> Holdfast:
    """What the server serves. Each test gives it a store and a clock of its own."""
    return holdfast.connect(MemoryStore(), clock=ManualClock(), rng=Random(7))


@pytest.fixture(scope="module")
def doors(local: Holdfast) -> Iterator[Doors]:
    """It sweeps when it is told to: tests say how much a sweep moves."""
    with serving(local, settings=Settings(overdue_check_interval_ms=3_600_000)) as doors:
        yield doors


@pytest.fixture(scope="module", params=["http", "grpc"])
def url(request: pytest.FixtureRequest, doors: Doors) -> str:
    return doors.url(request.param)


@pytest.fixture
def clock(local: Holdfast) -> ManualClock:
    clock = local.context.clock = ManualClock()
    return clock


@pytest.fixture
def hf(local: Holdfast, clock: ManualClock, url: str) -> Iterator[Holdfast]:
    local.context.store = MemoryStore()
    local.context.rng = Random(7)
    local.context.looks = Looks()  # of the clock of the test before
    with holdfast.connect(url) as remote:
        yield remote


@pytest.fixture
def another(hf: Holdfast, url: str) -> Iterator[Callable[[], Holdfast]]:
    opened: list[Holdfast] = []

    def connect() -> Holdfast:
        opened.append(holdfast.connect(url))
        return opened[-1]

    yield connect
    for remote in opened:
        remote.close()


@pytest.fixture
def queue(hf: Holdfast) -> Queue:
    return hf.queue("orders")


def test_most_of_what_is_left_out_needs_the_store() -> None:
    """The rule leaves nothing out by accident: how much it takes is known, and so is why."""
    reasons = Counter(why_not(test) for test in TESTS.values())
    assert reasons[None] >= 125
    assert {name: why_not(TESTS[name]) for name in OTHERS} == OTHERS
    assert all(reasons[reason] for reason in {*FIXTURES.values(), *CALLS.values()})
