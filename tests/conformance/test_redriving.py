"""Redrive by filter, id and rate, and redrive jobs.

The tests are in src/holdfast/testing/conformance/redriving.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.redriving import *
