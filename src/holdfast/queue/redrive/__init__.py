"""Dead letters back to where they are worked: which ones, how, and jobs that outlive a process."""

from holdfast.queue.redrive.choosing import DeadFilter, Edit, Editor, Options
from holdfast.queue.redrive.jobs import (
    RedriveJob,
    RedriveNotFound,
    RedriveRunner,
    cancel_redrive,
    forget,
    get_redrive,
    list_redrives,
    start_redrive,
)
from holdfast.queue.redrive.moving import BATCH, EditFailed, Progress, Redriven, Stopped, redrive

__all__ = [
    "BATCH",
    "DeadFilter",
    "Edit",
    "EditFailed",
    "Editor",
    "Options",
    "Progress",
    "RedriveJob",
    "RedriveNotFound",
    "RedriveRunner",
    "Redriven",
    "Stopped",
    "cancel_redrive",
    "forget",
    "get_redrive",
    "list_redrives",
    "redrive",
    "start_redrive",
]
