"""The pictures of README and docs, taken on the way through a shop's last hour.

They are written only with `script/pictures`; without it the same way is gone, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sin
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import holdfast
from holdfast.cli.demo_data import Moved, fill
from tests.web.world import World, is_live, row

IMG = Path(__file__).parents[2] / "docs/img"
BYTES_MAX = 300_000


@pytest.fixture
def is_kept(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--pictures"))


@pytest.fixture
def take(is_kept: bool, tmp_path: Path) -> Callable[[Any, str], None]:
    folder = IMG if is_kept else tmp_path

    def taken(page: Any, name: str) -> None:
        path = folder / f"dashboard-{name}.png"
        page.mouse.move(0, 0)
        page.screenshot(path=path, animations="disabled", caret="hide")
        assert path.stat().st_size < BYTES_MAX

    return taken


def open_shop(world: World, page: Any, seconds: int) -> None:
    """Something has to move: the small charts are of what this server saw."""
    thumbnails, orders = world.hf.queue("thumbnails"), world.hf.queue("orders")
    topic = world.hf.topic("shop.events")
    for n in range(seconds * 2):
        busy = 1 + sin(n / 15)
        thumbnails.enqueue_many({"photo": f"{n}-{m}.jpg"} for m in range(int(2 + 4 * busy)))
        if n % 4:
            world.work(thumbnails)
        orders.enqueue_many({"order": 20_000 + n} for _ in range(int(1 + 2 * busy)))
        orders.settle(orders.lease(int(1 + 1.5 * busy), owner="packer-1"))
        if n % 6 == 0:
            topic.publish({"order": 20_000 + n, "event": "paid"})
            for group in ("billing", "search"):
                world.work(topic.group(group))
        page.wait_for_timeout(500)


def hold_some(world: World) -> None:
    queue = world.hf.queue("orders")
    queue.purge()
    for n, seconds in enumerate((8, 14, 23, 37, 52, 75, 110, 118)):
        order = {"order": 31_000 + n, "item": "compass", "country": "AT"}
        key, owner = f"customer-{n * 37 % 400}", f"packer-{n % 3 + 1}"
        queue.enqueue(order, key=key, type="order.placed", ack_timeout=seconds)
        queue.lease(1, owner=owner)


def has_charts(page: Any, is_kept: bool) -> None:
    """Of a server that has been there for a moment only, there is nothing to draw."""
    expect(page.get_by_role("region", name="Charts")).to_be_visible()
    if not is_kept:
        return
    charts = page.get_by_role("region", name="Charts").get_by_role("img")
    expect(charts).to_have_count(3)
    for n in range(3):
        expect(charts.nth(n).locator("canvas")).to_be_visible()


@pytest.mark.extended
@pytest.mark.promise("DASH-1", "DASH-4")
def test_a_walk_through_the_shop(
    world: World, open_page: Callable[..., Any], take: Callable[[Any, str], None], is_kept: bool
) -> None:
    clock = Moved(world.hf.context.clock)
    fill(holdfast.connect(world.hf.store, clock=clock), clock)
    page = open_page(viewport={"width": 1280, "height": 560}, color_scheme="light")
    open_shop(world, page, 150 if is_kept else 1)
    world.go(page)
    is_live(page)
    open_shop(world, page, 12 if is_kept else 1)
    expect(row(page, "orders").get_by_role("link", name="Dead")).to_be_visible()
    take(page, "overview")
    page.set_viewport_size({"width": 1280, "height": 760})
    world.go(page, "queues/orders/dead")
    expect(page.get_by_test_id("failure-group")).to_have_count(2)
    has_charts(page, is_kept)
    take(page, "dead-letters")
    page.get_by_test_id("failure-group").first.get_by_role("button", name="Redrive").click()
    expect(page.get_by_test_id("confirm-redrive")).to_be_enabled()
    take(page, "redrive")
    page.keyboard.press("Escape")
    page.locator("[data-testid^='row-']").first.get_by_role("link").click()
    expect(page.get_by_test_id("moment").first).to_be_visible()
    take(page, "message")
    world.go(page, "queues/payments/consumers")
    expect(page.get_by_role("list", name="Who owns what")).to_be_visible()
    take(page, "partitions")
    dark = open_page(viewport={"width": 1280, "height": 640}, color_scheme="dark")
    hold_some(world)
    world.go(dark, "queues/orders/processing")
    has_charts(dark, is_kept)
    expect(dark.get_by_test_id("countdown").first).to_be_visible()
    take(dark, "processing")
    phone = open_page(viewport={"width": 390, "height": 760}, color_scheme="light")
    world.go(phone)
    expect(row(phone, "orders")).to_be_visible()
    take(phone, "phone")
