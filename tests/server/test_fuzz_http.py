"""A schema fuzzer against the OpenAPI file: whatever comes in, a known answer goes out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

import holdfast
from holdfast import Holdfast, Outgoing
from holdfast.server.limits import Limits
from holdfast.server.openapi import openapi
from tests.server.rig import serving

LIMITS = Limits(wait_seconds=0.02)
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    allow_header_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(openapi(LIMITS))
SCHEMA.config.generation.deterministic = True
EXAMPLES = 12


REPORT = f"{5:015d}"


class World:
    """A server with queues that hold something in every state, whatever the fuzzer did to them."""

    def __init__(self, hf: Holdfast, url: str) -> None:
        self.hf = hf
        self.url = url
        self.session = requests.Session()
        self._turn = itertools.count()
        self.known: dict[str, list[str]] = {}
        self.done: set[str] = set()
        """Operations that were done, not only refused."""

    def fill(self) -> None:
        """Again where something is missing: the fuzzer deletes, purges and redrives."""
        if not self._is_filled():
            self._fill()

    def _is_filled(self) -> bool:
        try:
            orders = self.hf.queue("orders", create=False).stats()
            self.hf.topic("news", create=False).group("mail")
        except holdfast.NotFound:
            return False
        counts = (orders.ready, orders.delayed, orders.leased, orders.dead, orders.done)
        return all(counts) and not orders.paused

    def _fill(self) -> None:
        queue = self.hf.queue("orders", retention=0, payload_max=10_000, log=True)
        queue.resume()
        self.hf.queue("plain", partitions=3)
        self.hf.queue("ordered", ordered=True, partitions=2)
        self.hf.topic("news").bind("mail")
        queue.purge()
        queue.enqueue_many([Outgoing(n, priority=9) for n in range(3)])
        done, dead, held = queue.lease(3)
        queue.ack(done, result={"sum": 3})
        queue.fail(dead, ValueError("no route"), code="ROUTE")
        queue.enqueue_many([{"n": n} for n in range(5)])
        queue.enqueue(b"\x00\xff", headers={"a": "b"}, key="k", type="t")
        queue.enqueue("later", delay=3600)
        job = self.hf.start_redrive("orders.dlq", dry_run=True)
        self.known = {
            "queue": ["orders", "plain", "orders.dlq", "ordered", "news@mail"],
            "dlq_queue": ["orders.dlq", "plain.dlq"],
            "topic": ["news"],
            "group": ["mail"],
            "to": ["plain"],
            "id": [held.id, done.id, dead.id],
            "token": [held.token],
        }
        self.ids = {"/v1/redrives": job.id, "/v1/reports": REPORT}
        told = msgspec.json.encode({"made_at": 5, "title": "fuzz"})
        self.hf.store.put_record("report", REPORT, told, None, 5)

    def aim(self, case: Case) -> None:
        """At what there is: names that a fuzzer makes up hit nothing. One time in four it may."""
        turn = next(self._turn)
        if turn % 4 == 3:
            return
        known, negated = self.known, _negated(case)
        if isinstance(case.body, dict) and "token" in case.body:
            known = self._lease()
        for path, id in self.ids.items():
            if case.operation.path.startswith(path):
                known = {**known, "id": [id]}
        if "path" not in negated and case.path_parameters:
            _swap(case.path_parameters, known, turn)
        if "body" not in negated and isinstance(case.body, dict):
            _swap(case.body, known, turn)

    def _lease(self) -> dict[str, list[str]]:
        """One of which all three names fit together."""
        (lease,) = self.hf.queue("orders").lease()
        return {"queue": ["orders"], "id": [lease.id], "token": [lease.token]}

    def check(self, case: Case) -> None:
        self.fill()
        self.aim(case)
        response = case.call(base_url=self.url, session=self.session, timeout=20)
        case.validate_response(response, checks=CHECKS)
        if response.status_code < 300:
            self.done.add(f"{case.method} {case.operation.path}")


def _negated(case: Case) -> set[str]:
    if case.meta is None:
        return set()
    return {
        where.name.lower().split("_")[0]
        for where, made in case.meta.components.items()
        if made.mode.is_negative
    }


def _swap(given: Any, known: dict[str, list[str]], turn: int) -> None:
    for name in given:
        if name in known and isinstance(given[name], str):
            given[name] = known[name][turn // 4 % len(known[name])]


@contextmanager
def serving_world(url: str) -> Iterator[World]:
    with holdfast.connect(url) as hf, serving(hf, limits=LIMITS) as doors:
        world = World(hf, doors.http)
        yield world
        world.session.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving_world(f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/fuzz.db") as world:
        yield world


def test_the_server_describes_itself_so(world: World) -> None:
    described = world.session.get(f"{world.url}/openapi.json").json()
    assert described == msgspec.json.decode(msgspec.json.encode(openapi(LIMITS)))


def fuzz(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )


def fuzzing(operation: Any) -> dict[str, Callable[..., None]]:
    """A name for each: those that one `parametrize` makes share theirs, and xdist runs one."""
    method, path = operation.method.upper(), operation.path

    @pytest.mark.promise("SERVER-5")
    @SCHEMA.include(method=method, path=path).parametrize()
    @fuzz(EXAMPLES)
    def test(case: Case, world: World) -> None:
        world.check(case)

    return {f"test_every_operation[{method} {path}]": test}


for _operation in SCHEMA.get_all_operations():
    globals().update(fuzzing(_operation.ok()))


@pytest.fixture(autouse=True)
def is_done(request: pytest.FixtureRequest) -> Iterator[None]:
    """An operation must have been done in its test, and not only refused."""
    yield
    name = request.node.originalname or request.node.name
    if name.startswith("test_every_operation"):
        operation = name.partition("[")[2].partition("]")[0]
        assert operation in request.getfixturevalue("world").done
