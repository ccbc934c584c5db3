"""A seeded bug: one small change to the sources that the tests must notice.

It names the code by function and statement, not by file, so it survives when modules are moved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SRC = ROOT / "src"
SCRIPTS = (".lua", ".sql")
SHARED = ("stores/kit", "stores/sql")


@dataclass(frozen=True, kw_only=True)
class Bug:
    name: str
    where: str
    """What is changed: the qualified name of a function, a method or a constant, or a script
    such as lease.lua. Nested functions belong to the function around them."""
    old: str
    """Text that occurs there once."""
    new: str
    caught_by: str
    """A file below tests/."""
    test: str = ""
    """The test in that file that fails; given if those before it would take seconds."""
    store: str | None = None
    """The store whose code is changed: only its folder is searched, and those that stores share.
    The tests run on it."""

    def __str__(self) -> str:
        return f"{self.store}: {self.name}" if self.store else self.name


class DoesNotApply(Exception):
    def __init__(self, bug: Bug, reason: str) -> None:
        super().__init__(f"this bug no longer applies: {bug}: {reason}")


def apply(bug: Bug) -> tuple[Path, str]:
    """The file that a bug changes, relative to src, and its text with the bug in it."""
    found = [
        (file, start, end)
        for file, text in _sources().items()
        if bug.old in text and (bug.store is None or _is_of(file, bug.store))
        for start, end in _places(file).get(bug.where, [])
        for _ in range(text.count(bug.old, start, end))
    ]
    if len(found) != 1:
        raise DoesNotApply(bug, f"{bug.old!r} occurs {len(found)} times in {bug.where}")
    file, start, end = found[0]
    text = _sources()[file]
    changed = text[:start] + text[start:end].replace(bug.old, bug.new) + text[end:]
    if changed == text:
        raise DoesNotApply(bug, "it changes nothing")
    if file.suffix == ".py":
        try:
            compile(changed, file, "exec")
        except SyntaxError as error:
            raise DoesNotApply(bug, f"{file} does not compile with it: {error}") from error
    return file, changed


def _is_of(file: Path, store: str) -> bool:
    return store in file.parts or any(f"/{folder}/" in file.as_posix() for folder in SHARED)


def find_tests(bug: Bug) -> str:
    """The tests that must fail, as an argument for pytest."""
    file = ROOT / "tests" / bug.caught_by
    if not file.exists():
        raise DoesNotApply(bug, f"there is no tests/{bug.caught_by}")
    if not bug.test:
        return f"tests/{bug.caught_by}"
    # The conformance tests are part of the package; the files below tests/ import them.
    function = f"def {bug.test.partition('[')[0]}("
    if not any(function in text for text in (file.read_text(), *_sources().values())):
        raise DoesNotApply(bug, f"tests/{bug.caught_by} has no {bug.test}")
    return f"tests/{bug.caught_by}::{bug.test}"


@cache
def _sources() -> dict[Path, str]:
    return {
        file.relative_to(SRC): file.read_text()
        for file in sorted((SRC / "holdfast").rglob("*"))
        if file.suffix in (".py", *SCRIPTS)
    }


@cache
def _places(file: Path) -> dict[str, list[tuple[int, int]]]:
    """The start and end of each definition in the text of a file, by name."""
    text = _sources()[file]
    if file.suffix in SCRIPTS:
        return {file.name: [(0, len(text))]}
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    places: dict[str, list[tuple[int, int]]] = {}
    for name, node in _definitions(ast.parse(text).body):
        assert node.end_lineno is not None
        places.setdefault(name, []).append((starts[node.lineno - 1], starts[node.end_lineno]))
    return places


def _definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + node.name, node
            case ast.ClassDef():
                yield from _definitions(node.body, f"{prefix}{node.name}.")
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for part in (part for target in targets for part in ast.walk(target)):
                    if isinstance(part, ast.Name):
                        yield prefix + part.id, node
