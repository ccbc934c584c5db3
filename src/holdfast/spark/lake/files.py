"""Where an archive lies: files of Parquet, and manifests that say which of them count.

    lake/log/queue=orders/day=2026-05-01/<run>-0.parquet
    lake/dead/queue=orders.dlq/day=2026-05-01/<run>-0.parquet
    lake/_holdfast/000000001.json

Manifests are numbered without a gap. A run writes two: one when it begins, which takes the number
that any earlier run would need to publish, so that none of those can any more; and one at its end,
with the files it has added. A file that no manifest names is of a run that was killed: nobody reads
it, and the next run deletes it (docs/adr/0015).
"""

# pyright: basic

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import FailedPrecondition, InvalidArgument

FOLDER = "_holdfast"
STAGING = "_staging"
TABLES = ("log", "dead")
FULL_EVERY = 20
"""After so many manifests one names all files, and those before it are not needed any more."""


class LakeBusy(FailedPrecondition):
    """Another run has taken over: this one has published nothing."""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int
    run: str
    at: int
    """By the store's clock."""
    store: str = ""
    full: bool = False
    """`files` are all there are, not only those that are new."""
    full_at: int = 0
    """The number of the newest one that is full."""
    files: dict[str, list[str]] = {}
    """By table, paths below the lake."""
    marks: dict[str, int] = {}
    """By queue: what finished before this is archived, of every run so far."""
    rows: dict[str, int] = {}
    """By table, of every run so far."""
    first: int | None = None
    last: int | None = None
    """The times of finishing and dying, of every run so far."""


class Lake:
    """A folder, by any address that Spark knows."""

    def __init__(self, spark: Any, where: Any) -> None:
        if not isinstance(where, str | Path) or not str(where):
            raise InvalidArgument("lake", f"name a folder, not {where!r}")
        jvm = spark._jvm
        self._jvm = jvm
        path = jvm.org.apache.hadoop.fs.Path(str(where))
        self._fs = path.getFileSystem(spark._jsc.hadoopConfiguration())
        self._root = self._fs.makeQualified(path)
        self.where = str(self._root.toString())

    def path(self, *names: str) -> str:
        return "/".join((self.where.rstrip("/"), *names))

    @property
    def folder(self) -> Path | None:
        """As a folder of this machine's disk, if it is one."""
        scheme, _, path = self.where.partition(":")  # nothing in it is quoted
        return Path(path) if scheme == "file" else None

    def exists(self) -> bool:
        return bool(self._fs.exists(self._at(FOLDER)))

    def state(self) -> Manifest:
        """All that is published: the newest manifest, with every file in it."""
        numbers = self._numbers()
        found: list[Manifest] = []
        for number in reversed(numbers):
            found.append(self._read(number))
            if found[-1].full:
                break
        files: dict[str, list[str]] = {}
        for manifest in reversed(found):
            for table, paths in manifest.files.items():
                files.setdefault(table, []).extend(paths)
        newest = found[0] if found else Manifest(0, "", 0)
        return msgspec.structs.replace(newest, full=False, files=files)

    def begin(self, run: str, store: str, at: int) -> Manifest:
        """Fence every run before this one; what is published, as the one to follow it up on."""
        while True:
            state = self.state()
            if state.store and store != state.store:
                raise InvalidArgument(
                    "lake", f"{self.where} is the archive of {state.store}; {store} needs its own"
                )
            mine = msgspec.structs.replace(
                state, number=state.number + 1, run=run, at=at, store=store, files={}
            )
            if self._publish(mine):
                return msgspec.structs.replace(mine, files=state.files)

    def publish(self, manifest: Manifest, every: dict[str, list[str]]) -> None:
        """The end of a run, all at once; `every` has the files of all runs, this one's too."""
        before = manifest.full_at
        if manifest.number - before >= FULL_EVERY:
            manifest = msgspec.structs.replace(
                manifest, full=True, full_at=manifest.number, files=every
            )
        if not self._publish(manifest):
            raise LakeBusy(f"{self.where}: another run has begun; nothing was published")
        if manifest.full:  # who reads just now may still need all since the one before
            for number in self._numbers():
                if number < before:
                    self.delete(f"{FOLDER}/{_name(number)}")

    def staged(self, run: str, table: str) -> list[str]:
        """What Spark has written of it, and no task that was run again or failed."""
        return [path for path in self._walk(f"{STAGING}/{run}/{table}") if _is_parquet(path)]

    def adopt(self, run: str, table: str, staged: Sequence[str]) -> list[str]:
        """Move what a run has staged to where it is read; the paths."""
        paths: list[str] = []
        for number, path in enumerate(sorted(staged)):
            folder = "/".join(path.split("/")[-3:-1])  # by queue and day
            target = f"{table}/{folder}/{run}-{number}.parquet"
            self._fs.mkdirs(self._at(f"{table}/{folder}"))
            if not self._fs.rename(self._at(path), self._at(target)):
                raise FailedPrecondition(f"{self.where}: cannot move {path} to {target}")
            paths.append(target)
        return paths

    def clean(self, state: Manifest) -> int:
        """Delete what killed runs left. Only after `begin`: none of them can publish it now."""
        known = {path for paths in state.files.values() for path in paths}
        left = [p for table in TABLES for p in self._walk(table) if _is_data(p) and p not in known]
        for path in left:
            self.delete(path)
        self.delete(STAGING)
        return len(left)

    def write(self, path: str, text: bytes) -> str:
        """A file of its own; where it is."""
        stream = self._fs.create(self._at(path), True)
        try:
            stream.write(bytearray(text))
        finally:
            stream.close()
        return self.path(path)

    def has(self, path: str) -> bool:
        return bool(self._fs.exists(self._at(path)))

    def move(self, path: str, target: str) -> bool:
        """A folder to its place; False if there is something already."""
        if self.has(target):
            return False
        return bool(self._fs.rename(self._at(path), self._at(target)))

    def delete(self, path: str) -> None:
        self._fs.delete(self._at(path), True)

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path)

    def _walk(self, folder: str) -> Iterator[str]:
        if not self._fs.exists(self._at(folder)):
            return
        found = self._fs.listFiles(self._at(folder), True)
        start = len(self.where.rstrip("/")) + 1
        while found.hasNext():
            yield str(found.next().getPath().toString())[start:]

    def _numbers(self) -> list[int]:
        if not self.exists():
            return []
        names = (status.getPath().getName() for status in self._fs.listStatus(self._at(FOLDER)))
        return sorted(int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name))

    def _read(self, number: int) -> Manifest:
        path = f"{FOLDER}/{_name(number)}"
        stream = self._fs.open(self._at(path))
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        try:
            return msgspec.json.decode(text, type=Manifest)
        except msgspec.MsgspecError as error:
            raise InvalidArgument("lake", f"{self.path(path)}: no manifest: {error}") from error

    def _publish(self, manifest: Manifest) -> bool:
        """Written aside, then put in place if nobody else has the number."""
        text = msgspec.json.encode(manifest)
        target = f"{FOLDER}/{_name(manifest.number)}"
        aside = f"{FOLDER}/.{manifest.run}-{manifest.number}.tmp"
        if self.folder is not None:
            return _link(self.folder, text, target, aside)
        self.write(aside, text)
        # HDFS and its like rename in one step, and refuse when the name is there.
        there = self._fs.exists(self._at(target))
        if there or not self._fs.rename(self._at(aside), self._at(target)):
            self.delete(aside)
            return False
        return True


def _name(number: int) -> str:
    return f"{number:09d}.json"


def _is_parquet(path: str) -> bool:
    return path.endswith(".parquet") and _is_data(path)


def _is_data(path: str) -> bool:
    return not path.rpartition("/")[2].startswith((".", "_"))


def chosen(paths: Sequence[str], queues: Sequence[str]) -> list[str]:
    """The files of some queues."""
    wanted = tuple(f"/queue={queue}/" for queue in queues)
    return [path for path in paths if any(part in f"/{path}" for part in wanted)]


def _link(root: Path, text: bytes, target: str, aside: str) -> bool:
    """A local rename would replace what is there; a link does not."""
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    with (root / aside).open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(root / aside, root / target)
    except FileExistsError:
        return False
    finally:
        (root / aside).unlink()
    return True
