from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.moving import *
