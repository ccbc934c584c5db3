"""The fields that a producer sets on a message.

The tests are in src/holdfast/testing/conformance/fields.py.
"""

from holdfast.testing.conformance.fields import *
from holdfast.testing.conformance.fixtures import *
