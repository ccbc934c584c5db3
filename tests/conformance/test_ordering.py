"""Ordered queues: one owner per partition, messages in order.

The tests are in src/holdfast/testing/conformance/ordering.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.ordering import *
