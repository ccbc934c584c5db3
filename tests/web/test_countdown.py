"""A message counts down before somebody's eyes, is overdue, and comes back by the sweeper."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import expect

from holdfast.testing import wait_until
from tests.plugins.sampling import more
from tests.web.world import World, has_count, is_live, is_same_page, tab

WATCH = """() => {
  window.seen = [];
  window.looks = [];
  const cells = () => [...document.querySelectorAll('[data-testid=countdown]')];
  const look = () => {
    for (const cell of cells()) {
      if (window.seen.at(-1)?.[0] === cell.textContent) continue;
      const told = [cell.textContent, ''];
      window.seen.push(told);
      // A colour is there with the next frame.
      const paint = () => { told[1] = getComputedStyle(cell).color; };
      requestAnimationFrame(() => requestAnimationFrame(paint));
    }
  };
  look();
  new MutationObserver(look).observe(document.body,
    { subtree: true, childList: true, characterData: true });
  // In the page's own thread: when that stands still, it is late itself.
  setInterval(() => cells().forEach((cell) =>
    window.looks.push([Date.now(), cell.textContent])), 50);
}"""


def is_right(text: str, deadline: int, after: float, at: float) -> bool:
    """Whether it may say that `at` this time: it ticks on whole seconds, has had no turn since
    `after`, and knows the server's time less exactly than we do."""
    least, most = deadline - at, deadline - 1000 * (after // 1000 - 1)
    says = 0 if text == "Overdue" else int(text.removesuffix("s"))
    return max(0, math.ceil(least / 1000)) <= says <= max(0, math.ceil(most / 1000))


def is_red(color: str) -> bool:
    red, green, blue = map(float, re.findall(r"[\d.]+", color)[:3])
    return red > 1.5 * max(green, blue)


@pytest.mark.promise("DASH-2", "DASH-3")
@pytest.mark.parametrize("store_name", ["sqlite", *more("postgres", "redis")])
def test_a_lease_runs_out_before_our_eyes(
    open_world: Callable[..., World], store_url: str, page: Any
) -> None:
    world = open_world(store_url, HOLDFAST_OVERDUE_CHECK_INTERVAL_MS="600000")
    queue = world.hf.queue("orders", ack_timeout=8)
    changed: list[str] = []
    page.on("request", lambda r: changed.append(r.url) if r.method != "GET" else None)
    world.go(page, "queues/orders/processing")
    is_live(page)  # before the time runs: a slow start of the page must not eat it
    page.evaluate(WATCH)
    sent = queue.enqueue({"order": 1}, key="c-1")
    (lease,) = queue.lease(owner="packer-1")
    expect(page.get_by_test_id(f"row-{sent.id}")).to_contain_text("packer-1")
    expect(page.get_by_test_id("countdown")).to_have_text("Overdue")
    page.wait_for_function("window.seen.at(-1)[1] !== ''")
    wait_until(lambda: world.hf.sweep().requeued == 1)  # by the store's clock it may be earlier
    expect(page.get_by_text("Nobody works on anything.")).to_be_visible()
    told, colours = zip(*page.evaluate("window.seen"), strict=True)
    assert told[-1] == "Overdue" and is_red(colours[-1])
    assert not any(is_red(colour) for colour in colours[:-1])
    left = [int(re.fullmatch(r"(\d+)s", text)[1]) for text in told[:-1]]  # type: ignore[index]
    assert left and left == sorted(left, reverse=True)
    looks = page.evaluate("window.looks")
    wrong = [
        (text, lease.deadline - at)
        for (after, _), (at, text) in pairwise(looks)
        if not is_right(text, lease.deadline, after, at)
    ]
    assert len(looks) > len(told) and wrong == []
    has_count(page, "processing", 0)
    has_count(page, "ready", 1)
    tab(page, "ready").click()
    expect(page.get_by_test_id(f"row-{sent.id}")).to_be_visible()
    assert is_same_page(page)
    assert changed == []  # the page only looks
    assert queue.get(sent.id).attempts == 1


@pytest.mark.promise("DASH-2", "DASH-3")
def test_who_is_out_of_attempts_goes_to_the_dead(world: World, page: Any) -> None:
    queue = world.hf.queue("orders", ack_timeout=2, max_attempts=1)
    sent = queue.enqueue({"order": 1})
    queue.lease()
    world.go(page, "queues/orders/processing")
    is_live(page)
    has_count(page, "dead", 1)
    tab(page, "dead").click()
    expect(page.get_by_test_id("failure-group")).to_contain_text("ack timeout exceeded")
    expect(page.get_by_test_id(f"row-{sent.id}")).to_be_visible()
    assert is_same_page(page)


@pytest.mark.promise("DASH-2")
def test_a_lease_that_is_extended_is_seen_to_be(world: World, page: Any) -> None:
    queue = world.hf.queue("orders", ack_timeout=3)
    world.go(page, "queues/orders/processing")
    is_live(page)
    queue.enqueue(1)
    (lease,) = queue.lease()
    expect(page.get_by_test_id("countdown")).to_have_text(re.compile(r"^[1-3]s$"))
    queue.extend(lease, seconds=500)
    # At zero it asks once more; nobody told it before.
    expect(page.get_by_test_id("countdown")).to_have_text(re.compile(r"^(4\d\d|500)s$|^8m"))


@pytest.mark.promise("DASH-2")
def test_a_delayed_one_says_when_it_will_come(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    world.go(page, "queues/orders/delayed")
    is_live(page)
    queue.enqueue(1, delay=3)
    expect(page.get_by_test_id("to-go")).to_have_text(re.compile(r"\ds$"))
    has_count(page, "delayed", 0)
    has_count(page, "ready", 1)
    assert is_same_page(page)
