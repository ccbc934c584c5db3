"""Dead letters that return to another queue or partition, or with a new payload.

The tests are in src/holdfast/testing/conformance/moving.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.moving import *
