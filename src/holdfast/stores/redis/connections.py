"""Commands and scripts to one Redis, a master behind Sentinel, or a cluster."""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any, cast
from weakref import WeakKeyDictionary

import redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from holdfast.errors import (
    FailedPrecondition,
    HoldfastError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.stores.redis.url import Where

try:
    import hiredis

    pack_command: Any = cast(Any, hiredis).pack_command
except ImportError:  # slower, and the same
    pack_command = None

SERVER_MIN = (6, 2)

MENDED_MAX = 1000
"""Damaged notes that one call mends."""

REDIRECTS = 5
"""How often a slot may turn out to be elsewhere before one gives up."""

FAILURES = (errors.RedisError, errors.RedisClusterException, OSError)
"""All that the driver raises; not all of it has one base."""

_ELSEWHERE = (errors.NoScriptError, errors.AskError)
"""Of a call that was refused: the server does not know the script, or its slot is not there.
MovedError is an AskError as well."""

Arg = str | bytes | int


class Misplaced(StoreCorrupt):
    """A script found that what is noted of a message is damaged, before it wrote anything."""

    def __init__(self, text: str, id: bytes) -> None:
        super().__init__(text)
        self.id = id


class Script:
    """The text of a script, with what it begins with, and the name that a server knows it by."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Connections:
    """Thread-safe. A process that was forked off opens connections of its own.

    Nothing is tried twice behind the caller's back: a lease that was run again would leave the
    messages of the first one with nobody until their deadline.
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
            if isinstance(answer, _ELSEWHERE):  # nothing has run
                try:
                    answers[n] = self.script(script, *calls[n])
                except HoldfastError as error:
                    answers[n] = error
            elif isinstance(answer, FAILURES):
                answers[n] = self._ours(answer)
                if isinstance(answers[n], Misplaced):  # nothing has been written
                    try:
                        answers[n] = self.script(script, *calls[n])
                    except HoldfastError as error:
                        answers[n] = error
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
                self._forget()  # a replica now: whoever is the master is found anew
            raise self._ours(error) from error

    def _forget(self) -> None:
        for lines in list(self._by_pool.values()):
            lines.hang_up()

    def _ours(self, error: BaseException) -> HoldfastError:
        if isinstance(error, errors.RedisClusterException) and error.__cause__ is not None:
            error = error.__cause__  # of the last node that was asked
        if isinstance(error, MasterNotFoundError):  # it would go on with each sentinel's settings
            error = MasterNotFoundError(str(error).partition(" : ")[0])
        said = _SCRIPT.sub("", str(error)).strip().rstrip(".")
        text = f"{self.where.shown}: {said or type(error).__name__}"
        if self._closed:
            return StoreUnavailable(f"{self.where.shown}: this connection was closed")
        match error:
            case errors.MovedError() if self.where.kind != "cluster":
                scheme = self.where.shown.partition(":")[0]
                return StoreError(f"{text}. One node of a cluster: connect by {scheme}+cluster://")
            case errors.AuthenticationError() | errors.NoPermissionError():
                return StoreError(f"{text}. Check user and password, and what this user may do")
            case MasterNotFoundError() | errors.ConnectionError() | errors.TimeoutError():
                if "NOAUTH" in said or "AUTH" in said.upper().split():
                    return StoreError(f"{text}. Check user and password")
                return StoreUnavailable(text)
            case OSError():
                return StoreUnavailable(text)
            case _:
                return _by_words(said, text)


# What a server says before and after the words of an error inside a script.
_SCRIPT = re.compile(
    r"(ERR )?Error running script \(.*?\): |@?user_script: ?\d+: |"
    r" script: [0-9a-f]{40}, on @user_script:\d+\.?"
)


# What comes of keys and fields that somebody else wrote.
_STRANGE = (
    "WRONGTYPE", "wrong kind of value", "NOGROUP", "BUSYGROUP", "nil value", "not an integer",
    "no such key", "not written by Holdfast",
)  # fmt: skip


_MISPLACED = re.compile(r"MISPLACED ([0-9a-f]*):")


def _by_words(said: str, text: str) -> HoldfastError:
    """Errors inside a script are known by their words only."""

    def says(*words: str) -> bool:
        return any(word in said for word in words)

    if says("READONLY", "read only replica"):
        return StoreReadOnly(f"{text}. A replica takes no messages: connect to the master")
    if says("OOM", "maxmemory"):
        return StoreFull(f"{text}. Nothing was stored; consumers can still work it off")
    if says("MISCONF", "NOREPLICAS"):
        return StoreReadOnly(text)
    if (found := _MISPLACED.search(said)) is not None:
        return Misplaced(text, bytes.fromhex(found[1]))
    if says(*_STRANGE):
        return StoreCorrupt(f"{text}. Somebody else writes keys of this prefix: take another")
    if says("NOPERM", "NOAUTH", "WRONGPASS", "no permissions", "executing the script can't"):
        return StoreError(f"{text}. Check user and password, and what this user may do")
    if says("`SENTINEL`", "'SENTINEL'"):
        return StoreError(f"{text}. This is no Sentinel: name the Sentinels, or say redis://")
    if says("unknown command", "Unknown Redis command", "unknown subcommand"):
        return FailedPrecondition(f"{text}. Redis 6.2 or newer is needed")
    if says("LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "MOVED", "ASK "):
        return StoreUnavailable(text)
    return StoreError(text)


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
        """Those that nobody uses right now; who asks next connects anew."""
        for line in list(self._free):
            with suppress(errors.RedisError, OSError):
                line.disconnect()


def _has_ended(line: Any) -> bool:
    """A server says nothing unasked but its last words."""
    try:
        return line.can_read()
    except (errors.RedisError, OSError):
        return True


def load(name: str) -> Script:
    """A script of lua/, with the files of lua/include/ in place of each `--#include`."""
    return Script(_text(f"{name}.lua"))


def _text(path: str) -> str:
    text = (files("holdfast.stores.redis") / "lua" / path).read_text()
    return _INCLUDE.sub(lambda found: _text(f"include/{found[1]}.lua"), text)


_INCLUDE = re.compile(r"^ *--#include (\w+)$", re.MULTILINE)
