"""Only the holder of the current token may settle a message.

The tests are in src/holdfast/testing/conformance/fencing.py.
"""

from holdfast.testing.conformance.fencing import *
from holdfast.testing.conformance.fixtures import *
