from holdfast.testing.conformance.counting import *
from holdfast.testing.conformance.fixtures import *
