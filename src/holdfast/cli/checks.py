"""What `holdfast doctor` looks at. Each look yields its findings; one that fails hides no other."""

from __future__ import annotations

import platform
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec

import holdfast
from holdfast import Holdfast, HoldfastError, QueueStats
from holdfast.cli.base import App
from holdfast.cli.show import clean, count, length, size
from holdfast.errors import SHOWN
from holdfast.model import clock, settings
from holdfast.model.moves import State
from holdfast.model.policy import DEFAULTS
from holdfast.stores import SCHEMES, damage
from holdfast.stores.contract import Inspectable, overdue_in
from holdfast.stores.sqlite import SQLiteStore, open_url
from holdfast.telemetry.observe import unobserved

SKEW_WARN_MS = 1000
SLOW_MS = 100
DISK_WARN = 1_000_000_000
DISK_FAIL = 50_000_000
WAL_WARN = 256_000_000
OVERDUE_LOOK = 1000
"""Overdue leases of one queue that are counted."""
ROWS_LOOK = 5000
"""Rows of one queue and state that are read."""
UNWORKED_S = 60.0
MEMORY_WARN = 0.8
HELD_WARN_S = 300

Status = Literal["ok", "warn", "FAIL"]


class Check(msgspec.Struct, frozen=True):
    status: Status
    check: str
    text: str
    data: dict[str, Any] = {}


def run(app: App) -> Iterator[Check]:
    yield from _tried("versions", _versions)
    yield from _tried("setting", _settings)
    opened: list[Holdfast] = []
    yield from _tried("store", partial(_connect, app, opened))
    for hf in opened:
        with hf:
            for name, look in _LOOKS.items():
                yield from _tried(name, partial(look, hf, app.store_url()))


def migrations(url: str) -> list[str] | None:
    """The scripts of the store that a URL names; None if it has none."""
    module = SCHEMES.get(urlsplit(url).scheme, ("", None))[0]
    for name in (f"{module}.store", module) if module else ():
        try:
            found = getattr(import_module(name), "migrations", None)
        except ModuleNotFoundError:
            continue
        if found is not None:
            return found(url)
    return None


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if not parts.password:
        return url
    hidden = parts.netloc.replace(f":{parts.password}@", ":***@")
    return parts._replace(netloc=hidden).geturl()


def _tried(name: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from look()
    except (HoldfastError, OSError) as error:
        yield Check("FAIL", name, clean(str(error)))


def _versions() -> Iterator[Check]:
    python, lite = platform.python_version(), sqlite3.sqlite_version
    text = f"holdfast {holdfast.__version__}, Python {python}, SQLite {lite}"
    yield Check("ok", "versions", text)


def _settings() -> Iterator[Check]:
    env, default = settings.load(), settings.Settings()
    fallback = {"ack_timeout_seconds": DEFAULTS.ack_timeout, "max_attempts": DEFAULTS.max_attempts}
    for field in settings.Settings.__struct_fields__:
        if field == "url":
            continue  # the store line names it
        given = getattr(env, field)
        who = "default" if given == getattr(default, field) else "environment"
        value = fallback.get(field) if given is None else given
        name = settings.PREFIX + field.upper()
        yield Check("ok", "setting", f"{name}={value} ({who})", {field: value})


def _connect(app: App, opened: list[Holdfast]) -> Iterator[Check]:
    url = app.store_url()
    new = _is_new(url)
    start = clock.monotonic()
    opened.append(app.connect())
    took = (clock.monotonic() - start) * 1000
    name = without_password(url)
    made = "; it was not there, and is made now" if new else ""
    text = f"{name} (from {app.url_from()}), opened in {took:.1f} ms{made}"
    yield Check("warn" if new else "ok", "store", text, {"url": name, "open_ms": took})


def _is_new(url: str) -> bool:
    """A file that is not there is made: a wrong name is easily overlooked."""
    return url.startswith("sqlite:") and not open_url(url).path.exists()


def _round_trips(hf: Holdfast, url: str) -> Iterator[Check]:
    yield _timed("read", lambda: hf.context.spec("doctor"))
    # A claim that is given up at once: the smallest write there is.
    now = hf.context.clock.now()
    yield _timed("write", lambda: hf.store.claim("doctor", hf.context.owner, 0, now))


def _timed(what: str, call: Callable[[], object]) -> Check:
    times: list[float] = []
    for _ in range(5):
        start = clock.monotonic()
        call()
        times.append((clock.monotonic() - start) * 1000)
    took = min(times)
    status = "ok" if took < SLOW_MS else "warn"
    return Check(status, what, f"a round trip takes {took:.2f} ms", {"round_trip_ms": took})


def _schema(hf: Holdfast, url: str) -> Iterator[Check]:
    scripts = migrations(url)
    if scripts is not None:  # connecting has brought it there, or refused
        yield Check("ok", "schema", f"version {len(scripts)}", {"schema": len(scripts)})


def _clock(hf: Holdfast, url: str) -> Iterator[Check]:
    before = clock.wall_ms()
    theirs = hf.store.time()
    skew = theirs - (before + clock.wall_ms()) // 2
    if abs(skew) < SKEW_WARN_MS:
        text = f"the store's and this machine's differ by {abs(skew)} ms"
        yield Check("ok", "clock", text, {"skew_ms": skew})
        return
    way = "ahead of" if skew > 0 else "behind"
    text = f"the store's is {length(abs(skew) / 1000)} {way} this machine's; the store's counts"
    yield Check("warn", "clock", text, {"skew_ms": skew})


def _sqlite(hf: Holdfast, url: str) -> Iterator[Check]:
    store = unobserved(hf.store)
    if isinstance(store, SQLiteStore):
        yield _durability(url)
        yield _disk(store.path)
        yield _file(store.path)
        lost = store.misplaced(ROWS_LOOK)
        if lost:
            text = (
                f"{count(len(lost), 'message')} that no worker finds, as the row was damaged: "
                f"{', '.join(islice(lost, SHOWN))}; set its state, part, place and times right"
            )
            yield Check("warn", "places", clean(text), {"ids": lost})
        lost_at = store.log_lost_at()
        if lost_at is not None:
            at = datetime.fromtimestamp(lost_at / 1000, UTC).isoformat(timespec="seconds")
            text = (
                f"on {at} the write-ahead log could not be read in full: commits, perhaps of all "
                "messages, were lost; compare with a backup"
            )
            yield Check("warn", "log", text, {"log_lost_at": lost_at})


def _durability(url: str) -> Check:
    mode = parse_qs(urlsplit(url).query).get("synchronous", ["normal"])[0].lower()
    loses = "a power cut may lose the last commits, a crash none"
    if mode != "normal":
        loses = "neither a power cut nor a crash loses a commit"
    return Check("ok", "durability", f"synchronous={mode}: {loses}", {"synchronous": mode})


def _disk(path: Path) -> Check:
    free = shutil.disk_usage(path.parent).free
    status: Status = "FAIL" if free < DISK_FAIL else "warn" if free < DISK_WARN else "ok"
    return Check(status, "disk", f"{size(free)} free", {"free_bytes": free})


def _file(path: Path) -> Check:
    wal = path.with_name(path.name + "-wal")
    held, ahead = path.stat().st_size, wal.stat().st_size if wal.exists() else 0
    data = {"file_bytes": held, "wal_bytes": ahead}
    if ahead > WAL_WARN:
        text = f"{size(held)}, and a WAL of {size(ahead)}: somebody keeps an old read open"
        return Check("warn", "file", text, data)
    return Check("ok", "file", f"{size(held)}, WAL {size(ahead)}", data)


def _queues(hf: Holdfast, url: str) -> Iterator[Check]:
    names = [queue.name for queue in hf.queues()]
    overdue = [check for name in names for check in _overdue(hf, name)]
    yield from overdue or [Check("ok", "overdue", f"nothing in {count(len(names), 'queue')}")]
    for stats in hf.stats():
        yield from _standing_still(stats)


def _overdue(hf: Holdfast, queue: str) -> Iterator[Check]:
    now = hf.context.clock.now()
    late = overdue_in(hf.store, queue, now, OVERDUE_LOOK)
    if not late:
        return
    by_ms = now - late[0].deadline
    least = "at least " if len(late) == OVERDUE_LOOK else ""
    leases = (
        f"{queue}: {least}{count(len(late), 'lease')} overdue, by up to {length(by_ms // 1000)}"
    )
    data = {"queue": queue, "overdue": len(late), "overdue_ms": by_ms}
    if by_ms <= 2 * settings.load().overdue_check_interval_ms:
        yield Check("ok", "overdue", f"{leases}; the next sweep takes them", data)
    else:
        text = f"{leases}: nobody sweeps; start a worker, or run holdfast sweep"
        yield Check("warn", "overdue", text, data)


def _standing_still(stats: QueueStats) -> Iterator[Check]:
    waiting = stats.ready + stats.delayed
    data = {"queue": stats.queue, "ready": stats.ready, "delayed": stats.delayed}
    if stats.paused and waiting:
        text = f"{stats.queue} is paused and holds {count(waiting, 'message')}"
        yield Check("warn", "paused", text, data)
    elif stats.ready and not stats.leased and (stats.oldest_age or 0) > UNWORKED_S:
        age = length(int(stats.oldest_age or 0))
        text = f"{stats.queue}: the oldest message waits {age} and nothing is leased; no worker?"
        yield Check("warn", "waiting", text, data)


def _damage(hf: Holdfast, url: str) -> Iterator[Check]:
    """Reading a row tells whether it is damaged."""
    for queue in hf.queues():
        with damage.watched() as damaged:
            for state in State:
                deque(islice(hf.queue(queue.name).browse(state), ROWS_LOOK), maxlen=0)
        found = {id: problem for (_, id), problem in damaged.items()}
        if found:
            shown = ", ".join(f"{id} ({problem})" for id, problem in islice(found.items(), SHOWN))
            rows = count(len(found), "damaged row")
            text = f"{queue.name}: {rows}, read as far as they can be: {shown}"
            yield Check("warn", "rows", clean(text), {"queue": queue.name, "ids": list(found)})


def _server(hf: Holdfast, url: str) -> Iterator[Check]:
    """What the store's server says of itself, where there is one."""
    store = unobserved(hf.store)
    if isinstance(store, Inspectable):
        scheme = urlsplit(url).scheme.partition("+")[0]
        shown = {"redis": _redis, "rediss": _redis, "mongodb": _mongo}.get(scheme, _postgres)
        yield from shown(store.look())


def _postgres(facts: dict[str, Any]) -> Iterator[Check]:
    kept = facts["fsync"] == "on" and facts["synchronous_commit"] != "off"
    loses = "neither a power cut nor a crash loses a commit"
    if not kept:
        loses = "a crash of the server or a power cut may lose the last commits"
    text = f"fsync={facts['fsync']}, synchronous_commit={facts['synchronous_commit']}: {loses}"
    yield Check("ok" if kept else "warn", "durability", text, facts)
    yield Check("ok", "server", f"PostgreSQL {facts['version']}")
    held = facts["oldest_transaction_s"]
    if held > HELD_WARN_S:
        text = f"a transaction has been open for {length(held)}: dead rows cannot be cleared away"
        yield Check("warn", "snapshot", text, facts)


_FSYNC: dict[str, tuple[Status, str]] = {
    "always": ("ok", "neither a crash nor a power cut loses what was answered"),
    "everysec": ("ok", "a crash of the server or a power cut may lose the last second"),
    "no": ("warn", "a power cut loses what the system had not written, often half a minute"),
    "": ("ok", "the server does not say how often it syncs"),
}


def _redis(facts: dict[str, Any]) -> Iterator[Check]:
    """Policies that evict are refused when connecting."""
    level, loses = _FSYNC.get(facts["fsync"], ("warn", f"appendfsync={facts['fsync']}"))
    text = f"appendonly yes, appendfsync {facts['fsync'] or '?'}: {loses}"
    if not facts["aof"]:
        level = "warn"
        text = (
            "appendonly no: a restart of the server loses every message since its last snapshot; "
            "set appendonly yes"
        )
    yield Check(level, "durability", text, facts)
    yield Check("ok", "server", f"Redis {facts['version']}")
    text = f"maxmemory-policy {facts['policy']}"
    full = facts["used_memory"] / facts["maxmemory"] if facts["maxmemory"] else 0.0
    if facts["maxmemory"]:
        text += f", {full:.0%} of maxmemory is used"
    level = "warn" if full > MEMORY_WARN else "ok"
    yield Check(level, "memory", text, facts)


def _mongo(facts: dict[str, Any]) -> Iterator[Check]:
    text = f"w={facts['w']}, journal={str(facts['journal']).lower()}: "
    kept = facts["w"] == "majority" and facts["journal"]
    text += (
        "neither a crash nor a failover loses what was answered"
        if kept
        else "a crash or a failover may lose the last writes"
    )
    yield Check("ok" if kept else "warn", "durability", text, facts)
    yield Check("ok", "server", f"MongoDB {facts['version']}")
    if facts["replica_set"]:
        yield Check("ok", "replica set", str(facts["replica_set"]), facts)
    else:
        text = (
            "a standalone server: no transactions, so enqueue_many is not atomic, within= is "
            "refused, and waiters look every 20 ms; start it with --replSet, then rs.initiate()"
        )
        yield Check("warn", "replica set", text, facts)
    if facts["damaged"]:
        text = f"{', '.join(map(str, facts['damaged']))}: edited into nonsense, and left alone"
        yield Check("warn", "documents", text, facts)


_LOOKS: dict[str, Callable[[Holdfast, str], Iterator[Check]]] = {
    "round trip": _round_trips,
    "schema": _schema,
    "clock": _clock,
    "sqlite": _sqlite,
    "server": _server,
    "queues": _queues,
    "rows": _damage,
}
