"""SQLite beside the model, and the model beside itself."""

from __future__ import annotations

import pytest

from tests.model.side_by_side import PROVES, SideBySideMemory, SideBySideSQLite, check

MACHINES = {
    "sqlite": (SideBySideSQLite, 200),
    "memory": (SideBySideMemory, 50),
}


@PROVES
@pytest.mark.parametrize("store_name", list(MACHINES))
def test_the_store_behaves_like_the_model(store_name: str, request: pytest.FixtureRequest) -> None:
    machine, examples = MACHINES[store_name]
    check(machine, examples, request.config)
