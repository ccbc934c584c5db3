"""Who waits for messages is woken by NOTIFY; one listening connection per process.

A notice is a hint. It is sent after the commit, at most every few milliseconds, and may be lost
with the process that should have sent it: whoever waits also looks by itself now and then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import LiteralString

import psycopg

from holdfast.errors import HoldfastError
from holdfast.model import clock
from holdfast.stores.kit.waiting import Topics, Watch
from holdfast.stores.postgres.connections import Connection, Connections, cut

THROTTLE_S = 0.005
LOOK_S = 1.0
"""How long a waiter trusts that it will be told."""
BLIND_LOOK_S = 0.05
"""The same while nothing can be heard: the listening connection is down, or a proxy is between."""
RECONNECT_S = (0.1, 5.0)
HEARTBEAT_S = 15.0
ALL = "*"
# A notice is written to no disk: nobody needs to wait for its commit. Of this transaction only.
UNSYNCED = "SELECT set_config('synchronous_commit', 'off', true) UNION ALL "
NOTICE_MAX = 7500

logger = logging.getLogger("holdfast.postgres")


class Wake:
    """Thread-safe. Everything in here may fail silently: it only makes waiting shorter."""

    def __init__(self, connections: Connections, channel: str) -> None:
        self._connections = connections
        self._channel = channel
        self._topics = Topics(ALL, lambda: LOOK_S if self._hearing else BLIND_LOOK_S)
        self._lock = threading.Lock()
        self._hearing = False
        self._stopped = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._listening: Connection | None = None
        self._unsent: set[str] = set()
        self._to_send = threading.Event()
        self._sent_at = float("-inf")

    # Telling others

    def tell(self, topics: Iterable[str]) -> None:
        """After a commit: wake who waits for these, here at once, elsewhere by a notice."""
        topics = list(topics)
        self._topics.tell(topics)
        now = clock.monotonic()
        with self._lock:
            self._unsent.update(topics)
            soon = now - self._sent_at < THROTTLE_S
            if not soon:
                self._sent_at = now
        if soon:
            self._ensure("tell", self._tell_loop)
            self._to_send.set()
        else:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            topics, self._unsent = self._unsent, set()
        if topics:
            try:
                statement, told = self.notice(topics)
                with self._connections.use() as db:
                    db.execute(UNSYNCED + statement, told)
            except HoldfastError as error:
                logger.debug("no notice sent: %s", error)

    def notice(self, topics: Iterable[str]) -> tuple[LiteralString, dict[str, str]]:
        """The statement that tells others; inside a transaction it is sent by its commit."""
        text = ",".join(sorted(topics))
        told = {"channel": self._channel, "topics": text if len(text) < NOTICE_MAX else ALL}
        return "SELECT pg_notify(%(channel)s, %(topics)s)::text", told

    def _tell_loop(self) -> None:
        while not self._stopped.is_set():
            self._to_send.wait()
            self._to_send.clear()
            left = self._sent_at + THROTTLE_S - clock.monotonic()
            if left > 0:
                self._stopped.wait(left)
            with self._lock:
                self._sent_at = clock.monotonic()
            self.flush()

    # Hearing from others

    def watch(self, topics: Iterable[str]) -> Watch:
        """Start to listen; what is told from now on ends the `wait` of the result."""
        if not self._connections.where.pooler:
            self._ensure("listen", self._listen_loop)
        return self._topics.watch(topics)

    def stop(self) -> None:
        self.flush()
        self._stopped.set()
        self._to_send.set()
        self._topics.tell_all()
        if self._listening is not None:
            cut(self._listening)
        for thread in self._threads.values():
            if thread is not threading.current_thread():
                thread.join(5)

    def _listen_loop(self) -> None:
        pause = RECONNECT_S[0]
        while not self._stopped.is_set():
            try:
                self._listen()
                pause = RECONNECT_S[0]
            except (HoldfastError, psycopg.Error, OSError) as error:
                if not self._stopped.is_set():
                    logger.info("not listening, again in %.1f s: %s", pause, error)
            self._hearing = False
            self._topics.tell_all()
            self._stopped.wait(pause)
            pause = min(pause * 2, RECONNECT_S[1])

    def _listen(self) -> None:
        self._listening = db = self._connections.dedicated()
        try:
            name = self._channel.replace('"', '""')
            with self._connections.watched(db):
                db.execute(f'LISTEN "{name}"'.encode())
            self._hearing = True
            self._topics.tell_all()  # whatever was told while nobody listened
            heard = clock.monotonic()
            while not self._stopped.is_set():
                for notice in db.notifies(timeout=HEARTBEAT_S, stop_after=1):
                    self._topics.tell(notice.payload.split(","))
                    heard = clock.monotonic()
                if not self._stopped.is_set() and clock.monotonic() - heard >= HEARTBEAT_S:
                    with self._connections.watched(db):
                        db.execute("SELECT 1")  # a half-open socket gives no sign of its own
                    heard = clock.monotonic()
        finally:
            self._listening = None
            db.close()

    def _ensure(self, name: str, run: Callable[[], None]) -> None:
        if name not in self._threads:
            with self._lock:
                if name not in self._threads and not self._stopped.is_set():
                    thread = threading.Thread(target=run, name=f"holdfast-{name}", daemon=True)
                    self._threads[name] = thread
                    thread.start()
