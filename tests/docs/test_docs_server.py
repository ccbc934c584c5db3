"""docs/server.md is one session with a real server, and its tables are what the code says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast import errors
from holdfast.errors import HoldfastError, InvalidArgument, RedriveFailed
from holdfast.queue.redrive import EditFailed, RedriveNotFound
from holdfast.server import connections, events, run
from holdfast.server.limits import Limits
from holdfast.wire import problems, shapes
from holdfast.wire.operations import OPERATIONS
from tests.cli.test_cli_docs import VARYING
from tests.docs.test_docs_readme import need_curl
from tests.server.rig import Program, certificates

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "server.md").read_text()
OPERATIONS_PAGE = (ROOT / "docs" / "operations.md").read_text()
HTTP, GRPC, HTTPS = "http://127.0.0.1:8080", "grpc://127.0.0.1:8081", "https://127.0.0.1:8443"
STARTS = ("pip install", "holdfast --url")  # done by the test, on ports that are free


def examples(page: str) -> list[tuple[str, str]]:
    """Each command, on as many lines as it needs, with what it is said to print."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines(keepends=True)
            end = next(n for n, line in enumerate(lines) if not line.endswith("\\\n")) + 1
            found.append(("".join(lines[:end]), "".join(lines[end:])))
    return [(command, said) for command, said in found if not command.startswith(STARTS)]


def steady(output: str) -> str:
    for pattern, word in VARYING:
        output = re.sub(pattern, word, output)
    return output.strip()


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTEST_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**clean, "PATH": path, "HOLDFAST_URL": "sqlite:///jobs.db"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def places(folder: Path) -> Iterator[dict[str, str]]:
    """Where the servers of the page really are."""
    url = f"sqlite:///{folder}/jobs.db"
    chain, key, _ = certificates(folder)
    tls = ("--tls-cert", str(chain), "--tls-key", str(key), "--auth", "on")
    with Program(url) as plain, Program(url, *tls) as secure:
        yield {HTTP: plain.http, GRPC: plain.grpc, HTTPS: secure.http}


def placed(text: str, places: dict[str, str]) -> str:
    for said, real in places.items():
        text = text.replace(said, real)
    return text


MARK = "=#=#="


def test_the_examples_are_true(
    folder: Path, places: dict[str, str], environment: dict[str, str]
) -> None:
    """All in one shell, which keeps its variables; each command is told from the next by a mark."""
    need_curl()
    found = examples(PAGE)
    assert len(found) > 40
    script = f"\nprintf '\\n{MARK}\\n'\n".join(command for command, _ in found)
    done = subprocess.run(
        ["bash", "-c", placed(script, places)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    for (command, said), printed in zip(found, done.stdout.split(f"\n{MARK}\n"), strict=True):
        assert (command, steady(printed)) == (command, steady(said))


def test_the_python_runs(folder: Path, places: dict[str, str], environment: dict[str, str]) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    with_queue = f"import holdfast\nholdfast.connect({HTTP!r}).queue('orders')\n{block}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", placed(with_queue, places)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "this lease has ended" in done.stdout


# Its tables


def every_error() -> list[type[HoldfastError]]:
    known = [*vars(errors).values(), *vars(problems).values(), EditFailed, RedriveNotFound]
    kinds = [kind for kind in known if isinstance(kind, type) and issubclass(kind, HoldfastError)]
    return list(dict.fromkeys(kinds))


def an_error(kind: Any) -> HoldfastError:
    if issubclass(kind, EditFailed):
        return kind("id", "why", 3)
    if issubclass(kind, InvalidArgument | RedriveFailed):
        return kind("field", 3)
    return kind("why")


def row_of(kind: type[HoldfastError]) -> str:
    problem = problems.problem_of(an_error(kind))
    assert hasattr(grpc.StatusCode, problem.code), problem.code
    return f"| `{problem.title}` | {problem.status} | {problem.code} |"


def test_the_table_of_errors_is_that_of_the_code() -> None:
    rows = re.findall(r"^(\| `\w+` \| \d+ \| \w+ \|)", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(row_of(kind) for kind in every_error())


@pytest.mark.parametrize(
    "said",
    [
        f"{Limits().body_bytes // 1024**2} MiB | `--max-body` |",
        f"leased by one call | {Limits().answer_bytes // 1024**2} MiB |",
        f"have not read, in all | {Limits().unread_bytes // 1024**2} MiB |",
        f"{Limits().wait_seconds:g} s | `--max-wait` |",
        f"{Limits().polls:,} | `--max-polls` |",
        f"{Limits().streams:,} | `--max-streams` |",
        f"{Limits().read_seconds:g} s | `--body-time` |",
        f"{Limits().head_seconds:g} s | `--head-time` |",
        f"{Limits().header_bytes // 1024} KiB | `--max-header` |",
        f"headers of a request | {Limits().headers} |",
        f"{Limits().write_seconds:g} s, and a second for each {connections.WRITE_RATE // 1024} KiB",
        f"{Limits().connections:,} | `--max-connections` |",
        f"{Limits().client_connections:,} | `--max-per-client` |",
        f"{Limits().rpc_connections:,} | `--max-rpc-connections` |",
        f"one gRPC connection | {Limits().rpc_calls:,} |",
        f"{connections.FILES_RESERVED} descriptors are kept",
        f"{shapes.BATCH_MAX:,} | |",
        f"{shapes.PAGE_MAX:,} | |",
        f"{shapes.LEASE_MAX:,} | |",
        f"Every {events.PING_S:g} seconds there is at least a `ping`",
        f"The newest {events.KEPT:,} are kept",
        f"more than {events.BEHIND_MAX:,} events behind",
        f"finish within {run.GRACE_S:g} seconds",
    ],
)
def test_the_limits_are_those_of_the_code(said: str) -> None:
    assert said in " ".join(PAGE.split())


def test_every_limit_is_on_the_page() -> None:
    section = PAGE.split("## Limits")[1].split("##")[0]
    assert (
        len(re.findall(r"^\| [a-zA-Z]", section, re.MULTILINE)) == len(Limits.__struct_fields__) + 3
    )


def test_the_fields_of_a_redrive_are_all_there() -> None:
    section = PAGE.split("| field of a redrive |")[1].split("\n\n")[0]
    where = shapes.DeadFilterDoc.__struct_fields__
    for name in (*shapes.RedriveAsk.__struct_fields__, *where):
        assert f"`{name}`" in section, name


def test_every_path_is_used_or_named() -> None:
    """A new operation gets a word here."""
    for path in {operation.path for operation in OPERATIONS}:
        ending = re.sub(r".*\}", "", path) or re.sub(r"\{.*", "", path).rsplit("/", 2)[-2]
        assert ending.strip("/:").partition(":")[0] in PAGE, path


def test_every_metric_is_in_the_docs(places: dict[str, str]) -> None:
    import urllib3

    page = urllib3.request("GET", f"{places[HTTP]}/metrics").data.decode()
    for name in re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE):
        assert f"`{name}`" in OPERATIONS_PAGE, name
