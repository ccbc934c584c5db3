"""Nack, fail, backoff, and which policy applies.

The tests are in src/holdfast/testing/conformance/retrying.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.retrying import *
