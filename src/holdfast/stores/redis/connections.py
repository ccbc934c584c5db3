"""Commands and scripts to one Redis, a master behind Sentinel, or a cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast
from weakref import WeakKeyDictionary

import redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.stores.redis.failures import FAILURES, Misplaced, ours
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.url import Where

try:
    import hiredis

    pack_command: Any = cast(Any, hiredis).pack_command
except ImportError:  # slower, and the same
    pack_command = None

MENDED_MAX = 1000
"""Damaged notes that one call mends."""

REDIRECTS = 5
"""How often a slot may turn out to be elsewhere before one gives up."""

_ELSEWHERE = (errors.NoScriptError, errors.AskError)
"""Of a call that was refused: the server does not know the script, or its slot is not there.
MovedError is an AskError as well."""

Arg = str | bytes | int


class Connections:
    """Thread-safe. A process that was forked off opens connections of its own.

    Nothing is tried twice behind the caller's back: a lease that was run again would leave the
    messages of the first one leased to nobody until their deadline.
    """

    def __init__(self, where: Where) -> None:
        self.where = where
        self._closed = False
        self._made: Any = None
        self._by_pool: WeakKeyDictionary[Any, Lines] = WeakKeyDictionary()
        self.mend: Callable[[str, bytes], None] | None = None
        """Notes again where a message is, given the first key of the script that met it."""

    @property
    def client(self) -> Any:
        if self._made is None:
            if self._closed:
                raise StoreUnavailable(f"{self.where.shown}: this connection was closed")
            self._made = self._open()
        return self._made

    def _open(self) -> Any:
        where = self.where
        options: dict[str, Any] = {
            "socket_timeout": where.timeout,
            "socket_connect_timeout": min(where.timeout, 5.0),
            "socket_keepalive": True,
            "protocol": 2,
            "max_connections": 2**31,  # as many as there are threads
            **where.options,
        }
        never = Retry(NoBackoff(), 0)
        if where.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in where.hosts]
            return RedisCluster(startup_nodes=nodes, **options, retry=never)
        if where.kind == "sentinel":
            own = {"username": None, "password": where.sentinel_password, "retry": never}
            watch = {**options, **own}
            sentinel: Any = Sentinel(where.hosts, sentinel_kwargs=watch, **options, retry=never)
            return sentinel.master_for(where.service, db=where.db)
        host, port = where.hosts[0]
        return redis.Redis(host=host, port=port, db=where.db, **options, retry=never)

    def run(self, *command: Arg, key: str | None = None) -> Any:
        """The plain answer. In a cluster of the node that holds `key`, else the command's own."""
        with self.translated():
            return self._ask(str(command[1]) if key is None else key, command)

    def script(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Messages whose notes are damaged are mended, one after the other, for it to succeed."""
        mended = set[bytes]()
        while True:
            try:
                return self._script(script, keys, args)
            except Misplaced as found:
                if self.mend is None or found.id in mended or len(mended) >= MENDED_MAX:
                    raise
                mended.add(found.id)
                self.mend(keys[0], found.id)

    def _script(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        with self.translated():
            try:
                return self._ask(keys[0], ("EVALSHA", script.sha, len(keys), *keys, *args))
            except errors.NoScriptError:  # a server that was restarted has forgotten it
                return self._ask(keys[0], ("EVAL", script.text, len(keys), *keys, *args))

    def scripts(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Arg]]]
    ) -> list[Any]:
        """One script with the keys and arguments of each call, in one round trip to each node. An
        answer may be an error: the other calls have run."""
        if not calls:
            return []
        commands = [
            (keys[0], ("EVALSHA", script.sha, len(keys), *keys, *args)) for keys, args in calls
        ]
        with self.translated():
            answers = self._ask_all(commands)
        for n, answer in enumerate(answers):
            if isinstance(answer, FAILURES):
                answers[n] = ours(answer, self.where, closed=self._closed)
                if isinstance(answer, _ELSEWHERE) or isinstance(answers[n], Misplaced):
                    try:  # nothing has been written
                        answers[n] = self.script(script, *calls[n])
                    except HoldfastError as error:
                        answers[n] = error
        return answers

    def each(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Arg]]]
    ) -> list[Any]:
        """The same; the first error is raised when all have run."""
        answers = self.scripts(script, calls)
        for answer in answers:
            if isinstance(answer, HoldfastError):
                raise answer
        return answers

    def run_each(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Commands whose first argument is their key, in one round trip to each node; the first
        error is raised when all have run."""
        with self.translated():
            answers = self._ask_all([(str(words[1]), words) for words in commands])
            for n, answer in enumerate(answers):
                if isinstance(answer, _ELSEWHERE):
                    answers[n] = self._ask(str(commands[n][1]), commands[n])
                elif isinstance(answer, FAILURES):
                    raise answer
        return answers

    def _ask_all(self, commands: Sequence[tuple[str, Sequence[Arg]]]) -> list[Any]:
        client = self.client
        if self.where.kind != "cluster":
            return self._lines(client.connection_pool).ask_all([words for _, words in commands])
        nodes: dict[Any, list[int]] = {}
        for n, (key, _) in enumerate(commands):
            nodes.setdefault(client.get_node_from_key(key), []).append(n)
        answers: dict[int, Any] = {}
        for node, mine in nodes.items():
            lines = self._lines(client.get_redis_connection(node).connection_pool)
            try:
                told = lines.ask_all([commands[n][1] for n in mine])
            except FAILURES as error:  # the calls to other nodes have run, and so may these
                told = [error] * len(mine)
                with suppress(*FAILURES):
                    client.nodes_manager.initialize()  # for the next call
            answers.update(zip(mine, told, strict=True))
        return [answers[n] for n in range(len(commands))]

    def info(self, key: str) -> dict[str, str]:
        """What the server that holds a key says of itself."""
        told: bytes = self.run("INFO", "everything", key=key)
        pairs = (line.partition(":") for line in told.decode().splitlines() if ":" in line)
        return {name: value for name, _, value in pairs}

    def _ask(self, key: str, command: Sequence[Arg]) -> Any:
        client = self.client
        if self.where.kind != "cluster":
            return self._lines(client.connection_pool).ask(command)
        for left in reversed(range(REDIRECTS)):
            node = client.get_node_from_key(key)
            try:
                return self._lines(client.get_redis_connection(node).connection_pool).ask(command)
            except errors.MovedError:  # which is an AskError as well
                if not left:
                    raise
            except errors.AskError as asked:  # the slot is on its way there
                node = client.get_node(*cast(Any, asked).node_addr)
                if node is not None:
                    pool = client.get_redis_connection(node).connection_pool
                    return self._lines(pool).ask(command, moving=True)
            except (errors.ConnectionError, errors.ClusterDownError):
                with suppress(*FAILURES):
                    client.nodes_manager.initialize()  # for the next call: this one may have run
                raise
            client.nodes_manager.initialize()
        raise AssertionError("unreachable")

    def _lines(self, pool: Any) -> Lines:
        lines = self._by_pool.get(pool)
        if lines is None:
            lines = self._by_pool.setdefault(pool, Lines(pool))
        return lines

    def close(self) -> None:
        self._closed = True
        self._forget()
        client, self._made = self._made, None
        if client is not None:
            with suppress(*FAILURES):
                client.close()

    @contextmanager
    def translated(self) -> Generator[None, None, None]:
        """The driver's errors as ours, with their cause."""
        try:
            yield
        except FAILURES as error:
            if isinstance(error, errors.ReadOnlyError) or "READONLY" in str(error):
                self._forget()  # a replica now: the next call looks for the master
            raise ours(error, self.where, closed=self._closed) from error

    def _forget(self) -> None:
        for lines in list(self._by_pool.values()):
            lines.hang_up()


class Lines:
    """Connections of one pool, kept between calls: the driver's own keeping of them takes as long
    as a short script. A process that was forked off gets lines of its own."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._pid = os.getpid()
        self._free: deque[Any] = deque()

    def ask(self, command: Sequence[Arg], moving: bool = False) -> Any:
        """Send and read, without the driver's translation of answers."""
        line = self._line()
        try:
            if moving:
                line.send_command("ASKING")
                line.read_response()
            if pack_command is None:
                line.send_command(*command)
            else:
                line.send_packed_command([pack_command(command)])
            return line.read_response()
        except errors.ResponseError:
            raise
        except BaseException:
            line.disconnect()  # an answer may still be on its way
            raise
        finally:
            self._free.append(line)

    def ask_all(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """All are sent before the first answer is read. What the server refuses is an answer."""
        line, answers = self._line(), list[Any]()
        try:
            if pack_command is None:
                line.send_packed_command(line.pack_commands(commands))
            else:
                line.send_packed_command([pack_command(tuple(words)) for words in commands])
            for _ in commands:
                try:
                    answers.append(line.read_response())
                except errors.ResponseError as error:
                    answers.append(error)
            return answers
        except BaseException:
            line.disconnect()  # answers may still be on their way
            raise
        finally:
            self._free.append(line)

    def _line(self) -> Any:
        if self._pid != os.getpid():
            self._free, self._pid = deque(), os.getpid()  # in this order: another thread may look
        try:
            line = self._free.pop()
        except IndexError:
            return self._pool.get_connection()
        if line._sock is not None and _has_ended(line):
            line.disconnect()
        if line._sock is None:
            try:
                line.connect()  # here: sending would not ask Sentinel where the master is now
            except BaseException:
                self._free.append(line)
                raise
        return line

    def hang_up(self) -> None:
        """Close those that are not in use; the next call opens new ones."""
        for line in list(self._free):
            with suppress(errors.RedisError, OSError):
                line.disconnect()


def _has_ended(line: Any) -> bool:
    """A server says nothing unasked but its last words."""
    try:
        return line.can_read()
    except (errors.RedisError, OSError):
        return True
