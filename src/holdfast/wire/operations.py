"""The table: every operation once. HTTP, OpenAPI, gRPC and the client are made from it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.wire import shapes as s

Service = Literal["MessageService", "AdminService"]
Right = Literal["read", "produce", "consume", "admin"]
Method = Literal["GET", "PUT", "POST", "DELETE"]


class Operation(msgspec.Struct, frozen=True):
    name: str
    """Of the gRPC method; in snake case, of the server's function."""
    service: Service
    method: Method
    path: str
    """Below /v1. Fields of the ask in braces; the others are in the body, or in the query."""
    ask: type[Any]
    answer: type[Any]
    right: Right | None
    """None: whoever has a key."""
    guards: tuple[str, ...]
    """Fields of the ask that name queues or topics on which the right is needed."""
    summary: str
    status: int = 200
    in_http: bool = True

    @property
    def function(self) -> str:
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")

    @property
    def in_path(self) -> list[str]:
        return [part.split("}")[0] for part in self.path.split("{")[1:]]


def _message(
    name: str,
    http: str,
    ask: type[Any],
    answer: type[Any],
    right: Right,
    guard: str,
    summary: str,
    status: int = 200,
) -> Operation:
    method: Any
    method, path = http.split()
    return Operation(
        name, "MessageService", method, path, ask, answer, right, (guard,), summary, status
    )


def _admin(
    name: str,
    http: str,
    ask: type[Any],
    answer: type[Any],
    right: Right | None,
    guards: str,
    summary: str,
    status: int = 200,
) -> Operation:
    method: Any
    method, path = http.split()
    return Operation(
        name,
        "AdminService",
        method,
        path,
        ask,
        answer,
        right,
        tuple(guards.split()),
        summary,
        status,
    )


_QUEUE = "/queues/{queue}"
_ONE = "/queues/{queue}/messages/{id}"
_TOPIC = "/topics/{topic}"
_GROUP = "/topics/{topic}/groups/{group}"

OPERATIONS = [
    _message(
        "Enqueue",
        f"POST {_QUEUE}/messages",
        s.EnqueueAsk,
        s.EnqueuedDoc,
        "produce",
        "queue",
        "Store one message; the answer comes when the store has it.",
        201,
    ),
    _message(
        "EnqueueBatch",
        f"POST {_QUEUE}/messages:batch",
        s.EnqueueBatchAsk,
        s.EnqueuedsDoc,
        "produce",
        "queue",
        "Store all of them or none.",
        201,
    ),
    _message(
        "Publish",
        f"POST {_TOPIC}/messages",
        s.PublishAsk,
        s.EnqueuedDoc,
        "produce",
        "topic",
        "One message to every group of a topic.",
        201,
    ),
    _message(
        "PublishBatch",
        f"POST {_TOPIC}/messages:batch",
        s.PublishBatchAsk,
        s.EnqueuedsDoc,
        "produce",
        "topic",
        "All of them to every group, or none.",
        201,
    ),
    _message(
        "LeaseBatch",
        f"POST {_QUEUE}/leases",
        s.LeaseAsk,
        s.LeasesDoc,
        "consume",
        "queue",
        "Up to `limit` messages, for you alone until their deadline; waits for the first.",
    ),
    _message(
        "Settle",
        f"POST {_QUEUE}/leases:settle",
        s.SettleAsk,
        s.SettledsDoc,
        "consume",
        "queue",
        "End many leases in one write; each gets its own answer.",
    ),
    _message(
        "Ack",
        f"POST {_ONE}/ack",
        s.AckAsk,
        s.Nothing,
        "consume",
        "queue",
        "Finished: into the log.",
    ),
    _message(
        "Nack",
        f"POST {_ONE}/nack",
        s.NackAsk,
        s.Nothing,
        "consume",
        "queue",
        "It did not work: again after its backoff, or dead when out of attempts.",
    ),
    _message(
        "Fail",
        f"POST {_ONE}/fail",
        s.FailAsk,
        s.Nothing,
        "consume",
        "queue",
        "It will never work: to the dead letters at once.",
    ),
    _message(
        "Release",
        f"POST {_ONE}/release",
        s.ReleaseAsk,
        s.Nothing,
        "consume",
        "queue",
        "Give it back at once; this delivery does not count.",
    ),
    _message(
        "Extend",
        f"POST {_ONE}/extend",
        s.ExtendAsk,
        s.SettledDoc,
        "consume",
        "queue",
        "Hold it for longer.",
    ),
    _admin(
        "ListQueues",
        "GET /queues",
        s.ListAsk,
        s.QueuesDoc,
        "read",
        "",
        "Every queue that your key may read, by name.",
    ),
    _admin(
        "CreateQueue",
        f"PUT {_QUEUE}",
        s.PutQueueAsk,
        s.QueueDoc,
        "admin",
        "queue",
        "Make a queue, or change the fields that are given.",
    ),
    _admin(
        "GetQueue",
        f"GET {_QUEUE}",
        s.QueueAsk,
        s.QueueDoc,
        "read",
        "queue",
        "How a queue is set up.",
    ),
    _admin(
        "DeleteQueue",
        f"DELETE {_QUEUE}",
        s.DeleteQueueAsk,
        s.Nothing,
        "admin",
        "queue",
        "Delete a queue with its dead letters and its log.",
    ),
    _admin(
        "ListStats",
        "GET /stats",
        s.ListAsk,
        s.StatsListDoc,
        "read",
        "",
        "Numbers of every queue; dead letters are counted with the queue they came from.",
    ),
    _admin(
        "GetStats",
        f"GET {_QUEUE}/stats",
        s.QueueAsk,
        s.StatsDoc,
        "read",
        "queue",
        "How many are ready, delayed, leased, dead and done.",
    ),
    _admin(
        "ListPartitions",
        f"GET {_QUEUE}/partitions",
        s.QueueAsk,
        s.PartitionsDoc,
        "read",
        "queue",
        "What each partition holds, and who owns it.",
    ),
    _admin(
        "ListConsumers",
        f"GET {_QUEUE}/consumers",
        s.QueueAsk,
        s.ConsumersDoc,
        "read",
        "queue",
        "Who holds what now.",
    ),
    _admin(
        "Pause",
        f"POST {_QUEUE}/pause",
        s.QueueAsk,
        s.Nothing,
        "admin",
        "queue",
        "Lease nothing any more.",
    ),
    _admin(
        "Resume",
        f"POST {_QUEUE}/resume",
        s.QueueAsk,
        s.Nothing,
        "admin",
        "queue",
        "Go on where it was.",
    ),
    _admin(
        "Purge",
        f"POST {_QUEUE}/purge",
        s.QueueAsk,
        s.CountDoc,
        "admin",
        "queue",
        "Drop every waiting message, without a trace.",
    ),
    _admin(
        "Browse",
        f"GET {_QUEUE}/messages",
        s.BrowseAsk,
        s.PageDoc,
        "read",
        "queue",
        "Look at messages in the order in which they are leased, without touching them.",
    ),
    _admin(
        "GetMessage",
        f"GET {_ONE}",
        s.MessageAsk,
        s.DetailDoc,
        "read",
        "queue",
        "One message: where it is, and what happened to it.",
    ),
    _admin(
        "ReadLog",
        f"GET {_QUEUE}/log",
        s.LogAsk,
        s.LogDoc,
        "read",
        "queue",
        "What is finished, oldest first.",
    ),
    _admin(
        "Replay",
        f"POST {_QUEUE}/replay",
        s.ReplayAsk,
        s.MessagesDoc,
        "admin",
        "queue",
        "Finished messages again, as new ones that name their origin.",
    ),
    _admin(
        "ListFailures",
        f"GET {_QUEUE}/failures",
        s.FailuresAsk,
        s.FailuresDoc,
        "read",
        "queue",
        "Dead letters grouped by what they died of.",
    ),
    _admin(
        "Redrive",
        "POST /redrive",
        s.RedriveAsk,
        s.RedrivenDoc,
        "admin",
        "dlq_queue to",
        "Put dead letters back; the answer comes when it is done.",
    ),
    _admin(
        "StartRedrive",
        "POST /redrives",
        s.RedriveAsk,
        s.RedriveDoc,
        "admin",
        "dlq_queue to",
        "Put dead letters back, in the background; it goes on when this server is gone.",
        202,
    ),
    _admin(
        "ListRedrives",
        "GET /redrives",
        s.NoAsk,
        s.RedrivesDoc,
        "read",
        "",
        "Redrives that run, and those of the last day.",
    ),
    _admin(
        "GetRedrive",
        "GET /redrives/{id}",
        s.RedriveIdAsk,
        s.RedriveDoc,
        "read",
        "",
        "How far a redrive is.",
    ),
    _admin(
        "CancelRedrive",
        "POST /redrives/{id}/cancel",
        s.RedriveIdAsk,
        s.RedriveDoc,
        "admin",
        "",
        "Stop a redrive; what it moved stays moved.",
    ),
    _admin(
        "ListTopics",
        "GET /topics",
        s.ListAsk,
        s.TopicsDoc,
        "read",
        "",
        "Every topic with its groups.",
    ),
    _admin(
        "CreateTopic",
        f"PUT {_TOPIC}",
        s.PutTopicAsk,
        s.TopicDoc,
        "admin",
        "topic",
        "Make a topic, or change the fields that are given.",
    ),
    _admin("GetTopic", f"GET {_TOPIC}", s.TopicAsk, s.TopicDoc, "read", "topic", "One topic."),
    _admin(
        "DeleteTopic",
        f"DELETE {_TOPIC}",
        s.DeleteTopicAsk,
        s.Nothing,
        "admin",
        "topic",
        "Delete a topic with its groups.",
    ),
    _admin(
        "Bind",
        f"PUT {_GROUP}",
        s.BindAsk,
        s.QueueDoc,
        "admin",
        "topic",
        "A group that gets all that is published from now on, or from the earliest.",
    ),
    _admin(
        "Unbind",
        f"DELETE {_GROUP}",
        s.UnbindAsk,
        s.Nothing,
        "admin",
        "topic",
        "Delete a group with its queue.",
    ),
    _admin(
        "Sweep",
        "POST /sweep",
        s.NoAsk,
        s.SweptDoc,
        "admin",
        "",
        "Settle every overdue lease now. It also happens by itself.",
    ),
    _admin(
        "GetSettings",
        "GET /settings",
        s.NoAsk,
        s.SettingsDoc,
        "read",
        "",
        "Settings and limits in force, and the store's time.",
    ),
    _admin(
        "GetIdentity",
        "GET /identity",
        s.NoAsk,
        s.IdentityDoc,
        None,
        "",
        "Who you are to this server, and what you may.",
    ),
    _admin(
        "GetHistory",
        "GET /history",
        s.HistoryAsk,
        s.HistoryDoc,
        "read",
        "queue",
        "Numbers and rates of the last hour, as this server saw them.",
    ),
    _admin(
        "ListActions",
        "GET /actions",
        s.ActionsAsk,
        s.ActionsDoc,
        "read",
        "queue",
        "What was done through servers that needs the right admin: who, what, when, how many.",
    ),
    _admin(
        "ListPipelines",
        "GET /spark",
        s.NoAsk,
        s.PipelinesDoc,
        "read",
        "",
        "Spark queries that read from queues, and how far they are.",
    ),
    _admin(
        "ListReports",
        "GET /reports",
        s.ReportsAsk,
        s.ReportsDoc,
        "read",
        "",
        "Reports that Spark jobs made of this store.",
    ),
    _admin(
        "GetReport",
        "GET /reports/{id}",
        s.ReportIdAsk,
        s.ReportDoc,
        "read",
        "",
        "One report, with its page.",
    ),
]

LEASE_STREAM = Operation(
    "Lease",
    "MessageService",
    "POST",
    "",
    s.LeaseStreamAsk,
    s.LeaseDoc,
    "consume",
    ("queue",),
    "Leases as they come, as many as you can take.",
    in_http=False,
)
WATCH = Operation(
    "Watch",
    "AdminService",
    "GET",
    "",
    s.WatchAsk,
    s.EventDoc,
    "read",
    (),
    "Events of every process on this store.",
    in_http=False,
)
STREAMS = [LEASE_STREAM, WATCH]
BY_NAME = {operation.name: operation for operation in [*OPERATIONS, *STREAMS]}
