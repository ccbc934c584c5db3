"""The orders of the day and what must come of each, known before anything runs."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from holdfast.demo.shop import Order

ORDERS = 240

Kind = Literal["plain", "bank times out", "express", "no VAT rate", "out of stock"]
KINDS: tuple[Kind, ...] = ("plain", "bank times out", "express", "no VAT rate", "out of stock")
DEADLY: tuple[Kind, ...] = ("no VAT rate", "out of stock")


def make_orders() -> list[Order]:
    return [order(number) for number in range(1, ORDERS + 1)]


def kind_of(order: Order) -> Kind:
    if order.item == "hourglass":
        return "out of stock"
    if order.country == "LI":
        return "no VAT rate"
    if order.express:
        return "express"
    return "bank times out" if order.payment_timeouts else "plain"


def count_kinds(orders: list[Order]) -> Counter[Kind]:
    return Counter(kind_of(order) for order in orders)


def order(number: int) -> Order:
    item = ("anchor", "compass", "lantern", "rope", "sextant")[number % 5]
    country = ("AT", "CH", "DE", "FR", "IT")[number // 5 % 5]
    cents = 1999 + number * 731 % 18000
    if number % 40 == 7:
        return Order(number, "hourglass", country, cents)
    if number % 24 == 10:
        return Order(number, item, "LI", cents)
    if number % 12 == 3 and number > 30:
        return Order(number, item, country, cents, express=True)
    timeouts = 1 + number % 2 if number % 6 in (1, 4) else 0
    return Order(number, item, country, cents, payment_timeouts=timeouts)
