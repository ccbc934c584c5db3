"""Topics: what is published to one reaches each of its groups, which are queues."""

from holdfast.queue.topic.record import (
    check_group_name,
    check_topic_name,
    count,
    is_hidden,
    log_of,
)
from holdfast.queue.topic.retention import trim
from holdfast.queue.topic.topic import LocalTopic, open_topic, topics

__all__ = [
    "LocalTopic",
    "check_group_name",
    "check_topic_name",
    "count",
    "is_hidden",
    "log_of",
    "open_topic",
    "topics",
    "trim",
]
