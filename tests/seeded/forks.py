"""Run pytest on changed sources, in forks of one process that has done the slow imports.

A new process would need a second to import pytest, the drivers and the like.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.seeded.bug import ROOT, SRC

TIME_S = 60
FORKS = multiprocessing.get_context("forkserver")
# Used by many tests and slow to import. None of them may import holdfast or start a thread.
FORKS.set_forkserver_preload(
    ["pytest", "click", "hypothesis", "msgspec", "psycopg_pool", "pymongo", "redis.cluster", "rich"]
)


class Run(NamedTuple):
    code: int | None
    """The exit code of pytest, or None if it was killed after TIME_S."""
    output: str


def run(arguments: list[str], file: Path, text: str, folder: Path, env: dict[str, str]) -> Run:
    """Run pytest on the sources with `text` in `file`. All files are written below `folder`."""
    source, output = folder / "src", folder / "output"
    overlay(source, file, text)
    # Its own folder for temporary files: pytest removes numbered ones at exit, and forks skip that.
    arguments = [*arguments, "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}"]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    env = inherited | env | {"PYTHONPATH": str(source), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = FORKS.Process(target=_run, args=(arguments, source, file, output, env))
    process.start()
    process.join(TIME_S)
    if (code := process.exitcode) is None:
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return Run(code, output.read_text(errors="replace"))


def overlay(target: Path, file: Path, text: str) -> None:
    """Make a copy of src with `text` in `file`. All else is links to the originals, which takes a
    few milliseconds and keeps their cached bytecode."""
    target.symlink_to(SRC)
    for folder in (*reversed(file.parents), file.parent / "__pycache__"):
        _open(target / folder)
    changed = target / file
    changed.unlink()
    changed.write_text(text)
    os.utime(changed, (0, 0))  # never the time that is noted in the cached bytecode


def _open(link: Path) -> None:
    """Replace a link to a folder by a folder of links, in which single files can be changed."""
    if link.exists():
        original = link.resolve()
        link.unlink()
        link.mkdir()
        for each in original.iterdir():
            (link / each.name).symlink_to(each)


def _run(arguments: list[str], source: Path, file: Path, output: Path, env: dict[str, str]) -> None:
    """Do in a fork what `python -m pytest` would do in a new process."""
    os.setsid()
    gc.freeze()  # or pytest looks for garbage among all the preloaded objects
    with output.open("wb") as to:
        os.dup2(to.fileno(), sys.stdout.fileno())
        os.dup2(to.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    sys.dont_write_bytecode = False
    # Without the folders that test modules of the parent have added.
    ours = [path for path in sys.path if not Path(path).is_relative_to(ROOT / "tests")]
    sys.path[:] = [str(source), *ours]
    code = int(pytest.main(arguments))
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    expected = source / (file if file.suffix == ".py" else "holdfast/__init__.py")
    if code in (0, 1) and str(expected) not in imported:
        print(f"{expected} was not imported")
        code = 2
    sys.stdout.flush()
    os._exit(code)  # a normal exit would wait for threads that a bug has left behind
