from holdfast.testing.conformance.fencing import *
from holdfast.testing.conformance.fixtures import *
