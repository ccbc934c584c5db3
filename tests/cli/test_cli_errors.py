"""What every command shares: global options, errors and exit codes, pipes and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.testing import wait_until

SCRIPT = Path(sys.executable).parent / "holdfast"


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, timeout=60, text=True
    ).stdout


def test_version(cli) -> None:
    assert cli.ok("--version") == f"holdfast {holdfast.__version__}\n"


def test_it_is_installed_as_a_command(url: str) -> None:
    for command in ([SCRIPT], [sys.executable, "-m", "holdfast"]):
        done = subprocess.run([*command, "--version"], capture_output=True, timeout=60, text=True)
        assert (done.stdout, done.returncode) == (f"holdfast {holdfast.__version__}\n", 0)


def test_no_command_shows_the_help(cli) -> None:
    result = cli()
    assert result.exit_code == 2
    assert result.output.startswith("Usage: holdfast [OPTIONS] COMMAND [ARGS]...\n")
    assert re.search(r"\n  enqueue +Enqueue PAYLOAD, or a message a JSON line\.\n", result.output)


def test_every_command_has_help(cli) -> None:
    from holdfast.cli import root

    for name in root.commands:
        assert cli.ok(name, "--help").startswith(f"Usage: holdfast {name} ")


def test_global_options_stand_before_or_after(cli, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    cli.ok("--url", other, "queue", "create", "a")
    before = cli.ok("--json", "--url", other, "queue", "list")
    assert before == cli.ok("queue", "list", "--url", other, "--json")
    assert json.loads(before)["queue"] == "a"
    assert cli.docs("queue", "list") == []


def test_the_default_store(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "da ta?#%"))
    cli.ok("queue", "create", "a")
    assert (tmp_path / "da ta?#%" / "holdfast" / "holdfast.db").exists()
    assert [doc["queue"] for doc in cli.docs("stats")] == ["a"]


def test_a_data_folder_that_cannot_be_made(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert cli.fails(1, "stats") == (
        f"error: {tmp_path}/file/holdfast: Not a directory; name a store with --url\n"
    )


@pytest.mark.parametrize(
    ("code", "args", "error"),
    [
        (2, ["stats", "--url", "jobs.db"], "error: url: 'jobs.db' is not a store URL; try sqlite"),
        (2, ["stats", "--url", "sqlit:///x"], "error: url: no store sqlit://; did you mean"),
        (1, ["stats", "--url", "sqlite:///no/such/x.db"], "error: "),
        (2, ["statz"], "error: No such command 'statz'."),
        (2, ["queue", "show"], "error: Missing argument 'NAME'.\ntry: holdfast queue show --help"),
        (2, ["queue", "show", "bad name"], "error: queue: 'bad name': letters"),
        (4, ["queue", "show", "nope"], "error: no queue 'nope'; none is known\n"),
    ],
)
def test_one_line_and_an_exit_code(cli, code: int, args: list[str], error: str) -> None:
    assert cli.fails(code, *args).startswith(error)


def test_an_unknown_setting(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ULR", "x")
    error = "error: HOLDFAST_ULR: no such setting; did you mean 'HOLDFAST_URL'?\n"
    assert cli.fails(2, "stats") == error
    assert cli.ok("--help").startswith("Usage: ")


def test_verbose_shows_where(cli) -> None:
    error = cli.fails(4, "queue", "show", "nope", "-v")
    assert error.startswith("Traceback (most recent call last):\n")
    assert error.endswith("\nerror: no queue 'nope'; none is known\n")


def test_errors_cannot_steer_the_terminal(cli) -> None:
    assert "\x1b" not in cli.fails(2, "queue", "show", "a\x1b[31m")


def test_a_closed_pipe_is_quiet(hf: Holdfast, url: str) -> None:
    hf.queue("orders").enqueue_many(["x" * 1000] * 500)
    for args in (["peek", "orders", "--limit", "500", "--json"], ["queue", "show", "orders"]):
        read, write = os.pipe()
        os.close(read)  # nobody reads
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *args],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        os.close(write)
        assert (done.stderr, done.returncode) == (b"", 141)


def test_ctrl_c_is_quiet(hf: Holdfast, on_terminal) -> None:
    hf.queue("orders")
    shown, code = on_terminal("queue", "delete", "orders", when="[y/N]", keys=b"\x03", insist=True)
    asked = "Delete orders (0 messages, 0 dead letters) and its log? [y/N]: "
    assert (shown.replace("^C", "").strip(), code) == (asked.strip(), 130)
    assert hf.queue("orders", create=False)


def test_ctrl_c_while_it_waits(hf: Holdfast, start) -> None:
    hf.queue("orders")
    waiting = start("lease", "orders", "--wait", "60", "-v")

    def target(fd: Path) -> str:
        try:
            return os.readlink(fd)
        except FileNotFoundError:  # closed since it was listed: it is still starting
            return ""

    def holds_the_file_open() -> bool:
        opened = Path(f"/proc/{waiting.pid}/fd").iterdir()
        return any("test.db" in target(fd) for fd in opened)

    wait_until(holds_the_file_open, 30)
    waiting.signal(signal.SIGINT)
    assert (waiting.ends(), waiting.out, waiting.err.strip()) == (130, "", "")


def test_plain_where_there_is_no_terminal(hf: Holdfast, url: str) -> None:
    hf.queue("orders").enqueue_many([1] * 3)
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "20"}
    for args in (["peek", "orders"], ["stats"], ["queue", "show", "orders"], ["doctor"]):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *args],
            capture_output=True,
            timeout=60,
            text=True,
            env=env,
        )
        assert (done.returncode, done.stderr, "\x1b" in done.stdout) == (0, "", False)


def test_colour_on_a_terminal(hf: Holdfast, on_terminal) -> None:
    queue = hf.queue("orders")
    queue.enqueue(1)
    queue.fail(queue.lease()[0])
    assert "\x1b[31m" in on_terminal("stats")[0]


def test_importing_the_library_is_light() -> None:
    loaded = python("import sys, holdfast; print(*sys.modules)").split()
    assert not {"click", "rich", "platformdirs", "holdfast.cli"} & {*loaded}


def test_rich_is_imported_only_to_draw(url: str) -> None:
    loaded = python(
        "import sys, holdfast.cli as c\n"
        "try: c.root.main(['queue', 'list'])\n"
        "except SystemExit: print(*sys.modules)"
    )
    assert "no queues yet" in loaded
    assert "rich" not in loaded.split()
