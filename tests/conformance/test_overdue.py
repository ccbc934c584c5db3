"""Messages whose consumer went silent.

The tests are in src/holdfast/testing/conformance/overdue.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.overdue import *
