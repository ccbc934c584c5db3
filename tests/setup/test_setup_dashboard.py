"""The build of the dashboard: when it is done, with what, and what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

import hatch_build
from hatch_build import NODE_WHEEL, DashboardHook, NoDashboard, Web


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "web/src").mkdir(parents=True)
    (tmp_path / "web/src/main.ts").write_text("1")
    (tmp_path / "web/package-lock.json").write_text("{}")
    return tmp_path


@pytest.fixture
def npm(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of it; it builds a page."""
    asked: list[str] = []

    def run(command: list[str], folder: Path) -> None:
        asked.append(command[1])
        modules, static = folder / "node_modules", checkout / "src/holdfast/server/static"
        modules.mkdir(exist_ok=True)
        static.mkdir(parents=True, exist_ok=True)
        (static / "index.html").write_text("a page")

    monkeypatch.setattr(hatch_build, "fit_node", lambda: ["npm"])
    monkeypatch.setattr(hatch_build, "run", run)
    monkeypatch.delenv("HOLDFAST_NO_DASHBOARD", raising=False)
    return asked


def hook(root: Path) -> DashboardHook:
    return DashboardHook(str(root), {}, None, None, str(root / "dist"), "wheel")  # type: ignore[arg-type]


@pytest.mark.promise("SETUP-1")
def test_it_is_built_when_a_source_has_changed(checkout: Path, npm: list[str]) -> None:
    web = Web(checkout)
    assert not web.is_fresh()
    hook(checkout).initialize("standard", {})
    assert npm == ["ci", "run"] and web.is_fresh()
    hook(checkout).initialize("standard", {})
    (checkout / "web/node_modules/left.js").write_text("not ours")
    hook(checkout).initialize("standard", {})
    assert npm == ["ci", "run"]
    (checkout / "web/src/main.ts").write_text("2")
    assert not web.is_fresh()
    hook(checkout).initialize("standard", {})
    assert npm == ["ci", "run", "run"]  # the packages are those of the lock
    (checkout / "web/package-lock.json").write_text('{"lockfileVersion": 3}')
    hook(checkout).initialize("standard", {})
    assert npm == ["ci", "run", "run", "ci", "run"]


@pytest.mark.promise("SETUP-1")
def test_an_editable_install_builds_nothing(checkout: Path, npm: list[str]) -> None:
    hook(checkout).initialize("editable", {})
    assert npm == []


@pytest.mark.promise("SETUP-1")
def test_a_node_is_asked_for_only_where_there_is_none(
    checkout: Path, npm: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hook(checkout).dependencies() == []
    monkeypatch.setattr(hatch_build, "fit_node", lambda: None)
    assert hook(checkout).dependencies() == [NODE_WHEEL]
    monkeypatch.setenv("HOLDFAST_NO_DASHBOARD", "1")
    assert hook(checkout).dependencies() == []
    listed = Path(hatch_build.ROOT, "requirements/node.in").read_text()
    assert NODE_WHEEL in listed.splitlines()


@pytest.mark.promise("SETUP-1")
def test_an_sdist_brings_what_was_built(checkout: Path, npm: list[str]) -> None:
    Web(checkout).build()
    (checkout / "web").rename(checkout / "elsewhere")
    assert Web(checkout).is_fresh()


@pytest.mark.promise("SETUP-1")
def test_npm_is_heard_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(NoDashboard, match="failed:\nno registry"):
        hatch_build.run(["sh", "-c", "echo no registry; exit 1"], tmp_path)
