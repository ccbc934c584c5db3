"""What a MongoDB URL may say, on real servers; and what is refused, by its name."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from pymongo import MongoClient

import holdfast
from holdfast import HoldfastError, InvalidArgument, StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.mongo.url import where
from servers.base import free_port
from servers.mongo import HOST

SECRET = "Gr4nite:/?#[]@%~Secret"
PLAIN = "Gr4niteSecret"


def with_options(url: str, **options: Any) -> str:
    parts = urlsplit(url)
    asks = {**dict(parse_qsl(parts.query)), **options}
    return parts._replace(query=urlencode(asks, quote_via=quote)).geturl()


def database_of(url: str) -> str:
    return urlsplit(url).path.strip("/")


def everything_said(error: BaseException) -> str:
    """As a log would show it: with its causes."""
    return "".join(traceback.format_exception(error)) + repr(error)


def works(url: str, payload: str) -> None:
    """One connection stores it, another finds it."""
    with holdfast.connect(url) as hf:
        sent = hf.queue("orders").enqueue(payload)
    with holdfast.connect(url) as hf:
        leases = hf.queue("orders").lease(10)
        assert [(lease.id, lease.message.payload) for lease in leases] == [(sent.id, payload)]
        hf.queue("orders").settle(leases)


# What it may say


def test_what_is_not_said_is_safe() -> None:
    told = where("mongodb://localhost")
    assert (told.database, told.prefix, told.timeout) == ("holdfast", "holdfast", 10.0)
    assert (told.w, told.journal) == ("majority", True)
    assert told.shown == "mongodb://localhost/holdfast"


def test_several_hosts_and_a_password_that_nobody_is_shown() -> None:
    password = quote(SECRET, safe="")
    told = where(f"mongodb://maker:{password}@one,two:27018,[::1]:27019/jobs?replicaSet=rs0")
    assert told.shown == "mongodb://one,two:27018,[::1]:27019/jobs"
    assert told.database == "jobs"
    assert password in told.uri


@pytest.mark.parametrize(
    "asked", ["mongodb+srv://one.example.com", "mongodb+srv://a:b@one.example.com/"]
)
def test_a_name_that_is_looked_up_later(asked: str) -> None:
    told = where(f"{asked}?prefix=mine&timeout=3") if asked.endswith("/") else where(asked)
    assert told.uri.startswith("mongodb+srv://")
    assert told.shown == "mongodb+srv://one.example.com/holdfast"
    assert "prefix" not in told.uri


def test_a_name_that_nobody_can_look_up_is_one_of_our_errors() -> None:
    with pytest.raises(HoldfastError) as refused:
        holdfast.connect(f"mongodb+srv://maker:{PLAIN}@nowhere.invalid/?timeout=1")
    assert PLAIN not in everything_said(refused.value)
    assert "nowhere.invalid" in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "w", "journal"),
    [("", "majority", True), ("w=1", 1, True), ("w=majority&journal=false", "majority", False),
     ("w=2", 2, True), ("w=ours", "ours", True)],
)  # fmt: skip
def test_how_safe_a_write_must_be(asked: str, w: int | str, journal: bool) -> None:
    told = where(f"mongodb://localhost/?{asked}")
    assert (told.w, told.journal) == (w, journal)


def test_options_in_any_spelling_of_the_driver(mongo_url: str) -> None:
    works(with_options(mongo_url, SOCKETTIMEOUTMS=5000, retrywrites="true"), "by the driver")


def test_the_database_of_the_url_is_taken(mongo_url: str, mongo_server: str) -> None:
    works(mongo_url, "there")
    with MongoClient(mongo_server) as admin:
        names = admin[database_of(mongo_url)].list_collection_names()
    assert {name.partition(".")[0] for name in names} == {"holdfast", "system"}
    assert "holdfast.tasks" in names


def test_two_prefixes_are_two_stores(new_mongo_url: str, mongo_server: str) -> None:
    with (
        holdfast.connect(with_options(new_mongo_url, prefix="one")) as one,
        holdfast.connect(with_options(new_mongo_url, prefix="one.two")) as two,
    ):
        one.queue("orders").enqueue(1)
        assert two.queues() == []
        two.queue("orders").enqueue(2)
        one.queue("orders").delete(force=True)
        assert [lease.message.payload for lease in two.queue("orders").lease(9)] == [2]
    with MongoClient(mongo_server) as admin:
        names = admin[database_of(new_mongo_url)].list_collection_names()
    assert {name.partition(".")[0] for name in names} == {"one", "system"}


def test_a_host_that_is_away_among_others(mongo_url: str) -> None:
    parts = urlsplit(mongo_url)
    works(parts._replace(netloc=f"{HOST}:{free_port()},{parts.netloc}").geturl(), "by the second")


@pytest.mark.parametrize("preference", ["secondaryPreferred", "nearest", "secondary"])
def test_messages_are_read_where_they_are_written(mongo_url: str, preference: str) -> None:
    """Whatever the application likes for its own reads: elsewhere is too late."""
    works(with_options(mongo_url, readPreference=preference), preference)


@pytest.mark.parametrize("level", ["local", "majority", "linearizable", "available", "snapshot"])
def test_a_read_concern_is_the_stores_own_business(mongo_url: str, level: str) -> None:
    works(with_options(mongo_url, readConcernLevel=level), level)


def test_the_time_out_bounds_a_call() -> None:
    url = f"mongodb://maker:{PLAIN}@{HOST}:{free_port()}/?timeout=1"
    with pytest.raises(StoreUnavailable, match="refused") as away:
        holdfast.connect(url)
    assert PLAIN not in everything_said(away.value)
    assert len(str(away.value)) < 300


# What is refused


@pytest.mark.parametrize(
    ("option", "hint"),
    [("prefx", "prefix"), ("time-out", "timeout"), ("replicaset_", "replicaset"),
     ("authSorce", "authsource"), ("retryWrite", "retrywrites")],
)  # fmt: skip
def test_an_unknown_option_is_refused_with_the_nearest(option: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"did you mean '{hint}'") as refused:
        open_store(f"mongodb://localhost/?{option}=1")
    assert refused.value.field == f"url option {option}"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("prefix", value) for value in ("", "a$b", "a b", "ö", "x" * 65, "*", "a\n", "system.x")],
        *[("timeout", value) for value in ("", "0", "-1", "soon", "nan", "inf", "4000")],
        ("w", "0"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(option: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        open_store(with_options("mongodb://localhost/", **{option: value}))
    assert refused.value.field == f"url option {option}"


@pytest.mark.parametrize(
    ("option", "value"),
    [("w", "-1"), ("journal", "perhaps"), ("socketTimeoutMS", "soon"), ("maxPoolSize", "-3"),
     ("readPreference", "best"), ("tls", "perhaps")],
)  # fmt: skip
def test_what_the_driver_would_not_take_is_refused_as_well(option: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        open_store(with_options("mongodb://localhost/", **{option: value}))
    said = str(refused.value).lower()
    assert option.lower() in said or value in said


def test_w_0_says_why() -> None:
    with pytest.raises(InvalidArgument, match="0 would let go of messages: 1 or more, or majority"):
        open_store("mongodb://localhost/?w=0")


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://",
        "mongodb:///jobs",
        "mongodb://localhost:port",
        "mongodb://localhost:0",
        "mongodb://localhost:65536",
        "mongodb://local[host",
        "mongodb://localhost/a b",
        "mongodb://localhost/a$b",
        "mongodb://localhost/a.b",
        "mongodb://localhost/#1",
        "mongodb+srv://one.example.com:27017",
        "mongodb+srv://one.example.com,two.example.com",
        "mongodb+srv://localhost",
    ],
)
def test_a_url_that_says_nothing_we_know_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        open_store(url)
    assert refused.value.field == "url"


@pytest.mark.parametrize(
    "password",
    ["100%Secret", "Secret#1", "Sec?ret", "Sec?ret=1", "Secret/1", "Sec@ret", "Sec[ret", "Sec:ret",
     "Sec\uff0fret", "Sec?ret&x=1"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["mongodb", "mongodb+srv"])
def test_a_url_that_is_not_well_formed_does_not_show_its_password(kind: str, password: str) -> None:
    """As people type them: special characters not encoded."""
    host = f"{HOST}:1" if kind == "mongodb" else "one.example.com"
    with pytest.raises(HoldfastError) as refused:
        open_store(f"{kind}://maker:{password}@{host}/?timeout=1")
    assert password not in everything_said(refused.value)
    assert "Sec" not in str(refused.value) and "ret" not in str(refused.value)
    assert "%xx" in str(refused.value)


@pytest.mark.parametrize(
    "option", ["tlsCertificateKeyFilePassword=Sec ret", "authMechanismProperties=Sec:ret"]
)
def test_a_secret_among_the_options_is_not_shown(option: str) -> None:
    with pytest.raises(HoldfastError) as refused:
        holdfast.connect(f"mongodb://{HOST}:{free_port()}/?timeout=1&tls=true&{option}")
    assert "ret" not in str(refused.value)


def test_importing_holdfast_needs_no_driver() -> None:
    """Nor does opening another store; and who asks for this one is told what to install."""
    code = (
        "import sys; sys.modules['pymongo'] = sys.modules['bson'] = None\n"
        "import holdfast\n"
        "holdfast.connect('memory://').queue('orders').enqueue(1)\n"
        "try: holdfast.connect('mongodb://localhost')\n"
        "except holdfast.errors.MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "mongodb:// needs: pip install 'holdfast[mongo]'"
