"""PostgreSQL beside the model."""

from __future__ import annotations

import pytest

from tests.model.side_by_side import PROVES, SideBySidePostgres, check

MACHINES = {
    "postgres": (SideBySidePostgres, 25),
}


@PROVES
@pytest.mark.parametrize("store_name", list(MACHINES))
def test_the_store_behaves_like_the_model(store_name: str, request: pytest.FixtureRequest) -> None:
    machine, examples = MACHINES[store_name]
    machine.server = request.getfixturevalue("postgres_server")
    check(machine, examples, request.config)
