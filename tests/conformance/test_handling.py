"""Workers and handlers.

The tests are in src/holdfast/testing/conformance/handling.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.handling import *
