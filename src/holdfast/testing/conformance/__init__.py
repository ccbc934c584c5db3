"""What every store must do, as tests that anybody's store can run.

In a conftest, give a fixture `store_factory` that opens handles on one fresh store; then, in a
test module: `from holdfast.testing.conformance.leasing import *`. The fixtures below come along
with `from holdfast.testing.conformance.fixtures import *`. Needs pytest.

Markers to register: `promise` (what a test proves), `no_store` (checks arguments only, so that one
store is enough), `extended` (more cases of the same kind, for a longer run).
"""
