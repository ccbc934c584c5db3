"""With the keyboard alone, on a telephone, and for those who do not see the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

import holdfast
from holdfast.cli.demo_data import Moved, fill
from holdfast.server.pages import FOLDER
from tests.plugins.sampling import more
from tests.web.world import World, is_live, is_same_page, row

AXE = FOLDER.parents[3] / "web/node_modules/axe-core/axe.min.js"
PHONE = {"width": 390, "height": 844}
PAGES = {
    "overview": "",
    "ready": "queues/orders/ready",
    "processing": "queues/orders/processing",
    "delayed": "queues/orders/delayed",
    "dead letters": "queues/orders/dead",
    "log": "queues/orders/log",
    "consumers": "queues/payments/consumers",
    "topics": "topics",
    "redrives": "redrives",
    "Spark": "spark",
    "actions": "actions",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for all who only look."""
    world = World(f"sqlite:///{tmp_path_factory.mktemp('shop')}/shop.db")
    clock = Moved(world.hf.context.clock)
    fill(holdfast.connect(world.hf.store, clock=clock), clock)
    yield world
    world.close()


def dead_letter(shop: World) -> str:
    entry = next(iter(shop.hf.queue("orders.dlq", create=False).browse()))
    return f"queues/orders.dlq/messages/{entry.message.id}"


@pytest.mark.promise("DASH-1")
@pytest.mark.parametrize("scheme", ["light", *more("dark")])
def test_axe_finds_nothing_serious(shop: World, open_page: Callable[..., Any], scheme: str) -> None:
    page = open_page(color_scheme=scheme, bypass_csp=True)
    wrong: list[str] = []
    for name, way in {**PAGES, "a message": dead_letter(shop)}.items():
        shop.go(page, way)
        is_live(page)
        expect(page.locator("main table, main h1, main h2").first).to_be_visible()
        page.add_script_tag(path=AXE)
        found = page.evaluate("axe.run().then(found => found.violations)")
        for fault in found:
            if fault["impact"] in ("serious", "critical"):
                where = [node["target"] for node in fault["nodes"][:3]]
                wrong.append(f"{name}: {fault['id']} {where}")
    assert wrong == []


@pytest.mark.promise("DASH-1")
def test_it_fits_a_phone(shop: World, open_page: Callable[..., Any]) -> None:
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    wide: list[tuple[str, int]] = []
    for name, way in {**PAGES, "a message": dead_letter(shop)}.items():
        shop.go(page, way)
        is_live(page)
        expect(page.locator("main table, main h1, main h2").first).to_be_visible()
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > PHONE["width"]:
            wide.append((name, width))
    assert wide == []
    shop.go(page)
    expect(row(page, "orders").get_by_role("link", name="Ready")).to_be_visible()
    expect(page.locator("[data-testid^='queue-']").first).to_be_in_viewport()


def reach(page: Any, target: Any, keys: str = "Tab") -> None:
    """By Tab alone, as often as it takes."""
    expect(target).to_be_visible()
    for _ in range(80):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press(keys)
    raise AssertionError(f"Tab does not lead to {target}")


@pytest.mark.promise("DASH-4", "DASH-5")
def test_without_a_mouse(world: World, page: Any) -> None:
    queue = world.hf.queue("orders")
    world.kill(queue, "Slow", 1, 2)
    world.go(page)
    is_live(page)
    reach(page, row(page, "orders").get_by_role("link", name="2 Dead"))
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("failure-group")).to_have_count(1)
    reach(page, page.get_by_test_id("failure-group").get_by_role("button", name="Redrive"))
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    reach(page, dialog.get_by_test_id("confirm-redrive"))
    page.keyboard.press("Enter")
    expect(dialog.get_by_test_id("redrive-progress")).to_have_attribute("data-state", "done")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    reach(page, page.get_by_role("button", name="Pause"))
    page.keyboard.press("Enter")
    reach(page, dialog.get_by_role("button", name="Pause", exact=True))
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert queue.stats().paused
    tabs = page.get_by_role("tab", selected=True)
    reach(page, tabs, "Shift+Tab")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_test_id("tab-log")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_test_id("tab-log")).to_be_focused()  # the next arrow goes on from there
    assert is_same_page(page)
