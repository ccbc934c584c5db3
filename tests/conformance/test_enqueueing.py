"""What enqueue stores, refuses and recognises as a duplicate.

The tests are in src/holdfast/testing/conformance/enqueueing.py.
"""

from holdfast.testing.conformance.enqueueing import *
from holdfast.testing.conformance.fixtures import *
