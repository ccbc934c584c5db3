"""A durable message queue that does not let go of a message until somebody has finished it."""

from holdfast.app import Holdfast, connect
from holdfast.errors import (
    FailedPrecondition,
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    LeaseLost,
    MessageNotFound,
    MissingExtra,
    NotFound,
    PermissionDenied,
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
    Unauthenticated,
)
from holdfast.model.backoff import Backoff
from holdfast.model.message import ErrorInfo, Finished, Lease, Message, Outgoing
from holdfast.model.moves import Settled, State
from holdfast.model.policy import Policy
from holdfast.queue.interface import PartitionStats, Queue
from holdfast.queue.redrive import (
    DeadFilter,
    Edit,
    EditFailed,
    Progress,
    RedriveJob,
    Redriven,
    RedriveNotFound,
    RedriveRunner,
)
from holdfast.rules.outcome import Done, Extend, Fail, Release, Retry
from holdfast.stores.contract import QueueStats

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "DeadFilter",
    "Done",
    "Edit",
    "EditFailed",
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
    "PermissionDenied",
    "Policy",
    "Progress",
    "Queue",
    "QueueNotEmpty",
    "QueueNotFound",
    "QueueStats",
    "RedriveFailed",
    "RedriveJob",
    "RedriveNotFound",
    "RedriveRunner",
    "Redriven",
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
    "Unauthenticated",
    "connect",
]
