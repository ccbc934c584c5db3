"""Handlers on their way to the executors: an option of the stream, by value where they must be."""

# pyright: basic

from __future__ import annotations

import base64
import io
from typing import Any

import msgspec
from pyspark import cloudpickle

_CACHE = "__msgspec_cache__"
_MADE = (
    *("__struct_fields__", "__struct_config__", "__struct_defaults__", "__struct_encode_fields__"),
    *("__match_args__", "__dict__", "__weakref__", "__slots__", "__annotations__", _CACHE),
)
"""What msgspec makes of a class, and will make again."""


def dump_plan(plan: Any) -> str:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(plan)
    return base64.b64encode(buffer.getvalue()).decode()


def load_plan(text: str) -> Any:
    return cloudpickle.loads(base64.b64decode(text))


class _Pickler(cloudpickle.Pickler):
    """Types of the script that was started travel by value. What msgspec keeps on them does not."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__":
            if issubclass(obj, msgspec.Struct):
                return _struct, _parts(obj)
            if _CACHE in vars(obj):
                delattr(obj, _CACHE)
        return super().reducer_override(obj)


def _parts(cls: type[msgspec.Struct]) -> tuple[Any, ...]:
    fields: list[tuple[Any, ...]] = []
    for field in msgspec.structs.fields(cls):
        if field.default is not msgspec.NODEFAULT:
            default = (field.default,)
        elif field.default_factory is not msgspec.NODEFAULT:
            default = (msgspec.field(default_factory=field.default_factory),)
        else:
            default = ()
        fields.append((field.name, field.type, *default))
    config = {name: getattr(cls.__struct_config__, name) for name in _CONFIG}
    renamed = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    own = {name: value for name, value in vars(cls).items() if name not in (*_MADE, *renamed)}
    return cls.__name__, fields, cls.__bases__, config, renamed, own


_CONFIG = (
    *("tag", "tag_field", "omit_defaults", "forbid_unknown_fields", "frozen", "order", "eq"),
    *("array_like", "gc", "weakref", "dict", "cache_hash"),
)


def _struct(
    name: str,
    fields: list[tuple[Any, ...]],
    bases: tuple[type, ...],
    config: dict[str, Any],
    renamed: dict[str, str],
    own: dict[str, Any],
) -> type:
    rename = {mine: theirs for mine, theirs in renamed.items() if mine != theirs}
    return msgspec.defstruct(
        name,
        fields,
        bases=bases,
        module="__main__",
        namespace=own,
        rename=rename or None,
        **config,
    )
