"""The queue on Spark: as a source, as a sink, the handlers of a worker on a cluster; and what the
queue has done: archived, reported, put back, taken elsewhere."""

# pyright: basic

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import MissingExtra

if TYPE_CHECKING:
    from holdfast.spark.lake.archive import archive, forget
    from holdfast.spark.lake.copying import copy
    from holdfast.spark.lake.tables import archived
    from holdfast.spark.lake.triage import outcomes, redrive, triage
    from holdfast.spark.monitoring import monitor
    from holdfast.spark.reports.making import report
    from holdfast.spark.runner import Transform, run, transform
    from holdfast.spark.sessions import session
    from holdfast.spark.source import register

__all__ = [
    "Transform",
    "archive",
    "archived",
    "copy",
    "forget",
    "monitor",
    "outcomes",
    "redrive",
    "register",
    "report",
    "run",
    "session",
    "transform",
    "triage",
]

# Looked up when they are used: an executor imports the source alone.
_PARTS = {
    "Transform": "runner",
    "archive": "lake.archive",
    "archived": "lake.tables",
    "copy": "lake.copying",
    "forget": "lake.archive",
    "monitor": "monitoring",
    "outcomes": "lake.triage",
    "redrive": "lake.triage",
    "register": "source",
    "report": "reports.making",
    "run": "runner",
    "session": "sessions",
    "transform": "runner",
    "triage": "lake.triage",
}


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module 'holdfast.spark' has no attribute {name!r}")
    try:
        import_module("holdfast.spark.sessions").check_version()
        return getattr(import_module(f"holdfast.spark.{_PARTS[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("holdfast"):
            raise
        raise MissingExtra("holdfast.spark needs: pip install 'holdfast[spark]'") from error
