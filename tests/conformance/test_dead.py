from holdfast.testing.conformance.dead import *
from holdfast.testing.conformance.fixtures import *
