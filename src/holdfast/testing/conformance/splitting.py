"""A view cut into pieces: together they are the whole, each row once and in order."""

# pyright: basic

from __future__ import annotations

from random import Random

import pytest

from holdfast import Holdfast, InvalidArgument, Queue, QueueNotFound, State
from holdfast.stores.contract import Entry, ReserveAsk, Store, View
from holdfast.testing import ManualClock


def fill(hf: Holdfast, clock: ManualClock, state: State, n: int = 60) -> None:
    """So many messages, several priorities and partitions, and the odd one in another state."""
    queue = hf.queue("orders", partitions=3)
    dice = Random(4)
    for i in range(n):
        delay = dice.choice([50, 90]) if state is State.DELAYED else dice.choice([None, 1])
        queue.enqueue(i, priority=dice.randrange(10), key=str(i), delay=delay)
        clock.advance(dice.choice([0, 0.5]))
    clock.advance(2)
    if state in (State.LEASED, State.LOG):
        while leases := queue.lease(7):
            if state is State.LOG:
                queue.settle(leases)
            clock.advance(dice.choice([0, 0.5]))
        queue.enqueue("ready")
        queue.enqueue("held")
        hf.store.lease(ReserveAsk("orders", 1, "me", "f" * 16, "b"), clock.now())
    else:
        queue.enqueue("first", priority=9)
        queue.lease()


def pieces(store: Store, view: View, parts: int, now: int, size: int = 1000) -> list[list[Entry]]:
    cuts = store.split(view, parts, now)
    found: list[list[Entry]] = []
    for start, stop in zip([None, *cuts], [*cuts, None], strict=True):
        piece, after = [], start
        while True:
            page = store.browse(_up_to(view, stop), after, size, now)
            assert len(page.entries) <= size
            piece += page.entries
            after = page.after
            if after is None:
                break
        found.append(piece)
    return found


def _up_to(view: View, stop: str | None) -> View:
    return View(view.queue, view.state, view.since, view.until, to=stop)


@pytest.mark.parametrize("state", list(State))
def test_pieces_join_to_the_whole_in_order(hf: Holdfast, clock: ManualClock, state: State) -> None:
    fill(hf, clock, state)
    view, now = View("orders", state), clock.now()
    whole = hf.store.browse(view, None, 1000, now).entries
    assert len(whole) >= 60
    for parts in (1, 2, 3, 7, len(whole), len(whole) + 1, 1000):
        for size in (1000, 4):
            found = pieces(hf.store, view, parts, now, size)
            assert [entry for piece in found for entry in piece] == whole
            assert len(found) <= parts


@pytest.mark.parametrize("state", list(State))
def test_pieces_are_about_of_a_length(hf: Holdfast, clock: ManualClock, state: State) -> None:
    fill(hf, clock, state)
    if state is State.READY:
        hf.queue("orders").release(hf.queue("orders").lease()[0])  # nothing waits to be made ready
    sizes = [len(piece) for piece in pieces(hf.store, View("orders", state), 4, clock.now())]
    assert len(sizes) == 4
    assert max(sizes) <= sum(sizes) / 4 + 4


@pytest.mark.parametrize("state", list(State))
def test_a_range_of_time_is_cut_as_well(hf: Holdfast, clock: ManualClock, state: State) -> None:
    fill(hf, clock, state)
    now = clock.now()
    whole = hf.store.browse(View("orders", state), None, 1000, now).entries
    times = sorted(e.finished.finished_at if e.finished else e.message.enqueued_at for e in whole)
    since, until = times[len(times) // 4], times[3 * len(times) // 4]
    assert since < until
    for view in (
        View("orders", state, since),
        View("orders", state, until=until),
        View("orders", state, since, until),
    ):
        wanted = hf.store.browse(view, None, 1000, now).entries
        assert 0 < len(wanted) < len(whole)
        for parts in (1, 3, 200):
            found = pieces(hf.store, view, parts, now, 5)
            assert [entry for piece in found for entry in piece] == wanted


@pytest.mark.parametrize("state", list(State))
def test_a_view_of_nothing_or_of_one(
    hf: Holdfast, queue: Queue, clock: ManualClock, state: State
) -> None:
    assert hf.store.split(View("orders", state), 4, clock.now()) == []
    assert pieces(hf.store, View("orders", state), 4, clock.now()) == [[]]
    queue.enqueue(1, delay=5 if state is State.DELAYED else None)
    if state in (State.LEASED, State.LOG):
        (lease,) = queue.lease()
        if state is State.LOG:
            queue.ack(lease)
    assert hf.store.split(View("orders", state), 4, clock.now()) == []
    assert [len(p) for p in pieces(hf.store, View("orders", state), 4, clock.now())] == [1]


def test_what_is_due_but_not_made_ready_is_in_a_piece(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    for n in range(20):
        queue.enqueue(n, priority=n % 3, delay=1 if n % 2 else None)
    clock.advance(1)
    whole = hf.store.browse(View("orders"), None, 100, clock.now()).entries
    assert len(whole) == 20
    for parts in (1, 2, 5, 50):
        found = pieces(hf.store, View("orders"), parts, clock.now(), 3)
        assert [entry for piece in found for entry in piece] == whole


def test_pieces_of_a_log_stay_while_more_is_finished(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_many(range(30))
    queue.settle(queue.lease(20))
    view, now = View("orders", State.LOG), clock.now()
    (cut,) = hf.store.split(view, 2, now)
    first = hf.store.browse(_up_to(view, cut), None, 100, now).entries
    clock.advance(1)
    queue.settle(queue.lease(10))
    assert hf.store.browse(_up_to(view, cut), None, 100, clock.now()).entries == first
    assert len(hf.store.browse(view, cut, 100, clock.now()).entries) == 20


def test_a_piece_ends_at_its_last_row(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many(range(6))
    (cut,) = hf.store.split(View("orders"), 2, clock.now())
    page = hf.store.browse(View("orders", to=cut), None, 3, clock.now())
    assert ([e.message.payload for e in page.entries], page.after) == ([0, 1, 2], None)
    page = hf.store.browse(View("orders", to=cut), None, 2, clock.now())
    assert page.after is not None
    last = hf.store.browse(View("orders", to=cut), page.after, 2, clock.now())
    assert ([e.message.payload for e in last.entries], last.after) == ([2], None)
    assert hf.store.browse(View("orders", to=cut), cut, 2, clock.now()).entries == []


def test_an_end_that_is_none_and_a_queue_that_is_none(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(1)
    with pytest.raises(InvalidArgument):
        hf.store.browse(View("orders", to="nonsense"), None, 10, clock.now())
    with pytest.raises(QueueNotFound):
        hf.store.split(View("nowhere"), 2, clock.now())
