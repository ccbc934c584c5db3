"""The book of what administrators did: who may read it, what is in it, and how long it gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import holdfast
from holdfast import Holdfast
from holdfast.client.remote import RemoteHoldfast
from holdfast.errors import PermissionDenied, StoreUnavailable
from holdfast.server import actions, auth
from holdfast.server.actions import Actions
from holdfast.server.auth import ANYBODY
from holdfast.testing import wait_until
from holdfast.wire import shapes as s
from holdfast.wire.operations import BY_NAME
from tests.server.rig import Doors, serving

pytestmark = pytest.mark.promise("DASH-5")


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.connect(f"sqlite:///{tmp_path}/jobs.db") as hf:
        yield hf


@pytest.fixture
def doors(behind: Holdfast) -> Iterator[Doors]:
    with serving(behind, auth=True) as made:
        yield made


def connect(
    behind: Holdfast, doors: Doors, role: str, queues: str = "*", name: str = ""
) -> RemoteHoldfast:
    key = auth.create(behind.context, roles=[role], queues=[queues], name=name)[1]
    made = holdfast.connect(doors.http, key=key)
    assert isinstance(made, RemoteHoldfast)
    return made


def test_who_did_it(behind: Holdfast, doors: Doors) -> None:
    with connect(behind, doors, "admin", name="night shift") as admin:
        admin.queue("orders").pause()
        pause, create = admin.actions().actions
        assert (pause.what, pause.who, pause.queue) == ("pause", "night shift", "orders")
        assert pause.key_id == admin.identity().id == create.key_id
        assert create.what == "create_queue"
    with connect(behind, doors, "admin") as nameless:
        nameless.queue("orders").resume()
        assert nameless.actions(limit=1).actions[0].who == nameless.identity().id


def test_a_key_sees_what_was_done_to_its_queues(behind: Holdfast, doors: Doors) -> None:
    with connect(behind, doors, "admin") as admin:
        for name in ("orders", "orders.eu", "mail"):
            admin.queue(name).pause()
        admin.sweep()
        assert {one.queue for one in admin.actions().actions} == {
            "orders",
            "orders.eu",
            "mail",
            None,
        }
    with connect(behind, doors, "read", "orders*") as some:
        assert {one.queue for one in some.actions().actions} == {"orders", "orders.eu"}
        with pytest.raises(PermissionDenied, match="'mail'"):
            some.actions("mail")
        assert {one.queue for one in some.history().queues} <= {"orders", "orders.eu"}
        with pytest.raises(PermissionDenied, match="'mail'"):
            some.history("mail")
        with pytest.raises(PermissionDenied, match="whole store"):
            some.reports()
    with connect(behind, doors, "produce") as producer:
        assert producer.identity().rights == ["produce"]
        for look in (producer.actions, producer.history, producer.pipelines):
            with pytest.raises(PermissionDenied, match="lacks the right 'read'"):
                look()


def test_it_is_told_to_those_who_watch(behind: Holdfast, doors: Doors) -> None:
    with (
        connect(behind, doors, "admin", name="me") as admin,
        connect(behind, doors, "read", "orders") as some,
    ):
        news = some.subscribe()
        heard: list[Any] = []
        admin.queue("mail").pause()
        admin.queue("orders").pause()

        def told() -> bool:
            heard.extend(event for event in news.next(0.1) if event.type == "action")
            return len(heard) >= 2

        wait_until(told)
        news.close()
    assert [event.payload for event in heard] == [
        {"queue": "orders", "what": what, "who": "me", "count": None}
        for what in ("create_queue", "pause")
    ]


def does(book: Actions, name: str, ask: Any, answer: Any) -> Any:
    return book.does(BY_NAME[name], lambda _: answer, ANYBODY, ask)


def test_the_newest_thousand_are_kept(behind: Holdfast) -> None:
    book = Actions(behind)
    for n in range(actions.KEPT + 3 * actions.TRIM_EVERY):
        does(book, "Purge", s.QueueAsk("orders"), s.CountDoc(n))
    held = behind.store.records(actions.KIND, limit=5000)
    assert actions.KEPT <= len(held) < actions.KEPT + actions.TRIM_EVERY
    found: list[int | None] = []
    after: str | None = None
    while True:
        page = book.list(s.ActionsAsk(limit=300, after=after), ANYBODY)
        found += [one.count for one in page.actions]
        after = page.after
        if after is None:
            break
    newest = actions.KEPT + 3 * actions.TRIM_EVERY - 1
    assert found == list(range(newest, newest - len(held), -1))


def test_what_was_done_stays_done_when_it_cannot_be_written_down(
    behind: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> Any:
        raise StoreUnavailable("the store is gone")

    monkeypatch.setattr(behind.store, "put_record", gone)
    answer = s.CountDoc(3)
    assert does(Actions(behind), "Purge", s.QueueAsk("orders"), answer) is answer


def test_what_is_no_news(behind: Holdfast) -> None:
    book = Actions(behind)
    topic = s.TopicDoc("shop", {}, [], 0, None, True, 60.0)
    behind.topic("shop", retention=60)
    does(book, "CreateTopic", s.PutTopicAsk("shop"), topic)
    does(book, "Redrive", s.RedriveAsk("orders.dlq", dry_run=True), s.RedrivenDoc("orders.dlq", 3))
    assert book.list(s.ActionsAsk(), ANYBODY).actions == []


def test_no_payload_is_in_it(behind: Holdfast) -> None:
    book = Actions(behind)
    ask = s.RedriveAsk("orders.dlq", ids=["a", "b"], payload=Raw(b'{"secret":1}'))
    does(book, "Redrive", ask, s.RedrivenDoc("orders.dlq", 2))
    [one] = book.list(s.ActionsAsk(), ANYBODY).actions
    assert (one.count, one.detail) == (2, '{"ids":2,"payload":"edited"}')
    where = s.DeadFilterDoc(reason="x" * 5000)
    does(book, "Redrive", s.RedriveAsk("orders.dlq", where=where), s.RedrivenDoc("orders.dlq", 1))
    assert len(book.list(s.ActionsAsk(), ANYBODY).actions[0].detail) == actions.DETAIL_MAX
