"""The end of the demo: one order's life, the day in one table, and whether every number fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from holdfast import Finished
from holdfast.demo import plan, shop
from holdfast.demo.screen import Screen
from holdfast.demo.story import Seen
from holdfast.model.message import ErrorInfo

ACK_TIMEOUT = "ACK_TIMEOUT"


class Check(NamedTuple):
    what: str
    expected: object
    found: object

    @property
    def ok(self) -> bool:
        return self.expected == self.found


def most_lived(seen: Seen) -> Finished:
    return max(seen.log, key=lambda row: (row.message.redriven, len(row.message.errors)))


def life_of_one(screen: Screen, seen: Seen) -> None:
    """The order that had the most errors: what its row in the log tells."""
    finished = most_lived(seen)
    message = finished.message
    order = seen.accepted[message.id]
    screen.act(f"The life of order {order.number}, as the log keeps it")
    start = message.enqueued_at
    rows = [(start, "enqueued", f"{order.item} to {order.country}, id {message.id}")]
    rows += [(error.at, f"attempt {error.attempt}", _said(error)) for error in message.errors]
    dead = next((m.dead_at or 0 for m in seen.dead if m.id == message.id), 0)
    if dead:
        rows.append((dead, "dead letter", f"redriven {message.redriven} time"))
    rows.append((finished.finished_at, finished.status, f"result {finished.result}"))
    screen.table(
        ("seconds", "", ""),
        [(f"{(at - start) / 1000:.2f}", what, more) for at, what, more in rows],
        right=(0,),
    )


def _said(error: ErrorInfo) -> str:
    return f"{error.code}: {error.message}"


def the_day(screen: Screen, seen: Seen) -> None:
    screen.act("The day in numbers")
    rows: list[tuple[str, ...]] = []
    totals: Counter[str] = Counter()
    for kind in plan.KINDS:
        done = [row for row in seen.log if plan.kind_of(seen.accepted[row.message.id]) == kind]
        died = [m for m in seen.dead if plan.kind_of(seen.accepted[m.id]) == kind]
        sums = {
            "orders": sum(plan.kind_of(order) == kind for order in seen.accepted.values()),
            "failed attempts": _errors(done, lambda e: e.code != ACK_TIMEOUT),
            "overdue": _errors(done, lambda e: e.code == ACK_TIMEOUT),
            "dead": len(died),
            "redriven": sum(row.message.redriven for row in done),
            "finished": len(done),
        }
        totals.update(sums)
        rows.append((kind, *map(str, sums.values())))
    screen.table(
        ("kind", *totals),
        rows,
        right=range(1, 7),
        footer=("in all", *map(str, totals.values())),
    )


def _errors(done: list[Finished], wanted: Callable[[ErrorInfo], bool]) -> int:
    return sum(wanted(error) for row in done for error in row.message.errors)


def add_up(screen: Screen, seen: Seen) -> bool:
    screen.act("Do the numbers fit?")
    checks = list(_checks(seen))
    for check in checks:
        wrong = f"expected {_short(check.expected)}, found {_short(check.found)}"
        screen.check(check.what, ok=check.ok, wrong=wrong)
    return all(check.ok for check in checks)


def _checks(seen: Seen) -> list[Check]:
    orders, log, last = seen.accepted, seen.log, seen.last
    assert last is not None
    ids = Counter(row.message.id for row in log)
    deadly = {id for id, order in orders.items() if plan.kind_of(order) in plan.DEADLY}
    overdue = {row.message.id for row in log if _errors([row], lambda e: e.code == ACK_TIMEOUT)}
    straight = [row.message for row in log if not row.message.redriven]
    again = [row.message for row in log if row.message.redriven]
    timeouts = sum(order.payment_timeouts for order in orders.values())
    by_a = sum(f":{seen.pid_a}:" in (row.consumer or "") for row in log)
    return [
        Check(f"each of {len(orders)} orders is in the log once", Counter([*orders]), ids),
        Check("all of them COMPLETED", {"COMPLETED"}, {row.status for row in log}),
        Check(
            "nothing is left: ready, delayed, leased, dead",
            (0, 0, 0, 0),
            (last.ready, last.delayed, last.leased, last.dead),
        ),
        Check(f"the queue counts {len(orders)} done", len(orders), last.done),
        Check(f"worker A finished {seen.done_by_a}, worker B the rest", seen.done_by_a, by_a),
        Check(
            f"exactly the {len(seen.in_dead_hands)} orders in A's hands were overdue, once each",
            (set(seen.in_dead_hands), len(seen.in_dead_hands), len(seen.in_dead_hands)),
            (overdue, _errors(log, lambda e: e.code == ACK_TIMEOUT), seen.requeued),
        ),
        Check("none of them before its lease ran out", [], _too_early(seen)),
        Check(
            f"the bank timed out {timeouts} times, and each one is on its order",
            timeouts,
            _errors(log, lambda e: e.code == "PaymentTimeout"),
        ),
        Check(
            f"exactly the {len(deadly)} orders that could not ship died",
            deadly,
            {message.id for message in seen.dead},
        ),
        Check(
            f"{len(deadly)} were redriven, once each",
            (len(deadly), dict.fromkeys(deadly, 1)),
            (seen.redriven, {message.id: message.redriven for message in again}),
        ),
        Check(
            "every delivery but the last left one error",
            [(m.id, m.attempts) for m in straight],
            [(m.id, len(m.errors) + 1) for m in straight],
        ),
        Check(
            "every redriven order shipped at its first attempt", {1}, {m.attempts for m in again}
        ),
        Check("the shop charged what the orders say", _charges(seen), _charged(seen)),
    ]


def _too_early(seen: Seen) -> list[str]:
    return [
        row.message.id
        for row in seen.log
        for error in row.message.errors
        if error.code == ACK_TIMEOUT and error.at < seen.in_dead_hands[row.message.id].deadline
    ]


def _charges(seen: Seen) -> int:
    return sum(shop.price(order) for order in seen.accepted.values())


def _charged(seen: Seen) -> int:
    return sum(row.result["charged"] for row in seen.log)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
