"""Dead letters and redrive.

The tests are in src/holdfast/testing/conformance/dead.py.
"""

from holdfast.testing.conformance.dead import *
from holdfast.testing.conformance.fixtures import *
