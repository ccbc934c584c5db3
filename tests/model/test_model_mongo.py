"""MongoDB beside the model: a replica set, and a standalone server."""

from __future__ import annotations

import pytest

from tests.model.side_by_side import PROVES, SideBySideMongo, SideBySideStandalone, check

MACHINES = {
    "mongo": (SideBySideMongo, 13),
    "mongo-standalone": (SideBySideStandalone, 5),
}


@PROVES
@pytest.mark.parametrize("store_name", list(MACHINES))
def test_the_store_behaves_like_the_model(store_name: str, request: pytest.FixtureRequest) -> None:
    machine, examples = MACHINES[store_name]
    server = "mongo_server" if store_name == "mongo" else "mongo_standalone"
    machine.server = request.getfixturevalue(server)
    check(machine, examples, request.config)
