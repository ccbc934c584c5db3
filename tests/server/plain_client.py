"""A client in another world: stubs that protoc made from holdfast.proto, grpcio, and nothing else.

Run as a program with the folder of the stubs on its path; it prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc
import holdfast_pb2 as pb  # type: ignore[import-not-found]
import holdfast_pb2_grpc as rpc  # type: ignore[import-not-found]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

WAIT_S = 60.0


def main(target: str) -> dict[str, Any]:
    with grpc.insecure_channel(target) as channel:
        messages, admin = rpc.MessageServiceStub(channel), rpc.AdminServiceStub(channel)
        return {
            **worked(messages, admin),
            **redriven(messages, admin),
            "health": health(channel),
            "services": services(channel),
        }


def worked(messages: Any, admin: Any) -> dict[str, Any]:
    """A message from end to end."""
    policy = pb.PolicyDoc(max_attempts=2, backoff=pb.BackoffDoc(base=0, jitter="none"))
    made = admin.CreateQueue(pb.PutQueueAsk(queue="orders", partitions=1, policy=policy))
    one = pb.EnqueueAsk(queue="orders", payload_json='{"id": 1}', key="k", headers={"h": "x"})
    sent = messages.Enqueue(one, timeout=WAIT_S)
    batch = [pb.OutgoingDoc(body=b"\x00\xff", content_type="image/png"), pb.OutgoingDoc()]
    refused = code(
        lambda: messages.EnqueueBatch(pb.EnqueueBatchAsk(queue="orders", messages=batch))
    )
    batch[1].payload_json = "null"
    batch[1].priority = 9
    messages.EnqueueBatch(pb.EnqueueBatchAsk(queue="orders", messages=batch), timeout=WAIT_S)
    stream = messages.Lease(pb.LeaseStreamAsk(queue="orders", max_in_flight=3), timeout=WAIT_S)
    leases = [next(stream) for _ in range(3)]
    items = [
        pb.SettleItem(id=lease.message.id, token=lease.token, outcome=outcome)
        for lease, outcome in zip(leases, ("done", "retry", "fail"), strict=True)
    ]
    items[0].result_json = '{"ok": true}'
    settled = messages.Settle(pb.SettleAsk(queue="orders", items=items), timeout=WAIT_S)
    again = next(stream)  # what was to be tried again, as there is room for it
    longer = messages.Extend(
        pb.ExtendAsk(queue="orders", id=again.message.id, token=again.token, seconds=100)
    )
    messages.Ack(pb.AckAsk(queue="orders", id=again.message.id, token=again.token))
    stale = code(
        lambda: messages.Ack(pb.AckAsk(queue="orders", id=again.message.id, token="nonsense"))
    )
    stream.cancel()  # not before: what may not have arrived by then is given back
    stats = admin.GetStats(pb.QueueAsk(queue="orders"))
    return {
        "in force": [made.in_force.max_attempts, made.in_force.backoff.base, made.in_force.log],
        "sent": [sent.queue, sent.partition, sent.duplicate, sent.HasField("message")],
        "refused": refused,
        "leased": [[one.message.payload_json, one.message.body.hex()] for one in leases],
        "carried": [leases[1].message.key, dict(leases[1].message.headers)],
        "settled": [result.status for result in settled.results],
        "again": [again.message.attempts, again.message.errors[0].message],
        "longer": longer.deadline > again.deadline,
        "stale": stale,
        "stats": [stats.ready, stats.leased, stats.dead, stats.done, stats.HasField("oldest_age")],
    }


def redriven(messages: Any, admin: Any) -> dict[str, Any]:
    admin.CreateQueue(pb.PutQueueAsk(queue="lone.dlq"))
    names = ["", "nowhere", "nowhere.dlq", "orders", "lone.dlq"]
    told = [code(lambda name=name: admin.Redrive(pb.RedriveAsk(dlq_queue=name))) for name in names]
    none = admin.Redrive(pb.RedriveAsk(dlq_queue="orders.dlq", ids=pb.Texts()))
    one = admin.Redrive(pb.RedriveAsk(dlq_queue="orders.dlq", count=1))
    rest = admin.Redrive(pb.RedriveAsk(dlq_queue="orders.dlq"))
    return {"redrive errors": told, "redriven": [none.redriven, one.redriven, rest.redriven]}


def code(call: Any) -> str:
    try:
        call()
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"
    return "OK"


def health(channel: grpc.Channel) -> dict[str, int]:
    stub = health_pb2_grpc.HealthStub(channel)
    names = ["", "holdfast.v1.MessageService", "holdfast.v1.AdminService"]
    return {
        name: stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S).status
        for name in names
    }


def services(channel: grpc.Channel) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    [answer] = stub.ServerReflectionInfo(iter([ask]), timeout=WAIT_S)
    described = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="holdfast.v1.AdminService"
    )
    [file] = stub.ServerReflectionInfo(iter([described]), timeout=WAIT_S)
    assert file.file_descriptor_response.file_descriptor_proto
    return sorted(service.name for service in answer.list_services_response.service)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
