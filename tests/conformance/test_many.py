"""Leasing from many queues at once, and workers that have many.

The tests are in src/holdfast/testing/conformance/many.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.many import *
