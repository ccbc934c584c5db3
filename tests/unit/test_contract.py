"""The contract of a store stays narrow: whoever widens it meets these tests first."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.stores import SCHEMES, contract

METHODS_MAX = 18
WRITES = {"enqueue", "lease", "settle", "drop", "restore"}
READS = {"browse", "find", "split", "stats", "wait"}
QUEUES = {"put_queues", "queues", "delete_queues"}
LIFE = {"migrate", "close", "time", "tidy"}
BOARD = {
    "claim",
    "claims",
    "put_record",
    "records",
    "drop_records",
    "publish",
    "subscribe",
}
OPTIONAL = {
    contract.Columnar: {"read_arrow", "leased_arrow", "arrow_walks"},
    contract.Inspectable: {"look"},
}


def methods(protocol: type) -> set[str]:
    """Those that the protocol itself declares."""
    return {name for name, value in vars(protocol).items() if inspect.isfunction(value)} - {
        "__init__",
        "__subclasshook__",
    }


def test_the_contract_has_no_more_methods_than_agreed() -> None:
    found = methods(contract.Messages)
    assert found == LIFE | QUEUES | WRITES | READS
    assert len(found) <= METHODS_MAX
    assert len(WRITES) == 5
    assert methods(contract.Board) == BOARD
    assert methods(contract.Store) == set(), "it only joins the two"


def test_what_a_store_may_have_besides_is_declared() -> None:
    assert {protocol: methods(protocol) for protocol in OPTIONAL} == OPTIONAL
    stores = {module for module, _ in SCHEMES.values()}
    able = {
        (module, ability.__name__)
        for module in stores
        for ability in OPTIONAL
        if issubclass(_class_of(module), ability)
    }
    assert able == {
        ("holdfast.stores.postgres", "Columnar"),
        ("holdfast.stores.postgres", "Inspectable"),
        ("holdfast.stores.redis", "Inspectable"),
        ("holdfast.stores.mongo", "Inspectable"),
    }


@pytest.mark.parametrize("module", sorted({module for module, _ in SCHEMES.values()}))
def test_a_store_has_the_methods_of_the_contract_with_their_parameters(module: str) -> None:
    store = _class_of(module)
    for name in LIFE | QUEUES | WRITES | READS | BOARD:
        declared = vars(contract.Messages).get(name) or vars(contract.Board)[name]
        if name in ("lease", "settle", "drop", "stats"):  # several kinds: checked by their types
            continue
        wanted, has = (
            list(inspect.signature(method).parameters)
            for method in (declared, getattr(store, name))
        )
        assert has == wanted, name


def _class_of(module: str) -> type:
    """What the `open_url` of a store makes."""
    found = import_module(module)
    name = inspect.signature(found.open_url).return_annotation
    return getattr(import_module(found.open_url.__module__), name)


def test_nobody_asks_a_store_by_name_for_what_it_may_have() -> None:
    """Such abilities are protocols: `isinstance` knows them, and so does the type checker."""
    asked = re.compile(r"(has|get)attr\((\w+\.)*_?(store|Store)\b")
    root = Path(contract.__file__).parents[1]
    found = [
        str(path)
        for path in root.rglob("*.py")
        if "conformance" not in path.parts and asked.search(path.read_text())
    ]
    assert found == []
