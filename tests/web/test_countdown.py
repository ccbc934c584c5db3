"""A message counts down before somebody's eyes, is overdue, and comes back by the sweeper."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.web.world import World, has_count, is_live, is_same_page, tab

WATCH = """() => {
  window.seen = [];
  const look = () => {
    for (const cell of document.querySelectorAll('[data-testid=countdown]')) {
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
}"""


def is_red(color: str) -> bool:
    red, green, blue = map(float, re.findall(r"[\d.]+", color)[:3])
    return red > 1.5 * max(green, blue)


@pytest.mark.promise("DASH-2", "DASH-3")
@pytest.mark.parametrize("store_name", ["sqlite", "postgres", "redis"])
def test_a_lease_runs_out_before_our_eyes(
    open_world: Callable[..., World], store_url: str, page: Any
) -> None:
    # Rarely enough that "Overdue" is there to be seen.
    world = open_world(store_url, HOLDFAST_OVERDUE_CHECK_INTERVAL_MS="3000")
    queue = world.hf.queue("orders", ack_timeout=4)
    changed: list[str] = []
    page.on("request", lambda r: changed.append(r.url) if r.method != "GET" else None)
    world.go(page, "queues/orders/processing")
    is_live(page)  # before the time runs: a slow start of the page must not eat it
    page.evaluate(WATCH)
    sent = queue.enqueue({"order": 1}, key="c-1")
    queue.lease(owner="packer-1")
    expect(page.get_by_test_id(f"row-{sent.id}")).to_contain_text("packer-1")
    expect(page.get_by_text("Nobody works on anything.")).to_be_visible()
    told, colours = zip(*page.evaluate("window.seen"), strict=True)
    assert told[-1] == "Overdue" and is_red(colours[-1])
    assert not any(is_red(colour) for colour in colours[:-1])
    left = [int(re.fullmatch(r"(\d+)s", text)[1]) for text in told[:-1]]  # type: ignore[index]
    assert left and left == sorted(left, reverse=True) and left[-1] == 1
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
