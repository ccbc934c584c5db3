"""A Prometheus for tests: the one on the PATH, or the Debian package that script/setup unpacked."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from servers.base import START_S, Missing, free_port, skipping

UNPACKED = Path(__file__).parent.parent / ".build" / "prometheus" / "usr" / "bin"
EVERY = "200ms"


def find(program: str = "prometheus") -> Path:
    found = shutil.which(program) or shutil.which(program, path=str(UNPACKED))
    if found is None:
        raise Missing(
            f"no {program}: put it on the PATH (Debian: apt-get install prometheus); "
            "where there is an apt-get, script/setup unpacks it without installing it"
        )
    return Path(found)


def need(program: str) -> Path:
    """For tests: skip without it."""
    with skipping():
        return find(program)


@contextmanager
def running(target: str) -> Iterator[str]:
    """The URL of one that scrapes HOST:PORT."""
    program, port = need("prometheus"), free_port()
    config = {
        "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY},
        "scrape_configs": [{"job_name": "holdfast", "static_configs": [{"targets": [target]}]}],
    }
    with TemporaryDirectory() as folder, Path(folder, "log").open("w") as log:
        Path(folder, "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML, too
        process = subprocess.Popen(
            [
                str(program),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, Path(folder, "log"))
            yield url
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise Missing(log.read_text()[-4000:]) from None
            time.sleep(0.05)
