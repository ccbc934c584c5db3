"""Redrives that outlive the process that started them.

A job is one record in the store: what was asked, how far it is, who works it and until when. Who
works it writes the record after every batch, by compare-and-set, which at once renews the right to
go on, keeps what was done, and finds out whether somebody asked to stop. A runner that falls silent
loses the job after 15 seconds; the next one goes on at the page that the record names.

Whoever works a job, each message moves in one atomic step from the place where it stood when the
job began: two runners at once move none twice, and what died since is not theirs. Each batch is
written down before it is moved, so that the next runner counts what was moved of it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.errors import HoldfastError, InvalidArgument, NotFound, StoreError, StoreUnavailable
from holdfast.model.message import check_id, new_ids
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.records import each_record, find_record
from holdfast.queue.redrive.choosing import Options, checked
from holdfast.queue.redrive.moving import Tally, counted, named, news, planned, recounted, walk
from holdfast.stores.contract import Record, View

KIND = "redrive"
SILENT_MS = 15_000
"""A job of which nothing was heard for so long is anybody's."""
NEWS_S = 1.0
"""Between two events about a job's progress, and between two signs of life while it waits."""
POLL_S = 1.0
AT_ONCE = 8
"""Jobs that a runner works side by side: one with a low rate holds up no other."""
KEPT_MS = 86_400_000
"""A job is kept for a day after its end."""
PAGE = 200

JobState = Literal["running", "done", "cancelled", "failed"]
logger = logging.getLogger("holdfast.redrive")


class RedriveJob(msgspec.Struct, frozen=True):
    """A redrive as the store knows it. Times are milliseconds by the store's clock."""

    id: str
    dlq: str
    to: str
    """The queue that they go to."""
    options: Options
    total: int
    """Dead letters when it began, those included that somebody holds."""
    missing: int
    """Ids that were asked for and were not among them."""
    created_at: int
    updated_at: int
    tally: Tally
    state: JobState = "running"
    cancelling: bool = False
    finished_at: int | None = None
    error: str | None = None
    owner: str = ""
    expires_at: int = 0
    """Until then it is the owner's."""
    revision: int = 0
    """Of the record it was read from."""

    @property
    def redriven(self) -> int:
        return self.tally.redriven

    @property
    def looked(self) -> int:
        return self.tally.looked

    @property
    def skipped(self) -> int:
        return self.tally.skipped


class RedriveNotFound(NotFound):
    """No redrive has that id; finished ones are kept for a day."""


_decode = msgspec.json.Decoder(RedriveJob).decode


def start_redrive(at: Context, dlq: Any, count: int = 0, **options: Any) -> RedriveJob:
    """Write a job down; a `RedriveRunner` works it. Checks what `redrive` checks."""
    named(dlq)
    asked, edit = checked(count, **options)
    if asked.edit is not edit:
        raise InvalidArgument("edit", "must be an Edit: a function cannot be stored")
    plan = planned(at, dlq, asked, edit)
    total, missing = counted(at, plan)
    now = at.clock.now()
    end = at.store.browse(View(dlq), None, 1, now).end
    id = next(new_ids(1, now))
    job = RedriveJob(id, dlq, plan.to, asked, total, missing, now, now, Tally(end=end))
    at.store.put_record(KIND, id, msgspec.json.encode(job), 0, now)
    return replace(job, revision=1)


def get_redrive(at: Context, id: Any) -> RedriveJob:
    job = _stored(at, check_id(id))
    if job is None:
        raise RedriveNotFound(f"no redrive {id}")
    return job


def list_redrives(at: Context) -> list[RedriveJob]:
    """The newest first: what runs, and what ended within a day."""
    return sorted(_all(at), key=lambda job: job.id, reverse=True)


def cancel_redrive(at: Context, id: Any) -> RedriveJob:
    """Ask a job to stop after the batch it is at; one that has ended stays as it is."""
    while True:
        job, now = get_redrive(at, id), at.clock.now()
        if job.state != "running":
            return job
        asked = replace(job, cancelling=True)
        if job.expires_at <= now:  # nobody is there who could hear it
            asked = replace(asked, state="cancelled", finished_at=now)
        if written := _write(at, asked):
            return written


def forget(at: Context, now: int) -> int:
    """Drop the jobs that ended more than a day ago; how many."""
    old = [job for job in _all(at) if (job.finished_at or now) < now - KEPT_MS]
    return sum(at.store.put_record(KIND, job.id, None, job.revision, now) for job in old)


class RedriveRunner:
    """Works the jobs of a store. Any number may run, in any processes."""

    def __init__(self, context: Context, settings: Settings) -> None:
        del settings  # nothing of a job is set by the environment yet
        self._at = context
        self._halt = threading.Event()
        self._wake = threading.Event()
        self._looking: threading.Thread | None = None
        self._working: list[threading.Thread] = []

    def start(self) -> None:
        """Look for jobs in a thread of its own, and work each in one."""
        self._halt.clear()
        self._looking = threading.Thread(target=self._look, name="holdfast-redrive", daemon=True)
        self._looking.start()

    def wake(self) -> None:
        """There may be a new job: look at once."""
        self._wake.set()

    def stop(self) -> None:
        """Stop after the batches under way; the jobs are free for others at once."""
        self._halt.set()
        self._wake.set()
        for thread in (self._looking, *self._working):
            if thread is not None:
                thread.join()

    def run_pending(self) -> int:
        """Work here and now, one after the other, every job that nobody works; how many."""
        worked = 0
        for job in self._takes():
            _Work(self._at, job, self._halt).run()
            worked += 1
        return worked

    def _look(self) -> None:
        while not self._halt.is_set():
            try:
                self._begin()
            except StoreError as error:
                logger.warning("no look at redrives: %s", error)
            self._wake.wait(POLL_S)
            self._wake.clear()

    def _begin(self) -> None:
        self._working = [thread for thread in self._working if thread.is_alive()]
        if len(self._working) >= AT_ONCE:
            return
        for job in self._takes():
            thread = threading.Thread(target=_Work(self._at, job, self._halt).run, daemon=True)
            thread.start()
            self._working.append(thread)
            if len(self._working) >= AT_ONCE:
                return

    def _takes(self) -> Iterator[RedriveJob]:
        for job in _all(self._at):
            now = self._at.clock.now()
            if job.state == "running" and job.expires_at <= now and not self._halt.is_set():
                # A name for each time: a thread that comes back after a long sleep is another one.
                owner = f"{self._at.owner}/{secrets.token_hex(3)}"
                mine = replace(job, owner=owner, expires_at=now + SILENT_MS)
                if taken := _write(self._at, mine):
                    yield taken


class _Lost(Exception):
    """The job went on without us: another runner has it, or it is gone."""


class _Work:
    """One job in the hands of one runner."""

    def __init__(self, at: Context, job: RedriveJob, halt: threading.Event) -> None:
        self._at = at
        self._job = job
        self._halt = halt
        self._heard = self._told = at.clock.monotonic()

    def run(self) -> None:
        try:
            self._run()
        except _Lost:
            logger.info("redrive %s of %s is worked elsewhere", self._job.id, self._job.dlq)
        except StoreUnavailable as error:  # nothing can be written down: it is taken up later
            logger.warning("redrive %s of %s: %s", self._job.id, self._job.dlq, error)
        except Exception:
            logger.exception("redrive %s of %s broke off", self._job.id, self._job.dlq)

    def _run(self) -> None:
        job = self._job
        try:
            plan = planned(self._at, job.dlq, job.options, job.options.edit)
            plan = replace(plan, began_at=job.created_at)
            begun = recounted(self._at, job.dlq, job.tally)
            for tally in walk(self._at, plan, begun, self._stopped, ahead=not job.options.dry_run):
                self._save(tally=tally)
                self._tell()
        except StoreUnavailable:
            raise
        except HoldfastError as error:
            self._end("failed", error=str(error))
        else:
            self._leave()

    def _leave(self) -> None:
        """It came to its end, or was asked to stop, or this runner was: then others may have it."""
        if self._job.tally.ended:
            self._end("done")
        elif self._job.cancelling:
            self._end("cancelled")
        else:
            self._save(expires_at=0)

    def _stopped(self) -> bool:
        """Asked before every batch, and again and again while a rate makes it wait."""
        now = self._at.clock.monotonic()
        if now - self._heard >= NEWS_S:
            self._save()
        return self._job.cancelling or self._halt.is_set()

    def _end(self, state: JobState, *, error: str | None = None) -> None:
        self._save(state=state, error=error, finished_at=self._at.clock.now(), expires_at=0)
        self._publish()

    def _save(self, **changes: Any) -> None:
        while True:
            expires_at = self._at.clock.now() + SILENT_MS
            wanted = replace(self._job, **{"expires_at": expires_at, **changes})
            if written := _write(self._at, wanted):
                self._job = written
                self._heard = self._at.clock.monotonic()
                return
            stored = _stored(self._at, self._job.id)
            if stored is None or (stored.owner, stored.state) != (self._job.owner, "running"):
                raise _Lost
            self._job = replace(self._job, revision=stored.revision, cancelling=stored.cancelling)

    def _tell(self) -> None:
        now = self._at.clock.monotonic()
        if now - self._told >= NEWS_S and not self._job.tally.ended:
            self._told = now
            self._publish()

    def _publish(self) -> None:
        job = self._job
        self._at.store.publish([news(self._at, job.dlq, job.to, job.redriven, job.id, job.state)])


def _all(at: Context) -> Iterator[RedriveJob]:
    return map(_read, each_record(at.store, KIND, page=PAGE))


def _stored(at: Context, id: str) -> RedriveJob | None:
    record = find_record(at.store, KIND, id)
    return record and _read(record)


def _read(record: Record) -> RedriveJob:
    return replace(_decode(record.value), revision=record.revision, updated_at=record.updated_at)


def _write(at: Context, job: RedriveJob) -> RedriveJob | None:
    """The job as it is written; None: somebody else has changed it meanwhile."""
    now = at.clock.now()
    job = replace(job, updated_at=now)
    if not at.store.put_record(KIND, job.id, msgspec.json.encode(job), job.revision, now):
        return None
    return replace(job, revision=job.revision + 1)
