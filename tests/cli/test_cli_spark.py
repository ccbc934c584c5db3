"""holdfast spark: handlers on Spark as a process, and the queries that the store knows of."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, State
from holdfast.testing import ManualClock, dead_letters, finished, wait_until
from holdfast.work.ledger import Batches, Offset, QueryNotFound, ask_to_stop, queries
from servers.spark import need_java
from tests.spark.conftest import quick_start

__all__ = ["quick_start"]  # the fixture

PATIENCE_S = 240
"""A JVM starts in five seconds; on a machine with much to do in forty."""

APP = """
import os, pathlib, time
import holdfast

hf = holdfast.connect(os.environ["HOLDFAST_URL"], max_attempts=2)
other = holdfast.connect("memory://")
here = pathlib.Path(__file__).parent

@hf.handler("orders")
def handle(payload, message):
    if payload == "bad":
        raise ValueError("this one is bad")
    if payload == "never":
        raise holdfast.Fail("will not do", code="NEVER")
    if payload == "hold":
        (here / "holding").touch()
        while not (here / "let go").exists():
            time.sleep(0.01)
    return payload

@other.handler("orders")
def nothing(payload): ...
"""


# Without Spark


@pytest.fixture
def ago(url: str) -> Iterator[Callable[[float], Holdfast]]:
    """A connection whose clock stands so many seconds before now."""
    opened: list[Holdfast] = []

    def ago(seconds: float) -> Holdfast:
        clock = ManualClock(int((time.time() - seconds) * 1000))
        opened.append(holdfast.connect(url, clock=clock))
        return opened[-1]

    yield ago
    for hf in opened:
        hf.close()


def reading(hf: Holdfast, queue: str, messages: int, *, sealed: bool = True, **options) -> Batches:
    """A query that holds a batch."""
    hf.queue(queue).enqueue_many(range(messages))
    query = Batches(hf.context, queue, **options)
    end = query.reserve(Offset(), messages)
    assert end is not None
    if sealed:
        query.seal(end)
    return query


def test_no_queries(cli) -> None:
    assert cli.ok("spark", "queries") == "no query has read from this store\n"
    assert cli.docs("spark", "queries") == []


def test_every_state_a_query_can_be_in(cli, hf: Holdfast, ago, steady) -> None:
    lost = reading(ago(400), "mail", 3, name="lost")
    gone = reading(ago(300), "mail", 2, name="gone", sealed=False)
    running = reading(ago(20), "orders", 5, name="running")
    idle = Batches(ago(10).context, "orders", name="idle")
    assert idle.reserve(Offset(), 10) is None
    hf.queue("orders").enqueue_many(range(7))
    hf.queue("orders").enqueue(1, delay=60)
    ids = [query.query.id for query in (lost, gone, running, idle)]
    assert steady(cli.ok("spark", "queries")).splitlines() == [
        "QUERY  NAME  QUEUE  STATE  HELD  BATCH  BEHIND  DONE  RETRIED  DEAD  SEEN",
        f"{ids[0]}  lost  mail  in doubt  3  1  0  0  0  0  T",
        f"{ids[1]}  gone  mail  gone  2  1  0  0  0  0  T",
        f"{ids[2]}  running  orders  running  5  1  8  0  0  0  T",
        f"{ids[3]}  idle  orders  idle  0  0  8  0  0  0  T",
    ]
    docs = cli.docs("spark", "queries")
    assert [(doc["query"], doc["state"], doc["held"]) for doc in docs] == [
        (ids[0], "in doubt", 3),
        (ids[1], "gone", 2),
        (ids[2], "running", 5),
        (ids[3], "idle", 0),
    ]
    assert docs[0]["last_batch"] is None


def test_what_became_of_the_last_batch(cli, ago, hf: Holdfast) -> None:
    then = ago(30)
    query = reading(then, "orders", 4)
    then.context.clock.advance(2)
    assert query.reserve(Offset(query.query.id, 1, query.query.hold), 10) is None
    [doc] = cli.docs("spark", "queries")
    assert (doc["state"], doc["done"]) == ("idle", 4)
    assert doc["last_batch"].items() >= {"batch": 1, "rows": 4, "done": 4, "ms": 2000}.items()
    hf.queue("orders").delete()
    assert cli.docs("spark", "queries")[0]["behind"] is None
    assert cli.ok("spark", "queries")


def test_a_query_that_was_asked_to_stop(cli, ago, hf: Holdfast) -> None:
    query = reading(ago(20), "orders", 3)
    name, at = query.query.id, Offset(query.query.id, 1, query.query.hold)
    assert ask_to_stop(hf.context, name).held == 3
    hf.queue("orders").enqueue_many([4, 5])
    assert cli.docs("spark", "queries")[0]["state"] == "running"
    assert query.reserve(at, 10) is None, "it settles what it held, and takes no more"
    assert not ask_to_stop(hf.context, name).hold
    assert cli.docs("spark", "queries")[0]["state"] == "stopped"
    assert cli.ok("spark", "abandon", name) == "gave back 0 messages of orders\n"
    stats = hf.queue("orders").stats()
    assert (stats.done, stats.ready, stats.leased) == (3, 2, 0)
    back = Batches(ago(0).context, "orders").reserve(at, 10)
    assert back is not None, "whoever takes it up next goes on"
    with pytest.raises(QueryNotFound):
        ask_to_stop(hf.context, "x")


def test_what_a_lost_query_holds_is_given_back(cli, ago, hf: Holdfast) -> None:
    query = reading(ago(400), "orders", 3)
    name = query.query.id
    error = cli.fails(2, "spark", "abandon", name)
    assert error.startswith("error: stdin is no terminal to ask on; pass --yes if you mean it\n")
    assert hf.queue("orders").stats().leased == 3
    said = cli.ok("spark", "abandon", name, "--yes")
    assert said == "gave back 3 messages of orders; they may be delivered twice\n"
    stats = hf.queue("orders").stats()
    assert (stats.ready, stats.leased) == (3, 0)
    # With nothing to lose there is nothing to ask.
    assert cli.ok("spark", "abandon", name) == "gave back 0 messages of orders\n"
    assert cli.docs("spark", "abandon", name) == [{"query": name, "queue": "orders", "released": 0}]


def test_a_query_that_lives_keeps_what_it_holds(cli, ago, hf: Holdfast) -> None:
    query = reading(ago(20), "orders", 3)
    name = query.query.id
    error = cli.fails(5, "spark", "abandon", name, "--yes")
    assert re.match(rf"error: query {name} is alive, seen 2\d s ago: stop it first; --force", error)
    assert hf.queue("orders").stats().leased == 3
    assert "3 messages" in cli.ok("spark", "abandon", name, "--yes", "--force")
    with pytest.raises(holdfast.FailedPrecondition, match="abandoned"):
        query.beat()


def test_a_query_that_nobody_knows(cli, ago) -> None:
    assert cli.fails(4, "spark", "abandon", "x") == "error: no query 'x'; none is known\n"
    name = reading(ago(400), "orders", 1).query.id
    error = cli.fails(4, "spark", "abandon", name[:-1])
    assert error == f"error: no query '{name[:-1]}'; did you mean '{name}'?\n"


def test_on_a_terminal_it_asks(ago, hf: Holdfast, on_terminal) -> None:
    name = reading(ago(400), "orders", 3).query.id
    shown, code = on_terminal("spark", "abandon", name, when="twice. [y/N]", keys=b"n\n")
    assert (code, "nothing was changed" in shown) == (1, True)
    assert hf.queue("orders").stats().leased == 3


@pytest.mark.parametrize("command", [["queries"], ["abandon", "x"], ["work", "--help"]])
def test_looking_needs_no_spark(url: str, command: list[str]) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['pyarrow'] = None\n"
        "from holdfast.cli import main; sys.argv[0] = 'holdfast'; main()"
    )
    done = subprocess.run([sys.executable, "-c", program, "spark", *command], capture_output=True)
    assert b"Traceback" not in done.stderr and done.returncode in (0, 4)


def test_without_the_extra(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from holdfast.cli import main; sys.argv[0] = 'holdfast'; main()"
    )
    args = ["spark", "work", "app:hf", "--queue", "orders"]
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == "error: holdfast.spark needs: pip install 'holdfast[spark]'\n"


@pytest.mark.parametrize(
    ("code", "args", "error"),
    [
        (2, ["app:hf"], "error: Missing option '--queue'.\n"),
        (2, ["ap:hf", "--queue", "orders"], "error: ap: no module 'ap' in "),
        (2, ["app:hff", "--queue", "orders"], "error: app:hff: no 'hff' there; did you mean"),
        (2, ["app:hf", "--queue", "order"], "error: --queue: no handler for 'order'; did you mean"),
        (2, ["app:hf", "--queue", "orders", "--url", "x"], "error: work has no --url: the appl"),
        (
            2,
            ["app:hf", "--queue", "orders", "--master", "spark://h:7077"],
            "error: --checkpoint: is needed on spark://h:7077: a folder that every machine reaches",
        ),
        (
            2,
            ["app:other", "--queue", "orders", "--master", "local[1]"],
            "error: app:other: Spark's processes reach a store by its URL; this has none\n",
        ),
        (2, ["app:hf", "--queue", "orders", "--on-lost", "x"], "error: Invalid value for '--on-"),
    ],
)
def test_what_cannot_be_worked(start, tmp_path: Path, code: int, args: list, error: str) -> None:
    """All of it is said before a JVM is started."""
    (tmp_path / "app.py").write_text(APP)
    worker = start("spark", "work", *args)
    assert (worker.ends(), worker.out) == (code, "")
    assert worker.err.startswith(error)


def test_the_checkpoint_is_of_the_store_the_queue_and_the_name(url: str) -> None:
    from holdfast.cli.spark import _checkpoint, without_password

    with holdfast.connect(url) as hf:
        made = [
            _checkpoint(hf, queue, name, "local[2]")
            for queue, name in [("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")]
        ]
    assert len(set(made)) == 3 and made[0] == made[3]
    assert without_password("postgresql://u:p@h:5/d?schema=s&password=x") == (
        "postgresql://u@h:5/d?schema=s"
    )
    assert without_password("sqlite:////a/b.db") == without_password("sqlite:////a/b.db")


# With Spark


class Worker:
    """`holdfast spark work` as its users run it."""

    def __init__(self, folder: Path, args: tuple[str, ...]) -> None:
        self._err = folder / "err"
        command = [str(Path(sys.executable).parent / "holdfast"), "spark", "work", "app:hf"]
        with self._err.open("wb") as err:
            self._popen = subprocess.Popen(
                [*command, "--queue", "orders", "--master", "local[2]", *args],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
            )

    @property
    def err(self) -> str:
        return self._err.read_text()

    def ctrl_c(self) -> None:
        """A terminal sends it to all that the command has started."""
        os.killpg(self._popen.pid, signal.SIGINT)

    def says(self, text: str) -> None:
        wait_until(lambda: text in self.err or self._popen.poll() is not None, PATIENCE_S)
        assert text in self.err

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def ends(self) -> int:
        return self._popen.wait(PATIENCE_S)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()


@pytest.fixture
def work(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Worker]]:
    need_java()
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    started: list[Worker] = []

    def work(*args: str) -> Worker:
        started.append(Worker(tmp_path, args))
        return started[-1]

    yield work
    for worker in started:
        worker.kill()


def complaints(worker: Worker) -> list[str]:
    """What is on stderr besides log lines, and a line that every JVM says."""
    lines = worker.err.splitlines()
    return [line for line in lines if not re.match(r"WARNING: Using incub|\d{4}-.* INFO ", line)]


def test_until_empty(hf: Holdfast, work, cli, tmp_path: Path) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many([1, 2, 3, "bad", "never"])
    worker = work("--until-empty", "--sink", "out", "--slices", "2")
    assert worker.ends() == 0, worker.err
    assert sorted(row.message.payload for row in finished(hf, "orders")) == [1, 2, 3]
    [dead] = dead_letters(hf, "orders")
    assert (dead.payload, dead.errors[-1].code) == ("never", "NEVER")
    [bad] = [*queue.browse(State.DELAYED), *queue.browse(State.READY)]
    assert (bad.message.payload, bad.message.errors[-1].code) == ("bad", "ValueError")
    assert re.search(
        r"orders: batch 1: 5 messages in [\d.]+ s \([\d.]+/s\): 3 done, 1 to be retried, 1 dead; ",
        worker.err,
    )
    assert complaints(worker) == [], worker.err
    [query] = queries(hf.context)
    assert (query.done, query.retried, query.dead, query.held) == (3, 1, 1, 0)
    [checkpoint] = (tmp_path / "data" / "holdfast" / "checkpoints").iterdir()
    assert {"commits", "offsets"} <= {part.name for part in checkpoint.iterdir()}

    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["result"] for row in rows) == ["1", "2", "3"]


@pytest.mark.extended
def test_a_signal_while_it_is_idle(hf: Holdfast, work) -> None:
    queue = hf.queue("orders")
    worker = work()
    queue.enqueue(1)
    worker.says("orders: batch 1: 1 messages")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err
    assert (queue.stats().leased, queue.stats().done) == (0, 1)
    assert worker.err.endswith(" stopped\n")
    assert complaints(worker) == [], worker.err


@pytest.mark.extended
def test_a_signal_lets_the_batch_finish(hf: Holdfast, work, cli, tmp_path: Path) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(["hold", 2, 3])
    worker = work("--max-messages", "1")
    wait_until((tmp_path / "holding").exists, PATIENCE_S)
    worker.ctrl_c()
    (tmp_path / "let go").touch()
    assert worker.ends() == 0, worker.err
    assert [row.message.payload for row in finished(hf, "orders")] == ["hold"]
    assert [(e.message.payload, e.message.attempts) for e in queue.browse()] == [(2, 0), (3, 0)]
    assert queue.stats().leased == 0
    assert "batch 1: 1 messages" in worker.err and "1 done" in worker.err
    assert complaints(worker) == [], worker.err
    assert cli.docs("spark", "queries")[0]["state"] == "stopped"


@pytest.mark.extended
def test_a_second_signal_ends_at_once(hf: Holdfast, work, cli, tmp_path: Path) -> None:
    queue = hf.queue("orders")
    queue.enqueue("hold")
    worker = work()
    wait_until((tmp_path / "holding").exists, PATIENCE_S)
    # Signals that come close together are one; the first that is seen again ends it.
    wait_until(lambda: worker.ended or worker.signal(signal.SIGTERM), PATIENCE_S)
    (tmp_path / "let go").touch()
    assert worker.ends() == 143
    assert queue.stats().leased == 1


@pytest.mark.extended
def test_a_query_that_fails(hf: Holdfast, work, tmp_path: Path) -> None:
    hf.queue("orders").enqueue(1)
    (tmp_path / "file").touch()
    worker = work("--sink", f"{tmp_path}/file/below")
    assert worker.ends() == 1
    *logged, last = complaints(worker)
    assert re.fullmatch(r"error: \w+: Parent path is not a directory: \S+/file", last)
    # Spark may tell of the end after the process has gone.
    assert all(re.search(r"ERROR .* orders: ended by an error: \w+: Parent", x) for x in logged)
