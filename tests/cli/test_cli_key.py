"""holdfast key."""

from __future__ import annotations

import re

import pytest

from holdfast import Holdfast
from holdfast.server import auth
from holdfast.server.auth import Authority
from holdfast.testing import wait_until

TOKEN = re.compile(r"hf_([a-z2-7]{12})_[\w-]{43}")


def test_create_prints_the_key_alone_and_once(cli, hf: Holdfast) -> None:
    done = cli("key", "create", "--role", "consume", "--queues", "orders*", "--queues", "mail")
    found = TOKEN.fullmatch(done.stdout.strip())
    assert found and done.exit_code == 0
    assert done.stderr == f"key {found[1]}: keep it now, it is not shown again\n"
    who = Authority(hf.context).check(found[0])
    assert (who.rights, who.queues) == ({"read", "consume"}, ("orders*", "mail"))
    for again in (cli.ok("key", "list"), cli.ok("key", "list", "--json")):
        assert found[1] in again and found[0][16:] not in again


def test_create_for_programs(cli, hf: Holdfast) -> None:
    [doc] = cli.docs(
        *("key", "create", "--role", "read", "--role", "produce", "--queues", "*"),
        *("--name", "shop", "--expires", "30d"),
    )
    token, created = doc.pop("key"), doc["created_at"]
    assert doc == {
        "id": token[3:15],
        "name": "shop",
        "roles": ["read", "produce"],
        "queues": ["*"],
        "created_at": created,
        "expires_at": created + 30 * 86_400_000,
        "revoked_at": None,
        "state": "active",
    }
    assert Authority(hf.context).check(token).name == "shop"
    assert cli.docs("key", "list") == [doc]


def test_list(cli, hf: Holdfast, steady) -> None:
    assert cli.ok("key", "list") == "no keys yet; holdfast key create makes one\n"
    assert cli.docs("key", "list") == []
    made = [
        auth.create(hf.context, roles=roles, queues=queues, name=name, expires_in=expires)[0].id
        for roles, queues, name, expires in [
            (["admin"], ["*"], "anna", None),
            (["consume", "produce"], ["orders*", "mail"], "", 7200.0),
            (["read"], ["*"], "short", 0.001),
        ]
    ]
    auth.revoke(hf.context, made[0])
    wait_until(lambda: auth.get(hf.context, made[2]).state(hf.context.clock.now()) == "expired")
    head, *rows = steady(cli.ok("key", "list")).splitlines()
    assert head == "ID  NAME  ROLES  QUEUES  CREATED  EXPIRES  STATE"
    assert sorted(rows) == sorted(
        [
            f"{made[0]}  anna  admin  *  T  never  revoked",
            f"{made[1]}  produce, consume  orders*, mail  T  T  active",
            f"{made[2]}  short  read  *  T  T  expired",
        ]
    )


def test_revoke(cli, hf: Holdfast) -> None:
    key, token = auth.create(hf.context, roles=["read"], queues=["*"], name="shop")
    assert cli.fails(2, "key", "revoke", key.id).startswith("error: stdin is no terminal")
    assert auth.get(hf.context, key.id).revoked_at is None
    assert cli.ok("key", "revoke", key.id, "--yes") == f"revoked {key.id} (shop)\n"
    again = f"{key.id} (shop) was revoked already\n"
    assert cli.ok("key", "revoke", token, "--yes") == again
    [doc] = cli.docs("key", "revoke", key.id, "--yes")
    assert doc["state"] == "revoked" and doc["revoked_at"] >= key.created_at


def test_it_asks_first(hf: Holdfast, on_terminal) -> None:
    key, _ = auth.create(hf.context, roles=["read"], queues=["*"])
    shown, code = on_terminal("key", "revoke", key.id, when="[y/N]", keys=b"n\n")
    assert f"Revoke {key.id}?" in shown and code == 1
    assert auth.get(hf.context, key.id).revoked_at is None
    shown, code = on_terminal("key", "revoke", key.id, when="[y/N]", keys=b"y\n")
    assert f"revoked {key.id}" in shown and code == 0
    assert auth.get(hf.context, key.id).revoked_at is not None


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["create"], 2, "error: Missing option '--role'."),
        (["create", "--role", "read"], 2, "error: Missing option '--queues'."),
        (["create", "--role", "raed", "--queues", "*"], 2, "error: roles: 'raed'; did you mean"),
        (["create", "--role", "read", "--queues", "a b"], 2, "error: queues: 'a b': letters, dig"),
        (
            ["create", "--role", "read", "--queues", "*", "--expires", "0"],
            *(2, "error: expires_in: must be more than 0 seconds\n"),
        ),
        (["revoke", "nokey", "--yes"], 4, "error: no key 'nokey'; none is known\n"),
    ],
)
def test_refused(cli, hf: Holdfast, arguments: list[str], code: int, error: str) -> None:
    assert cli.fails(code, "key", *arguments).startswith(error)
    assert auth.list_(hf.context) == []
