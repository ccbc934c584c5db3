"""The pictures of README and docs, taken on the way through a shop's last hour.

They are written only with `script/pictures`; without it the same way is gone, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable
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
def take(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any, str], None]:
    folder = IMG if request.config.getoption("--pictures") else tmp_path

    def taken(page: Any, name: str) -> None:
        path = folder / f"dashboard-{name}.png"
        page.mouse.move(0, 0)
        page.screenshot(path=path, animations="disabled", caret="hide")
        assert path.stat().st_size < BYTES_MAX

    return taken


@pytest.mark.promise("DASH-1", "DASH-4")
def test_a_walk_through_the_shop(
    world: World, open_page: Callable[..., Any], take: Callable[[Any, str], None]
) -> None:
    clock = Moved(world.hf.context.clock)
    fill(holdfast.connect(world.hf.store, clock=clock), clock)
    page = open_page(viewport={"width": 1280, "height": 760}, color_scheme="light")
    world.go(page)
    is_live(page)
    thumbnails = world.hf.queue("thumbnails")
    # Something has to move: the small charts are of what this server saw.
    for n in range(60):
        thumbnails.enqueue_many({"photo": f"live-{n}-{m}.jpg"} for m in range(4 + n % 7))
        if n % 3:
            world.work(thumbnails)
        page.wait_for_timeout(250)
    expect(row(page, "orders").get_by_role("link", name="Dead")).to_be_visible()
    take(page, "overview")
    world.go(page, "queues/orders/dead")
    expect(page.get_by_test_id("failure-group")).to_have_count(2)
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
    dark = open_page(viewport={"width": 1280, "height": 760}, color_scheme="dark")
    world.go(dark, "queues/orders/processing")
    expect(dark.get_by_test_id("countdown").first).to_be_visible()
    take(dark, "processing")
    phone = open_page(viewport={"width": 390, "height": 760}, color_scheme="light")
    world.go(phone)
    expect(row(phone, "orders")).to_be_visible()
    take(phone, "phone")
