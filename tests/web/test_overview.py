"""Every queue at a glance, live; who holds what; and a server that goes away meanwhile."""

from __future__ import annotations

import gzip
import re
from typing import Any

import msgspec
import pytest
from playwright.sync_api import expect

from holdfast import Outgoing
from holdfast.work import ledger
from tests.web.world import World, confirm, is_live, is_same_page, row


@pytest.mark.promise("DASH-1", "DASH-3")
def test_numbers_are_those_of_now(world: World, page: Any) -> None:
    fine, troubled = world.hf.queue("afine"), world.hf.queue("orders", partitions=3)
    world.go(page)
    is_live(page)
    expect(row(page, "orders")).to_contain_text("3 partitions")
    troubled.enqueue_many(range(7))
    expect(row(page, "orders").get_by_role("link", name="7 Ready")).to_be_visible()
    troubled.enqueue(1, delay=900)
    expect(row(page, "orders").get_by_role("link", name="1 Delayed")).to_be_visible()
    leases = troubled.lease(2)
    expect(row(page, "orders").get_by_role("link", name="2 Processing")).to_be_visible()
    troubled.fail(leases[0], "no")
    expect(row(page, "orders").get_by_role("link", name="1 Dead")).to_be_visible()
    expect(row(page, "orders").locator("[data-word=Oldest]")).to_have_text(re.compile(r"\d"))
    # The troubled one first, whatever its name.
    expect(page.locator("[data-testid^='queue-']").first).to_have_attribute(
        "data-testid", "queue-orders"
    )
    world.hf.queue("new").enqueue(1)
    expect(row(page, "new")).to_be_visible()
    fine.delete()
    expect(row(page, "afine")).to_have_count(0)
    assert is_same_page(page)


@pytest.mark.promise("DASH-1")
def test_what_comes_and_goes_in_a_second(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    world.go(page)
    is_live(page)
    moving = re.compile(r"[1-9]")
    for word in ("In/s", "Out/s"):
        cell = row(page, "orders").locator(f"[data-word='{word}']")
        for _ in range(20):
            queue.enqueue_many(range(50))
            world.work(queue)
            if moving.search(cell.inner_text()):
                break
            page.wait_for_timeout(300)  # so that it is more than one look
        expect(cell).to_have_text(moving)


@pytest.mark.promise("DASH-6")
def test_owners_consumers_topics_and_charts(world: World, page: Any) -> None:
    ledger = world.hf.queue("ledger", ordered=True, partitions=4)
    ledger.enqueue_many([Outgoing({"n": n}, key=f"account-{n}") for n in range(12)])
    consumer = world.hf.consumer("ledger")
    topic = world.hf.topic("shop")
    topic.bind("billing")
    topic.publish({"order": 1})
    try:
        leases = consumer.lease(2, wait=10)
        world.go(page, "queues/ledger/consumers")
        owners = page.get_by_role("list", name="Who owns what")
        expect(owners).to_contain_text(consumer.name)
        expect(page.get_by_role("table", name="Partitions and their lag")).to_be_visible()
        held = page.get_by_role("table", name="Consumers of ledger")
        expect(held).to_contain_text(consumer.name)
        consumer.ack(leases[0])
        expect(page.get_by_role("region", name="Charts").get_by_role("img").first).to_be_visible()
    finally:
        consumer.close()
    page.get_by_role("link", name="Topics").click()
    groups = page.get_by_role("table", name="Groups of shop")
    expect(groups).to_contain_text("billing")


@pytest.mark.promise("DASH-6")
def test_queries_and_reports_of_spark(world: World, page: Any) -> None:
    store, now = world.hf.store, world.hf.context.clock.now()
    world.hf.queue("orders").enqueue_many(range(3))
    past = ledger.Past(3, 10, 8, 1, 1, 250, now)
    query = ledger.Query(
        "q1",
        "orders",
        "nightly",
        batch=4,
        hold="h",
        parts=(2, 3),
        sealed=True,
        seen_at=now,
        started_at=now,
        reserved_at=now,
        history=(past,),
    )
    store.put_record(ledger.QUERY, "q1", msgspec.json.encode(query), 0, now)
    name = f"{now:015d}"
    told = {"made_at": now, "title": "The week", "rows": 1234, "summary": {"done": 1200}}
    store.put_record("report", name, msgspec.json.encode(told), 0, now)
    html = "<h1>All is well</h1><script>document.body.innerHTML = 'taken over'</script>"
    store.put_record("report-page", name, gzip.compress(html.encode()), 0, now)
    world.go(page, "spark")
    shown = page.get_by_test_id("pipeline")
    expect(shown).to_contain_text("nightly")
    expect(shown).to_contain_text("running")
    page.get_by_role("link", name="The week").click()
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="All is well")).to_be_visible()
    expect(page.get_by_text("taken over")).to_have_count(0)


@pytest.mark.promise("DASH-3")
def test_the_server_is_started_again_while_somebody_looks(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    queue.enqueue(1)
    world.go(page)
    is_live(page)
    assert world.program.stop() == 0
    banner = page.get_by_role("alert").filter(has_text="No connection since")
    expect(banner).to_contain_text("showing data as of")
    expect(row(page, "orders").get_by_role("link", name="1 Ready")).to_be_visible()
    queue.enqueue(2)  # while nobody could hear of it
    world.restart()
    is_live(page)
    expect(banner).to_have_count(0)
    expect(row(page, "orders").get_by_role("link", name="2 Ready")).to_be_visible()
    queue.enqueue(3)
    expect(row(page, "orders").get_by_role("link", name="3 Ready")).to_be_visible()
    row(page, "orders").get_by_role("link", name="orders", exact=True).click()
    page.get_by_role("button", name="Pause").click()
    confirm(page, "Pause")
    assert queue.stats().paused
    assert is_same_page(page)
