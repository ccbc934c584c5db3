"""holdfast work: an application's handlers, in one process and in several."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from holdfast import Backoff, Holdfast
from holdfast.cli.supervise import STEADY_S, _Child
from holdfast.model.clock import monotonic
from holdfast.testing import dead_letters, finished, wait_until

APP = """
import os, pathlib, time
import holdfast

hf = holdfast.connect(os.environ["HOLDFAST_URL"], max_attempts=2)
other = 42
here = pathlib.Path(__file__).parent

@hf.handler("orders")
def handle(payload):
    if payload == "bad":
        raise ValueError("this one is bad")
    if payload == "never":
        raise holdfast.Fail("will not do", code="NEVER")
    if payload == "hold":
        (here / "holding").touch()
        while not (here / "let go").exists():
            time.sleep(0.01)
    return {"pid": os.getpid()}
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)


def pids(process) -> list[int]:
    """Of the workers that a supervisor started, in the order in which they started."""
    return [int(pid) for pid in re.findall(r"worker \d+ started as process (\d+)", process.err)]


def ready(process, workers: int) -> None:
    """Wait until so many workers have said that they work."""
    wait_until(lambda: process.err.count("] working orders") >= workers, 30)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_until_empty(hf: Holdfast, start) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many([1, 2, "never"])
    worker = start("work", "app:hf", "--until-empty", "--concurrency", "2")
    assert (worker.ends(), worker.out) == (0, "")
    assert [row.result for row in finished(hf, "orders")] == [{"pid": worker.pid}] * 2
    [dead] = dead_letters(hf, "orders")
    assert f"orders {dead.id} attempt 1: dead: NEVER: will not do\n" in worker.err


def test_it_says_what_happened_to_which_message(hf: Holdfast, start) -> None:
    once = Backoff(base=60, jitter="none")  # not a second time while it is being stopped
    message = hf.queue("orders", ack_timeout=60, backoff=once).enqueue("bad")
    worker = start("work", "app:hf")
    worker.says(rf"WARNING .*orders {message.id} attempt 1: again in .* ValueError: this one is")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    worker.says(r"INFO .* stopped; 1 deliveries settled\n$")


@pytest.mark.promise("HANDLER-5")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish(
    hf: Holdfast, start, tmp_path: Path, stop: signal.Signals
) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(["hold", 2, 3])
    worker = start("work", "app:hf", "--concurrency", "1")
    wait_until((tmp_path / "holding").exists, 30)
    worker.signal(stop)
    worker.says(r"INFO .* stopping; \d+ deliveries in hand\n")  # or it may lease the others
    (tmp_path / "let go").touch()
    assert worker.ends() == 0
    assert [row.message.payload for row in finished(hf, "orders")] == ["hold"]
    assert [(e.message.payload, e.message.attempts) for e in queue.browse()] == [(2, 0), (3, 0)]


@pytest.mark.promise("HANDLER-5")
def test_a_second_signal_stops_at_once(hf: Holdfast, start, tmp_path: Path) -> None:
    queue = hf.queue("orders")
    queue.enqueue("hold")
    worker = start("work", "app:hf")
    wait_until((tmp_path / "holding").exists, 30)
    # Signals that come close together are one; the first that is seen again ends it.
    wait_until(lambda: worker.ended or worker.signal(signal.SIGTERM), 30)
    assert worker.ends() == 143
    assert queue.stats().leased == 1


def test_the_grace_time_ends(hf: Holdfast, start, tmp_path: Path) -> None:
    queue = hf.queue("orders")
    queue.enqueue("hold")
    worker = start("work", "app:hf", "--grace", "100ms")
    wait_until((tmp_path / "holding").exists, 30)
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 1
    assert "1 deliveries still ran after 0.1 s" in worker.err
    assert queue.stats().leased == 1


@pytest.mark.parametrize(
    ("code", "args", "error"),
    [
        (2, ["app"], "error: app: write MODULE:ATTR, for example app:hf\n"),
        (2, ["ap:hf"], "error: ap: no module 'ap' in "),
        (2, ["app.sub:hf"], "error: app.sub: no module 'app.sub' in "),
        (2, ["app:hff"], "error: app:hff: no 'hff' there; did you mean 'hf'?\n"),
        (2, ["app:hf.x"], "error: app:hf.x: no 'x' there; it holds no Holdfast object\n"),
        (2, ["app:other"], "error: app:other: not what holdfast.connect gives, but of type int\n"),
        (2, ["app:hf", "--queue", "order"], "error: --queue: no handler for 'order'; did you mean"),
        (2, ["app:hf", "--time-limit", "5"], "error: time_limit: a thread cannot be ended: run "),
        (2, ["app:hf", "--concurrency", "0"], "error: concurrency: must be 1 to 10000, not 0\n"),
        (2, ["app:hf", "--url", "x"], "error: work has no --url: the application says which"),
        (1, ["broken:hf"], "error: importing broken failed: ZeroDivisionError: division by zero"),
        (1, ["needy:hf"], "error: importing needy failed: ModuleNotFoundError: No module named 'x"),
        (2, ["idle:hf"], "error: queues: no handler is registered and no queue is named\n"),
    ],
)
def test_what_cannot_be_worked(start, tmp_path: Path, code: int, args: list, error: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import xyzzy")
    (tmp_path / "idle.py").write_text("import holdfast; hf = holdfast.connect('memory://')")
    worker = start("work", *args)
    assert (worker.ends(), worker.out) == (code, "")
    assert worker.err.startswith(error)


def test_a_handler_in_a_process_of_its_own(hf: Holdfast, start) -> None:
    hf.queue("orders").enqueue(1)
    worker = start("work", "app:hf", "--until-empty", "--executor", "process")
    assert worker.ends() == 0
    [row] = finished(hf, "orders")
    assert row.result["pid"] != worker.pid


def test_several_processes_share_the_work(hf: Holdfast, start) -> None:
    hf.queue("orders").enqueue_many(range(50))
    supervisor = start("work", "app:hf", "--processes", "2", "--until-empty", "--queue", "orders")
    assert supervisor.ends() == 0
    assert len(finished(hf, "orders")) == 50
    assert {row.result["pid"] for row in finished(hf, "orders")} <= {*pids(supervisor)}
    assert len(re.findall(r"worker \d ended: exit code 0", supervisor.err)) == 2


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_passes_signals_on(
    hf: Holdfast, start, tmp_path: Path, stop: signal.Signals
) -> None:
    hf.queue("orders").enqueue("hold")
    supervisor = start("work", "app:hf", "--processes", "2")
    ready(supervisor, 2)
    wait_until((tmp_path / "holding").exists, 30)
    supervisor.signal(stop)
    supervisor.says(r"worker \d ended: exit code 0")
    (tmp_path / "let go").touch()
    assert supervisor.ends() == 0
    assert [row.message.payload for row in finished(hf, "orders")] == ["hold"]
    assert not any(map(alive, pids(supervisor)))


def test_a_second_signal_is_passed_on_too(hf: Holdfast, start, tmp_path: Path) -> None:
    queue = hf.queue("orders")
    queue.enqueue("hold")
    supervisor = start("work", "app:hf", "--processes", "2")
    ready(supervisor, 2)
    wait_until((tmp_path / "holding").exists, 30)
    supervisor.signal(signal.SIGTERM)
    supervisor.says(r"worker \d ended: exit code 0")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.ends() == 1
    assert "ended: exit code 143" in supervisor.err
    assert queue.stats().leased == 1


def test_a_worker_that_dies_is_started_again(hf: Holdfast, start) -> None:
    queue = hf.queue("orders")
    supervisor = start("work", "app:hf", "--processes", "2")
    ready(supervisor, 2)
    first = pids(supervisor)[0]
    os.kill(first, signal.SIGKILL)
    supervisor.says(r"worker 1 died: killed by SIGKILL; again in 0.5 s")
    ready(supervisor, 3)
    assert len(pids(supervisor)) == 3
    queue.enqueue_many(range(10))
    wait_until(lambda: queue.stats().done == 10)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.ends() == 0


def test_workers_end_when_their_supervisor_is_killed(hf: Holdfast, start) -> None:
    hf.queue("orders")
    supervisor = start("work", "app:hf", "--processes", "2")
    ready(supervisor, 2)
    workers = pids(supervisor)
    supervisor.kill()
    wait_until(lambda: not any(map(alive, workers)), 30)
    assert supervisor.err.count("stopped; 0 deliveries settled") == 2


def test_the_pause_before_a_restart_grows() -> None:
    child = _Child(1)
    child.started = monotonic()
    pauses = [child.next_pause() for _ in range(8)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    child.started = monotonic() - STEADY_S
    assert child.next_pause() == 0.5


def test_what_is_wrong_is_not_tried_again(start) -> None:
    supervisor = start("work", "app:nope", "--processes", "2")
    assert supervisor.ends() == 2
    assert "error: app:nope: no 'nope' there; known: hf\n" in supervisor.err
    assert "exit code 2; not started again" in supervisor.err


def test_ctrl_c_on_a_terminal_reaches_each_worker_once(
    hf: Holdfast, on_terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hf.queue("orders")
    shown, code = on_terminal(
        *("work", "app:hf", "--processes", "1"), when="] working orders", keys=b"\x03"
    )
    assert (code, "stopped; 0 deliveries settled" in shown) == (0, True)
    shown, code = on_terminal(
        *("work", "app:hf", "--processes", "2"), when="] working orders", keys=b"\x03"
    )
    assert code == 0
    assert "exit code 143" not in shown
