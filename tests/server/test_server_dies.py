"""A server that is killed, or told to stop, under load: what it said yes to is kept."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest

import holdfast
from holdfast import Holdfast, Outgoing, Settled
from holdfast.errors import HoldfastError
from holdfast.testing import wait_until
from tests.plugins.sampling import more

sys.path.insert(0, str(Path(__file__).parent))
from leasing import Leasing
from rig import Program
from watching import Sse

OFTEN = {"HOLDFAST_OVERDUE_CHECK_INTERVAL_MS": "100"}


class Client:
    """Goes to whatever server there is now."""

    def __init__(self, load: Load, door: str) -> None:
        self._load = load
        self._door = door
        self._url = ""
        self._remote: Holdfast | None = None

    def queue(self) -> Any:
        program = self._load.program
        url = program.http if self._door == "http" else program.grpc
        if self._remote is None or url != self._url:
            self.close()
            self._remote, self._url = holdfast.connect(url), url
        return self._remote.queue("orders", create=False)

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()


class Load:
    """Producers and consumers at both doors. They do not give up: what was not answered is said
    again."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.accepted: dict[str, str] = {}
        """How each message got there that a server said yes to: "once", "again", "receipt"."""
        self.acked: set[str] = set()
        self._enough = threading.Event()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._producers = self._start(self._produce, self._produce_batch, until=self._enough)
        self._consumers = self._start(self._consume, self._consume_batch, until=self._stop)

    def _start(self, *work: Any, until: threading.Event) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._run, args=(does, Client(self, door), until))
            for does in work
            for door in ("http", "grpc")
        ]
        for thread in threads:
            thread.start()
        return threads

    def _run(self, does: Any, client: Client, until: threading.Event) -> None:
        try:
            while not until.is_set():
                does(client)
        except BaseException as error:
            self._errors.append(error)
        client.close()

    def _say(self, client: Client, call: Callable[[Any], Any]) -> str:
        """Until the answer is yes, whoever gives it."""
        how = "once"
        while not self._stop.is_set():
            try:
                call(client.queue())
                return how
            except HoldfastError:
                how = "again"
                self._stop.wait(0.02)
        raise AssertionError("the test has ended before every message was accepted")

    def _produce(self, client: Client) -> None:
        one = str(uuid4())
        self.accepted[one] = self._say(client, lambda queue: queue.enqueue("single", id=one))

    def _produce_batch(self, client: Client) -> None:
        ids = [str(uuid4()) for _ in range(10)]
        items = [Outgoing("batch", id=id) for id in ids]
        self._say(client, lambda queue: queue.enqueue_many(items, receipt=ids[0]))
        self.accepted.update(dict.fromkeys(ids, "receipt"))

    def _consume(self, client: Client) -> None:
        with suppress(HoldfastError):
            queue = client.queue()
            for lease in queue.lease(5, wait=0.5):
                queue.ack(lease)
                self.acked.add(lease.id)

    def _consume_batch(self, client: Client) -> None:
        with suppress(HoldfastError):
            queue = client.queue()
            leases = queue.lease(20, wait=0.5)
            for lease, answer in zip(leases, queue.settle(leases), strict=True):
                if answer is Settled.APPLIED:
                    self.acked.add(lease.id)

    def stop_producing(self) -> None:
        """Returns when every message is accepted that was on its way."""
        self._enough.set()
        for thread in self._producers:
            thread.join()

    def close(self) -> None:
        self._enough.set()
        self._stop.set()
        for thread in self._producers + self._consumers:
            thread.join()
        assert not self._errors


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(store_url) as hf:
        hf.queue("orders", ack_timeout=1, max_attempts=1000)
        hf.queue("quiet")
        yield hf


def check(hf: Holdfast, load: Load) -> None:
    """All that was accepted is finished, once each; and what was acked is not there again."""
    queue = hf.queue("orders")
    wait_until(lambda: queue.stats().lag == 0, timeout=60)
    finished = Counter(row.message.id for row in queue.log())
    assert queue.stats().dead == 0
    assert load.accepted.keys() - finished.keys() == set()
    assert load.acked - finished.keys() == set()
    for id, count in finished.items():
        # An id of your own is known while the message is there: one that was taken, finished
        # and sent again, because the answer was lost, is a new message. A receipt is for that.
        assert count == 1 or load.accepted[id] == "again", (id, count, load.accepted.get(id))


@pytest.mark.parametrize("store_name", ["postgres", *more("sqlite")])
@pytest.mark.promise("LIFE-1", "SERVER-1")
def test_killed_under_load(hf: Holdfast, store_url: str) -> None:
    load = Load(Program(store_url, **OFTEN))
    try:
        for _ in range(3):
            before, acked = len(load.accepted), len(load.acked)
            wait_until(lambda n=before: len(load.accepted) > n + 300, timeout=60)
            wait_until(lambda n=acked: len(load.acked) > n + 100, timeout=60)
            load.program.kill()
            load.program = Program(store_url, **OFTEN)
        load.stop_producing()
        check(hf, load)
    finally:
        try:
            load.close()
        finally:
            load.program.kill()


@pytest.mark.parametrize("store_name", ["sqlite", *more("postgres")])
@pytest.mark.promise("LIFE-1", "SERVER-1")
def test_stopped_under_load(hf: Holdfast, store_url: str) -> None:
    load = Load(Program(store_url, **OFTEN))
    try:
        wait_until(lambda: len(load.accepted) > 300 and len(load.acked) > 100, timeout=60)
        events = Sse(load.program.http)
        stream = Leasing(load.program.grpc, "quiet")
        hf.queue("quiet").enqueue("for the stream")
        wait_until(lambda: events.of("ping") and stream.got)
        assert load.program.stop() == 0
        assert events.ended.wait(10)
        assert stream.ended.wait(10)
        assert stream.code is grpc.StatusCode.OK
        events.close()
        stream.close()
        load.program = Program(store_url, **OFTEN)
        load.stop_producing()
        check(hf, load)
    finally:
        try:
            load.close()
        finally:
            load.program.kill()
