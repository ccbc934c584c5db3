"""Every operation fuzzed at length, on each store: drivers refuse different things."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from schemathesis import Case

from tests.plugins.stores import LentUrl
from tests.server.test_fuzz_http import SCHEMA, World, fuzz, serving_world

EXAMPLES = 100


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis", "mongo"])
def each_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, lent_url: LentUrl
) -> Iterator[World]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/fuzz.db"
        else:
            server = request.getfixturevalue(f"{request.param}_server")
            url = stack.enter_context(lent_url(request.param, server))
        yield stack.enter_context(serving_world(url))


def fuzzing(operation: Any) -> dict[str, Callable[..., None]]:
    method, path = operation.method.upper(), operation.path

    @pytest.mark.soak
    @SCHEMA.include(method=method, path=path).parametrize()
    @fuzz(EXAMPLES)
    def test(case: Case, each_world: World) -> None:
        each_world.check(case)

    return {f"test_every_operation_at_length[{method} {path}]": test}


for _operation in SCHEMA.get_all_operations():
    globals().update(fuzzing(_operation.ok()))
