"""Claims on partitions, and adding partitions.

The tests are in src/holdfast/testing/conformance/owning.py.
"""

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.owning import *
