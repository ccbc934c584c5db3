"""Ordered queues: who works which partition, and which message of it may run next."""

from holdfast.work.ownership.batch_owner import BatchOwner
from holdfast.work.ownership.consumer import Consumer
from holdfast.work.ownership.line import Work
from holdfast.work.ownership.owner import POLL_S, Owner

__all__ = ["POLL_S", "BatchOwner", "Consumer", "Owner", "Work"]
