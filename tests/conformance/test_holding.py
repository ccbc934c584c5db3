"""Messages reserved under a name, without a deadline.

The tests are in src/holdfast/testing/conformance/holding.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.holding import *
