"""holdfast doctor on a MongoDB: what it may lose, that it needs a replica set, what was edited."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from pymongo import MongoClient

import holdfast
from holdfast.cli import root
from servers.mongo import FAST, running


def doctor(url: str, code: int = 0) -> dict[str, tuple[str, str]]:
    result = CliRunner().invoke(root, ["--url", url, "doctor", "--json"])
    assert result.exit_code == code
    docs = [json.loads(line) for line in result.stdout.splitlines()]
    return {doc["check"]: (doc["status"], doc["text"]) for doc in docs}


def test_a_server_that_is_well(mongo_url: str) -> None:
    said = doctor(mongo_url)
    assert {status for status, _ in said.values()} == {"ok"}
    assert said["durability"][1] == (
        "w=majority, journal=true: neither a crash nor a failover loses what was answered"
    )
    assert said["replica set"][1] == "rs0"
    assert said["server"][1].startswith("MongoDB ")


@pytest.mark.parametrize("weak", ["w=1", "journal=false"])
def test_what_a_failover_would_lose(mongo_url: str, weak: str) -> None:
    status, text = doctor(f"{mongo_url}&{weak}")["durability"]
    assert status == "warn"
    assert "may lose the last writes" in text


def test_a_standalone_is_told_how_to_become_a_replica_set() -> None:
    with running(set_name=None, options=FAST) as server:
        said = doctor(server.url, code=1)
    assert "FAIL" in {status for status, _ in said.values()}
    assert any("mongod --replSet rs0" in text for _, text in said.values())


def test_a_document_that_somebody_edited_is_named(mongo_url: str) -> None:
    with holdfast.connect(mongo_url) as hf, MongoClient(mongo_url) as client:
        edited, sound = hf.queue("orders").enqueue_many(["a", "b"])
        messages = client.get_default_database()["holdfast.messages"]
        messages.update_one({"_id": {"$regex": edited.id}}, {"$set": {"at": "three"}})
    status, text = doctor(mongo_url)["documents"]
    assert status == "warn"
    assert edited.id in text
    assert sound.id not in text
