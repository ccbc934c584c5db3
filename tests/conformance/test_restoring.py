"""Messages copied from another store with their history.

The tests are in src/holdfast/testing/conformance/restoring.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.restoring import *
