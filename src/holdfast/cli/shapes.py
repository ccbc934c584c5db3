"""What `--json` prints: the library's own field names, times in milliseconds since 1970.

Lengths that a policy holds stay in seconds, as the options take them; ages and round trips end in
`_ms`. A payload is embedded as JSON; `payload_encoding` says when it is text or base64 instead.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from holdfast import Backoff, Finished, Lease, Message, PartitionStats, Policy, QueueStats
from holdfast.model.fields import plain_values
from holdfast.model.payload import JSON
from holdfast.model.queues import QueueSpec


def of_message(message: Message) -> dict[str, Any]:
    encoding, payload = _payload(message)
    return {
        "id": message.id,
        "queue": message.queue,
        "partition": message.partition,
        "priority": message.priority,
        "key": message.key,
        "type": message.type,
        "content_type": message.content_type,
        "payload_encoding": encoding,
        "payload": payload,
        "headers": message.headers,
        "enqueued_at": message.enqueued_at,
        "available_at": message.available_at,
        "attempts": message.attempts,
        "ack_timeout": message.ack_timeout,
        "max_attempts": message.max_attempts,
        "backoff": message.backoff and message.backoff.to_dict(),
        "first_leased_at": message.first_leased_at,
        "errors": msgspec.to_builtins(message.errors),
        "source": message.source,
        "dead_at": message.dead_at,
        "reason": message.reason,
        "redriven": message.redriven,
        "origin": message.origin,
        **plain_values(message),
    }


def of_lease(lease: Lease) -> dict[str, Any]:
    return {
        "token": lease.token,
        "deadline": lease.deadline,
        "leased_at": lease.leased_at,
        "owner": lease.owner,
        **of_message(lease.message),
    }


def of_finished(finished: Finished) -> dict[str, Any]:
    return {
        "status": finished.status,
        "finished_at": finished.finished_at,
        "last_leased_at": finished.last_leased_at,
        "consumer": finished.consumer,
        "result": finished.result,
        **of_message(finished.message),
    }


def of_stats(stats: QueueStats) -> dict[str, Any]:
    age = stats.oldest_age
    return {
        "queue": stats.queue,
        "ready": stats.ready,
        "delayed": stats.delayed,
        "leased": stats.leased,
        "dead": stats.dead,
        "done": stats.done,
        "oldest_age_ms": None if age is None else round(age * 1000),
        "paused": stats.paused,
        "lag": stats.lag,
    }


def of_partition(part: PartitionStats) -> dict[str, Any]:
    age = part.oldest_age
    return {
        "partition": part.partition,
        "ready": part.ready,
        "delayed": part.delayed,
        "leased": part.leased,
        "lag": part.lag,
        "oldest_age_ms": None if age is None else round(age * 1000),
        "owner": part.owner,
        "epoch": part.epoch,
    }


def of_spec(spec: QueueSpec) -> dict[str, Any]:
    return {
        "queue": spec.name,
        "partitions": spec.spread,
        "ordered": spec.ordered,
        "first_partition": spec.starts[-1],
        "paused": spec.paused,
        "created_at": spec.created_at,
        "revision": spec.revision,
        "policy_given": spec.policy.to_dict(),
    }


def of_policy(policy: Policy) -> dict[str, Any]:
    """Complete: a backoff with all its fields, also those that were left to the default."""
    return {**policy.to_dict(), "backoff": of_backoff(policy.backoff or Backoff())}


def of_backoff(backoff: Backoff) -> dict[str, Any]:
    return {
        "base": backoff.base,
        "factor": backoff.factor,
        "max": backoff.max,
        "jitter": backoff.jitter,
    }


def _payload(message: Message) -> tuple[str, Any]:
    try:
        if message.content_type == JSON:  # not decoded: numbers stay as they were written
            return "json", msgspec.Raw(msgspec.json.format(message.body, indent=-1))
        if message.content_type.startswith("text/"):
            return "text", message.body.decode()
    except (UnicodeDecodeError, msgspec.MsgspecError):
        pass  # not what it says it is; somebody may still want to look
    return "base64", b64encode(message.body).decode()
