"""From a poison message to one that is done: found, looked into, edited, put back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from holdfast.testing import wait_until
from tests.web.world import World, has_count, is_live, is_same_page, row, tab

pytestmark = pytest.mark.promise("DASH-4")


def test_a_group_is_found_edited_redriven_and_done(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    declined = world.kill(queue, "CardDeclined", *({"order": n, "card": "old"} for n in range(3)))
    world.kill(queue, "OutOfStock", {"order": 9}, {"order": 10})
    world.go(page)
    row(page, "orders").get_by_role("link", name="5 Dead").click()
    groups = page.get_by_test_id("failure-group")
    expect(groups).to_have_count(2)
    group = groups.filter(has_text="CardDeclined")
    expect(group).to_contain_text("order <n> was refused")
    group.get_by_role("button", name="Show only").click()
    expect(page.locator("[data-testid^='row-']")).to_have_count(3)

    page.get_by_test_id(f"row-{declined[0]}").get_by_role("link").click()
    expect(page.get_by_test_id("state")).to_have_text("dead")
    expect(page.get_by_role("region", name="Payload as a tree")).to_contain_text("card")
    moments = page.get_by_test_id("moment")
    expect(moments.filter(has_text="CardDeclined: order 100 was refused")).to_contain_text(
        "packer-1"
    )
    page.go_back()

    group.get_by_role("button", name="Redrive").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Redrive 3 dead letters of orders?")
    dialog.get_by_text("With a merge patch").click()
    dialog.get_by_role("textbox").fill('{"card": ')
    expect(dialog).to_contain_text("Not JSON")
    expect(dialog.get_by_test_id("confirm-redrive")).to_be_disabled()
    dialog.get_by_role("textbox").fill('{"card": "new", "checked": true}')
    dialog.get_by_test_id("confirm-redrive").click()
    progress = dialog.get_by_test_id("redrive-progress")
    expect(progress).to_have_attribute("data-state", "done")
    expect(progress).to_contain_text("3 of")
    dialog.get_by_role("button", name="Close").last.click()
    has_count(page, "dead", 2)
    expect(groups).to_have_count(1)
    has_count(page, "ready", 3)

    done = world.work(queue)
    assert sorted(order["order"] for order in done) == [0, 1, 2]
    assert all(order["card"] == "new" and order["checked"] for order in done)
    has_count(page, "log", 3)
    tab(page, "log").click()
    expect(page.get_by_test_id(f"row-{declined[0]}")).to_contain_text("completed")
    assert is_same_page(page)


def test_one_with_its_payload_edited(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    ids = world.kill(queue, "BadAddress", {"order": 1, "to": "nowhere"}, {"order": 2})
    world.go(page, f"queues/orders/messages/{ids[0]}")
    page.get_by_role("button", name="Redrive").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("With an edited payload").click()
    box = dialog.get_by_role("textbox")
    expect(box).to_have_value(re.compile("nowhere"))
    box.fill('{"order": 1, "to": "Graz"}')
    expect(dialog.get_by_test_id("confirm-redrive")).to_have_text("Redrive 1")
    dialog.get_by_test_id("confirm-redrive").click()
    expect(dialog.get_by_test_id("redrive-progress")).to_have_attribute("data-state", "done")
    dialog.get_by_role("button", name="Close").last.click()
    expect(page.get_by_test_id("state")).to_have_text("ready")
    assert world.work(queue) == [{"order": 1, "to": "Graz"}]
    expect(page.get_by_test_id("state")).to_have_text("finished")
    assert is_same_page(page)


def test_a_selection(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    ids = world.kill(queue, "Slow", *range(4))
    world.go(page, "queues/orders/dead")
    for id in ids[1:3]:
        page.get_by_role("checkbox", name=f"Select {id}").check()
    page.get_by_role("button", name="Redrive 2 selected").click()
    page.get_by_test_id("confirm-redrive").click()
    expect(page.get_by_test_id("redrive-progress")).to_have_attribute("data-state", "done")
    assert sorted(world.work(queue)) == [1, 2]


def test_all_that_match_a_search(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    world.kill(queue, "Slow", *({"country": "AT" if n % 2 else "CH", "n": n} for n in range(6)))
    world.go(page, "queues/orders/dead")
    search = page.get_by_role("textbox", name="Search messages")
    search.fill("field:country=AT")
    search.press("Enter")
    expect(page.locator("[data-testid^='row-']")).to_have_count(3)
    page.get_by_role("button", name="Redrive all matching").click()
    expect(page.get_by_role("dialog")).to_contain_text("Redrive 3 dead letters of orders?")
    page.get_by_test_id("confirm-redrive").click()
    expect(page.get_by_test_id("redrive-progress")).to_have_attribute("data-state", "done")
    assert sorted(order["n"] for order in world.work(queue)) == [1, 3, 5]


def test_one_that_runs_is_watched_and_cancelled(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    world.kill(queue, "Slow", *range(50))
    world.go(page, "redrives")
    is_live(page)
    job = world.hf.start_redrive("orders.dlq", rate=2)
    shown = page.get_by_test_id("redrive")
    expect(shown).to_have_attribute("data-state", "running")
    wait_until(lambda: world.hf.get_redrive(job.id).redriven > 1)
    shown.get_by_role("button", name="Cancel redrive").click()
    expect(shown).to_have_attribute("data-state", "cancelled")
    moved = world.hf.get_redrive(job.id).redriven
    assert 0 < moved < 50
    expect(shown).to_contain_text(f"{moved} dead letters redriven")
    assert is_same_page(page)


def test_a_traceback_is_folded_under_its_error(world: World, page: Any) -> None:
    def charge() -> None:
        raise LookupError("no such card")

    queue = world.hf.queue("orders", max_attempts=1)
    message = queue.enqueue({"order": 1})
    (lease,) = queue.lease()
    try:
        charge()
    except LookupError as error:
        queue.fail(lease, error)
    world.go(page, f"queues/orders/messages/{message.id}")
    failed = page.get_by_test_id("moment").filter(has_text="LookupError: no such card")
    trace = failed.get_by_role("region", name="Traceback")
    expect(trace).to_be_hidden()
    failed.get_by_text("Traceback", exact=True).click()
    expect(trace).to_be_visible()
    expect(trace).to_contain_text("in charge")
