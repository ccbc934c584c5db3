from holdfast.testing.conformance.enqueueing import *
from holdfast.testing.conformance.fixtures import *
