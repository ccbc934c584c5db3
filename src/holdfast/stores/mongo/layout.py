"""What lies where: the collections, their indexes, and the view for people. See docs/adr/0010.

A message is one document, wherever in its life it is, but for the log. Its fields have short
names: they are sent and read with each message.

_id  home/id      q   number of the queue   st  READY, DELAYED, LEASED or ODD
pt   partition    rk  9 - lane              pl  place      sq  place when it was first enqueued
pr   priority     ky  key                   ty  type       ct  content type, if not JSON
hd   headers      bd  body                  ea  enqueued   av  available
at   attempts     to  own ack time-out      mx  own maximum of attempts
bo   own backoff  hi  history               fl  first leased
tk   last token   vb  how its lease ended   dl  deadline   la  leased at
ow   owner        ba  name of the batch that holds it
fe   token of a fenced lease that nobody has confirmed    fw  what that lease wrote over
pm   who made it ready, if others were at it
mo   token of a move to another home that is under way    mf  which it comes from (see homes.py)
In the log the _id is queue/id, and queue/id/token from the second time on that an id finished.
Also: fa finished at, ss status, rs result, on by the clock on the wall.
"""

from __future__ import annotations

from typing import Any

from pymongo import IndexModel

VERSION = 2
"""1: no counts of partitions, no fenced leases."""

READY, DELAYED, LEASED, ODD = 0, 1, 2, 9

MESSAGES, LOG, QUEUES, COUNTS = "messages", "log", "queues", "counts"
META, CLAIMS, RECORDS, EVENTS, TASKS = "meta", "claims", "records", "events", "tasks"

Doc = dict[str, Any]


def _of_state(*keys: str, state: int, name: str) -> IndexModel:
    pairs = [(key, 1) for key in ("q", "st", *keys)]
    return IndexModel(pairs, name=name, partialFilterExpression={"st": state})


INDEXES: dict[str, list[IndexModel]] = {
    MESSAGES: [
        _of_state("pt", "rk", "pl", state=READY, name="ready"),
        _of_state("av", "sq", state=DELAYED, name="delayed"),
        _of_state("dl", "sq", state=LEASED, name="leased"),
        IndexModel(
            [("ba", 1), ("_id", 1)], name="batch", partialFilterExpression={"ba": {"$gt": ""}}
        ),
        IndexModel(
            [("q", 1), ("pt", 1), ("fe", 1)],
            name="fenced",
            partialFilterExpression={"fe": {"$gt": ""}},
        ),
    ],
    LOG: [IndexModel([("q", 1), ("fa", 1), ("sq", 1)], name="finished")],
    COUNTS: [IndexModel([("q", 1)], name="queue")],
    QUEUES: [IndexModel([("qid", 1)], name="qid", unique=True)],
}

_INT: Doc = {"bsonType": ["int", "long"]}
_TICK: Doc = {"bsonType": "timestamp"}
_TEXT: Doc = {"bsonType": "string"}
_BYTES: Doc = {"bsonType": "binData"}
_CONTENT: Doc = {
    **dict.fromkeys(("q", "pt", "rk", "pr", "ea", "av", "at", "mx", "fl"), _INT),
    **dict.fromkeys(("ky", "ty", "ct", "hd", "bo", "hi"), _TEXT),
    **dict.fromkeys(("pl", "sq"), _TICK),
    "_id": {"bsonType": "string", "pattern": "^[0-9]+/.{36}$"},
    "to": {"bsonType": ["double", "int", "long"]},
    "bd": _BYTES,
}
_ALWAYS = ["_id", "q", "pt", "sq", "pr", "ea", "av", "at", "bd"]
SOUND: Doc = {
    "required": [*_ALWAYS, "st", "rk", "pl"],
    "properties": {**_CONTENT, "st": {"enum": [READY, DELAYED, LEASED]}},
    "anyOf": [
        {"properties": {"st": {"enum": [READY, DELAYED]}}},
        {
            "required": ["tk", "dl", "la", "ow"],
            "properties": {"tk": _TEXT, "ow": _TEXT, "dl": _INT, "la": _INT},
        },
    ],
}
"""A message that Holdfast can read, as a JSON schema: `holdfast doctor` looks for others."""
SOUND_LOG: Doc = {
    "required": [*_ALWAYS, "fa", "ss"],
    "properties": {
        **_CONTENT,
        "_id": {"bsonType": "string", "pattern": "^[0-9]+/[^/]{36}(/.+)?$"},
        "fa": _INT,
        "la": _INT,
        "ss": _TEXT,
        "ow": _TEXT,
        "rs": _BYTES,
    },
}


def as_long(of: Any) -> Doc:
    """As the one kind of number that is a date; nothing where there is nonsense, which would else
    end the whole view with an error."""
    return {"$convert": {"input": of, "to": "long", "onError": None, "onNull": None}}


def _date(of: Doc) -> Doc:
    return {"$convert": {"input": of, "to": "date", "onError": None, "onNull": None}}


def tasks(queues: str, log: str) -> list[Doc]:
    """The view for people: a message in the words that most task collections have."""
    named: list[Doc] = [
        {"$lookup": {"from": queues, "localField": "q", "foreignField": "qid", "as": "of"}},
        {"$set": {"of": {"$first": "$of._id"}}},
    ]
    dead = {"$regexMatch": {"input": {"$ifNull": ["$of", ""]}, "regex": r"\.dlq$"}}
    waiting: Doc = {"$cond": [dead, "failed", "pending"]}
    leased: Doc = {"$eq": ["$st", LEASED]}
    status: Doc = {
        "$switch": {
            "branches": [
                {"case": {"$gt": ["$fa", None]}, "then": "done"},
                {"case": leased, "then": "processing"},
                {"case": {"$in": ["$st", [READY, DELAYED]]}, "then": waiting},
            ],
            "default": "damaged",
        }
    }
    key = {"$convert": {"input": "$_id", "to": "string", "onError": "", "onNull": ""}}
    times = [as_long(name) for name in ("$ea", "$la", "$ua", "$fa")]
    shown: Doc = {
        "_id": 1,
        "id": {"$arrayElemAt": [{"$split": [key, "/"]}, 1]},
        "queue": "$of",
        "status": status,
        "created_at": _date(as_long("$ea")),
        "updated_at": _date({"$max": times}),
        "attempts": "$at",
        "next_retry_at": {
            "$cond": [{"$eq": ["$st", DELAYED]}, _date(as_long("$av")), "$$REMOVE"],
        },
        "deadline": {"$cond": [leased, _date(as_long("$dl")), "$$REMOVE"]},
        "owner": {"$cond": [leased, "$ow", "$$REMOVE"]},
        "finished_at": _date(as_long("$fa")),
        "backoff_policy": "$bo",
        "error": "$er",
        "partition": "$pt",
        "priority": "$pr",
        "key": "$ky",
        "type": "$ty",
        "headers": "$hd",
        "history": "$hi",
        "payload": "$bd",
    }
    return [{"$unionWith": log}, *named, {"$project": shown}]
