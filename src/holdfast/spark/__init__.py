"""The queue on Spark: as a source, as a sink, and the handlers of a worker on a cluster."""

# pyright: basic

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import MissingExtra

if TYPE_CHECKING:
    from holdfast.spark.runner import Transform, run, transform
    from holdfast.spark.sessions import session
    from holdfast.spark.source import register

__all__ = ["Transform", "register", "run", "session", "transform"]

# Looked up when they are used: an executor imports the source alone.
_PARTS = {
    "Transform": "runner",
    "register": "source",
    "run": "runner",
    "session": "sessions",
    "transform": "runner",
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
