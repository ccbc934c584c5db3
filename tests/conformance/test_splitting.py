"""A view cut into pieces that together are the whole.

The tests are in src/holdfast/testing/conformance/splitting.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.splitting import *
