"""Spark's queries and reports, as far as the store knows of them. Needs no Spark."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from holdfast.errors import NotFound, StoreCorrupt
from holdfast.queue.context import Context
from holdfast.queue.records import each_record, find_record
from holdfast.stores.contract import Record
from holdfast.wire import shapes as s
from holdfast.work import ledger
from holdfast.work.ledger import Past, Query

REPORT = "report"
"""Records that a report job writes, named by when it was made, so that the last is the newest."""
PAGE_OF_REPORT = "report-page"
"""Under the same name: the report as one HTML page, in gzip."""
HTML_MAX = 32 * 1024 * 1024
STEP = 500
_ID = re.compile(r"[0-9]{1,15}")


class Report(msgspec.Struct, frozen=True):
    """What the record of a report holds."""

    made_at: int
    title: str = ""
    lake: str = ""
    rows: int = 0
    summary: Raw = Raw(b"null")


_decode = msgspec.json.Decoder(Report).decode


def pipelines(at: Context, may_read: Callable[[str], bool]) -> s.PipelinesDoc:
    found = [query for query in ledger.queries(at) if may_read(query.queue)]
    now = at.clock.now()
    known = {spec.name for spec in at.store.queues()}
    names = list(dict.fromkeys(query.queue for query in found if query.queue in known))
    stats = at.store.stats(names, now) if names else []
    backlogs = {one.queue: one.ready + one.delayed for one in stats}
    docs = [_pipeline(query, backlogs.get(query.queue), now) for query in found]
    return s.PipelinesDoc(docs, now)


def _pipeline(query: Query, backlog: int | None, now: int) -> s.PipelineDoc:
    return s.PipelineDoc(
        query=query.id,
        name=query.name,
        queue=query.queue,
        state=ledger.state_of(query, now),
        batch=query.batch,
        held=query.held,
        sealed=query.sealed,
        since=query.reserved_at if query.hold else None,
        backlog=backlog,
        done=query.done,
        retried=query.retried,
        dead=query.dead,
        on_lost=query.on_lost,
        started_at=query.started_at,
        seen_at=query.seen_at,
        settled_at=query.settled_at or None,
        batch_ms=query.batch_ms,
        history=[_batch(past) for past in query.history],
    )


def _batch(past: Past) -> s.BatchDoc:
    fields: dict[str, Any] = msgspec.structs.asdict(past)
    return s.BatchDoc(**fields)


def reports(at: Context, limit: int) -> s.ReportsDoc:
    """The newest. Records are read in the order of their names: the oldest come first."""
    last = deque(each_record(at.store, REPORT, page=STEP), maxlen=limit)
    return s.ReportsDoc([_report(record) for record in reversed(last)])


def report(at: Context, id: str) -> s.ReportDoc:
    found, page = _record(at, REPORT, id), _record(at, PAGE_OF_REPORT, id)
    if found is None:
        raise NotFound(f"no report {id[:100]!r}")
    html = None if page is None else _unpacked(id, page.value)
    return msgspec.structs.replace(_report(found), html=html)


def _record(at: Context, kind: str, id: str) -> Record | None:
    return find_record(at.store, kind, id) if _ID.fullmatch(id) else None


def _report(record: Record) -> s.ReportDoc:
    try:
        told = _decode(record.value)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"the record of report {record.name} is damaged: {error}") from error
    summary = UNSET if bytes(told.summary) == b"null" else told.summary
    return s.ReportDoc(record.name, told.made_at, told.title, told.lake, told.rows, summary)


def _unpacked(id: str, value: bytes) -> str:
    """No more than HTML_MAX: a small file may unpack to a very large one."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(value)) as packed:
            html = packed.read(HTML_MAX + 1)
        if len(html) > HTML_MAX:
            raise StoreCorrupt(f"the page of report {id} is larger than {HTML_MAX} bytes")
        return html.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise StoreCorrupt(f"the page of report {id} is damaged: {error}") from error
