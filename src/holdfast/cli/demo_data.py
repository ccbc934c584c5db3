"""`holdfast demo-data`: a shop's last hour in a store, for those who want to look around first.

Nothing in it is special: the verbs of the library put it there. Only the clock is: it starts an
hour ago and is moved on between the verbs, so that logs, dead letters and ages look as if the shop
had been open all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import click

from holdfast import Backoff, Fail, FailedPrecondition, Holdfast, Outgoing, Queue, Retry, connect
from holdfast.app import REMOTE
from holdfast.cli import show
from holdfast.cli.base import App, Command, busy, pass_app
from holdfast.cli.show import Column, number
from holdfast.model.clock import Clock
from holdfast.model.message import Lease
from holdfast.model.queues import partition_claim
from holdfast.stores.contract import LeaseAsk

HOUR_S = 3600
STEP_S = 60
TOPIC = "shop.events"
STOCK = ("anchor", "compass", "lantern", "rope")
GROUPS = ("billing", "search", "audit")
QUEUES = ("orders", "payments", "webhooks", "thumbnails", "newsletter")
OWNED_S = 600
"""So long the demo's consumers own their partitions; no program stands behind them."""


@click.command("demo-data", cls=Command)
@click.option(
    "--force", is_flag=True, help="Delete queues of these names first, and all they hold."
)
@pass_app
def demo_data(app: App, force: bool) -> None:
    """Fill a store with the last hour of a shop, to look at it in the dashboard.

    Makes five queues and a topic, with messages in every state, dead letters of several causes and
    an hour of finished work. A store that has a queue of one of these names is left alone.
    """
    app.log_to_stderr()
    url = app.store_url()
    if url.startswith(REMOTE):
        raise FailedPrecondition(
            "demo-data needs the store itself; connect to that, not to a server"
        )
    with connect(url) as now:
        _make_room(now, force=force)
        clock = Moved(now.context.clock)
        with busy("opening the shop"):
            fill(connect(now.store, clock=clock), clock)
        stats = now.stats()
    names = {*QUEUES, *(f"{TOPIC}@{group}" for group in GROUPS)}
    made = [one for one in stats if one.queue in names]
    if app.json:
        return show.documents({"queue": one.queue, "ready": one.ready} for one in made)
    rows: list[list[show.Cell]] = [
        [one.queue, *(f"{n:,}" for n in (one.ready, one.delayed, one.leased, one.dead, one.done))]
        for one in made
    ]
    columns = [Column("QUEUE"), *map(number, ("READY", "DELAYED", "LEASED", "DEAD", "DONE"))]
    show.table(columns, rows, empty="nothing")
    flag = f" --url {app.url}" if app.url else ""
    click.echo(f"\nlook at it: holdfast{flag} serve, then open http://127.0.0.1:8080/")
    return None


COMMANDS = [demo_data]


class Moved:
    """The store's clock, so many seconds ago."""

    def __init__(self, real: Clock) -> None:
        self._real = real
        self.ago = 0.0

    def now(self) -> int:
        return self._real.now() - int(self.ago * 1000)

    def monotonic(self) -> float:
        return self._real.monotonic()


def _make_room(hf: Holdfast, *, force: bool) -> None:
    there = [name for name in QUEUES if hf.context.spec(name) is not None]
    topics = [topic for topic in hf.topics() if topic.name == TOPIC]
    names = [*there, *(topic.name for topic in topics)]
    if names and not force:
        said = ", ".join(names)
        raise FailedPrecondition(f"this store has {said} already; --force deletes and makes anew")
    for name in there:
        hf.queue(name, create=False).delete(force=True)
    for topic in topics:
        topic.delete(force=True)


def fill(hf: Holdfast, clock: Moved) -> None:
    dice = Random(7)
    for part in (_thumbnails, _orders, _webhooks, _payments, _newsletter, _events):
        clock.ago = HOUR_S
        part(hf, clock, dice)
    clock.ago = 0


def _minutes(clock: Moved) -> Iterator[int]:
    """One after the other, up to now."""
    for minute in range(HOUR_S // STEP_S):
        clock.ago = HOUR_S - minute * STEP_S
        yield minute


def _worked(
    queue: Queue,
    clock: Moved,
    dice: Random,
    *,
    waited: float,
    took: float,
    verdict: Callable[[Lease], Any] = lambda lease: lease,
    owners: str = "worker",
) -> None:
    """All that is ready, after a while, in two hands."""
    clock.ago -= waited
    leases = [
        lease
        for hand in (1, 2)
        for lease in queue.lease(dice.randint(4, 14), owner=f"{owners}-{hand}")
    ]
    clock.ago -= took
    queue.settle([verdict(lease) for lease in leases])


def _thumbnails(hf: Holdfast, clock: Moved, dice: Random) -> None:
    """What goes well: busy, and nothing to see."""
    queue = hf.queue("thumbnails", ack_timeout=60)
    for minute in _minutes(clock):
        photos = range(dice.randint(8, 16))
        queue.enqueue_many(
            Outgoing({"photo": f"p-{minute:02}{n:02}.jpg", "sizes": [160, 640]}, type="resize")
            for n in photos
        )
        waited, took = dice.uniform(0.2, 2), dice.uniform(0.5, 3)
        _worked(queue, clock, dice, waited=waited, took=took, owners="resizer")


def _orders(hf: Holdfast, clock: Moved, dice: Random) -> None:
    """The heart of the shop; something about its payments is wrong since twenty minutes."""
    queue = hf.queue("orders", max_attempts=3, ack_timeout=120, partitions=2)
    orders = (_order(n, dice) for n in range(10_000))

    def verdict(lease: Lease) -> Any:
        order = lease.message.payload
        if order["item"] == "sextant":
            return lease, Fail(f"no sextant in stock for order {order['order']}", code="OutOfStock")
        if clock.ago < 1200 and order["card"].startswith("5"):
            text = f"card {order['card']} declined by issuer, ref {dice.randrange(10**8):08}"
            return lease, Fail(text, code="CardDeclined")
        return lease

    for minute in _minutes(clock):
        queue.enqueue_many(next(orders) for _ in range(dice.randint(4, 9 + minute // 10)))
        waited, took = dice.uniform(0.5, 3 + minute / 6), dice.uniform(1, 5)
        _worked(queue, clock, dice, waited=waited, took=took, verdict=verdict, owners="packer")
    clock.ago = 15
    queue.enqueue_many(next(orders) for _ in range(40))
    queue.enqueue_many(
        [_later(next(orders), delay) for delay in (30, 60, 90, 300, 900, 1800, 7200)]
    )
    held = [_held(next(orders), timeout) for timeout in (25, 40, 60, 90, 150, 300, 600, 900, 1800)]
    queue.enqueue_many(held)
    for hand in range(3):
        clock.ago = 9 - hand * 4
        queue.lease(3, owner=f"packer-{hand + 1}")


def _order(n: int, dice: Random) -> Outgoing:
    item = dice.choice([*STOCK, *STOCK, *STOCK, "sextant"])
    card = dice.choice(["4242", "4000", "5105", "5555", "3782"])
    customer = dice.randint(1, 400)
    order = {
        "order": 10_000 + n,
        "item": item,
        "cents": dice.randrange(500, 40_000, 5),
        "card": card,
        "customer": {"id": customer, "country": dice.choice(["AT", "CH", "DE", "FR", "IT"])},
    }
    headers = {"source": dice.choice(["web", "app", "phone"])}
    return Outgoing(order, key=f"customer-{customer}", type="order.placed", headers=headers)


def _later(order: Outgoing, delay: float) -> Outgoing:
    return Outgoing(order.payload, key=order.key, type="order.reminder", delay=delay)


def _held(order: Outgoing, timeout: float) -> Outgoing:
    return Outgoing(order.payload, key=order.key, type=order.type, priority=9, ack_timeout=timeout)


def _webhooks(hf: Holdfast, clock: Moved, dice: Random) -> None:
    """The others' servers: they are slow, they are away, and they forget who we are."""
    backoff = Backoff(base=120, factor=3, max=1800, jitter="none")
    queue = hf.queue("webhooks", max_attempts=2, ack_timeout=30, backoff=backoff)
    hosts = ["hooks.example.com", "partner.example.org", "erp.example.net"]

    def verdict(lease: Lease) -> Any:
        host = lease.message.payload["url"].split("/")[2]
        if host == hosts[1] and dice.random() < 0.5:
            text = f"POST {lease.message.payload['url']}: 503 after {dice.randint(2, 9)} tries"
            return lease, Retry(text, code="ServiceUnavailable")
        if host == hosts[2] and dice.random() < 0.3:
            return lease, Fail(
                f"token of tenant {dice.randint(1, 90)} has expired", code="Forbidden"
            )
        return lease

    for minute in _minutes(clock):
        for n in range(dice.randint(1, 4)):
            host = dice.choice(hosts)
            url = f"https://{host}/hooks/{minute:02}{n}"
            queue.enqueue({"url": url, "event": "order.shipped"}, key=host, type="webhook")
        _worked(
            queue, clock, dice, waited=1, took=dice.uniform(2, 9), verdict=verdict, owners="hook"
        )


def _payments(hf: Holdfast, clock: Moved, dice: Random) -> None:
    """In order, account by account; nobody works one of its partitions."""
    queue = hf.queue("payments", ordered=True, partitions=6, ack_timeout=300)
    clock.ago = 600
    queue.enqueue_many(
        Outgoing(
            {"account": account, "cents": dice.randrange(100, 9000)},
            key=f"account-{account}",
            type="payment.booked",
        )
        for account in (dice.randint(1, 40) for _ in range(90))
    )
    clock.ago = 20
    now, store = clock.now(), hf.store
    for partition in range(5):
        owner = f"ledger-{partition % 3 + 1}"
        claim = store.claim(partition_claim("payments", partition), owner, OWNED_S * 1000, now)
        if claim is not None:
            ask = LeaseAsk(
                queue="payments",
                limit=1,
                owner=owner,
                token=f"demo-{partition}",
                timeout_ms=300_000,
                partitions=(partition,),
                epochs=(claim.epoch,),
            )
            store.lease(ask, now)


def _newsletter(hf: Holdfast, clock: Moved, dice: Random) -> None:
    """Somebody has stopped it, and it fills up."""
    queue = hf.queue("newsletter")
    clock.ago = 2400
    queue.enqueue_many(
        Outgoing({"to": f"reader{n}@example.com", "issue": 48}, type="mail") for n in range(64)
    )
    queue.pause()


def _events(hf: Holdfast, clock: Moved, dice: Random) -> None:
    """One topic, three who listen; one of them has fallen behind."""
    topic = hf.topic(TOPIC)
    queues = [topic.bind(group) for group in GROUPS]
    for minute in _minutes(clock):
        if minute % 3 == 0:
            topic.publish_many(
                {"order": 10_000 + minute, "event": what} for what in ("paid", "sent")
            )
            for queue in queues[:-1]:
                _worked(queue, clock, dice, waited=1, took=2, owners=queue.name.split("@")[1])
