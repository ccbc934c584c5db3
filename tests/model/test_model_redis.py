"""Redis beside the model: one server, and a cluster."""

from __future__ import annotations

import pytest

from tests.model.side_by_side import PROVES, SideBySideCluster, SideBySideRedis, check

MACHINES = {
    "redis": (SideBySideRedis, 50),
    "redis-cluster": (SideBySideCluster, 20),
}


@PROVES
@pytest.mark.parametrize("store_name", list(MACHINES))
def test_the_store_behaves_like_the_model(store_name: str, request: pytest.FixtureRequest) -> None:
    machine, examples = MACHINES[store_name]
    server = "redis_server" if store_name == "redis" else "redis_cluster"
    machine.server = request.getfixturevalue(server)
    check(machine, examples, request.config)
