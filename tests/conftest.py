"""Set-up of every run. Options, fixtures and the report are in tests/plugins."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

gc.disable()  # until all tests are collected: garbage collection takes a third of that time

pytest.register_assert_rewrite("holdfast.testing.conformance")

# How long an example takes says something about the machine, not about the project.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("untimed")

pytest_plugins = [
    "tests.plugins.levels",
    "tests.plugins.promises",
    "tests.plugins.report",
    "tests.plugins.stores",
]


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)  # or children would inherit it


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()  # nor do the tests themselves become garbage
    gc.enable()


@pytest.hookimpl(trylast=True)  # Hypothesis must have begun
def pytest_sessionstart(session: pytest.Session) -> None:
    if "HOLDFAST_TEST_UNRECORDED" not in os.environ and not hasattr(session.config, "workerinput"):
        _first_text()


@settings(max_examples=1, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text())
def _first_text(_: str) -> None:
    """The first text makes tables of all characters, once in a checkout: seconds on a machine with
    much to do, which Hypothesis would take for a test that is too slow."""
