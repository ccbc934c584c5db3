"""Whether a write-ahead log holds commits that SQLite cannot read.

SQLite ignores a log whose header is damaged, and all that follows a damaged frame, without a word:
a store whose messages were all in there opens empty. After opening, the shared index next to the
log says how far SQLite could read. Whatever else was committed in this log is lost.

A log that was deleted after a kill leaves the index behind, which says how many frames it had, and
how many of them are in the file. SQLite makes the index anew, so this looks before it opens it.

A writer that is killed leaves frames without a commit at the end, or one that is written in part;
these are not counted. What cannot be noticed: a log that is cut off between two commits, and one
that was deleted together with its index. Then nothing is left that knows of these commits: until a
log is folded in, the file itself is as it was before them.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from holdfast.model import clock

HEADER, FRAME = 32, 24
MAGIC = (0x377F0682, 0x377F0683)
"""The checksums are of little-endian, and of big-endian, words."""
INDEX = 100
"""Bytes of the index up to the number of frames that are in the file."""
TRIES = 3
REST_S = 0.05
"""Between two looks: what a live writer is just writing looks different then."""


_lock = threading.Lock()
_indexes: dict[str, int] = {}


def gone(path: Path) -> str | None:
    """What was in a log that is not there any more. Call it before opening; None if nothing was."""
    return _surely(lambda: _missing(path))


def _missing(path: Path) -> str | None:
    log = Path(f"{path}-wal")
    try:
        if path.stat().st_size == 0 or (log.exists() and log.stat().st_size > 0):
            return None
        head = os.pread(_index_of(path), INDEX, 0)
    except OSError:
        return None  # no index: the last one who had the store open closed it in order
    if len(head) < INDEX or not head[12]:
        return None
    frames, folded = struct.unpack_from("=I", head, 16)[0], struct.unpack_from("=I", head, 96)[0]
    if frames <= folded:
        return None
    return f"it is gone, with {frames - folded:,} frames that were not in the file yet"


def lost(path: Path) -> str | None:
    """What cannot be read; None if nothing is wrong. Call it after opening, before writing."""
    return _surely(lambda: _look(path))


def _surely(look: Callable[[], str | None]) -> str | None:
    problem = look()
    for _ in range(TRIES - 1):
        if problem is None:
            return None
        clock.sleep(REST_S)
        if look() != problem:
            return None
    return problem


def _look(path: Path) -> str | None:
    try:
        with open(f"{path}-wal", "rb") as log:
            return _compare(log, _index_of(path))
    except OSError:
        return None  # no log, or the last one who had the store open has removed it


def _index_of(path: Path) -> int:
    """A descriptor of the shared index, which stays open: to close it would take away the locks
    that SQLite has on this file in this process."""
    name = f"{path}-shm"
    with _lock:
        known = _indexes.get(name)
        there = os.stat(name)
        if known is None or not os.path.samestat(os.fstat(known), there):
            known = _indexes[name] = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        return known


def _compare(log: BinaryIO, index: int) -> str | None:
    header = log.read(HEADER)
    if len(header) < HEADER:
        return None
    magic, _, page, _, *_ = struct.unpack(">8I", header)
    held = _size(log) - HEADER
    if held < FRAME + 512 or header == bytes(HEADER):
        return None
    if magic not in MAGIC or _checksum(header[:24], magic) != struct.unpack(">2I", header[24:]):
        return f"its header is damaged, and {held:,} bytes behind it cannot be read"
    readable = struct.unpack("=I", os.pread(index, 4, 16))[0]
    salts, commits, frames = header[16:24], list[int](), 0
    for frame in range(1, held // (FRAME + page) + 1):
        log.seek(HEADER + (frame - 1) * (FRAME + page))
        head = log.read(FRAME)
        if head[8:16] != salts:  # of an earlier round, which is in the file already
            break
        frames = frame
        if head[4:8] != b"\0\0\0\0":
            commits.append(frame)
    unread = [frame for frame in commits if readable < frame < frames]
    if not unread:
        return None
    return (
        f"it is damaged behind frame {readable:,} of {frames:,}: {len(unread):,} commits are lost"
    )


def _size(log: BinaryIO) -> int:
    size = log.seek(0, 2)
    log.seek(0)
    return size


def _checksum(data: bytes, magic: int) -> tuple[int, int]:
    first = second = 0
    words = struct.unpack(f"{'>' if magic & 1 else '<'}{len(data) // 4}I", data)
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second
