"""Looking at messages, and putting them back: replays and redrives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.model.message import check_id, dlq_of
from holdfast.queue import failures
from holdfast.queue.redrive import DeadFilter, Edit, RedriveJob
from holdfast.server.auth import Principal
from holdfast.server.browsing import detail, page, replay_range
from holdfast.server.handles import Handles
from holdfast.server.leases import decoded
from holdfast.server.limits import Limits
from holdfast.server.sizes import walk
from holdfast.wire import shapes as s


class Reading:
    def __init__(self, handles: Handles, limits: Limits, started: Callable[[], None]) -> None:
        """`started` is called when there is a new redrive to work on."""
        self._handles = handles
        self._at = handles.context
        self._limits = limits
        self._started = started

    def browse(self, ask: s.BrowseAsk) -> s.PageDoc:
        return page(self._handles.existing(ask.queue), ask, self._limits.answer_bytes)

    def get_message(self, ask: s.MessageAsk) -> s.DetailDoc:
        return detail(self._handles.existing(ask.queue), check_id(ask.id))

    def read_log(self, ask: s.LogAsk) -> s.LogDoc:
        found = page(
            self._handles.existing(ask.queue),
            s.BrowseAsk(ask.queue, "log", ask.after, ask.limit, ask.since, ask.until),
            self._limits.answer_bytes,
        )
        rows = [entry.finished for entry in found.entries if entry.finished is not None]
        return s.LogDoc(rows, found.after)

    def replay(self, ask: s.ReplayAsk) -> s.MessagesDoc:
        queue = self._handles.existing(ask.queue)
        if ask.id is None and (ask.since is not None or ask.until is not None):
            return replay_range(queue, ask, self._limits.answer_bytes)
        made = queue.replay(ask.id, since=ask.since, until=ask.until)
        return s.MessagesDoc([s.MessageDoc.of(message) for message in made])

    def list_failures(self, ask: s.FailuresAsk) -> s.FailuresDoc:
        dlq = self._handles.existing(dlq_of(self._handles.existing(ask.queue).name))
        read = partial(walk, budget=self._limits.answer_bytes)
        found = failures.failure_groups(self._at, dlq.name, scan=ask.scan, read=read)
        return s.FailuresDoc(
            found.dlq,
            [_failure(group) for group in found.groups],
            found.looked,
            found.total,
            found.bucket_ms,
        )

    def redrive(self, ask: s.RedriveAsk) -> s.RedrivenDoc:
        done = self._handles.hf.redrive(ask.dlq_queue, ask.count, **_redrive_options(ask))
        return s.RedrivenDoc(**msgspec.structs.asdict(done))

    def start_redrive(self, ask: s.RedriveAsk) -> s.RedriveDoc:
        job = self._handles.hf.start_redrive(ask.dlq_queue, ask.count, **_redrive_options(ask))
        self._started()
        return _job(job)

    def list_redrives(self, ask: s.NoAsk, who: Principal) -> s.RedrivesDoc:
        jobs = [job for job in self._handles.hf.list_redrives() if who.may("read", job.dlq)]
        return s.RedrivesDoc([_job(job) for job in jobs])

    def get_redrive(self, ask: s.RedriveIdAsk, who: Principal) -> s.RedriveDoc:
        job = self._handles.hf.get_redrive(ask.id)
        who.demand("read", job.dlq)
        return _job(job)

    def cancel_redrive(self, ask: s.RedriveIdAsk, who: Principal) -> s.RedriveDoc:
        who.demand("admin", self._handles.hf.get_redrive(ask.id).dlq)
        return _job(self._handles.hf.cancel_redrive(ask.id))


def _redrive_options(ask: s.RedriveAsk) -> dict[str, Any]:
    where = None
    if ask.where is not None:
        given = msgspec.structs.asdict(ask.where)
        given["fields"] = decoded("where.fields", ask.where.fields)
        where = DeadFilter(**{name: value for name, value in given.items() if value is not None})
    edit = None
    if ask.payload is not UNSET or ask.merge is not UNSET:
        chosen = {"payload": ask.payload, "merge": ask.merge}
        given = {name: decoded(name, raw) for name, raw in chosen.items() if raw is not UNSET}
        edit = Edit(**given)
    return {
        "ids": ask.ids,
        "where": where,
        "rate": ask.rate,
        "to": ask.to,
        "edit": edit,
        "dry_run": ask.dry_run,
    }


def _failure(group: failures.FailureGroup) -> s.FailureDoc:
    fields = msgspec.structs.asdict(group)
    fields["by_time"] = [s.BucketDoc(at, count) for at, count in group.by_time]
    return s.FailureDoc(**fields)


def _job(job: RedriveJob) -> s.RedriveDoc:
    return s.RedriveDoc(**{name: getattr(job, name) for name in s.RedriveDoc.__struct_fields__})
