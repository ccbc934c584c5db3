"""Records changed by compare-and-set, and receipts.

The tests are in src/holdfast/testing/conformance/recording.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.recording import *
