"""Priorities, a deadline and a delayed retry on Redis, and what redis-cli shows of them.

    pip install 'holdfast[redis]'
    python parcels.py redis://localhost:6379/0        (or set HOLDFAST_URL)

The example makes a queue called example_parcels and deletes it at the end.
"""

import os
import sys
from urllib.parse import urlsplit

import redis

import holdfast

QUEUE = "example_parcels"


def work(hf: holdfast.Holdfast) -> None:
    parcels = hf.queue(QUEUE, max_attempts=2, backoff=holdfast.Backoff(base=0, jitter="none"))
    parcels.enqueue_many(
        [
            holdfast.Outgoing({"to": "Bergen"}),
            holdfast.Outgoing({"to": "Nuuk"}, priority=9),
            holdfast.Outgoing({"to": "Atlantis"}, ack_timeout=60),
        ]
    )
    with redis.Redis.from_url(plain(hf.url), decode_responses=True) as client:
        leases = parcels.lease(limit=3, owner="van-7")
        print("first:", [lease.message.payload["to"] for lease in leases])
        print("held by van-7:", pending(client))
        for lease in leases:
            if lease.message.payload["to"] == "Atlantis":
                parcels.nack(lease, "no such place")
            else:
                parcels.ack(lease)
        (again,) = parcels.lease(owner="van-8")
        print("again:", again.message.payload["to"], "attempt", again.message.attempts)
        parcels.nack(again, "still no such place")
        stats = parcels.stats()
        print(f"{stats.done} delivered, {stats.dead} dead, in Redis {pending(client)} held")


def pending(client: redis.Redis) -> int:
    """As an operator would count them: XPENDING of every stream of the queue."""
    streams = client.scan_iter(match=f"holdfast:{{{QUEUE}}}:[sa][0-9]*", _type="stream")
    return sum(client.xpending(stream, "holdfast")["pending"] for stream in streams)


def plain(url: str) -> str:
    """Without options of ours."""
    return urlsplit(url)._replace(query="").geturl()


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("HOLDFAST_URL", "")
    if not url.startswith("redis://"):
        sys.exit("which server? python parcels.py redis://localhost:6379/0")
    with holdfast.connect(url) as hf:
        try:
            work(hf)
        finally:
            hf.queue(QUEUE).delete(force=True)


if __name__ == "__main__":
    main()
