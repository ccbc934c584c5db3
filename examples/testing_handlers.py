"""Testing your own handlers: a store in memory, a clock you move, no waiting.

`pytest examples/testing_handlers.py` runs it, and so does plain Python.
"""

from dataclasses import dataclass

import holdfast
from holdfast.testing import ManualClock, dead_letters, drain, finished


@dataclass
class Order:
    item: str
    euros: float


def register(hf: holdfast.Holdfast, bank: list[str]) -> holdfast.Queue:
    """The application: it takes its connection, so that a test can pass another one."""

    @hf.handler("orders")
    def charge(order: Order) -> str:
        if bank.pop() == "no answer":
            raise TimeoutError("the bank did not answer")
        return f"charged {order.euros}"

    return hf.queue("orders", max_attempts=3)


def test_an_order_is_charged() -> None:
    hf = holdfast.connect("memory://")
    orders = register(hf, bank=["fine"])
    orders.enqueue(Order("rope", 12.5))
    drain(hf)
    assert [row.result for row in finished(hf, "orders")] == ["charged 12.5"]


def test_a_slow_bank_is_asked_again_after_the_backoff() -> None:
    clock = ManualClock()
    hf = holdfast.connect("memory://", clock=clock)
    orders = register(hf, bank=["fine", "no answer"])
    orders.enqueue(Order("rope", 12.5))
    drain(hf)
    assert orders.stats().delayed == 1
    clock.advance(5)  # the first backoff is at most 5 s
    drain(hf)
    assert orders.stats().done == 1


def test_a_dead_bank_ends_in_the_dead_letters() -> None:
    clock = ManualClock()
    hf = holdfast.connect("memory://", clock=clock)
    orders = register(hf, bank=["no answer"] * 3)
    orders.enqueue(Order("rope", 12.5))
    for _ in range(3):
        drain(hf)
        clock.advance(60)
    (dead,) = dead_letters(hf, "orders")
    assert dead.reason == "max attempts exceeded"
    assert [error.code for error in dead.errors] == ["TimeoutError"] * 3


if __name__ == "__main__":
    test_an_order_is_charged()
    test_a_slow_bank_is_asked_again_after_the_backoff()
    test_a_dead_bank_ends_in_the_dead_letters()
    print("three tests passed")
