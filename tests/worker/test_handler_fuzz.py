"""HANDLER-9 at random: many bad handlers beside good ones, on every store and executor."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Backoff, Holdfast
from holdfast.testing import dead_letters, finished
from servers import SHARED
from tests.worker import fuzzed

CASES = 60
CASES_ALL = 2000
"""For a store: a third for each executor."""
DEATHS = 0.05
"""Of the cases in processes: each of these starts a new one."""


@pytest.fixture(params=["memory", *SHARED])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(store_url) as hf:
        yield hf


def behaviours(executor: str, n: int, rng: random.Random) -> list[str]:
    usual = [*fuzzed.DEAD, *fuzzed.DONE]
    if executor == "async":
        usual += [*fuzzed.ON_LOOP_DEAD, *fuzzed.ON_LOOP_DONE]
    chosen = rng.choices(usual, k=n)
    if executor == "process":
        deadly = [*fuzzed.IN_PROCESSES]
        chosen = [rng.choice(deadly) if rng.random() < DEATHS else what for what in chosen]
    return chosen


@pytest.mark.promise("HANDLER-9")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("executor", ["thread", "async", "process"])
@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(CASES_ALL, marks=pytest.mark.extended)], ids=["some", "many"]
)
def test_a_bad_handler_hurts_its_own_message_only(hf: Holdfast, executor: str, cases: int) -> None:
    rng = random.Random(f"{executor} {cases}")
    ends_well = {*fuzzed.DONE, *fuzzed.ON_LOOP_DONE}
    queue = hf.queue("orders", max_attempts=2, backoff=Backoff(base=0))
    hf.handler("orders")(fuzzed.handle_async if executor == "async" else fuzzed.handle)
    bad = behaviours(executor, cases // 3, rng)
    sent = [what for name in bad for what in (name, fuzzed.FINE)]
    queue.enqueue_many(sent)
    kind = "process" if executor == "process" else "thread"
    assert hf.worker(concurrency=4, until_empty=True, executor=kind, grace=60).run()
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased) == (0, 0, 0)
    done = Counter(row.message.payload for row in finished(hf, "orders"))
    dead = dead_letters(hf, "orders")
    assert done[fuzzed.FINE] == len(bad), "a healthy message was not done once"
    assert done - Counter({fuzzed.FINE: len(bad)}) == Counter(
        what for what in bad if what in ends_well
    )
    assert Counter(m.payload for m in dead) == Counter(w for w in bad if w not in ends_well)
    for message in dead:
        assert message.reason and message.errors
        for error in message.errors:
            assert error.message and error.code
            assert f"{error.message}{error.code}{error.traceback}".encode()
