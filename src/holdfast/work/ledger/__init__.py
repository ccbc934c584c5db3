"""The ledger of Spark's queries: which batch each one holds, and what became of its messages."""

from holdfast.work.ledger.batches import RESERVED_MS, Batches
from holdfast.work.ledger.parts import PAGE, Part, read
from holdfast.work.ledger.query import (
    LOST_MS,
    QUERY,
    STRAY_MS,
    Offset,
    OnLost,
    Past,
    Query,
    QueryFenced,
    QueryNotFound,
    StaleCheckpoint,
    find,
    is_alive,
    queries,
    state_of,
)
from holdfast.work.ledger.upkeep import (
    FORGET_MS,
    LEFTOVER_MS,
    abandon,
    ask_to_stop,
    sweep,
)
from holdfast.work.ledger.verdicts import (
    VERDICT,
    Judged,
    decode_judged,
    encode_judged,
    judge,
    publish,
)

__all__ = [
    "FORGET_MS",
    "LEFTOVER_MS",
    "LOST_MS",
    "PAGE",
    "QUERY",
    "RESERVED_MS",
    "STRAY_MS",
    "VERDICT",
    "Batches",
    "Judged",
    "Offset",
    "OnLost",
    "Part",
    "Past",
    "Query",
    "QueryFenced",
    "QueryNotFound",
    "StaleCheckpoint",
    "abandon",
    "ask_to_stop",
    "decode_judged",
    "encode_judged",
    "find",
    "is_alive",
    "judge",
    "publish",
    "queries",
    "read",
    "state_of",
    "sweep",
]
