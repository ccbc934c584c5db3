"""One Spark session for all tests of a process: starting one takes seconds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from servers import SHARED
from servers.spark import need_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests are short: a JVM that compiles quickly is done sooner than one that compiles well.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture(params=SHARED)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """On two cores. Without a Java: skipped at home, failed in CI."""
    from holdfast.spark.sessions import session

    need_java()
    made = session("tests", "local[2]", QUICK)
    yield made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # sockets that py4j leaves to its JVM
        made.stop()
