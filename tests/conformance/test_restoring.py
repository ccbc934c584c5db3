from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.restoring import *
