"""Events, history, actions, pipelines and pages."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec

from holdfast import DeadFilter, Holdfast
from holdfast.queue import failures
from holdfast.queue.context import Context
from holdfast.queue.queue import LocalQueue
from holdfast.server.browsing import page
from holdfast.server.history import Spans
from holdfast.server.pipelines import pipelines, report, reports
from holdfast.stores.contract import Event
from holdfast.testing import wait_until
from holdfast.wire import shapes as s
from holdfast.work import ledger
from tests.server.stories.scene import (
    Scene,
    everything,
    kill,
    refused,
    story,
)


@story
def news_of_a_sweep(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders", max_attempts=1)
    hf.queue("bills").enqueue(1)
    queue.enqueue_many(range(2))
    news = hf.subscribe()
    try:
        queue.lease(2)
        hf.queue("bills").lease()
        scene.clock.advance(30)
        hf.sweep()
        hf.redrive("orders.dlq")
        heard: list[Any] = []
        # A server also tells who asked it to sweep.
        wait_until(lambda: heard.extend(_of_queues(news.next(0.1))) or len(heard) >= 3)
        return heard
    finally:
        news.close()


def _of_queues(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type != "action"]


@story
def who_one_is(scene: Scene) -> Any:
    anybody = s.IdentityDoc("", "anybody", ["admin", "consume", "produce", "read"], ["*"], False)
    return scene.asks("GetIdentity", s.NoAsk(), lambda _: anybody)


@story
def how_long_messages_took(scene: Scene) -> Any:
    """Half of them waited a second and were worked on for three; the others took longer."""
    queue = scene.hf.queue("orders", ack_timeout=600)
    for wait, handle in [(1, 3)] * 6 + [(10, 30)] * 4:
        queue.enqueue(1)
        scene.clock.advance(wait)
        lease = queue.lease(1)[0]
        scene.clock.advance(handle)
        queue.ack(lease)
    scene.clock.advance(600)

    def ask(name: str) -> Any:
        ask = s.HistoryAsk(name)
        found = scene.asks("GetHistory", ask, lambda at: _spans(scene.hf, at, name))
        return found if isinstance(found, list) else found.queues[0].spans

    return ask("orders"), refused(lambda: ask("order")), refused(lambda: ask("a b"))


def _spans(hf: Holdfast, at: Context, name: str) -> Any:
    hf.queue(name, create=False)
    return Spans(at).of(name)


@story
def who_did_what(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    scene.hf.queue("orders")  # it is there: no news
    queue.pause()
    queue.resume()
    queue.enqueue_many(range(3))
    queue.purge()
    kill(queue, 1, 2)
    scene.hf.redrive("orders.dlq", dry_run=True)
    scene.hf.redrive("orders.dlq", 1)
    queue.delete(force=True)
    told = [
        ("delete_queue", "orders", 2, '{"force":true}'),
        ("redrive", "orders.dlq", 1, '{"count":1}'),
        ("purge", "orders", 3, ""),
        ("resume", "orders", None, ""),
        ("pause", "orders", None, ""),
        ("create_queue", "orders", None, ""),
    ]

    def ask(**given: Any) -> Any:
        found = scene.asks("ListActions", s.ActionsAsk(**given), lambda _: None)
        if found is None:
            return None
        return [(one.what, one.queue, one.count, one.detail) for one in found.actions]

    first = scene.asks("ListActions", s.ActionsAsk(limit=2), lambda _: None)
    seen = [ask(), ask(queue="orders"), ask(queue="orders.dlq"), ask(queue="nobody")]
    if first is not None:
        return [*seen, ask(after=first.after)]
    return [told, told, [told[1]], [], told[2:]]


@story
def queries_of_spark(scene: Scene) -> Any:
    at, now = scene.at, scene.clock.now()
    scene.hf.queue("orders").enqueue_many(range(3))
    past = ledger.Past(3, 10, 8, 1, 1, 250, now)
    held = ledger.Query(
        "q1", "orders", "nightly", batch=4, hold="h", parts=(2, 3), seen_at=now, history=(past,)
    )
    lost = ledger.Query("q2", "gone", sealed=True, hold="h", reserved_at=now, parts=(1,))
    for query in (held, lost):
        at.store.put_record(ledger.QUERY, query.id, msgspec.json.encode(query), 0, now)
    return scene.asks("ListPipelines", s.NoAsk(), lambda at: pipelines(at, lambda _: True))


@story
def reports_of_spark(scene: Scene) -> Any:
    at = scene.at
    for made_at in (5, 17, 9):
        told = {"made_at": made_at, "title": f"of {made_at}", "rows": 3, "summary": {"a": [1]}}
        name = f"{made_at:015d}"
        at.store.put_record("report", name, msgspec.json.encode(told), 0, made_at)
        page = gzip.compress(f"<p>é {made_at}".encode())
        at.store.put_record("report-page", name, page, 0, made_at)

    def one(id: str) -> Any:
        return scene.asks("GetReport", s.ReportIdAsk(id), lambda at: report(at, id))

    return (
        scene.asks("ListReports", s.ReportsAsk(), lambda at: reports(at, 100)),
        scene.asks("ListReports", s.ReportsAsk(2), lambda at: reports(at, 2)),
        one(f"{17:015d}"),
        [refused(lambda x=x: one(x)) for x in ("1", "x", f"{17:015d}0", "000000000000018")],
    )


@story
def a_page_by_id_and_by_failure(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    dead = kill(queue, 1, 2, code="Declined")
    kill(queue, 3, code="Slow")
    waiting = queue.enqueue(4, delay=5)
    held = queue.enqueue(5)
    queue.lease(1, owner="me")
    found = failures.failure_groups(scene.at, "orders.dlq").groups
    prints = {group.code: group.fingerprint for group in found}

    def ask(name: str, **given: Any) -> Any:
        ask = s.BrowseAsk(name, **given)
        return scene.asks("Browse", ask, lambda at: page(LocalQueue(at, name), ask))

    seen = [
        ask("orders.dlq", fingerprint=prints["Declined"]),
        ask("orders.dlq", fingerprint="0" * 16),
        *[ask("orders", id=one.id, state=state) for one in (waiting, held) for state in STATES],
        ask("orders.dlq", id=dead[0].id),
        ask("orders", id=dead[0].id),
        refused(lambda: ask("orders", id="x")),
        refused(lambda: ask("orders.dlq", fingerprint="x")),
        refused(lambda: ask("orders", newest=True)),
    ]
    moved = scene.hf.redrive("orders.dlq", where=DeadFilter(fingerprint=prints["Slow"]))
    return seen, moved, everything(queue)


@story
def the_log_from_its_end(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    for n in range(7):
        queue.enqueue(n)
        queue.settle(queue.lease(1, owner="me"))
        scene.clock.advance(n * 50)

    def ask(**given: Any) -> Any:
        ask = s.BrowseAsk("orders", "log", newest=True, **given)
        return scene.asks("Browse", ask, lambda at: page(LocalQueue(at, "orders"), ask))

    seen = [ask(limit=3)]
    while seen[-1].after is not None:
        seen.append(ask(limit=3, after=seen[-1].after))
    order = [entry.message.payload for one in seen for entry in one.entries]
    return seen, order, refused(lambda: ask(after="1~2"))


STATES = ("ready", "delayed", "leased", "log")
