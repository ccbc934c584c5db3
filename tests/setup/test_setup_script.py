"""What script/setup says and does on machines that lack something.

apt-get, pip and the searches of servers/ are fakes: real ones would change the machine or take
minutes. test_setup_fresh_clone.py runs the real ones.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = "bash cat chmod cksum dirname env find grep mkdir rm sh sleep tail touch"
"""All that is on the PATH: no sha256sum, no flock, no Python, no browser, no curl and no jq."""

APT_GET = """\
echo "$*" >>"$MACHINE/apt-get.txt"
cat "$MACHINE/said.txt" >>"$MACHINE/said-before.txt"
case "$*" in
  update) echo "the lists are being read" ;;
  *chromium*) echo "#!/bin/sh" >"$MACHINE/bin/chromium"; chmod 755 "$MACHINE/bin/chromium" ;;
esac
"""
PYTHON = """\
case "$*" in
  *" install "*) echo "$*" >>"$MACHINE/pip.txt"; exec sleep 0.1 ;;
  "-m pip --version") ;;
  *servers.browser*) command -v chromium ;;
  *servers.prometheus*) exit 1 ;;
  *servers.* | *find_java*) echo /from/a/wheel ;;
  *) exec "$PYTHON_HERE" "$@" ;;
esac
"""
NO_NETWORK = 'echo "$*" >>"$MACHINE/apt-get.txt"; echo "E: no network" >&2; exit 100'


class Machine:
    """A checkout whose .venv is there and needs an update, and a PATH with few programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS.split():
            (self.bin / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool} here"))
        self.checkout = folder / "a checkout"
        for name in ("script/setup", "requirements/dev.txt", "pyproject.toml"):
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.checkout / name)
        (self.checkout / ".venv/bin").mkdir(parents=True)
        (self.checkout / ".venv/pyvenv.cfg").touch()
        _program(self.checkout / ".venv/bin/python", PYTHON)
        self.is_root(False)

    def has(self, tool: str, script: str) -> None:
        _program(self.bin / tool, script)

    def is_root(self, yes: bool) -> None:
        self.has("id", f"echo {0 if yes else 1000}")

    def start(self, **env: str) -> subprocess.Popen[str]:
        env = {
            "MACHINE": str(self.folder),
            "PATH": str(self.bin),
            "PYTHON_HERE": sys.executable,
            **env,
        }
        with self.said.open("w") as said:
            return subprocess.Popen(
                [str(self.checkout / "script/setup")],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                text=True,
            )

    def setup(self, expected: int = 0, **env: str) -> str:
        code = self.start(**env).wait(60)
        said = self.said.read_text()
        assert code == expected, said
        return said

    @property
    def said(self) -> Path:
        return self.folder / "said.txt"

    def calls(self, program: str) -> list[str]:
        record = self.folder / f"{program}.txt"
        return record.read_text().splitlines() if record.exists() else []


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.promise("SETUP-1")
def test_posix_tools_are_enough_and_it_says_which_tests_lack_something(machine: Machine) -> None:
    said = machine.setup()
    assert "chromium (browser tests of the dashboard)" in said
    assert "jq (HTTP examples of README.md and docs/server.md)" in said
    assert "prometheus (tests that scrape the metrics)" in said
    assert "The tests in parentheses are skipped." in said
    assert "nothing was installed, because there is no apt-get" in said
    assert "sudo apt-get install curl jq chromium prometheus" in said
    assert "not found" not in said
    assert machine.setup() == ""


@pytest.mark.promise("SETUP-1")
def test_a_second_setup_waits_and_finds_the_work_done(machine: Machine) -> None:
    both = [machine.start(), machine.start()]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(machine.calls("pip")) == 2  # the locked packages, and Holdfast


@pytest.mark.promise("SETUP-1")
def test_packages_and_reasons_are_named_before_apt_get_runs(machine: Machine) -> None:
    machine.is_root(True)
    machine.has("apt-get", APT_GET)
    for tool in ("curl", "jq"):
        machine.has(tool, "")
    said = machine.setup()
    update, install = machine.calls("apt-get")
    assert update == "update"
    assert install.endswith("install -y --no-install-recommends chromium")
    first = (machine.folder / "said-before.txt").read_text()
    named = "installing Debian packages with apt-get: chromium (browser tests of the dashboard)\n"
    assert named in first and "HOLDFAST_SETUP_APT=0 forbids this" in first
    assert f"browser tests of the dashboard: {machine.bin}/chromium" in said
    assert "the lists are being read" not in said
    assert "missing: prometheus (tests that scrape the metrics)." in said


@pytest.mark.promise("SETUP-1")
@pytest.mark.parametrize(
    ("is_root", "env", "reason"),
    [
        (True, {"HOLDFAST_SETUP_APT": "0"}, "HOLDFAST_SETUP_APT=0 is set"),
        (False, {"CI": "1"}, "you are not root"),
    ],
)
def test_without_leave_nothing_is_installed(
    machine: Machine, is_root: bool, env: dict[str, str], reason: str
) -> None:
    machine.is_root(is_root)
    machine.has("apt-get", APT_GET)
    said = machine.setup(**env)
    assert machine.calls("apt-get") == []
    assert "missing: curl (HTTP examples" in said
    assert f"nothing was installed, because {reason}" in said
    assert ("fail, because CI is set" if "CI" in env else "are skipped") in said


@pytest.mark.promise("SETUP-1")
def test_what_apt_get_said_is_shown_when_it_fails(machine: Machine) -> None:
    machine.is_root(True)
    machine.has("apt-get", NO_NETWORK)
    said = machine.setup()
    assert "E: no network\n" in said
    assert "apt-get failed" in said
    installs = [call.split()[-1] for call in machine.calls("apt-get") if "install" in call]
    assert installs == ["chromium", "curl", "jq", "chromium"]  # all at once, then each by itself
    assert "missing: curl" in said


@pytest.mark.promise("SETUP-1")
def test_a_wrong_setting_or_a_missing_tool_is_named(machine: Machine) -> None:
    assert machine.setup(1, HOLDFAST_SETUP_APT="no").endswith(
        "HOLDFAST_SETUP_APT: must be 0 or 1, got no\n"
    )
    (machine.bin / "cksum").unlink()
    assert machine.setup(1) == f"setup: cksum is not on the PATH ({machine.bin})\n"
