from holdfast.testing.conformance.finishing import *
from holdfast.testing.conformance.fixtures import *
