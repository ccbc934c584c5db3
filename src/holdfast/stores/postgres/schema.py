"""The schema's name in the statements, which are written for the schema `holdfast`."""

from __future__ import annotations

import re
from typing import LiteralString, cast

# A literal is left alone unless all of it is the name of a table or a sequence.
_NAMES = re.compile(
    r"(?P<comment>--[^\n]*)|(?P<whole>'holdfast\.\w+')|(?P<literal>'(?:[^']|'')*')"
    r"|(?P<name>\bholdfast(?=\.)|(?<=SCHEMA IF NOT EXISTS )holdfast\b)"
)


def quoted(name: str) -> str:
    """`user` is a good name for a schema, and a word of SQL."""
    return f'"{name}"'


def in_schema(statement: str, schema: str) -> LiteralString:
    """A statement for another schema: names of ours are changed, literals and comments are not."""
    name = quoted(schema)

    def named(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "name":
                return name
            case "whole":
                return found[0].replace("holdfast", name, 1)
            case _:
                return found[0]

    return cast(LiteralString, _NAMES.sub(named, statement))
