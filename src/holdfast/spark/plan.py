"""What runs on the executors when handlers run on Spark: a try around every message.

A part of a batch goes in, one row for each message comes out: whether it went well, the verdict
where there is something to write down, and what goes to the sink. Nothing is changed in the store
from here: a task may run twice.
"""

# pyright: basic

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from holdfast.model.message import Lease
from holdfast.model.policy import Policy
from holdfast.queue.context import Context
from holdfast.spark import columns, pickling
from holdfast.spark.connections import patiently
from holdfast.spark.options import STORE_TIMEOUT_S
from holdfast.work import ledger
from holdfast.work.handlers import (
    Handler,
    Problem,
    Registry,
    Verdict,
    attempt,
    attempt_async,
    result_of,
    run,
    run_async,
    verdict_of,
)
from holdfast.work.ledger import Judged
from holdfast.work.process import Child, time_for

MISFIT = "SchemaMismatch"


@dataclass
class Plan:
    """Pickled into an option of the stream: the same on the driver and on every executor."""

    policy: Policy
    handlers: list[Handler] = field(default_factory=list)
    function: Handler | None = None
    """A row transformation; its result is the row."""
    value: StructType = field(default_factory=lambda: columns.VALUE)
    executor: str = "thread"
    concurrency: int = 1
    time_limit: float | None = None
    with_lease: bool = False
    """The plain columns with the lease beside them, for a transformation of whole frames."""

    @property
    def schema(self) -> StructType:
        return columns.with_lease() if self.with_lease else columns.outcomes(self.value)


def run_part(
    plan: Plan,
    at: Context,
    queue: str,
    part: str,
    pages: Iterable[list[Lease]],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    hold = part.rpartition(".")[0]
    if plan.with_lease:
        for leases in pages:
            yield _with_leases(leases, hold, schema)
        return
    runner = _Runner(plan)
    held = _held_keys(at, queue)
    try:
        for leases in pages:
            yield _outcomes(runner, leases, hold, schema, held)
    finally:
        runner.close()


def _with_leases(leases: list[Lease], hold: str, schema: pa.Schema) -> pa.RecordBatch:
    plain = pa.schema([field for field in schema if field.name not in ("hold", "lease")])
    rows = columns.of_messages([lease.message for lease in leases], plain)
    judged = [ledger.encode_judged([Judged(bare(lease), Verdict())]) for lease in leases]
    holds = pa.array([hold] * len(leases), pa.string())
    arrays = [*rows.columns, holds, pa.array(judged, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def bare(lease: Lease) -> Lease:
    """The lease without the body, which no verdict needs."""
    return msgspec.structs.replace(lease, message=msgspec.structs.replace(lease.message, body=b""))


class _Outcome(msgspec.Struct):
    verdict: Verdict | None
    """None: it did not run, because an earlier message of its key failed."""
    value: Any = None


class _Held(msgspec.Struct):
    """Of an ordered queue, where a part is a partition: the keys of which a message failed."""

    keys: set[str] = set()
    blocks: bool = True


def _held_keys(at: Context, queue: str) -> _Held | None:
    spec = at.spec(queue)
    if spec is None or not spec.ordered:
        return None
    return _Held(blocks=at.complete(spec).on_failure == "block")


def _in_order(
    runner: _Runner, leases: list[Lease], kind: pa.StructType, held: _Held
) -> Iterator[_Outcome]:
    """One after the other; what follows of a key whose message failed does not run."""
    for lease in leases:
        key = lease.message.key
        if held.blocks and key in held.keys:
            yield _Outcome(None)
            continue
        (outcome,) = runner.run([lease])
        _fit([outcome], kind)
        if key is not None and outcome.verdict is not None and not outcome.verdict.is_done:
            held.keys.add(key)
        yield outcome


def _outcomes(
    runner: _Runner, leases: list[Lease], hold: str, schema: pa.Schema, held: _Held | None
) -> pa.RecordBatch:
    kind = schema.field("value").type
    outcomes = runner.run(leases) if held is None else [*_in_order(runner, leases, kind, held)]
    values = _fit(outcomes, kind)
    judged = [
        ledger.encode_judged([Judged(bare(lease), outcome.verdict)])
        if _says_something(lease, outcome.verdict)
        else None
        for lease, outcome in zip(leases, outcomes, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([lease.id for lease in leases], pa.string()),
            pa.array([hold] * len(leases), pa.string()),
            pa.array([_is_good(outcome) for outcome in outcomes], pa.bool_()),
            pa.array(judged, pa.binary()),
            values,
        ],
        schema=schema,
    )


def _is_good(outcome: _Outcome) -> bool:
    return outcome.verdict is not None and outcome.verdict.is_done


def _says_something(lease: Lease, verdict: Verdict | None) -> bool:
    """Whether it is more than a plain ack, which needs no words."""
    if verdict is None or not verdict.is_done or lease.message.history.handled:
        return True
    return any(result is not None for result in verdict.results.values())


class _ByValue(list[Handler]):
    """Handlers on their way to a process of their own: those of the script that was started cannot
    be found by name from here."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pickling.load_plan, (pickling.dump_plan(list(self)),)


class _Runner:
    """Calls handlers as a worker does: in this thread, in a few, on a loop, or in a process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._registry = Registry()
        for handler in plan.handlers:
            self._registry.add(handler)
        self._child = Child(_ByValue(plan.handlers)) if plan.executor == "process" else None
        self._pool: ThreadPoolExecutor | None = None
        functions = [plan.function] if plan.function else plan.handlers
        self._is_async = self._child is None and any(one.is_async for one in functions)
        if not self._is_async and self._child is None and plan.concurrency > 1:
            self._pool = ThreadPoolExecutor(plan.concurrency, "holdfast-handler")

    def run(self, leases: list[Lease]) -> list[_Outcome]:
        if self._is_async:
            return asyncio.run(self._run_async(leases))
        if self._pool is not None:
            return list(self._pool.map(self._one, leases))
        return [self._one(lease) for lease in leases]

    def _one(self, lease: Lease) -> _Outcome:
        if self._plan.function is not None:
            return _transformed(attempt(self._plan.function, lease))
        handlers = self._registry.due(lease.message)
        if not handlers:
            return _handled(lease, self._registry.nothing_due(lease.message))
        if self._child is None:
            return _handled(lease, run(handlers, lease))
        limit = time_for(handlers, self._plan.time_limit)
        return _handled(lease, self._child.run(lease, limit))

    async def _run_async(self, leases: list[Lease]) -> list[_Outcome]:
        room = asyncio.Semaphore(max(self._plan.concurrency, 32))

        async def one(lease: Lease) -> _Outcome:
            async with room:
                if self._plan.function is not None:
                    return _transformed(await attempt_async(self._plan.function, lease))
                handlers = self._registry.due(lease.message)
                if not handlers:
                    return _handled(lease, self._registry.nothing_due(lease.message))
                return _handled(lease, await run_async(handlers, lease))

        return list(await asyncio.gather(*(one(lease) for lease in leases)))

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
        if self._pool is not None:
            self._pool.shutdown(wait=False)


def _handled(lease: Lease, verdict: Verdict) -> _Outcome:
    if verdict.ending == "extend":  # a batch ends as a whole: nothing in it can be held for longer
        verdict = msgspec.structs.replace(verdict, ending="release", hold=None)
    if not verdict.is_done:
        return _Outcome(verdict)
    message, result = lease.message, result_of(lease, verdict)
    payload = None
    if columns.is_text(message):
        payload = message.body.decode(errors="replace")
    value = {
        "key": message.key,
        "type": message.type,
        "payload": payload,
        "attempts": message.attempts,
        "enqueued_at": message.enqueued_at * 1000,
        "result": None if result is None else result.decode(),
    }
    return _Outcome(verdict, value)


def _transformed(attempted: tuple[Handler, Any, BaseException | None]) -> _Outcome:
    handler, value, error = attempted
    if error is not None:
        return _Outcome(verdict_of([attempted]))
    return _Outcome(Verdict(results={handler.name: None}), value)


def _fit(outcomes: Sequence[_Outcome], kind: pa.StructType) -> pa.Array:
    """The values as a column. One that does not fit the schema is a verdict on its row alone."""
    names = [kind.field(n).name for n in range(kind.num_fields)]
    rows = [_as_row(outcome, names) for outcome in outcomes]
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    for n, row in enumerate(rows):
        try:
            pa.array([row], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            _misfit(outcomes[n], f"{error} (schema: {kind})")
            rows[n] = None
    return pa.array(rows, kind)


def _as_row(outcome: _Outcome, names: list[str]) -> dict[str, Any] | None:
    value = outcome.value
    row = value if value is None or isinstance(value, dict) else _named(value)
    if row is None and isinstance(value, list | tuple):
        if len(value) != len(names):
            _misfit(outcome, f"{len(value)} values for the columns {', '.join(names)}")
            return None
        row = dict(zip(names, value, strict=True))
    if row is None:
        if value is not None:
            _misfit(outcome, f"must be a row (a dict, a tuple, a dataclass), not {value!r:.100}")
        return None
    unknown = row.keys() - names
    if unknown:
        _misfit(outcome, f"{min(unknown)!r} is not in the schema ({', '.join(names)})")
        return None
    return row


def _named(value: Any) -> dict[str, Any] | None:
    """The fields of what has names for them."""
    for method in ("asDict", "_asdict", "model_dump"):
        if hasattr(value, method):
            return getattr(value, method)()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else None


def _misfit(outcome: _Outcome, text: str) -> None:
    outcome.verdict = Verdict(problems=(Problem(text, MISFIT),))
    outcome.value = None


def write_verdicts(at: Context, hold: str, attempt: str, rows: Iterable[pa.RecordBatch]) -> int:
    """In a task: the verdicts of its rows. A repeated task writes the same ones again."""
    task = TaskContext.get()
    part = task.partitionId() if task else 0

    def judged() -> Iterator[Judged]:
        for batch in rows:
            for value in batch.column("judged").to_pylist():
                yield from ledger.decode_judged(value)

    def write(put: Callable[[], object]) -> object:
        return patiently(put, "writing verdicts", STORE_TIMEOUT_S)

    return ledger.judge(at, hold, attempt, part, judged(), write)


def judged_by(lease: bytes, error: str | None) -> bytes:
    """By the error of its row; None: it is held back by an earlier one of its key."""
    (judged,) = ledger.decode_judged(bytes(lease))
    verdict = None if error is None else Verdict(problems=(Problem(error, "TransformFailed"),))
    return ledger.encode_judged([Judged(judged.lease, verdict)])
