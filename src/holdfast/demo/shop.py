"""The demo's shop: one queue of orders and the function that ships them.

An ordinary Holdfast application; `holdfast work holdfast.demo.shop:hf` works it as well. What goes
wrong in it is written on the orders themselves, so that the demo knows what to expect.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import msgspec

import holdfast
from holdfast import Backoff, Fail, Message

hf = holdfast.connect(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
orders = hf.queue(
    "orders",
    max_attempts=4,
    ack_timeout=3,
    backoff=Backoff(base=0.25, factor=2.0, max=5, jitter="full"),
)

VAT = {"AT": 200, "CH": 81, "DE": 190, "FR": 200, "IT": 220}  # per mille
STOCK = {"anchor", "compass", "lantern", "rope", "sextant"}
CARRIER_HANGS = os.environ.get("SHOP_CARRIER") == "hangs"
"""A host from which the carrier of express orders cannot be reached."""


class Order(msgspec.Struct):
    number: int
    item: str
    country: str
    cents: int
    express: bool = False
    payment_timeouts: int = 0
    """How often the bank does not answer before it does."""


class PaymentTimeout(Exception):
    pass


class NoSuchRate(Exception):
    pass


@hf.handler("orders")
def ship(order: Order, message: Message) -> dict[str, int]:
    if order.item not in STOCK:
        raise Fail(f"{order.item} is not in stock", code="OUT_OF_STOCK")
    if order.country not in VAT:
        raise NoSuchRate(f"no VAT rate for {order.country}")
    timeouts = sum(error.code == "PaymentTimeout" for error in message.errors)
    if timeouts < order.payment_timeouts:
        raise PaymentTimeout("the bank did not answer")
    if order.express and CARRIER_HANGS:
        _hang(order)
    time.sleep(0.02)  # packing
    return {"charged": price(order)}


def price(order: Order) -> int:
    """In cents, with VAT."""
    return order.cents * (1000 + VAT[order.country]) // 1000


def deploy_fix() -> None:
    """What the shop's people did after they had read the dead letters."""
    VAT["LI"] = 81
    STOCK.add("hourglass")


def _hang(order: Order) -> None:
    os.write(1, f"stuck {order.number}\n".encode())  # whole lines, whichever thread is first
    threading.Event().wait()


if __name__ == "__main__":
    sys.exit(not hf.work(concurrency=4))
