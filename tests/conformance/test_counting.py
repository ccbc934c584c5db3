"""A message is in exactly one state, and the counts agree.

The tests are in src/holdfast/testing/conformance/counting.py.
"""

from holdfast.testing.conformance.counting import *
from holdfast.testing.conformance.fixtures import *
