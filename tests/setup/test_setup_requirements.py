"""The lists of requirements agree with pyproject.toml, and the locks with the lists."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ["dev", "runtime"]
ALL = [*LOCKS, "node", "bench", "bench-arq", "bench-dramatiq-mongodb"]


def listed(name: str) -> set[str]:
    lines = (ROOT / f"requirements/{name}.in").read_text().splitlines()
    return {line for line in lines if line and not line.startswith(("#", "-r"))}


def locked(name: str) -> dict[str, str]:
    """Package to version, for this machine or another."""
    text = (ROOT / f"requirements/{name}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))


def test_runtime_list_is_the_projects() -> None:
    assert listed("runtime") == set(PROJECT["project"]["dependencies"])


def test_dev_list_is_the_dev_group() -> None:
    assert listed("dev") == set(PROJECT["dependency-groups"]["dev"])


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_is_locked_in_its_range(name: str) -> None:
    versions = locked(name)
    for line in listed(name) | listed("runtime"):
        requirement = Requirement(line)
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), line


@pytest.mark.parametrize("name", ALL)
def test_every_locked_package_has_hashes(name: str) -> None:
    text = (ROOT / f"requirements/{name}.txt").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        assert line.startswith("#") or "--hash=sha256:" in line, line


@pytest.mark.parametrize("name", ALL)
def test_locks_name_no_index_and_no_path(name: str) -> None:
    text = (ROOT / f"requirements/{name}.txt").read_text()
    assert not re.search(r"://|--index|--find-links|/\w+/|\.whl", text)


def test_both_locks_agree() -> None:
    assert locked("runtime").items() <= locked("dev").items()


def test_the_build_backend_is_locked_for_installs_without_isolation() -> None:
    versions = locked("dev")
    for line in PROJECT["build-system"]["requires"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(versions[requirement.name])
    assert "editables" in versions
