"""Pages, details and holders: what operators look at. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.errors import MessageNotFound
from holdfast.model.message import Finished, Lease, Message, check_id, is_dlq
from holdfast.model.moves import State
from holdfast.queue.queue import Queue, replay_entries
from holdfast.server.backwards import newest
from holdfast.server.entries import Wanted, entry_doc
from holdfast.server.limits import ANSWER_BYTES
from holdfast.server.sizes import READ_ROWS, Steps, entry_size, fitting, pages, size_of
from holdfast.stores.contract import Entry, View
from holdfast.wire import shapes as s

LOOK_MAX = 5000
"""Messages that one page looks at, when filters let few of them through."""
HOLDERS_MAX = 10_000


def page(queue: Queue, ask: s.BrowseAsk, budget: int = ANSWER_BYTES) -> s.PageDoc:
    """Up to `limit` that match, as far as they fit into `budget` bytes. A page that looked at
    LOOK_MAX ends there, and says where."""
    store, now = queue.context.store, queue.context.clock.now()
    wanted = Wanted(ask, now)
    if ask.id is not None:
        one = _one(queue, State(ask.state), check_id(ask.id), now)
        found = [entry_doc(one)] if one is not None and wanted(one.message) else []
        return s.PageDoc(found, None, len(found), now)
    if ask.newest:
        return newest(queue, ask, wanted, now, budget)
    view = View(queue.name, State(ask.state), ask.since, ask.until)
    found: list[s.EntryDoc] = []
    after, looked, used, steps = ask.after, 0, 0, Steps(budget)
    while True:
        left = ask.limit - len(found)
        rows = store.browse(view, after, steps.next(left if wanted.all else left * 4), now)
        steps.seen(rows.entries)
        fit = _fitting(rows.entries, wanted, left, budget - used, has_any=bool(found))
        if not fit and rows.entries:
            return s.PageDoc(found, after, looked, now)
        if fit < len(rows.entries):  # read again, for the cursor behind the last that fits
            rows = store.browse(view, after, fit, now)
        shown = [entry for entry in rows.entries if wanted(entry.message)]
        looked += len(rows.entries)
        used += sum(map(entry_size, shown))
        found += map(entry_doc, shown)
        after = rows.after
        if after is None or len(found) >= ask.limit or looked >= LOOK_MAX:
            return s.PageDoc(found, after, looked, now)


def replay_range(queue: Queue, ask: s.ReplayAsk, budget: int = ANSWER_BYTES) -> s.MessagesDoc:
    """Replay what finished in a range, as far as the answer fits into `budget` bytes. It then says
    where to go on, and where the range ends: what is replayed may finish meanwhile, and must not
    be replayed again and again."""
    store, now = queue.context.store, queue.context.clock.now()
    until = now + 1 if ask.until is None else ask.until
    view = View(queue.name, State.LOG, ask.since, until)
    made: list[Message] = []
    after, used, steps = ask.after, 0, Steps(budget)
    while True:
        rows = store.browse(view, after, steps.next(READ_ROWS), now)
        steps.seen(rows.entries)
        sizes = [size_of(entry.message) for entry in rows.entries]
        if made and sizes and sizes[0] > budget - used:
            return s.MessagesDoc([s.MessageDoc.of(message) for message in made], after, until)
        fit = fitting(sizes, budget - used)
        if fit < len(sizes):  # read again, for the cursor behind the last that fits
            rows = store.browse(view, after, fit, now)
        made += replay_entries(queue.context, rows.entries)
        used += sum(sizes[:fit])
        after = rows.after
        if after is None:
            return s.MessagesDoc([s.MessageDoc.of(message) for message in made])


def _fitting(
    entries: Sequence[Entry], wanted: Wanted, room: int, budget: int, *, has_any: bool
) -> int:
    """How many of the entries may be looked at: those that are wanted have to fit."""
    for n, entry in enumerate(entries):
        if not wanted(entry.message):
            continue
        budget -= entry_size(entry)
        if budget < 0 and has_any:
            return n
        has_any, room = True, room - 1
        if room == 0:
            return n + 1
    return len(entries)


def _one(queue: Queue, state: State, id: str, now: int) -> Entry | None:
    """A message by its id, if it is in that state: not looked for among all the others."""
    store = queue.context.store
    if state is State.LOG:
        view = View(queue.name, State.LOG, id=id)
        return next(iter(store.browse(view, None, 1, now).entries), None)
    (found,) = store.find(queue.name, [id], log=False)
    if found is None or found.message.queue != queue.name or found.state(now) is not state:
        return None
    return found


def detail(queue: Queue, id: str) -> s.DetailDoc:
    """One message of a queue, of its dead letters or of its log."""
    now = queue.context.clock.now()
    (found,) = queue.context.store.find(queue.name, [id])
    if found is None:
        raise MessageNotFound(f"{queue.name} holds no message {id}")
    message, lease, done = found.message, found.lease, found.finished
    return s.DetailDoc(
        message=s.MessageDoc.of(message),
        state=_state(found, now),
        deadline=lease.deadline if lease else None,
        owner=lease.owner if lease else None,
        finished=s.FinishedDoc.of(done) if done else None,
        timeline=sorted(_moments(message, lease, done), key=lambda moment: moment.at),
        now=now,
    )


def _state(found: Entry, now: int) -> str:
    state = found.state(now)
    if state is State.LOG:
        return "done"
    return "dead" if state is not State.LEASED and is_dlq(found.message.queue) else state.value


def _moments(message: Message, lease: Lease | None, done: Finished | None) -> Iterator[s.MomentDoc]:
    yield s.MomentDoc(message.enqueued_at, "enqueued", detail=message.origin and "replayed")
    if message.first_leased_at is not None:
        yield s.MomentDoc(message.first_leased_at, "first leased", attempt=1)
    for error in message.errors:
        yield s.MomentDoc(
            at=error.at,
            what="failed",
            consumer=error.consumer,
            attempt=error.attempt,
            detail=f"{error.code}: {error.message}",
            traceback=error.traceback,
        )
    if message.dead_at is not None:
        yield s.MomentDoc(message.dead_at, "dead", detail=message.reason)
    if lease is not None:
        yield s.MomentDoc(lease.leased_at, "leased", lease.owner, message.attempts)
    if done is not None:
        if done.last_leased_at is not None:
            yield s.MomentDoc(done.last_leased_at, "leased", done.consumer, message.attempts)
        yield s.MomentDoc(done.finished_at, "finished", done.consumer, detail=done.status)


def who_holds(queue: Queue) -> s.ConsumersDoc:
    """Everybody who holds a message of the queue, or owns a partition of it."""
    store, now = queue.context.store, queue.context.clock.now()
    leases: dict[str, list[Lease]] = {}
    looked = 0
    for rows in pages(store, View(queue.name, State.LEASED), now, budget=ANSWER_BYTES):
        for entry in rows.entries:
            if entry.lease is not None:
                leases.setdefault(entry.lease.owner, []).append(entry.lease)
        looked += len(rows.entries)
        if looked >= HOLDERS_MAX:
            break
    owned: dict[str, list[int]] = {}
    for part in queue.partitions():
        if part.owner is not None:
            owned.setdefault(part.owner, []).append(part.partition)
    names = sorted({*leases, *owned})
    return s.ConsumersDoc(
        [_holder(name, leases.get(name, []), owned.get(name, [])) for name in names], looked, now
    )


def _holder(name: str, leases: list[Lease], partitions: list[int]) -> s.ConsumerDoc:
    return s.ConsumerDoc(
        name,
        len(leases),
        min((lease.leased_at for lease in leases), default=None),
        min((lease.deadline for lease in leases), default=None),
        partitions,
    )
