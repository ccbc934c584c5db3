"""What goes wrong with a Redis: each case has its own error, which says what to do."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
import pytest
from redis import Redis

import holdfast
from holdfast import (
    FailedPrecondition,
    Holdfast,
    HoldfastError,
    InvalidArgument,
    Outgoing,
    Queue,
    RedriveFailed,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.model.moves import State
from holdfast.model.queues import partition_claim
from holdfast.rules.outcome import Extend, Fail, Release, Retry
from holdfast.stores import open_store
from holdfast.stores.contract import (
    BatchEnd,
    ByPartition,
    Cut,
    Event,
    LeaseAsk,
    ReserveAsk,
    View,
    batch_in,
    held_in,
    overdue_in,
    spec_of,
)
from holdfast.stores.damage import DAMAGED_CODE
from holdfast.stores.redis import open_url
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.moves import CHUNK
from holdfast.stores.redis.server import check_server
from holdfast.stores.redis.url import where
from holdfast.testing import ManualClock, wait_until
from servers.base import free_port
from servers.redis import ALWAYS, HOST, RedisServer, running
from tests.plugins.sampling import one_of_each
from tests.plugins.stores import OwnServer
from tests.soon import soon

SECRET = "Gr4nite~Secret"
WRONG = "Wr0ng~Secret"
DAYS = 24 * 3600


def with_options(url: str, **options: Any) -> str:
    mark = "&" if "?" in url else "?"
    return f"{url}{mark}{urlencode(options, quote_via=quote)}"


def prefix_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["prefix"][0]


def as_user(url: str, user: str, password: str = SECRET, **options: Any) -> str:
    parts = urlsplit(url)
    netloc = f"{user}:{quote(password, safe='')}@{parts.hostname}:{parts.port}"
    return with_options(parts._replace(netloc=netloc).geturl(), **options)


def everything_said(error: BaseException) -> str:
    """As a log would show it: with its causes."""
    return "".join(traceback.format_exception(error)) + repr(error)


def kept(admin: Redis, prefix: str) -> dict[str, Any]:
    """Every key of a store and all that it holds."""
    return {key.decode(): value_of(admin, key) for key in admin.scan_iter(f"{prefix}:*")}


def value_of(admin: Redis, key: bytes) -> Any:
    match admin.type(key):
        case b"hash":
            return admin.hgetall(key)
        case b"zset":
            return admin.zrange(key, 0, -1, withscores=True)
        case b"stream":
            groups = admin.xinfo_groups(key)
            held = [admin.xpending_range(key, g["name"], "-", "+", 1000) for g in groups]
            given = [(group["name"], group["last-delivered-id"]) for group in groups]
            held = [[(each["message_id"], each["consumer"]) for each in some] for some in held]
            return admin.xrange(key), given, held
        case b"list":
            return admin.lrange(key, 0, -1)
        case b"set":
            return admin.smembers(key)
        case _:
            return admin.get(key)


def worked_off(hf: Holdfast, clock: ManualClock, queue: Queue) -> list[str]:
    """The ids of all that a queue and its dead letters hold, as often as it delivers them."""
    clock.advance(DAYS)
    hf.sweep()
    found: list[str] = []
    for each in (queue, queue.dlq):
        while leases := each.lease(100):
            found += [lease.id for lease in leases]
            each.settle(leases)
    return sorted(found)


@pytest.fixture(scope="module")
def redis_server(own_server: OwnServer) -> str:
    """Its tests change settings and forget scripts."""
    return own_server(running())


@pytest.fixture
def admin(redis_server: str) -> Iterator[Redis]:
    with Redis.from_url(redis_server) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(redis_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(redis_url, clock=clock) as opened:
        yield opened


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A server that asks everybody for a password."""
    with running() as server:
        with Redis.from_url(server.url) as client:
            client.config_set("requirepass", SECRET)
        yield server.url


@pytest.fixture
def guard(guarded: str) -> Iterator[Redis]:
    with Redis.from_url(guarded, password=SECRET) as client:
        yield client


@pytest.fixture
def own() -> Iterator[tuple[RedisServer, Redis]]:
    """It has all its data when it was killed, however slow the disk was."""
    with running(settings=ALWAYS) as server, Redis.from_url(server.url) as client:
        yield server, client


# Who may


def test_the_right_password_is_all_it_takes(guarded: str) -> None:
    with holdfast.connect(as_user(guarded, "", prefix="right")) as hf:
        hf.queue("orders").enqueue(1)
        assert hf.queue("orders").stats().ready == 1


@pytest.mark.parametrize("user", ["", "default", "nobody"])
def test_a_wrong_password_is_an_error_that_does_not_show_it(guarded: str, user: str) -> None:
    with pytest.raises(StoreError, match=r"invalid username-password pair.*Check user") as refused:
        holdfast.connect(as_user(guarded, user, WRONG))
    assert not isinstance(refused.value, StoreUnavailable)  # trying again will not help
    assert WRONG not in everything_said(refused.value)


def test_a_password_that_is_missing(guarded: str, guard: Redis) -> None:
    with pytest.raises(StoreError, match=r"Authentication required.*Check user") as refused:
        holdfast.connect(with_options(guarded, prefix="missing"))
    assert not isinstance(refused.value, StoreUnavailable)
    assert kept(guard, "missing") == {}


@pytest.mark.parametrize("keys", ["", "~other:*"])
def test_who_may_not_touch_our_keys_is_told_so(guarded: str, guard: Redis, keys: str) -> None:
    guard.execute_command(
        "ACL", "SETUSER", "stranger", "reset", "on", f">{SECRET}", "+@all", *keys.split()
    )
    with pytest.raises(StoreError, match="what this user may do") as refused:
        holdfast.connect(as_user(guarded, "stranger", prefix="ours"))
    assert not isinstance(refused.value, StoreUnavailable)
    assert SECRET not in everything_said(refused.value)
    assert kept(guard, "ours") == {}


def test_who_may_touch_only_some_of_our_keys_changes_nothing(
    guarded: str, guard: Redis, clock: ManualClock
) -> None:
    """All that a script touches is among its keys: the server looks before it begins."""
    rights = ["~some:{.}:*", *(f"~some:{{orders}}:{kind}" for kind in ("c", "m", "x", "s*", "w0"))]
    guard.execute_command("ACL", "SETUSER", "partly", "reset", "on", f">{SECRET}", "+@all", *rights)
    with holdfast.connect(as_user(guarded, "", prefix="some"), clock=clock) as hf:
        hf.queue("orders").enqueue_many([1, 2])
    with holdfast.connect(as_user(guarded, "partly", prefix="some"), clock=clock) as hf:
        queue = hf.queue("orders")
        before = kept(guard, "some")
        with pytest.raises(StoreError, match="what this user may do"):
            queue.lease(2)
        with pytest.raises(StoreError, match="what this user may do"):
            queue.enqueue(3, delay=5)
        assert kept(guard, "some") == before


MOVING = "HDEL HGET HINCRBY HLEN HMGET HSET LLEN RPUSH XACK XADD XDEL XGROUP XINFO XLEN XRANGE"
MOVING += " XREADGROUP XTRIM XPENDING ZADD ZCARD ZRANGEBYLEX ZRANGEBYSCORE ZREM ZSCORE HEXISTS SADD"
MOVING += " EVAL EVALSHA"


@pytest.mark.parametrize("command", MOVING.split())
def test_who_may_not_run_one_command_loses_and_doubles_nothing(
    guarded: str, guard: Redis, clock: ManualClock, command: str
) -> None:
    prefix = f"no-{command.lower()}"
    user = ["reset", "on", f">{SECRET}", "~*", "+@all", f"-{command.lower()}"]
    guard.execute_command("ACL", "SETUSER", "limited", *user)
    guard.script_flush()
    refused: list[StoreError] = []

    def tried(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except StoreError as error:
            refused.append(error)
            return []

    with holdfast.connect(as_user(guarded, "", prefix=prefix), clock=clock) as hf:
        queue = hf.queue("orders", partitions=2)
        sent = queue.enqueue_many(Outgoing(n, key=str(n), priority=n % 2 * 5) for n in range(8))
        sent += queue.enqueue_many([Outgoing("late", delay=5)])
        for lease in queue.lease(3):
            queue.nack(lease, "no", delay=0)
        clock.advance(6)
        ids, done = {message.id for message in sent}, set[str]()
        if command.startswith("EVAL"):
            guard.script_flush()
        limited = tried(
            lambda: holdfast.connect(as_user(guarded, "limited", prefix=prefix), clock=clock)
        )
        if limited:
            with limited:
                theirs = Queue(limited.context, "orders")
                tried(lambda: limited.queue("fresh"))
                ids |= {message.id for message in tried(lambda: theirs.enqueue_many([1, 2]))}
                ids |= {message.id for message in tried(lambda: [theirs.enqueue(3, delay=5)])}
                leases = tried(lambda: theirs.lease(6))
                tried(lambda: theirs.lease(1, batch="some"))
                outcomes = (Retry("no", delay=0), Fail("bad"), Release(), Extend(9))
                for pair in zip(leases, outcomes, strict=False):
                    tried(lambda pair=pair: theirs.settle([pair]))
                if tried(lambda: theirs.settle(leases[4:])):
                    done |= {lease.id for lease in leases[4:]}
        assert refused
        for error in refused:
            assert not isinstance(error, StoreUnavailable | StoreCorrupt | StoreFull)
            assert command.lower() in str(error).lower()
            assert SECRET not in everything_said(error)
        assert worked_off(hf, clock, queue) == sorted(ids - done)


def test_who_may_only_read_may_look(guarded: str, guard: Redis, clock: ManualClock) -> None:
    rights = ["~*", "+@read", "+@scripting", "+@connection", "+info", "+time"]
    guard.execute_command("ACL", "SETUSER", "reader", "reset", "on", f">{SECRET}", *rights)
    with holdfast.connect(as_user(guarded, "", prefix="readable"), clock=clock) as hf:
        sent = hf.queue("orders").enqueue(1)
    with holdfast.connect(as_user(guarded, "reader", prefix="readable"), clock=clock) as hf:
        queue = hf.queue("orders")
        assert [entry.message.id for entry in queue.browse()] == [sent.id]
        before = kept(guard, "readable")
        for call in (queue.lease, lambda: queue.enqueue(2), queue.purge, queue.pause):
            with pytest.raises(StoreError, match="what this user may do"):
                call()
        assert queue.stats().ready == 1
        assert kept(guard, "readable") == before


@pytest.mark.parametrize(
    "password",
    ["100%Secret", "Secret#1", "Sec?ret", "Secret/1", "Sec@ret", "Sec[ret", "Sec\uff0fret"],
)
@pytest.mark.parametrize("kind", ["redis", "redis+cluster", "redis+sentinel"])
def test_a_url_that_is_not_well_formed_does_not_show_its_password(kind: str, password: str) -> None:
    """As people type them: special characters not encoded."""
    with pytest.raises(HoldfastError) as refused:
        holdfast.connect(f"{kind}://maker:{password}@127.0.0.1:1/0?timeout=1")
    assert password not in everything_said(refused.value)
    assert "Sec" not in str(refused.value)


@pytest.mark.parametrize("password", ["100%Secret", "Secret#1", "Sec?ret", "Secret/1", "Sec@:ret"])
def test_a_password_with_special_characters_is_written_with_percents(
    guarded: str, guard: Redis, password: str
) -> None:
    guard.execute_command("ACL", "SETUSER", "odd", "reset", "on", f">{password}", "~*", "+@all")
    with holdfast.connect(as_user(guarded, "odd", password, prefix="odd")) as hf:
        assert hf.queue("orders").stats().ready == 0


# Whether it is there


@pytest.mark.parametrize("kind", ["redis", "redis+cluster", "redis+sentinel"])
def test_a_server_that_is_not_there_is_said_at_once(kind: str) -> None:
    path = "/mymaster" if kind == "redis+sentinel" else ""
    url = f"{kind}://:{quote(SECRET)}@{HOST}:{free_port()}{path}?timeout=600"
    with pytest.raises(StoreUnavailable, match=r"refused|No master found") as away:
        soon(lambda: holdfast.connect(url))
    assert SECRET not in everything_said(away.value)
    assert len(str(away.value)) < 300


def test_a_host_that_nobody_knows() -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere\.invalid"):
        holdfast.connect("redis://nowhere.invalid")


def test_a_database_that_is_not_there(redis_server: str) -> None:
    with pytest.raises(StoreError, match="DB index is out of range") as refused:
        holdfast.connect(urlsplit(redis_server)._replace(path="/99999").geturl())
    assert not isinstance(refused.value, StoreUnavailable)


def test_one_server_is_no_cluster(guarded: str) -> None:
    parts = urlsplit(as_user(guarded, ""))
    url = parts._replace(scheme="redis+cluster", path="").geturl()
    with pytest.raises(StoreError, match=r"[Cc]luster mode is not enabled") as refused:
        holdfast.connect(url)
    assert not isinstance(refused.value, StoreUnavailable)
    assert SECRET not in everything_said(refused.value)


def test_a_wrong_password_of_a_cluster(guarded: str) -> None:
    parts = urlsplit(as_user(guarded, "", WRONG))
    with pytest.raises(StoreError, match="invalid username-password pair") as refused:
        holdfast.connect(parts._replace(scheme="redis+cluster", path="").geturl())
    assert not isinstance(refused.value, StoreUnavailable)
    assert WRONG not in everything_said(refused.value)


def test_a_node_of_a_cluster_is_no_server_of_its_own(redis_cluster: str) -> None:
    """Some keys are elsewhere: that will not change by trying again."""
    for host in urlsplit(redis_cluster).netloc.split(","):
        with pytest.raises(StoreError, match=r"redis\+cluster://") as refused:
            look_everywhere(f"redis://{host}?prefix=single")
        assert not isinstance(refused.value, StoreUnavailable)


def look_everywhere(url: str) -> None:
    """In every slot range: some node is not the one."""
    with holdfast.connect(url) as hf:
        for n in range(20):
            spec_of(hf.store, f"q{n}")


def test_a_store_that_was_closed_says_so(redis_url: str) -> None:
    hf = holdfast.connect(redis_url)
    queue = hf.queue("orders")
    hf.close()
    hf.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        queue.enqueue(1)


def test_waiting_is_no_timeout_however_short_that_is(redis_url: str) -> None:
    with holdfast.connect(with_options(redis_url, timeout=1)) as hf:
        assert hf.queue("orders").lease(wait=1.5) == []
        assert hf.subscribe().next(1.5) == []


def test_every_thread_has_a_connection_of_its_own(redis_url: str) -> None:
    """Also more of them than the driver keeps."""
    with holdfast.connect(redis_url) as hf:
        queue = hf.queue("orders")
        with ThreadPoolExecutor(120) as pool:
            waiting = [pool.submit(queue.lease, wait=30) for _ in range(120)]
            queue.enqueue_many(range(200))
            found = [lease.id for each in waiting for lease in each.result()]
        assert len(set(found)) == 120


def test_a_server_that_does_not_answer(own: tuple[RedisServer, Redis]) -> None:
    server, _ = own
    with holdfast.connect(f"{server.url}?timeout=1") as hf:
        queue = hf.queue("orders")
        with server.frozen(), pytest.raises(StoreUnavailable, match=r"[Tt]imeout"):
            soon(queue.stats)
        queue.enqueue(2)
        assert [lease.message.payload for lease in queue.lease(10)] == [2]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_that_was_restarted_has_its_messages_and_forgot_our_scripts(
    own: tuple[RedisServer, Redis], how: str
) -> None:
    """The first call afterwards works: a connection that was closed at the other end is seen."""
    server, _ = own
    with holdfast.connect(server.url) as hf:
        queue = hf.queue("orders")
        sent = queue.enqueue_many(range(5))
        (held,) = queue.lease()
        getattr(server, how)()
        with pytest.raises(StoreUnavailable, match="refused"):
            queue.enqueue("lost")
        server.start()
        queue.ack(held)
        sent.append(queue.enqueue("after"))
        leases = queue.lease(10)
        assert [lease.id for lease in leases] == [message.id for message in sent[1:]]
        queue.settle(leases)
        assert (queue.stats().done, queue.stats().ready, queue.stats().leased) == (6, 0, 0)


def test_scripts_that_were_flushed_are_sent_again(hf: Holdfast, admin: Redis) -> None:
    queue = hf.queue("orders")
    calls: list[Callable[[], Any]] = [
        lambda: queue.enqueue(1),
        lambda: queue.stats().ready,
        lambda: queue.nack(queue.lease()[0], delay=0),
        lambda: queue.settle(queue.lease(10)),
        queue.purge,
        lambda: hf.store.put_record("kind", "name", b"x", 0, 1),
        hf.sweep,
    ]
    for call in calls:
        admin.script_flush()
        call()
    assert queue.stats().done == 1


# What it is


def told(**changes: str) -> dict[str, str]:
    return {"redis_version": "6.2.5", "maxmemory_policy": "noeviction", **changes}


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "2.8.4"])
def test_an_old_server_is_refused(version: str) -> None:
    """By what such a server says of itself: there is none to be had here."""
    with pytest.raises(FailedPrecondition, match=rf"Redis 6\.2 or newer.* {version}"):
        check_server(told(redis_version=version), where("redis://localhost"))


@pytest.mark.parametrize("version", ["6.2.0", "7.4.2", "10.0.0", "8.0.0-rc1", "255.255.255"])
def test_a_server_that_is_new_enough(version: str) -> None:
    check_server(told(redis_version=version), where("redis://localhost"))


def test_a_server_that_may_throw_messages_away_is_refused(own: tuple[RedisServer, Redis]) -> None:
    server, admin = own
    for policy in ("allkeys-lru", "allkeys-lfu", "allkeys-random"):
        admin.config_set("maxmemory-policy", policy)
        with pytest.raises(FailedPrecondition, match=f"{policy}.*Set it to noeviction"):
            holdfast.connect(server.url)
        assert kept(admin, "holdfast") == {}
    for policy in ("noeviction", "volatile-ttl", "volatile-lru"):
        admin.config_set("maxmemory-policy", policy)
        holdfast.connect(server.url).close()


def test_a_full_server_takes_nothing_but_can_be_worked_off(
    own: tuple[RedisServer, Redis], clock: ManualClock
) -> None:
    server, admin = own
    with holdfast.connect(server.url, clock=clock, log=False) as hf:
        queue = hf.queue("orders")
        first = queue.enqueue_many([*range(20), Outgoing("late", delay=5)])
        for lease in queue.lease(3):
            queue.nack(lease, "no", delay=0)
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 2 * 2**20)
        stored, before = [message.id for message in first], dict[str, Any]()

        def fill() -> None:
            while True:
                before.clear()
                before.update(kept(admin, "holdfast"))
                some = queue.enqueue_many(["x" * 100_000] * 5, receipt=secrets.token_hex())
                stored.extend(message.id for message in some)

        with pytest.raises(StoreFull, match="consumers can still work it off"):
            fill()
        assert kept(admin, "holdfast") == before
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - 200_000)
        for priority in range(10):  # also where a lane is new
            with pytest.raises(StoreFull):
                queue.enqueue(1, priority=priority)
        with pytest.raises(StoreFull):
            queue.enqueue(1, delay=5)
        assert kept(admin, "holdfast") == before
        assert len(stored) > 30

        clock.advance(6)
        a, b, c, d, e = queue.lease(5, batch="some")
        queue.nack(a, "no", delay=0)
        queue.nack(b, "no", delay=5)
        queue.release(c)
        queue.fail(d)
        assert queue.extend(e, 3600).deadline == clock.now() + 3_600_000
        queue.pause()
        queue.resume()
        clock.advance(6)
        queue.ack(e, result=1)
        assert worked_off(hf, clock, queue) == sorted(set(stored) - {e.id})
        queue.enqueue_many(["x" * 100_000] * 5)
        assert queue.stats().ready == 5


def test_a_replica_can_be_read_but_takes_nothing(own: tuple[RedisServer, Redis]) -> None:
    server, _ = own
    follows = {"replicaof": f"{HOST} {server.port}", "repl-diskless-sync-delay": "0"}
    with running(settings=follows) as replica, Redis.from_url(replica.url) as admin:
        wait_until(lambda: admin.info("replication")["master_link_status"] == "up")
        with pytest.raises(StoreReadOnly, match="connect to the master"):
            holdfast.connect(f"{replica.url}?prefix=fresh")
        with holdfast.connect(server.url) as hf:
            sent = hf.queue("orders").enqueue(1)
        wait_until(lambda: admin.hlen("holdfast:{orders}:m") == 1)
        with holdfast.connect(replica.url) as hf:
            queue = hf.queue("orders")
            assert [entry.message.id for entry in queue.browse()] == [sent.id]
            assert queue.stats().ready == 1
            calls: list[Callable[[], Any]] = [lambda: queue.enqueue(2), queue.lease, queue.purge]
            calls += [queue.pause, lambda: queue.delete(force=True)]
            for call in calls:
                with pytest.raises(StoreReadOnly, match="connect to the master"):
                    call()
            assert queue.stats().ready == 1


def test_a_master_that_becomes_a_replica_for_a_while(own: tuple[RedisServer, Redis]) -> None:
    server, admin = own
    with holdfast.connect(server.url) as hf:
        queue = hf.queue("orders")
        sent = queue.enqueue_many([1, 2, 3])
        (held,) = queue.lease()
        admin.replicaof(HOST, free_port())
        for call in (lambda: queue.enqueue(4), queue.lease, lambda: queue.ack(held)):
            with pytest.raises(StoreReadOnly, match="connect to the master"):
                call()
        admin.replicaof("NO", "ONE")
        sent.append(queue.enqueue(5))
        queue.ack(held)
        assert [lease.id for lease in queue.lease(10)] == [message.id for message in sent[1:]]


def test_a_server_that_cannot_write_its_file(own: tuple[RedisServer, Redis]) -> None:
    server, admin = own
    with holdfast.connect(server.url) as hf:
        queue = hf.queue("orders")
        queue.enqueue(1)
        (server.folder / "dump.rdb").mkdir()
        admin.config_set("save", "3600 1")
        admin.bgsave()
        wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        before = kept(admin, "holdfast")
        for call in (lambda: queue.enqueue(4), queue.lease, lambda: hf.queue("other")):
            with pytest.raises(StoreReadOnly, match=r"MISCONF|RDB"):
                call()
        assert kept(admin, "holdfast") == before
        admin.config_set("stop-writes-on-bgsave-error", "no")
        assert [lease.message.payload for lease in queue.lease(10)] == [1]


# The URL


@pytest.mark.parametrize(
    ("option", "hint"),
    [("prefx", "prefix"), ("time-out", "timeout"), ("verfy", "verify"), ("certs", "cert")],
)
def test_an_unknown_option_is_refused_with_the_nearest(option: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"did you mean '{hint}'") as refused:
        open_url(f"redis://localhost?{option}=1")
    assert refused.value.field == f"url option {option}"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("prefix", value) for value in ("", "a:b", "a{b}", "a b", "ö", "x" * 65, "*", "a\n")],
        *[("timeout", value) for value in ("", "0", "-1", "soon", "nan", "inf", "4000")],
        *[("verify", value) for value in ("", "some", "no")],
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(option: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        open_url(with_options("rediss://localhost", **{option: value}))
    assert refused.value.field == f"url option {option}"


@pytest.mark.parametrize("option", ["ca", "cert", "key", "verify"])
@pytest.mark.parametrize("kind", ["redis", "redis+cluster"])
def test_options_for_tls_are_refused_without_it(kind: str, option: str) -> None:
    with pytest.raises(InvalidArgument, match="is for rediss://") as refused:
        open_url(f"{kind}://localhost?{option}=full")
    assert refused.value.field == f"url option {option}"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://localhost:port", "not a Redis URL"),
        ("redis://localhost:0", "not a Redis URL"),
        ("redis://localhost:65536", "not a Redis URL"),
        ("redis://localhost:-1", "not a Redis URL"),
        ("redis://local[host", "not a store URL"),
        ("redis://one:1,two:2", r"several hosts: say redis\+cluster:// or redis\+sentinel://"),
        ("redis://localhost/orders", "not the number of a database"),
        ("redis://localhost/-1", "not the number of a database"),
        ("redis://localhost/0/1", "not the number of a database"),
        ("redis+cluster://localhost/1", "a cluster has one database, 0"),
        ("redis+sentinel://localhost", "name the master"),
        ("redis+sentinel://localhost/", "name the master"),
        ("redis+sentinel://localhost/mymaster/x", "not the number of a database"),
        ("redis://localhost#1", "not a Redis URL"),
    ],
)
def test_a_url_that_says_nothing_we_know_is_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as refused:
        open_store(url)
    assert refused.value.field == "url"


@pytest.mark.parametrize("option", ["ca", "cert"])
def test_a_certificate_that_is_not_there_is_named(option: str) -> None:
    with pytest.raises(HoldfastError, match=r"/nowhere\.pem") as refused:
        holdfast.connect(f"rediss://{HOST}:{free_port()}?{option}=/nowhere.pem&key=/nowhere.pem")
    assert not isinstance(refused.value, StoreUnavailable)


# What it holds


def test_a_layout_of_a_newer_holdfast(redis_url: str, admin: Redis) -> None:
    holdfast.connect(redis_url).close()
    meta = f"{prefix_of(redis_url)}:{{.}}:meta"
    admin.hset(meta, "version", "99")
    with pytest.raises(SchemaTooNew, match=r"layout 99.*pip install --upgrade holdfast"):
        holdfast.connect(redis_url)
    assert admin.hgetall(meta) == {b"version": b"99"}


@pytest.mark.parametrize("version", ["", "v2-beta", "-1", "²"])
def test_a_layout_that_is_not_ours(redis_url: str, admin: Redis, version: str) -> None:
    meta = f"{prefix_of(redis_url)}:{{.}}:meta"
    admin.hset(meta, "version", version)
    with pytest.raises(StoreCorrupt, match="meta is not Holdfast's"):
        holdfast.connect(redis_url)
    assert admin.hgetall(meta) == {b"version": version.encode()}


@contextmanager
def taken(admin: Redis, key: str, value: str = "somebody else's") -> Iterator[None]:
    """While it lasts, a key is somebody else's; then it is as it was."""
    aside = b"aside:" + key.encode()
    held = admin.exists(key) and admin.rename(key, aside)
    admin.set(key, value)
    yield
    admin.delete(key)
    if held:
        admin.rename(aside, key)


class Life:
    """A queue from its making to its end, step by step; a step that was refused is run again."""

    def __init__(self, hf: Holdfast, clock: ManualClock) -> None:
        self.hf = hf
        self.clock = clock
        self.leases: list[Any] = []
        self.sent: list[str] = []
        self.dead: list[Any] = []
        self.short: tuple[int, str | None] = (0, None)

    @property
    def queue(self) -> Queue:
        return Queue(self.hf.context, "orders")

    def steps(self) -> list[tuple[bool, Callable[[], Any]]]:
        """Each with whether it is one step for the store as well; else it is several such."""
        return [
            (True, lambda: self.hf.queue("orders", partitions=2)),
            (True, lambda: self.send(0, [{}, {"priority": 5}, {"key": "b"}])),
            (True, lambda: self.send(10, [{"delay": 5}, {"delay": 5}, {"delay": 9}])),
            (True, lambda: self.send(20, [{"priority": 3}, {"delay": 5}, {"priority": 7}])),
            (True, self.look),
            (False, self.own),
            (True, lambda: self.lease(5)),
            (True, lambda: self.end(Retry("no", delay=0))),
            (True, lambda: self.end(Release())),
            (True, lambda: self.end(Retry("no", delay=3))),
            (True, lambda: self.end(Extend(20))),
            (True, self.look),
            (True, lambda: self.end(Fail("bad"))),
            (True, lambda: self.pass_time(6)),
            (True, lambda: self.lease(3, batch="a batch")),
            (True, lambda: self.lease(20)),
            (True, self.look),
            (True, lambda: self.end(Retry("no", delay=0))),
            (True, lambda: self.ack(2, result=True)),
            (True, lambda: self.ack(20, keep=2)),
            (True, self.look),
            (True, lambda: self.pass_time(3600)),
            (False, self.expire),
            (True, lambda: self.hold("whole")),
            (True, lambda: self.finish("whole", 1)),
            (False, lambda: self.give_back("whole")),
            (True, self.lease_dead),
            (False, self.release_dead),
            (False, lambda: self.hf.redrive("orders.dlq")),
            (True, lambda: self.pass_time(DAYS)),
            (True, lambda: self.hf.store.drop([Cut("orders", 100, keep=1)])),
            (False, lambda: self.hf.store.tidy(self.clock.now(), log_before=None)),
            (True, lambda: self.send(30, [{"priority": 1}, {}, {"delay": 5, "ack_timeout": 9}])),
        ]

    def pass_time(self, seconds: float) -> None:
        """Whatever becomes due takes its place in line only when somebody asks for it."""
        self.clock.advance(seconds)

    def send(self, first: int, options: list[dict[str, Any]]) -> None:
        ids = [f"00000000-0000-7000-8000-{first + n:012d}" for n in range(len(options))]
        items = [
            Outgoing(n, id=id, **own) for n, (id, own) in enumerate(zip(ids, options, strict=True))
        ]
        answers = self.queue.enqueue_many(items, receipt=f"receipt {first}")
        assert [message.duplicate for message in answers] == [False] * len(items)
        self.sent += ids

    def own(self) -> None:
        """A claim, and a lease at an epoch that is not its own."""
        store, now, name = self.hf.store, self.clock.now(), partition_claim("orders", 1)
        claim = store.claim(name, "me", 60_000, now)
        assert claim is not None and store.claims([name]) == [claim]
        ask = LeaseAsk("orders", 5, "me", secrets.token_hex(8), 1000, (1,), epochs=(2,))
        assert store.lease(ask, now) == []

    def lease(self, limit: int, batch: str | None = None) -> None:
        leases = self.queue.lease(limit, batch=batch, owner="me")
        self.leases += leases
        self.short = limit - len(leases), batch

    def go_on(self) -> None:
        """Lease what was kept back while a key was somebody else's; what is due takes its place."""
        (limit, batch), self.short = self.short, (0, None)
        if limit:
            self.leases += self.queue.lease(limit, batch=batch, owner="me")
        if self.hf.queues():
            self.queue.stats()

    def end(self, *outcomes: Any) -> None:
        pairs = list(zip(self.leases, outcomes, strict=False))
        assert set(self.queue.settle(pairs)) == {"applied"}
        stay = [lease for lease, outcome in pairs if isinstance(outcome, Extend)]
        self.leases = [*stay, *self.leases[len(pairs) :]]

    def ack(self, n: int, keep: int = 0, result: Any = None) -> None:
        some = self.leases[keep : keep + n]
        if result is None:
            answers = self.queue.settle(some)
        else:
            answers = self.queue.settle([(lease, holdfast.Done(result)) for lease in some])
        assert set(answers) == {"applied"}
        self.leases = [*self.leases[:keep], *self.leases[keep + n :]]

    def ask(self, batch: str, limit: int) -> ReserveAsk:
        return ReserveAsk("orders", limit, "me", secrets.token_hex(8), batch)

    def hold(self, batch: str) -> None:
        assert self.hf.store.lease(self.ask(batch, 100), self.clock.now()) > 0

    def finish(self, batch: str, n: int) -> None:
        now = self.clock.now()
        assert self.hf.store.settle(BatchEnd("orders", batch, n, "COMPLETED"), now) == n

    def give_back(self, batch: str) -> None:
        held = batch_in(self.hf.store, "orders", batch, None, 100)
        self.queue.settle([(lease, Release()) for lease in held])
        assert batch_in(self.hf.store, "orders", batch, None, 100) == []

    def expire(self) -> None:
        late = overdue_in(self.hf.store, "orders", self.clock.now(), 100)
        answers = self.queue.settle([(lease, Retry("late", delay=0)) for lease in late])
        assert set(answers) <= {"applied"}
        assert overdue_in(self.hf.store, "orders", self.clock.now(), 100) == []
        self.leases = []

    def lease_dead(self) -> None:
        self.dead = self.queue.dlq.lease(10)
        assert self.dead

    def release_dead(self) -> None:
        self.queue.dlq.settle([(lease, Release()) for lease in self.dead])

    def look(self) -> None:
        store, now = self.hf.store, self.clock.now()
        self.queue.stats()
        held_in(store, "orders", self.sent)
        for state in State:
            list(self.queue.browse(state))
            store.split(View("orders", state), 2, now)
        store.stats(ByPartition("orders"), now)
        store.wait(["orders"], now, 0.001, [1])
        store.wait(["orders"], now, 0.001)


ORDERS = Keys("p").home("orders", 2)
KINDS = sorted({key.rpartition(":")[2] for key in ORDERS.everything})
LEFT = 7


@pytest.mark.parametrize("kind", one_of_each(KINDS, lambda kind: kind.rstrip("0123456789.")))
def test_a_key_that_somebody_else_wrote_is_refused_and_nothing_is_half_done(
    hf: Holdfast, clock: ManualClock, redis_url: str, admin: Redis, kind: str
) -> None:
    """At every step of a life, as if it had been there first. What reads may go on without it."""
    life, prefix = Life(hf, clock), prefix_of(redis_url)
    refused = 0
    for whole, step in life.steps():
        life.go_on()
        before = kept(admin, f"{prefix}:{{orders}}")
        state = {**vars(life)}
        state["leases"], state["sent"] = list(life.leases), list(life.sent)
        error: StoreError | None = None
        with taken(admin, f"{prefix}:{{orders}}:{kind}"):
            try:
                step()
            except StoreError as raised:
                error = raised
        if error is not None:
            refused += 1
            assert isinstance(error, StoreCorrupt | RedriveFailed), repr(error)
            assert "Somebody else writes keys of this prefix" in str(error)
            if whole:
                assert kept(admin, f"{prefix}:{{orders}}") == before
            vars(life).update(state)
            step()
    assert refused
    queue = life.queue
    held = sorted(message.id for message in held_in(hf.store, "orders", life.sent))
    assert len(held) == LEFT
    assert worked_off(hf, clock, queue) == held
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)
    home = f"{prefix}:{{orders}}:"
    for left in ("m", "x", "e", "k", "kn", "d0", "z0", "b0", "d1", "z1", "b1"):
        assert admin.exists(home + left) == 0, left


def test_the_life_that_the_test_above_disturbs_uses_every_key(
    hf: Holdfast, clock: ManualClock, redis_url: str, admin: Redis
) -> None:
    life, prefix, seen = Life(hf, clock), prefix_of(redis_url), set[str]()
    for _, step in life.steps():
        life.go_on()
        step()
        seen |= {key.rpartition(":")[2] for key in kept(admin, prefix)}
    lanes = {kind for kind in KINDS if kind.startswith("s")}
    used = {"s0.0", "s0.3", "s0.7", "s1.0", "s1.5"}
    assert set(KINDS) - lanes - seen == {"b1", "li1", "log1", "r1.1", "z1"}
    assert used <= seen


COMMON: dict[str, Callable[[Holdfast], Any]] = {
    "meta": lambda hf: hf.store.migrate(),
    "homes": lambda hf: hf.queue("new"),
    "claims": lambda hf: hf.store.claim("lock", "me", 1000, 1),
    "event": lambda hf: hf.store.publish([Event("type", 1, {})]),
    "events": lambda hf: hf.store.publish([Event("type", 1, {})]),
    "names:kind": lambda hf: hf.store.put_record("kind", "new", b"x", 0, 1),
    "values:kind": lambda hf: hf.store.put_record("kind", "new", b"x", 0, 1),
}


@pytest.mark.parametrize("kind", COMMON)
def test_a_key_of_no_queue_that_somebody_else_wrote(
    hf: Holdfast, redis_url: str, admin: Redis, kind: str
) -> None:
    hf.store.put_record("kind", "name", b"x", 0, 1)
    hf.store.claim("other", "me", 1000, 1)
    hf.store.publish([Event("type", 1, {})])
    prefix = prefix_of(redis_url)
    before = kept(admin, prefix)
    foreign = "Somebody else writes keys of this prefix"
    with taken(admin, f"{prefix}:{{.}}:{kind}"), pytest.raises(StoreCorrupt, match=foreign):
        COMMON[kind](hf)
    assert kept(admin, prefix) == before
    COMMON[kind](hf)


READS: dict[str, Callable[[Holdfast], Any]] = {
    "homes": lambda hf: hf.queues(),
    "event": lambda hf: hf.subscribe(),
    "events": lambda hf: hf.subscribe(0).next(0.001),
    "names:kind": lambda hf: hf.store.records("kind"),
    "values:kind": lambda hf: hf.store.records("kind"),
}


@pytest.mark.parametrize("kind", READS)
def test_reading_a_key_of_no_queue_that_somebody_else_wrote(
    hf: Holdfast, redis_url: str, admin: Redis, kind: str
) -> None:
    hf.store.put_record("kind", "name", b"x", 0, 1)
    hf.store.publish([Event("type", 1, {})])
    with taken(admin, f"{prefix_of(redis_url)}:{{.}}:{kind}"), pytest.raises(StoreCorrupt):
        READS[kind](hf)
    READS[kind](hf)


GARBAGE = [
    b"",
    b"hello",
    b"|",
    b"|\x00",
    b"0.0.1.1|\xc1",
    b"0.0.1.1|\x90",
    b"a.b.c|\x93\x01\x02\x03",
]


@pytest.mark.parametrize("body", GARBAGE)
def test_a_body_that_is_not_ours_stops_nothing(
    hf: Holdfast, redis_url: str, admin: Redis, body: bytes
) -> None:
    """It is shown as the bytes that lie there, and it goes where its neighbours go."""
    queue = hf.queue("orders")
    bad, good = queue.enqueue_many([1, 2])
    admin.hset(f"{prefix_of(redis_url)}:{{orders}}:m", bad.id, body)
    assert (queue.get(bad.id).body, queue.get(bad.id).errors[-1].code) == (body, DAMAGED_CODE)
    assert [entry.message.id for entry in queue.browse()] == [bad.id, good.id]
    assert [lease.id for lease in queue.lease(2)] == [bad.id, good.id]
    assert queue.stats().leased == 2
    hf.context.clock.advance(60)  # pyright: ignore
    assert hf.sweep().requeued == 2
    leases = queue.lease(10)
    assert [lease.id for lease in leases] == [bad.id, good.id]
    queue.settle([(lease, holdfast.Fail("no")) for lease in leases])
    dead = {entry.message.id: entry.message for entry in queue.dlq.browse()}
    assert (dead.keys(), dead[bad.id].body) == ({bad.id, good.id}, body)


@pytest.mark.parametrize("body", GARBAGE)
def test_counting_does_not_stumble_over_a_body_that_is_not_ours(
    hf: Holdfast, redis_url: str, admin: Redis, body: bytes
) -> None:
    queue = hf.queue("orders")
    sent = queue.enqueue(1)
    admin.hset(f"{prefix_of(redis_url)}:{{orders}}:m", sent.id, body)
    assert queue.stats().ready == 1


@pytest.mark.parametrize("state", ["leased", "ready", "delayed"])
def test_a_history_that_is_not_ours_is_read_as_far_as_it_can_be(
    hf: Holdfast, redis_url: str, admin: Redis, clock: ManualClock, state: str
) -> None:
    queue = hf.queue("orders", max_attempts=9)
    ids = [message.id for message in queue.enqueue_many([1, 2, 3])]
    for lease in queue.lease(3):
        queue.nack(lease, "no", delay=60 if state == "delayed" else 0)
    fresh = queue.enqueue(4, priority=9).id
    if state == "leased":
        fresh = queue.lease()[0].id
        queue.lease(3)
    clock.advance(61)
    admin.hset(f"{prefix_of(redis_url)}:{{orders}}:e", ids[1], "hello")
    assert len(list(queue.browse("leased" if state == "leased" else "ready"))) == 4
    assert queue.get(ids[1]).errors[-1].code == DAMAGED_CODE
    assert worked_off(hf, clock, queue) == sorted([*ids, fresh])


def test_a_message_whose_body_somebody_deleted_does_not_stop_the_others(
    hf: Holdfast, redis_url: str, admin: Redis, clock: ManualClock
) -> None:
    queue = hf.queue("orders")
    ids = [message.id for message in queue.enqueue_many([1, 2, 3])]
    admin.hdel(f"{prefix_of(redis_url)}:{{orders}}:m", ids[0])
    assert queue.stats().ready == 3
    assert [entry.message.id for entry in queue.browse()] == ids[1:]
    assert [lease.id for lease in queue.lease(10)] == ids[1:]
    clock.advance(60)
    hf.sweep()
    assert [lease.id for lease in queue.lease(10)] == ids[1:]


def test_what_was_leased_before_an_error_is_handed_out(
    hf: Holdfast, redis_url: str, admin: Redis
) -> None:
    """A long lease takes several steps; what the first ones took would be nobody's."""
    queue = hf.queue("orders")
    first = queue.enqueue_many(Outgoing(n, priority=9) for n in range(CHUNK))
    second = queue.enqueue(1)
    with taken(admin, f"{prefix_of(redis_url)}:{{orders}}:s0.0"):
        assert [lease.id for lease in queue.lease(1000)] == [message.id for message in first]
        with pytest.raises(StoreCorrupt):
            queue.lease(1000)
    assert [lease.id for lease in queue.lease(1000)] == [second.id]


def test_a_lane_that_somebody_deleted_is_an_error_that_changes_nothing(
    hf: Holdfast, redis_url: str, admin: Redis
) -> None:
    """Its neighbours in a batch are neither finished nor lost, whichever lane comes first."""
    for name in range(10):
        queue = hf.queue(f"q{name}")
        sent = queue.enqueue_many(Outgoing(n, priority=9 - n) for n in range(10))
        leases = queue.lease(10)
        assert [lease.id for lease in leases] == [message.id for message in sent]
        home = f"{prefix_of(redis_url)}:{{{queue.name}}}"
        admin.delete(f"{home}:s0.9")
        before = kept(admin, home)
        for call in (lambda q, some: q.settle(some), lambda q, some: q.nack(some[0], delay=0)):
            with pytest.raises(StoreCorrupt):
                call(queue, leases)
        assert kept(admin, home) == before
        assert queue.settle(leases[1:]) == ["applied"] * 9


def test_a_receipt_is_not_taken_for_that_of_a_part_of_a_longer_call(hf: Holdfast) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(range(CHUNK + 1), receipt="once")
    assert [message.duplicate for message in queue.enqueue_many([1], receipt="once#1")] == [False]
    assert queue.stats().ready == CHUNK + 2
    queue.enqueue_many(range(CHUNK + 1), receipt="once")
    assert queue.stats().ready == CHUNK + 2


def test_settings_of_a_queue_that_are_not_ours(hf: Holdfast, redis_url: str, admin: Redis) -> None:
    queue = hf.queue("orders")
    settings = f"{prefix_of(redis_url)}:{{orders}}:c"
    for text in (b"hello", b"[]", b"{}", b'{"partitions":1,"policy":{"x":1},"created_at":1}'):
        admin.hset(settings, "spec0", text)
        with pytest.raises(StoreCorrupt, match="orders: its settings were not written by Holdfast"):
            queue.enqueue(1)


def test_no_error_names_the_password(guarded: str, guard: Redis, clock: ManualClock) -> None:
    """Of everything that can go wrong after the store was opened."""
    guard.execute_command("ACL", "SETUSER", "maker", "reset", "on", f">{SECRET}", "~*", "+@all")
    hf = holdfast.connect(as_user(guarded, "maker", prefix="spoken", timeout=1), clock=clock)
    queue = hf.queue("orders")
    said: list[str] = []

    def tried(call: Callable[[], Any]) -> None:
        with pytest.raises(HoldfastError) as failed:
            call()
        said.append(everything_said(failed.value))

    tried(lambda: queue.enqueue(1, within=object()))
    with taken(guard, "spoken:{orders}:m"):
        tried(lambda: queue.enqueue(1))
    guard.execute_command("CLIENT", "PAUSE", 1300, "ALL")
    tried(lambda: queue.enqueue(1))
    wait_until(guard.ping)
    guard.execute_command("ACL", "SETUSER", "maker", "-@all")
    tried(lambda: queue.enqueue(1))
    guard.execute_command("ACL", "DELUSER", "maker")
    tried(lambda: queue.enqueue(1))
    hf.close()
    tried(lambda: queue.enqueue(1))
    assert [text for text in said if SECRET in text or quote(SECRET, safe="") in text] == []


def test_a_refused_transaction_stores_nothing(hf: Holdfast) -> None:
    queue = hf.queue("orders")
    with pytest.raises(InvalidArgument, match="Redis has no transactions"):
        queue.enqueue(1, within=object())
    assert msgspec.structs.asdict(queue.stats())["ready"] == 0
