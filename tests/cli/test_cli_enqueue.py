"""holdfast enqueue and holdfast peek."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import Holdfast, State

ID = "019a8f6e-0000-7000-8000-000000000001"


@pytest.fixture(autouse=True)
def orders(hf: Holdfast):
    return hf.queue("orders")


def payloads(queue) -> list:
    return [entry.message.payload for entry in queue.browse()]


def test_one_message_with_everything(cli, orders) -> None:
    [doc] = cli.docs(
        *("enqueue", "orders", '{"n": 12345678901234567890123}', "--key", "c-1"),
        *("--type", "placed", "--priority", "3", "--header", "trace=a=b", "--header", "x="),
        *("--id", ID, "--ack-timeout", "2m", "--max-attempts", "9"),
    )
    assert doc == {
        "id": ID,
        "queue": "orders",
        "partition": 0,
        "priority": 3,
        "key": "c-1",
        "type": "placed",
        "content_type": "application/json",
        "payload_encoding": "json",
        "payload": {"n": 12345678901234567890123},
        "headers": {"trace": "a=b", "x": ""},
        "enqueued_at": doc["enqueued_at"],
        "available_at": doc["enqueued_at"],
        "attempts": 0,
        "ack_timeout": 120.0,
        "max_attempts": 9,
        "backoff": None,
        "first_leased_at": None,
        "errors": [],
        "source": None,
        "dead_at": None,
        "reason": None,
        "redriven": 0,
        "origin": None,
        "duplicate": False,
    }
    assert orders.get(ID).body == b'{"n": 12345678901234567890123}'


def test_for_people(cli, orders) -> None:
    assert cli.ok("enqueue", "orders", "1", "--id", ID) == f"enqueued {ID} in orders\n"
    again = cli.ok("enqueue", "orders", "2", "--id", ID)
    assert again == f"orders holds {ID} already; nothing was stored\n"
    assert payloads(orders) == [1]
    later = cli.ok("enqueue", "orders", "3", "--delay", "2h")
    assert later.endswith(" in orders, due in 2 h\n")
    assert orders.stats().delayed == 1


def test_text_and_bytes(cli, orders, tmp_path: Path) -> None:
    cli.ok("enqueue", "orders", "hello", "--text")
    cli.ok("enqueue", "orders", "--raw", "--content-type", "image/png", input=b"\x89PNG\n\x00")
    (tmp_path / "page").write_bytes(b"<p>\n</p>\n")
    page = str(tmp_path / "page")
    cli.ok("enqueue", "orders", "--text", "--content-type", "text/html", "--file", page)
    held = [(e.message.payload, e.message.content_type) for e in orders.browse()]
    assert held == [
        ("hello", "text/plain"),
        (b"\x89PNG\n\x00", "image/png"),
        ("<p>\n</p>\n", "text/html"),
    ]
    docs = cli.docs("peek", "orders")
    assert [(doc["payload_encoding"], doc["payload"]) for doc in docs] == [
        ("text", "hello"),
        ("base64", "iVBORwoA"),
        ("text", "<p>\n</p>\n"),
    ]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["{n:1}"], "error: payload: not JSON: JSON is malformed: object keys must be strings "),
        (["1", "--priority", "10"], "error: priority: must be 0 to 9, not 10\n"),
        (["1", "--delay", "-5"], "error: delay: must not be negative, not -5.0\n"),
        (["1", "--id", "x"], "error: id: must be a UUID, not 'x'\n"),
        (["1", "--header", "x"], "error: Invalid value for '--header': 'x': write name=value\n"),
        (["1", "--text", "--raw"], "error: --text or --raw, not both\n"),
        (["x", "--text", "--content-type", "image/png"], "error: --text with content type image/"),
        (["1", "--file", "x"], "error: give PAYLOAD or --file, not both\n"),
        (["--file", "no/such"], "error: --file: no/such: No such file or directory\n"),
        (["--file", "-", "--id", ID], "error: --id names one message; give it in the lines"),
    ],
)
def test_refusals(cli, orders, args: list[str], error: str) -> None:
    assert cli.fails(2, "enqueue", "orders", *args).startswith(error)
    assert orders.stats().ready == 0


def test_not_json_says_how_to_send_text(cli) -> None:
    assert cli.fails(2, "enqueue", "orders", "hello").endswith("; --text sends text\n")


def test_a_terminal_without_payload(on_terminal) -> None:
    shown, code = on_terminal("enqueue", "orders")
    said = "error: no payload: give PAYLOAD, --file FILE, or pipe JSON lines in\n"
    assert (shown, code) == (f"{said}try: holdfast enqueue --help\n", 2)


def test_a_queue_that_is_not_there(cli, hf: Holdfast) -> None:
    error = "error: no queue 'ordrs'; did you mean 'orders'? (--create makes it)\n"
    assert cli.fails(4, "enqueue", "ordrs", "1") == error
    cli.ok("enqueue", "ordrs", "1", "--create")
    assert hf.queue("ordrs", create=False).stats().ready == 1


def test_json_lines(cli, orders, tmp_path: Path) -> None:
    assert cli.ok("enqueue", "orders", input='1\n\n"two"\n{"n":3}') == (
        "enqueued 3 messages in orders\n"
    )
    lines = tmp_path / "lines"
    lines.write_text("4\n5\n")
    done = [{"queue": "orders", "stored": 2, "duplicates": 0}]
    assert cli.docs("enqueue", "orders", "--file", str(lines), "--key", "k") == done
    assert payloads(orders) == [1, "two", {"n": 3}, 4, 5]
    assert [e.message.key for e in orders.browse()][-2:] == ["k", "k"]
    assert cli.ok("enqueue", "orders", "-f", "-", input="") == "enqueued 0 messages in orders\n"


def test_envelopes(cli, orders) -> None:
    lines = [
        {"payload": [1], "id": ID, "key": "a", "priority": 2, "headers": {"h": "v"}},
        {"payload": None, "delay": 60, "ack_timeout": 5, "max_attempts": 1},
    ]
    text = "\n".join(map(json.dumps, lines))
    options = ("--envelope", "--key", "given", "--type", "t")
    assert cli.ok("enqueue", "orders", *options, input=text) == "enqueued 2 messages in orders\n"
    first = orders.get(ID)
    assert (first.payload, first.key, first.type, first.priority, first.headers) == (
        *([1], "a", "t", 2, {"h": "v"}),
    )
    [later] = [entry.message for entry in orders.browse(State.DELAYED)]
    assert (later.payload, later.key, later.ack_timeout, later.max_attempts) == (
        *(None, "given", 5, 1),
    )
    once_more = cli.ok("enqueue", "orders", "--envelope", input=json.dumps(lines[0]))
    assert once_more == "enqueued 0 messages in orders; 1 were held already\n"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"payload": 1, "kye": "a"}', "no envelope: Object contains unknown field `kye`"),
        ('{"key": "a"}', "no envelope: Object missing required field `payload`"),
        ('{"payload": 1, "priority": 11}', "priority: must be 0 to 9, not 11"),
        ('{"payload": 1, "id": "x"}', "id: must be a UUID, not 'x'"),
    ],
)
def test_a_wrong_envelope(cli, orders, line: str, problem: str) -> None:
    lines = f'{{"payload": 1}}\n{line}\n'
    assert cli.fails(2, "enqueue", "orders", "--envelope", input=lines) == (
        f"error: line 2: {problem}; lines 1 to 2 were not stored, nothing was stored before\n"
    )
    assert orders.stats().ready == 0


def test_an_invalid_line_stores_nothing_of_its_chunk(cli, orders) -> None:
    lines = "\n".join([*map(str, range(1, 1501)), "{", "1502"])
    assert cli.fails(2, "enqueue", "orders", input=lines) == (
        "error: line 1501: payload: not JSON: Input data was truncated; lines 1001 to 1502 were "
        "not stored, 1,000 messages of lines 1 to 1000 stored before\n"
    )
    assert payloads(orders) == [*range(1, 1001)]


def test_a_line_over_the_limit_of_the_queue(cli, hf: Holdfast) -> None:
    small = hf.queue("small", payload_max=5)
    assert cli.fails(2, "enqueue", "small", input='1\n"long one"\n') == (
        "error: line 2: payload: 10 bytes; the limit is 5; lines 1 to 2 were not stored, nothing "
        "was stored before\n"
    )
    assert small.stats().ready == 0


def test_a_progress_bar_on_a_terminal(on_terminal, orders, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("\n".join(map(str, range(3000))))
    shown, code = on_terminal("enqueue", "orders", "--file", str(lines))
    assert "3,000 enqueued" in shown
    assert (shown.endswith("enqueued 3,000 messages in orders\n"), code) == (True, 0)
    assert orders.stats().ready == 3000


def test_peek_in_lease_order(cli, orders, steady) -> None:
    orders.enqueue({"n": 1}, id=ID, key="c-1")
    orders.enqueue({"n": 2}, id=ID[:-1] + "2", priority=9)
    assert steady(cli.ok("peek", "orders")) == (
        "ID  ENQUEUED  PRIORITY  KEY  PAYLOAD\n"
        f'{ID[:-1]}2  T  9  {{"n":2}}\n'
        f'{ID}  T  c-1  {{"n":1}}\n'
    )
    assert [doc["payload"] for doc in cli.docs("peek", "orders", "--limit", "1")] == [{"n": 2}]
    assert orders.stats().ready == 2


def test_peek_at_what_waits_and_what_is_leased(cli, orders, steady) -> None:
    assert cli.ok("peek", "orders") == "orders: nothing is ready\n"
    orders.enqueue("later", id=ID, delay=300)
    assert steady(cli.ok("peek", "orders", "--state", "delayed")) == (
        f'ID  ENQUEUED  DUE  PAYLOAD\n{ID}  T  T  "later"\n'
    )
    orders.enqueue("held", id=ID[:-1] + "2", ack_timeout=300)
    [lease] = orders.lease(owner="me")
    orders.enqueue("late", id=ID[:-1] + "3", ack_timeout=0.001)
    orders.lease(owner="you")
    shown = steady(cli.ok("peek", "orders", "--state", "leased"))
    assert shown.splitlines()[0] == "ID  ENQUEUED  DEADLINE  OWNER  ATTEMPTS  PAYLOAD"
    assert shown.splitlines()[1].startswith(f"{ID[:-1]}3  T  overdue ")
    assert shown.splitlines()[2] == f'{lease.id}  T  T  me  1  "held"'
    doc = cli.docs("peek", "orders", "--state", "leased")[1]
    assert (doc["token"], doc["deadline"], doc["owner"]) == (lease.token, lease.deadline, "me")


def test_peek_refuses(cli) -> None:
    assert "'done' is not one of 'ready', 'delayed', 'leased'" in cli.fails(
        *(2, "peek", "orders", "--state", "done")
    )
    assert "--limit" in cli.fails(2, "peek", "orders", "--limit", "0")
    assert cli.fails(4, "peek", "nope").startswith("error: no queue 'nope'; known: orders")
