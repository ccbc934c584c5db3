"""Pages, batches, queue specs, claims and events.

The tests are in src/holdfast/testing/conformance/keeping.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.keeping import *
