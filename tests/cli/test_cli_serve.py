"""`holdfast serve` as operators have it: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
import urllib3

from holdfast.testing import wait_until

ANY = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def pems(folder: Path, name: str) -> tuple[str, str]:
    issued = trustme.CA().issue_cert("127.0.0.1")
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    return str(cert), str(key)


def the_error(process) -> str:
    """Of a program that said nothing else, and did not run."""
    assert process.ends() != 0
    assert process.out == ""
    lines = [line for line in process.err.splitlines() if not line.startswith("try: ")]
    assert len(lines) == 1, process.err
    return lines[0]


def test_a_port_in_use(start: Callable, taken: str) -> None:
    for options in (["--http", taken], ["--http", "127.0.0.1:0", "--grpc", taken]):
        process = start("serve", *options)
        assert the_error(process) == f"error: cannot listen on {taken}: Address already in use"
        assert process.ends() == 1


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (["--http", "nonsense"], 2, "error: http: must be HOST:PORT, not 'nonsense'"),
        (["--grpc", ":8080"], 2, "error: grpc: must be HOST:PORT, not ':8080'"),
        (["--http", "127.0.0.1:99999"], 2, "error: http: must be HOST:PORT"),
        (
            ["--http", "127.0.0.1:7", "--grpc", "127.0.0.1:7"],
            2,
            "error: grpc: 127.0.0.1:7 is where",
        ),
        # an address of documentation (RFC 5737): nobody has it
        (["--http", "192.0.2.1:0"], 1, "error: cannot listen on 192.0.2.1:0: Cannot assign"),
        (["--no-http", "--grpc", "192.0.2.1:0"], 1, "error: cannot listen on 192.0.2.1:0: Cannot"),
        (["--no-http", "--no-grpc"], 2, "error: http: name an address for HTTP, for gRPC or for"),
        (["--max-body", "0"], 2, "error: Invalid value for '--max-body': 0 is not in the range"),
        (["--max-polls", "x"], 2, "error: Invalid value for '--max-polls': 'x' is not a valid"),
        (["--max-wait", "-1"], 2, "error: wait_seconds: must not be negative"),
        (["--auth", "maybe"], 2, "error: Invalid value for '--auth': 'maybe' is not one of"),
        (
            ["--tls-cert", "none.pem", "--tls-key", "none.key"],
            2,
            "error: Invalid value for '--tls-",
        ),
        (["--url", "nonsense://"], 2, "error: "),
        (["--url", "sqlite:////nowhere/at/all.db"], 1, "error: "),
        (["--url", "http://127.0.0.1:1"], 5, "error: this needs the store itself"),
    ],
)
def test_bad_options(start: Callable, options: list[str], code: int, error: str) -> None:
    process = start("serve", *options)
    assert the_error(process).startswith(error)
    assert process.ends() == code


def test_bad_certificates(start: Callable, tmp_path: Path) -> None:
    cert, key = pems(tmp_path, "one")
    _, other = pems(tmp_path, "other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    locked = tmp_path / "locked.key"
    locked.write_bytes(encrypted(Path(key).read_bytes()))
    for tls in [(cert, other), (key, cert), (str(nonsense), key), (cert, str(locked))]:
        process = start("serve", *ANY, "--tls-cert", tls[0], "--tls-key", tls[1])
        told = the_error(process)
        assert told.startswith(f"error: tls: {tls[0]} and {tls[1]} are no certificate and its key")
        assert process.ends() == 2
    process = start("serve", *ANY, "--tls-cert", cert)
    assert the_error(process) == "error: --tls-cert and --tls-key go together"


def encrypted(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(pem, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def address(process, door: str = "http") -> str:
    wait_until(lambda: "key is needed" in process.out or process.ended, 30)
    assert "key is needed" in process.out, process.err
    return re.search(rf"{door}s?://[^\s,]+", process.out).group()  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(start: Callable, number: signal.Signals) -> None:
    process = start("serve", *ANY)
    url = address(process)
    assert urllib3.request("GET", f"{url}/health/ready", retries=False).json()["ready"]
    process.signal(number)
    assert process.ends() == 0
    assert "Traceback" not in process.err
    assert process.out == (
        f"HTTP on {url}, the dashboard at /, described at /docs\n"
        f"gRPC on {address(process, 'grpc')}\n"
        "no key is needed: only this machine is served\n"
    )


def test_one_door_only(start: Callable) -> None:
    process = start("serve", "--no-grpc", "--http", "127.0.0.1:0")
    address(process)
    assert "gRPC" not in process.out
    process.signal(signal.SIGTERM)
    assert process.ends() == 0


@pytest.mark.promise("SERVER-4")
def test_keys_are_needed_unless_bound_to_loopback(start: Callable) -> None:
    """Bound to every address; asked over loopback."""
    process = start("serve", "--http", "0.0.0.0:0", "--no-grpc")
    url = address(process).replace("0.0.0.0", "127.0.0.1")
    assert "\na key is needed: holdfast key create" in process.out
    assert urllib3.request("GET", f"{url}/v1/queues", retries=False).status == 401
    also = start("serve", "--http", "127.0.0.1:0", "--grpc", "0.0.0.0:0")
    assert urllib3.request("GET", f"{address(also)}/v1/queues", retries=False).status == 401
    home = start("serve", "--http", "localhost:0", "--grpc", "127.0.0.1:0")
    assert urllib3.request("GET", f"{address(home)}/v1/queues", retries=False).status == 200
    asked = start("serve", *ANY, "--auth", "on")
    assert urllib3.request("GET", f"{address(asked)}/v1/queues", retries=False).status == 401
    for one in (process, also, home, asked):
        one.signal(signal.SIGTERM)
        assert one.ends() == 0


def test_without_its_packages(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [n for n in sys.modules if n.startswith("holdfast.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    told = cli.fails(5, "serve", "--http", "127.0.0.1:0")
    assert told == "error: a server needs: pip install 'holdfast[server]'\n"
