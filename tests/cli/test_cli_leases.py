"""holdfast lease, ack, nack, fail, release and extend: a queue for shell scripts."""

from __future__ import annotations

import json

import pytest

from holdfast import Holdfast, State
from holdfast.testing import finished, wait_until

BAD_ID = '{"queue":"orders","id":"x","token":"t"}'
ID = "019a8f6e-0000-7000-8000-000000000001"


@pytest.fixture
def orders(hf: Holdfast):
    queue = hf.queue("orders", max_attempts=2)
    queue.enqueue({"n": 1}, id=ID)
    return queue


@pytest.fixture
def leased(cli, orders) -> dict:
    return json.loads(cli.ok("lease", "orders", "--owner", "me"))


def named(lease: dict) -> tuple[str, str, str]:
    return lease["queue"], lease["id"], lease["token"]


def test_a_lease_is_a_json_line(cli, orders) -> None:
    lease = json.loads(cli.ok("lease", "orders"))
    [held] = [entry.lease for entry in orders.browse(State.LEASED)]
    assert {name: lease[name] for name in ("queue", "id", "payload", "attempts")} == {
        "queue": "orders",
        "id": ID,
        "payload": {"n": 1},
        "attempts": 1,
    }
    assert (lease["token"], lease["deadline"], lease["leased_at"], lease["owner"]) == (
        *(held.token, held.deadline, held.leased_at, held.owner),
    )
    assert "@" in held.owner
    assert cli.ok("lease", "orders") == ""


def test_lease_waits(cli, hf: Holdfast, start) -> None:
    queue = hf.queue("orders")
    waiting = start("lease", "orders", "--limit", "5", "--wait", "30")
    queue.enqueue("here")
    assert waiting.ends() == 0
    assert [json.loads(line)["payload"] for line in waiting.out.splitlines()] == ["here"]


def test_ack_by_name(cli, hf: Holdfast, leased: dict) -> None:
    assert cli.ok("ack", *named(leased), "--result", '{"ok":true}') == f"acked {ID}\n"
    [row] = finished(hf, "orders")
    assert (row.status, row.result, row.consumer) == ("COMPLETED", {"ok": True}, "me")


def test_ack_what_lease_printed(cli, orders) -> None:
    orders.enqueue_many([2, 3])
    leases = cli.ok("lease", "orders", "--limit", "3")
    ids = [json.loads(line)["id"] for line in leases.splitlines()]
    expected = [{"queue": "orders", "id": id, "outcome": "acked"} for id in ids]
    assert cli.docs("ack", input=leases) == expected
    assert orders.stats().done == 3


@pytest.mark.parametrize("verb", ["ack", "nack", "fail", "release", "extend"])
def test_a_lease_that_has_ended(cli, orders, leased: dict, verb: str) -> None:
    cli.ok("release", *named(leased))
    cli.ok("lease", "orders")
    error = f"error: {ID}: this lease has ended, the message moved on\n"
    assert cli.fails(3, verb, *named(leased)) == error
    assert orders.stats().leased == 1


@pytest.mark.parametrize("verb", ["nack", "fail", "release", "extend"])
def test_a_lease_whose_message_is_done(cli, leased: dict, verb: str) -> None:
    cli.ok("ack", *named(leased))
    error = f"error: {ID}: this lease has ended, orders holds the message no more\n"
    assert cli.fails(3, verb, *named(leased)) == error


def test_a_lease_whose_message_is_dead(cli, leased: dict) -> None:
    cli.ok("fail", *named(leased))
    error = f"error: {ID}: this lease has ended, the message is in orders.dlq\n"
    assert cli.fails(3, "ack", *named(leased)) == error


def test_the_good_ones_are_settled_beside_a_lost_one(cli, orders) -> None:
    orders.enqueue_many([2, 3])
    leases = cli.ok("lease", "orders", "--limit", "3").splitlines()
    cli.ok("ack", input=leases[1])
    result = cli("release", input="\n".join(leases))
    ids = [json.loads(line)["id"] for line in leases]
    assert result.stdout == f"released {ids[0]}\nreleased {ids[2]}\n"
    assert result.stderr == (
        f"error: {ids[1]}: this lease has ended, orders holds the message no more\n"
    )
    assert result.exit_code == 3
    assert (orders.stats().done, orders.stats().ready) == (1, 2)


def counts(orders) -> list[int]:
    now = orders.stats()
    return [now.ready, now.delayed, now.leased, now.dead, now.done]


@pytest.mark.promise("FENCE-2")
@pytest.mark.parametrize("verb", ["ack", "nack", "fail", "release"])
def test_a_repeated_verb_is_fine(cli, orders, leased: dict, verb: str) -> None:
    said = cli.ok(verb, *named(leased))
    before = counts(orders)
    assert cli.ok(verb, *named(leased)) == said
    assert counts(orders) == before


def test_extend_beside_a_lost_one(cli, orders) -> None:
    orders.enqueue(2)
    leases = cli.ok("lease", "orders", "--limit", "2").splitlines()
    cli.ok("ack", input=leases[0])
    result = cli("extend", "1h", input="\n".join(leases))
    first, second = (json.loads(line)["id"] for line in leases)
    assert result.stdout == f"extended {second}, for 1 h\n"
    assert (
        result.stderr == f"error: {first}: this lease has ended, orders holds the message no more\n"
    )
    assert result.exit_code == 3


def test_nack_keeps_the_error_and_waits(cli, orders, leased: dict) -> None:
    said = cli.ok("nack", *named(leased), "--error", "no bus", "--code", "E1", "--delay", "1h")
    assert said == f"nacked {ID}\n"
    [entry] = orders.browse(State.DELAYED)
    [error] = entry.message.errors
    assert (error.message, error.code, error.attempt) == ("no bus", "E1", 1)
    assert entry.message.available_at - error.at == 3_600_000


def test_nack_of_a_printed_lease_names_its_owner(cli, orders, leased: dict) -> None:
    cli.ok("nack", "--delay", "0", input=json.dumps(leased))
    [error] = orders.get(ID).errors
    assert (error.message, error.code, error.consumer) == ("nacked", "ERROR", "me")


def test_nack_out_of_attempts_is_dead(cli, orders) -> None:
    for _ in range(2):
        cli.ok("nack", "--delay", "0", input=cli.ok("lease", "orders"))
    assert orders.stats().dead == 1
    assert orders.get(ID).reason == "max attempts exceeded"


def test_fail_is_dead_at_once(cli, orders, leased: dict) -> None:
    assert cli.ok("fail", *named(leased), "--error", "never", "--code", "BAD") == f"failed {ID}\n"
    dead = orders.get(ID)
    assert (dead.reason, dead.errors[0].message, dead.errors[0].code) == ("failed", "never", "BAD")


def test_release_uses_no_attempt(cli, orders, leased: dict) -> None:
    assert cli.ok("release", *named(leased)) == f"released {ID}\n"
    [entry] = orders.browse()
    assert entry.message.attempts == 0


def test_extend(cli, orders, leased: dict) -> None:
    assert cli.ok("extend", *named(leased), "1h") == f"extended {ID}, for 1 h\n"
    [doc] = cli.docs("extend", "2h", input=json.dumps(leased))
    [held] = [entry.lease for entry in orders.browse(State.LEASED)]
    expected = {name: leased[name] for name in ("queue", "id", "token", "owner")}
    assert doc == {**expected, "deadline": held.deadline}
    assert held.deadline - leased["deadline"] > 3_600_000
    cli.ok("ack", input=json.dumps(doc))
    assert orders.stats().done == 1


def test_extend_by_its_own_time_out(cli, orders) -> None:
    orders.enqueue("slow", ack_timeout=600)
    leases = cli.ok("lease", "orders", "--limit", "2").splitlines()
    before = json.loads(leases[1])["deadline"]
    wait_until(lambda: cli.docs("extend", input=leases[1])[0]["deadline"] > before)
    [doc] = cli.docs("extend", input=leases[1])
    assert doc["deadline"] - before < 60_000


@pytest.mark.parametrize(
    ("args", "stdin", "error"),
    [
        (["orders"], "", "error: name a lease by QUEUE ID TOKEN, or pipe in what lease printed\n"),
        (["orders", "x", "t"], "", "error: id: must be a UUID, not 'x'\n"),
        ([], "{}", "error: line 1: not what lease prints: Object missing required field `queue`\n"),
        ([], BAD_ID, "error: line 1: not what lease prints: id: must be a UUID, not 'x'\n"),
        ([], '\n"x"', "error: line 2: not what lease prints: Expected `object`, got `str`\n"),
        (["orders", ID, "t", "--result", "{"], "", "error: --result: not JSON: Input data was"),
    ],
)
def test_refusals(cli, orders, args: list[str], stdin: str, error: str) -> None:
    assert cli.fails(2, "ack", *args, input=stdin).startswith(error)


def test_a_queue_that_is_not_there(cli, orders) -> None:
    error = "error: no queue 'ordrs'; did you mean 'orders'?\n"
    assert cli.fails(4, "lease", "ordrs") == error
    assert cli.fails(4, "ack", "ordrs", ID, "t") == error


def test_a_token_that_never_was(cli, orders) -> None:
    error = f"error: {ID}: this lease has ended, the message moved on\n"
    assert cli.fails(3, "ack", "orders", ID, "never") == error
    assert orders.stats().ready == 1


def test_a_terminal_without_a_lease(on_terminal) -> None:
    shown, code = on_terminal("ack")
    said = "error: give QUEUE ID TOKEN, or pipe in what lease printed\ntry: holdfast ack --help\n"
    assert (shown, code) == (said, 2)
