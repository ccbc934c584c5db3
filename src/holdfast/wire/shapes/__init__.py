"""The documents that clients send and get. Field names are the library's own."""

from holdfast.wire.shapes.admin import *
from holdfast.wire.shapes.base import *
from holdfast.wire.shapes.browsing import *
from holdfast.wire.shapes.leases import *
from holdfast.wire.shapes.messages import *
from holdfast.wire.shapes.queues import *
from holdfast.wire.shapes.redrive import *
