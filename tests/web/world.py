"""A store, a server in front of it, and what others do there while somebody looks."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

import holdfast
from holdfast import Fail, Holdfast, Queue
from tests.server.rig import Program

expect.set_options(timeout=20_000)
QUICK = {"HOLDFAST_OVERDUE_CHECK_INTERVAL_MS": "300"}


class World:
    def __init__(self, url: str, *options: str, **env: str) -> None:
        self.url = url
        self._options = options
        self._env = {**QUICK, **env}
        self.hf: Holdfast = holdfast.connect(url)
        self.program = Program(url, *options, **self._env)

    @property
    def address(self) -> str:
        return self.program.http

    def restart(self) -> None:
        """At the same address, as an operator would have it."""
        place = self.address.removeprefix("http://")
        self.program = Program(self.url, *self._options, "--http", place, **self._env)

    def close(self) -> None:
        if self.program.process.poll() is None:
            self.program.kill()
        self.hf.close()

    def go(self, page: Any, way: str = "") -> None:
        page.goto(f"{self.address}/#/{way}")
        # A page that stays: a reload would lose the mark.
        page.evaluate("window.sameOne = true")

    def kill(self, queue: Queue, code: str, *payloads: Any) -> list[str]:
        """Dead letters of one cause."""
        queue.enqueue_many(payloads)
        leases = queue.lease(len(payloads), owner="packer-1")
        queue.settle(
            (lease, Fail(f"order {n + 100} was refused", code=code))
            for n, lease in enumerate(leases)
        )
        return [lease.id for lease in leases]

    def work(self, queue: Queue) -> list[Any]:
        """All that is ready, done; what was in it."""
        leases = queue.lease(1000, owner="packer-2")
        queue.settle(leases)
        return [lease.message.payload for lease in leases]


def is_same_page(page: Any) -> bool:
    return bool(page.evaluate("window.sameOne === true"))


def row(page: Any, queue: str) -> Any:
    return page.get_by_test_id(f"queue-{queue}")


def tab(page: Any, name: str) -> Any:
    return page.get_by_test_id(f"tab-{name}")


def is_live(page: Any) -> None:
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")


def has_count(page: Any, name: str, many: int) -> None:
    expect(tab(page, name)).to_have_text(re.compile(rf"\D{many}$"))


def confirm(page: Any, verb: str, typed: str | None = None) -> None:
    """In the dialog that asks."""
    dialog = page.get_by_role("dialog")
    if typed is not None:
        expect(dialog.get_by_role("button", name=verb, exact=True)).to_be_disabled()
        dialog.get_by_role("textbox").fill(typed)
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_have_count(0)
