"""One Spark session for all tests of a process: starting one takes seconds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from holdfast.spark.java import NoJava
from servers import SHARED, spark_classes
from servers.spark import need_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=SHARED)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session", autouse=True)
def quick_start() -> Iterator[None]:
    """For the sessions of this process, and of all programs that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        with suppress(NoJava):  # tests that need one say so
            patch.setenv("SPARK_SUBMIT_OPTS", spark_classes.options())
        yield


@pytest.fixture(scope="session")
def spark(quick_start: None) -> Iterator[SparkSession]:
    """On two cores. Without a Java: skipped at home, failed in CI."""
    from holdfast.spark.sessions import session

    need_java()
    made = session("tests", "local[2]")
    yield made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # sockets that py4j leaves to its JVM
        made.stop()
