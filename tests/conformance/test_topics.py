"""Topics: every group gets what is published, or none does.

The tests are in src/holdfast/testing/conformance/topics.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.topics import *
