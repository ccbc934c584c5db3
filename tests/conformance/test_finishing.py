"""The log: each finished message once, with its outcome.

The tests are in src/holdfast/testing/conformance/finishing.py.
"""

from holdfast.testing.conformance.finishing import *
from holdfast.testing.conformance.fixtures import *
