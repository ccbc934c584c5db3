"""What can be done with queues, as small stories that any connection can play; see scene.py."""

from tests.server.stories import dead, leases, log, messages, queues, topics, watching  # noqa: F401
from tests.server.stories.scene import STORIES, Scene, plain

__all__ = ["STORIES", "Scene", "plain"]
