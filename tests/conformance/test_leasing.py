"""Which consumer gets which message, and when.

The tests are in src/holdfast/testing/conformance/leasing.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.leasing import *
