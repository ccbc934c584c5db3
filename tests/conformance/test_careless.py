"""Handlers with bugs.

The tests are in src/holdfast/testing/conformance/careless.py.
"""

from holdfast.testing.conformance.careless import *
from holdfast.testing.conformance.fixtures import *
