"""Queues and topics: making and deleting them, their numbers, who works on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.queue.interface import Queue, Topic
from holdfast.server.auth import Principal
from holdfast.server.browsing import who_holds
from holdfast.server.handles import Handles
from holdfast.server.history import Spans
from holdfast.stores.contract import QueueStats
from holdfast.wire import shapes as s


class Queues:
    def __init__(self, handles: Handles, spans: Spans) -> None:
        self._handles = handles
        self._at = handles.context
        self._spans = spans
        self.told: Callable[[list[QueueStats]], None] = lambda _: None
        """Called with the numbers that a caller was answered."""

    def list_queues(self, ask: s.ListAsk, who: Principal) -> s.QueuesDoc:
        found = {queue.name: queue for queue in self._handles.hf.queues()}
        names = _listed(found, ask, who)
        specs = {spec.name: spec for spec in self._at.store.queues() if spec.name in names}
        return s.QueuesDoc(
            [s.QueueDoc.of(specs[name], self._at.complete(specs[name])) for name in specs]
        )

    def create_queue(self, ask: s.PutQueueAsk) -> s.QueueDoc:
        queue = self._handles.hf.queue(
            ask.queue, partitions=ask.partitions, ordered=ask.ordered, **ask.policy.fields()
        )
        return self._describe(queue)

    def get_queue(self, ask: s.QueueAsk) -> s.QueueDoc:
        return self._describe(self._handles.queue(ask.queue))

    def delete_queue(self, ask: s.DeleteQueueAsk) -> s.Nothing:
        self._handles.queue(ask.queue).delete(force=ask.force)
        self._spans.forget(ask.queue)
        return s.Nothing()

    def list_stats(self, ask: s.ListAsk, who: Principal) -> s.StatsListDoc:
        found = {stats.queue: stats for stats in self._handles.hf.stats()}
        self.told([*found.values()])
        return s.StatsListDoc([s.StatsDoc.of(found[name]) for name in _listed(found, ask, who)])

    def get_stats(self, ask: s.QueueAsk) -> s.StatsDoc:
        stats = self._handles.queue(ask.queue).stats()
        self.told([stats])
        return s.StatsDoc.of(stats)

    def list_partitions(self, ask: s.QueueAsk) -> s.PartitionsDoc:
        parts = self._handles.queue(ask.queue).partitions()
        return s.PartitionsDoc([s.PartitionDoc.of(part) for part in parts])

    def list_consumers(self, ask: s.QueueAsk) -> s.ConsumersDoc:
        return who_holds(self._handles.existing(ask.queue))

    def pause(self, ask: s.QueueAsk) -> s.Nothing:
        self._handles.queue(ask.queue).pause()
        return s.Nothing()

    def resume(self, ask: s.QueueAsk) -> s.Nothing:
        self._handles.queue(ask.queue).resume()
        return s.Nothing()

    def purge(self, ask: s.QueueAsk) -> s.CountDoc:
        return s.CountDoc(self._handles.queue(ask.queue).purge())

    def _describe(self, queue: Queue) -> s.QueueDoc:
        spec = queue.spec
        return s.QueueDoc.of(spec, self._at.complete(spec))

    def list_topics(self, ask: s.ListAsk, who: Principal) -> s.TopicsDoc:
        found = {topic.name: topic for topic in self._handles.hf.topics()}
        names = _listed(found, ask, who)
        return s.TopicsDoc([self._describe_topic(found[name]) for name in names])

    def create_topic(self, ask: s.PutTopicAsk) -> s.TopicDoc:
        topic = self._handles.hf.topic(ask.topic, log=ask.log, retention=ask.retention)
        return self._describe_topic(topic)

    def get_topic(self, ask: s.TopicAsk) -> s.TopicDoc:
        return self._describe_topic(self._handles.topic(ask.topic))

    def delete_topic(self, ask: s.DeleteTopicAsk, who: Principal) -> s.Nothing:
        topic = self._handles.topic(ask.topic)
        for group in topic.groups():
            who.demand("admin", f"{ask.topic}@{group}")
        topic.delete(force=ask.force)
        return s.Nothing()

    def bind(self, ask: s.BindAsk) -> s.QueueDoc:
        start: Any = ask.start
        queue = self._handles.topic(ask.topic).bind(
            ask.group,
            start=start,
            partitions=ask.partitions,
            ordered=ask.ordered,
            **ask.policy.fields(),
        )
        return self._describe(queue)

    def unbind(self, ask: s.UnbindAsk) -> s.Nothing:
        self._handles.topic(ask.topic).unbind(ask.group, force=ask.force)
        return s.Nothing()

    def _describe_topic(self, topic: Topic) -> s.TopicDoc:
        stats = topic.stats()
        return s.TopicDoc(
            stats.topic,
            {name: s.StatsDoc.of(of) for name, of in stats.groups.items()},
            stats.filling,
            stats.retained,
            stats.oldest_age,
            stats.log,
            stats.retention,
        )


def _listed(names: Any, ask: s.ListAsk, who: Principal) -> list[str]:
    found = [
        name
        for name in sorted(names)
        if name.startswith(ask.prefix) and name > ask.after and who.may("read", name)
    ]
    return found[: ask.limit]
