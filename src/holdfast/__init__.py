"""A durable message queue that does not let go of a message until somebody has finished it."""

from holdfast.app import Holdfast, connect
from holdfast.backoff import Backoff
from holdfast.errors import (
    FailedPrecondition,
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    LeaseLost,
    MessageNotFound,
    MissingExtra,
    NotFound,
    QueueNotEmpty,
    QueueNotFound,
    RedriveFailed,
    SchemaTooNew,
    SourceQueueGone,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.message import ErrorInfo, Finished, Lease, Message, Outgoing
from holdfast.outcome import Done, Extend, Fail, Release, Retry
from holdfast.policy import Policy
from holdfast.queue import PartitionStats, Queue
from holdfast.store import QueueStats, Settled, State

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Done",
    "ErrorInfo",
    "Extend",
    "Fail",
    "FailedPrecondition",
    "Finished",
    "GroupNotFound",
    "Holdfast",
    "HoldfastError",
    "InvalidArgument",
    "Lease",
    "LeaseLost",
    "Message",
    "MessageNotFound",
    "MissingExtra",
    "NotFound",
    "Outgoing",
    "PartitionStats",
    "Policy",
    "Queue",
    "QueueNotEmpty",
    "QueueNotFound",
    "QueueStats",
    "RedriveFailed",
    "Release",
    "Retry",
    "SchemaTooNew",
    "Settled",
    "SourceQueueGone",
    "State",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "connect",
]
