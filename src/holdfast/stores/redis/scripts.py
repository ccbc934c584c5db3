"""The scripts of lua/, each with the files that it includes."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files


class Script:
    """The text of a script, and the name that a server knows it by."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def load(name: str) -> Script:
    """A script of lua/, with the files of lua/include/ in place of each `--#include`."""
    return Script(_text(f"{name}.lua"))


def _text(path: str) -> str:
    text = (files("holdfast.stores.redis") / "lua" / path).read_text()
    return _INCLUDE.sub(lambda found: _text(f"include/{found[1]}.lua"), text)


_INCLUDE = re.compile(r"^ *--#include (\w+)$", re.MULTILINE)

CLAIM = load("claim")
CONSUMERS = load("consumers")
COUNT = load("count")
DROP = load("drop")
ENQUEUE = load("enqueue")
FINISH = load("finish")
LATE = load("late")
LEASE = load("lease")
PUBLISH = load("publish")
QUEUES = load("queues")
READ = load("read")
READY = load("ready")
RECORD = load("record")
RESTORE = load("restore")
RIGHTS = load("rights")
SETTLE = load("settle")
TRIM = load("trim")
UNRECORD = load("unrecord")
WAITING = load("waiting")
