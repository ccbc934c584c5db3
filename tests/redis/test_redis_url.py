"""Every form of the URL, on real servers."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from redis import Redis

import holdfast
from holdfast import Queue, StoreError, StoreUnavailable
from holdfast.stores.redis.url import where
from holdfast.testing import wait_until
from servers.redis import HOST, RedisServer, running, running_sentinel

PASSWORD = "Gr4nite:/?#[]@%~Secret"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running() as server:
        yield server


def works(url: str, payload: str) -> None:
    """One connection stores it, another finds it."""
    with holdfast.connect(url) as hf:
        sent = hf.queue("orders").enqueue(payload)
    with holdfast.connect(url) as hf:
        leases = hf.queue("orders").lease(10)
        assert [(lease.id, lease.message.payload) for lease in leases] == [(sent.id, payload)]
        hf.queue("orders").settle(leases)


def test_a_user_and_a_password(server: RedisServer) -> None:
    with Redis.from_url(server.url) as admin:
        rights = [f">{PASSWORD}", "~mine:*", "+@all"]
        admin.execute_command("ACL", "SETUSER", "a/b", "reset", "on", *rights)
        user = f"{quote('a/b', safe='')}:{quote(PASSWORD, safe='')}"
        works(f"redis://{user}@{HOST}:{server.port}/0?prefix=mine", "by a user")
        assert {key.partition(b":")[0] for key in admin.scan_iter("*")} == {b"mine"}
        with pytest.raises(StoreError):  # it was this user, who may touch no other keys
            holdfast.connect(f"redis://{user}@{HOST}:{server.port}/0?prefix=other")
        admin.flushall()


def test_a_password_without_a_user() -> None:
    with running() as server, Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", PASSWORD)
        works(f"redis://:{quote(PASSWORD, safe='')}@{HOST}:{server.port}", "by default")


def test_the_number_of_a_database(server: RedisServer) -> None:
    works(f"redis://{HOST}:{server.port}/5", "in five")
    with Redis.from_url(server.url) as admin:
        assert {name: all["keys"] > 0 for name, all in admin.info("keyspace").items()} == {
            "db5": True
        }
        admin.flushall()


def test_two_prefixes_are_two_stores(server: RedisServer) -> None:
    with (
        holdfast.connect(f"{server.url}?prefix=one") as one,
        holdfast.connect(f"{server.url}?prefix=one.two") as two,
    ):
        one.queue("orders").enqueue(1)
        assert two.queues() == []
        two.queue("orders").enqueue(2)
        one.queue("orders").delete(force=True)
        assert [lease.message.payload for lease in two.queue("orders").lease(9)] == [2]
    with Redis.from_url(server.url) as admin:
        admin.flushall()


def test_a_name_without_a_port_and_one_of_ipv6() -> None:
    assert where("redis://").hosts == [("localhost", 6379)]
    assert where("redis://[::1]:7000/3").hosts == [("::1", 7000)]
    assert where("redis+sentinel://one,two:7/m/4").hosts == [("one", 26379), ("two", 7)]
    assert (where("redis+sentinel://one/m/4").service, where("redis+sentinel://one/m/4").db) == (
        "m",
        4,
    )
    assert where("redis://:secret@one:1").shown == "redis://one:1"


# TLS: the server of the wheel is built without it, so somebody in front of it takes it off.


class Wrapped:
    """Takes TLS off for a server that has none."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._behind = port
        self._context = context
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self.taken = 0
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            suppress(OSError),
            plain,
            socket.create_connection((HOST, self._behind)) as behind,
            self._context.wrap_socket(plain, server_side=True) as front,
        ):
            self.taken += 1
            threading.Thread(target=_copy, args=(behind, front), daemon=True).start()
            _copy(front, behind)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def certificate(folder: Path, name: str, *names: str) -> tuple[Path, Path]:
    """Signed by itself."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert)]
    if names:
        command += ["-addext", "subjectAltName=" + ",".join(names)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@contextmanager
def wrapped(
    server: RedisServer, cert: Path, key: Path, ask: Path | None = None
) -> Iterator[Wrapped]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    if ask is not None:
        context.load_verify_locations(ask)
        context.verify_mode = ssl.CERT_REQUIRED
    front = Wrapped(server.port, context)
    yield front
    front.close()


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    certificate(folder, "ours", f"IP:{HOST}", "DNS:localhost")
    certificate(folder, "other", "DNS:other.example")
    certificate(folder, "client")
    return folder


def test_tls_with_a_certificate_of_our_own(server: RedisServer, certs: Path) -> None:
    with wrapped(server, certs / "ours.pem", certs / "ours.key") as front:
        works(f"rediss://{HOST}:{front.port}/0?prefix=tls&ca={certs}/ours.pem", "by TLS")
        assert front.taken > 0


def test_tls_with_a_certificate_that_nobody_vouches_for(server: RedisServer, certs: Path) -> None:
    with wrapped(server, certs / "ours.pem", certs / "ours.key") as front:
        with pytest.raises(StoreError, match=r"CERTIFICATE_VERIFY|certificate verify failed"):
            holdfast.connect(f"rediss://{HOST}:{front.port}?prefix=tls&timeout=3")
        assert front.taken == 0
        works(f"rediss://{HOST}:{front.port}?prefix=tls&verify=none", "whoever it is")


def test_tls_with_a_certificate_of_another_host(server: RedisServer, certs: Path) -> None:
    with wrapped(server, certs / "other.pem", certs / "other.key") as front:
        url = f"rediss://{HOST}:{front.port}?prefix=tls&ca={certs}/other.pem"
        with pytest.raises(StoreError, match=r"IP address mismatch|doesn't match|not valid for"):
            holdfast.connect(url)
        works(f"{url}&verify=none", "whatever it is called")


def test_tls_with_a_certificate_that_the_server_asks_for(server: RedisServer, certs: Path) -> None:
    ours = (certs / "ours.pem", certs / "ours.key")
    with wrapped(server, *ours, ask=certs / "client.pem") as front:
        url = f"rediss://{HOST}:{front.port}?prefix=tls&timeout=3&ca={certs}/ours.pem"
        with pytest.raises(StoreError):
            holdfast.connect(url)
        works(f"{url}&cert={certs}/client.pem&key={certs}/client.key", "we are who we say")


def test_tls_where_there_is_none(server: RedisServer) -> None:
    with pytest.raises(StoreError) as refused:
        holdfast.connect(f"rediss://{HOST}:{server.port}?timeout=1")
    assert f"rediss://{HOST}:{server.port}" in str(refused.value)


# Sentinel


def tried(queue: Queue, payload: int) -> bool:
    try:
        queue.enqueue(payload)
    except StoreUnavailable:
        return False
    return True


def test_a_replica_that_was_promoted_is_found_by_itself() -> None:
    with running_sentinel() as servers, holdfast.connect(servers.url) as hf:
        queue = hf.queue("orders")
        sent = [message.id for message in queue.enqueue_many(range(20))]
        held = queue.lease(5)
        with Redis.from_url(servers.master.url) as master:
            assert master.wait(1, 5000) == 1
        servers.master.kill()
        with pytest.raises(StoreUnavailable):
            queue.enqueue("nobody takes it")
        wait_until(lambda: tried(queue, 99), timeout=60)
        assert servers.current() == servers.replica.port
        assert set(queue.settle(held)) == {"applied"}
        leases = queue.lease(100)
        assert [lease.id for lease in leases[:15]] == sent[5:]
        assert [lease.message.payload for lease in leases[15:]] == [99]
        assert set(queue.settle(leases)) == {"applied"}
        assert (queue.stats().done, queue.stats().ready, queue.stats().leased) == (21, 0, 0)


def test_a_sentinel_that_is_not_there_and_one_that_is() -> None:
    with running_sentinel() as servers:
        parts = urlsplit(servers.url)
        with RedisServerless() as nobody:
            works(f"redis+sentinel://{HOST}:{nobody},{parts.netloc}/mymaster", "by the second")
            works(f"redis+sentinel://{parts.netloc}/mymaster/3", "in three")
        with pytest.raises(StoreUnavailable, match="No master found for 'another'"):
            holdfast.connect(f"redis+sentinel://{parts.netloc}/another")
        with Redis(port=servers.master.port, db=3) as three:
            assert three.dbsize() > 0


class RedisServerless:
    """A port where nobody listens, for as long as this lasts."""

    def __enter__(self) -> int:
        self._bound = socket.socket()
        self._bound.bind((HOST, 0))
        return self._bound.getsockname()[1]

    def __exit__(self, *_: object) -> None:
        self._bound.close()


# Cluster


def test_one_node_of_a_cluster_tells_of_the_others(redis_cluster_url: str) -> None:
    parts = urlsplit(redis_cluster_url)
    hosts = parts.netloc.split(",")
    for n, host in enumerate(hosts):
        with holdfast.connect(parts._replace(netloc=host).geturl()) as hf:
            for name in range(12):
                hf.queue(f"q{name}").enqueue(n)
    nodes: set[bytes] = set()
    with holdfast.connect(parts._replace(netloc=hosts[0]).geturl()) as hf:
        assert len(hf.queues()) == 24
        for name in range(12):
            leases = hf.queue(f"q{name}").lease(10)
            assert [lease.message.payload for lease in leases] == [0, 1, 2]
    for host in hosts:
        with Redis.from_url(f"redis://{host}") as node:
            nodes |= {host.encode() for _ in node.scan_iter(f"{parts.query.partition('=')[2]}:*")}
    assert nodes == {host.encode() for host in hosts}


def test_a_cluster_of_which_a_node_in_the_url_is_away(redis_cluster_url: str) -> None:
    parts = urlsplit(redis_cluster_url)
    with RedisServerless() as nobody:
        works(parts._replace(netloc=f"{HOST}:{nobody},{parts.netloc}").geturl(), "by the second")
