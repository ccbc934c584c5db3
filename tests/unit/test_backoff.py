"""The formula, for every number."""

from __future__ import annotations

import math
import pickle
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Backoff, InvalidArgument

numbers = st.floats(0, 1e6)
backoffs = st.builds(
    Backoff,
    base=numbers,
    factor=st.floats(1, 100),
    max=numbers,
    jitter=st.sampled_from(["none", "full", "decorrelated"]),
)


@pytest.mark.promise("RETRY-1")
def test_the_defaults() -> None:
    backoff = Backoff()
    assert (backoff.base, backoff.factor, backoff.max, backoff.jitter) == (5, 2.0, 1800, "full")
    waits = [backoff.raw(n) for n in range(1, 13)]
    assert waits == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 1800, 1800, 1800]


@pytest.mark.promise("RETRY-1")
@given(backoffs, st.integers(1, 10**9))
def test_raw_is_the_formula_and_never_overflows(backoff: Backoff, n: int) -> None:
    raw = backoff.raw(n)
    assert 0 <= raw <= backoff.max
    log = math.log(backoff.base or 1) + (n - 1) * math.log(backoff.factor)
    if backoff.base and log < 500:
        assert raw == pytest.approx(min(math.exp(log), backoff.max), rel=1e-6)
    elif backoff.base:
        assert raw == backoff.max


@pytest.mark.promise("RETRY-2")
@given(backoffs, st.integers(1, 100), st.none() | numbers, st.integers())
def test_jitter_stays_in_its_window(
    backoff: Backoff, n: int, previous: float | None, seed: int
) -> None:
    delay = backoff.delay(n, previous, Random(seed))
    match backoff.jitter:
        case "none":
            assert delay == backoff.raw(n)
        case "full":
            assert 0 <= delay <= backoff.raw(n)
        case "decorrelated":
            last = backoff.base if previous is None else previous
            high = min(backoff.max, max(backoff.base, 3 * last))
            assert min(backoff.base, backoff.max) <= delay <= high


@pytest.mark.promise("RETRY-2")
def test_full_jitter_uses_the_whole_window() -> None:
    dice = Random(1)
    waits = [Backoff(base=100).delay(1, None, dice) for _ in range(2000)]
    assert min(waits) < 2 and max(waits) > 98
    assert sum(waits) / len(waits) == pytest.approx(50, abs=3)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("backoff.base", {"base": -1}),
        ("backoff.base", {"base": "5"}),
        ("backoff.base", {"base": True}),
        ("backoff.factor", {"factor": 0.5}),
        ("backoff.factor", {"factor": math.inf}),
        ("backoff.max", {"max": math.nan}),
        ("backoff.jitter", {"jitter": "some"}),
        ("attempt", {}),
    ],
)
@pytest.mark.promise("RETRY-2")
def test_nonsense_is_refused_when_it_is_made(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Backoff(**options).raw(0)
    assert caught.value.field == field


@pytest.mark.promise("RETRY-3")
def test_what_is_left_open_is_inherited() -> None:
    merged = Backoff(base=1).over(Backoff(base=9, factor=3).over(Backoff(jitter="none", max=7)))
    assert (merged.base, merged.factor, merged.max, merged.jitter) == (1, 3, 7, "none")
    assert Backoff(**merged.to_dict()) == merged == pickle.loads(pickle.dumps(merged))
    assert hash(Backoff(base=1)) == hash(Backoff(base=1)) != hash(Backoff())
    assert repr(Backoff(base=1)) == "Backoff(base=1.0, factor=2.0, max=1800.0, jitter='full')"
