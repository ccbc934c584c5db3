"""Topics and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import (
    Outgoing,
)
from tests.server.stories.scene import (
    ID,
    Scene,
    everything,
    refused,
    story,
)


@story
def topics_and_groups(scene: Scene) -> Any:
    hf = scene.hf
    topic = hf.topic("shop", retention=3600)
    topic.publish({"early": 1}, key="k", headers={"h": "1"}, id=ID.format(1))
    now = topic.bind("billing", max_attempts=5, partitions=2)
    all_ = topic.bind("audit", start="earliest", ordered=True)
    seen: list[Any] = [now.spec, all_.spec, topic.groups(), topic.group("audit").name]
    seen += [topic.publish(b"bytes", key="c", priority=3, delay=2, content_type="image/png")]
    seen += [topic.publish_many([Outgoing("a", key="d"), Outgoing("b", id=ID.format(2), type="t")])]
    seen += [topic.publish("again", id=ID.format(2)), topic.publish_many([Outgoing(1, key="e")])]
    seen += [topic.stats(), everything(now), everything(all_)]
    hf.topic("shop", log=False)
    hf.topic("news")
    seen += [topic.stats(), [one.name for one in hf.topics()], [one.name for one in hf.queues()]]
    seen += [refused(lambda: topic.unbind("billing")), topic.unbind("billing", force=True)]
    seen += [refused(topic.delete), topic.groups(), topic.delete(force=True)]
    return seen, [one.name for one in hf.topics()], [one.name for one in hf.queues()]


@story
def what_a_topic_refuses(scene: Scene) -> Any:
    hf = scene.hf
    topic = hf.topic("shop")
    topic.bind("small", payload_max=10)
    gone = hf.topic("gone")
    gone.delete()
    tries: list[Callable[[], Any]] = [
        lambda: hf.topic("shp", create=False),
        lambda: hf.topic("a b"),
        lambda: hf.topic("a.dlq"),
        lambda: hf.topic(""),
        lambda: hf.topic("x", retention=-1.5),
        lambda: topic.bind("a", start="latest"),  # type: ignore[arg-type]
        lambda: topic.bind("_a"),
        lambda: topic.bind("a" * 200),
        lambda: topic.bind("a", max_atempts=1),
        lambda: topic.bind("a", partitions=0),
        lambda: topic.group("smal"),
        lambda: topic.unbind("smal"),
        lambda: topic.publish("x" * 20),
        lambda: topic.publish_many([1, "x" * 20]),
        lambda: topic.publish(1, priority=10),
        lambda: topic.publish_many("text"),
        lambda: gone.publish(1),
        lambda: gone.publish_many([1, 2]),
        gone.groups,
        gone.stats,
        lambda: gone.bind("a"),
        gone.delete,
        lambda: gone.unbind("a"),
        lambda: gone.group("a"),
    ]
    return [refused(one) for one in tries], topic.stats()
