"""What changes a queue asks first, is written down, and is not there for who may only look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from holdfast.server import auth
from tests.web.world import World, confirm, has_count, is_live, is_same_page, row


@pytest.mark.promise("DASH-5")
def test_pause_and_resume(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    queue.enqueue(1)
    world.go(page, "queues/orders")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 ready message will wait")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not queue.stats().paused
    page.get_by_role("button", name="Pause").click()
    confirm(page, "Pause")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert queue.stats().paused and queue.lease() == []
    page.get_by_role("link", name="Overview").click()
    expect(row(page, "orders")).to_contain_text("paused")
    queue.resume()  # by somebody else: it is seen all the same
    expect(row(page, "orders")).not_to_contain_text("paused")
    queue.pause()
    row(page, "orders").get_by_role("link", name="orders", exact=True).click()
    page.get_by_role("button", name="Resume").click()
    confirm(page, "Resume")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert len(queue.lease()) == 1
    assert is_same_page(page)


@pytest.mark.promise("DASH-5")
def test_purge_replay_and_delete_ask_first(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    queue.enqueue_many(range(5))
    world.work(queue)
    queue.enqueue_many(range(3))
    world.go(page, "queues/orders")

    def ask(what: str) -> None:
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name=what).click()

    ask("Purge")
    expect(page.get_by_role("dialog")).to_contain_text("Drops 3 waiting messages")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert queue.stats().ready == 3
    ask("Purge")
    confirm(page, "Purge", typed="orders")
    has_count(page, "ready", 0)
    ask("Replay")
    confirm(page, "Replay")
    has_count(page, "ready", 5)
    assert sorted(world.work(queue)) == list(range(5))
    ask("Delete")
    expect(page.get_by_role("dialog")).to_contain_text("its log of 10")
    confirm(page, "Delete", typed="orders")
    expect(page.get_by_text("There is no queue yet.")).to_be_visible()
    assert world.hf.queues() == []
    page.get_by_role("link", name="Actions").click()
    told = page.get_by_test_id("action")
    expect(told).to_have_count(3)
    for n, words in enumerate(("delete", "replay", "purge")):
        expect(told.nth(n)).to_contain_text(words, ignore_case=True)
        expect(told.nth(n)).to_contain_text("orders")
    expect(told.nth(1)).to_contain_text("5")
    expect(told.nth(2)).to_contain_text("3")
    assert is_same_page(page)


@pytest.mark.promise("DASH-5", "SERVER-4")
def test_a_key_that_may_only_look(
    open_world: Callable[..., World], tmp_path: Path, page: Any
) -> None:
    world = open_world(f"sqlite:///{tmp_path}/jobs.db", "--auth", "on")
    orders, mail = world.hf.queue("orders"), world.hf.queue("mail")
    world.kill(orders, "Slow", 1, 2)
    mail.enqueue(1)
    key = auth.create(world.hf.context, roles=["read"], queues=["orders"], name="night")[1]
    world.go(page, "queues/orders/dead")
    box = page.get_by_label("Key", exact=True)
    box.fill(key[:-3] + "abc")
    page.get_by_role("button", name="Enter").click()
    expect(page.get_by_text("does not count")).to_be_visible()
    box.fill(key)
    page.get_by_role("button", name="Enter").click()
    expect(page.get_by_test_id("failure-group")).to_have_count(1)
    is_live(page)
    for name in ("Redrive", "Pause", "Resume", "More actions", "Purge", "Delete", "Replay"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    page.locator("[data-testid^='row-']").first.get_by_role("link").click()
    expect(page.get_by_test_id("state")).to_have_text("dead")
    expect(page.get_by_role("button", name="Redrive")).to_have_count(0)
    page.get_by_role("link", name="Overview").click()
    expect(row(page, "orders")).to_be_visible()
    expect(row(page, "mail")).to_have_count(0)
    orders.enqueue(3)  # what is pushed comes with the key as well
    expect(row(page, "orders").get_by_role("link", name="1 Ready")).to_be_visible()
    tries = """async ([key, path]) => (await fetch(path, {method: 'POST',
      headers: {authorization: `Bearer ${key}`}})).status"""
    for path in ("queues/orders/pause", "queues/orders/purge", "queues/mail/pause", "sweep"):
        assert page.evaluate(tries, [key, f"/v1/{path}"]) == 403
    assert page.evaluate(tries, ["", "/v1/queues/orders/pause"]) == 401
    assert not orders.stats().paused


@pytest.mark.promise("SERVER-4")
def test_a_key_that_is_revoked_is_asked_for_anew(
    open_world: Callable[..., World], tmp_path: Path, page: Any
) -> None:
    world = open_world(f"sqlite:///{tmp_path}/jobs.db", "--auth", "on")
    world.hf.queue("orders")
    made, key = auth.create(world.hf.context, roles=["admin"], queues=["*"])
    world.go(page)
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Enter").click()
    is_live(page)
    assert key not in page.url
    auth.revoke(world.hf.context, made.id)
    expect(page.get_by_text("does not count")).to_be_visible()
