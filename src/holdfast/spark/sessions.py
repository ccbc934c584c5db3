"""A Spark session that fits the queue: a Java is found, options are set, the source is known."""

# pyright: basic

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import FailedPrecondition, MissingExtra
from holdfast.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

OLDEST = (4, 2)
LOOPBACK = "127.0.0.1"
INSTALL = "pip install 'holdfast[spark]'"

NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A message has more columns than the 25 that Spark shows of a plan, and it complains of that.
    "spark.sql.debug.maxToStringFields": "200",
}
LOCAL = {
    "spark.sql.catalogImplementation": "in-memory",
    # On a local disk renaming is atomic, and this one does it without a detour: 195 ms a batch
    # of a stream, not 342.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
LOG4J = Path(__file__).parent / "log4j2.properties"


def session(
    app: str = "holdfast", master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with `format("holdfast")`: a new one, or the one that runs in this process.

    `master`: else SPARK_MASTER, spark-submit's, spark-defaults.conf's, local[*].
    `conf`: wins over what is set here, as do spark-submit and spark-defaults.conf.
    """
    check_version()
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    spark = _new(app, master, conf or {}) if running is None else _join(running, master, conf or {})
    from holdfast.spark.source import register

    register(spark)
    return spark


def know(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a source known to a session; once, since Spark warns of every other time."""
    known: set[str] = spark.__dict__.setdefault("_holdfast_sources", set())
    if source.name() not in known:
        spark.dataSource.register(source)
        known.add(source.name())


def check_version() -> None:
    """Before anything that old versions lack is imported."""
    try:
        from pyspark import __version__ as found
    except ModuleNotFoundError as error:
        raise MissingExtra(f"holdfast.spark needs: {INSTALL}") from error
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingExtra(
            f"holdfast.spark needs PySpark {oldest} or later, not {found}: {INSTALL}"
        )


def _new(app: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    theirs = _settings_of_others()
    chosen = (
        master or conf.get("spark.master") or os.environ.get("SPARK_MASTER")
        or theirs.get("spark.master") or "local[*]"
    )  # fmt: skip
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_loopback(chosen):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    if not _submitted():
        os.environ["JAVA_HOME"] = str(find_java().home)
    path = _python_path()
    builder = SparkSession.builder.appName(app).master(chosen)
    for name, value in {**_ours(chosen, path), **theirs, **conf}.items():
        if name not in ("spark.master", "spark.app.name"):
            builder = builder.config(name, value)
    with _environment(PYTHONPATH=path, SPARK_SUBMIT_OPTS=_jvm_options({**theirs, **conf})):
        return builder.getOrCreate()


def _join(running, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """The session of this process, whoever made it. What cannot change any more stays as it is."""
    from pyspark.sql import SparkSession

    if master is not None and master != running.master:
        raise FailedPrecondition(
            f"a Spark session on {running.master} runs in this process, not on {master}:"
            " stop it first, or name no master"
        )
    spark = SparkSession.builder.getOrCreate()
    for name, value in conf.items():
        if spark.conf.get(name, None) != value:
            spark.conf.set(name, value)
    return spark


def is_loopback(master: str) -> bool:
    """All of it on this machine, so that nothing needs to be heard from outside."""
    return bool(re.match(r"local\b|spark://(127\.|localhost\b)", master))


def cores(master: str) -> int | None:
    """How many tasks run at once on a local master; None where that is not ours to know."""
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    local = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,.*)?\])?", master)
    if not local:
        return None
    match local[1]:
        case None:
            return 1
        case "*":
            return os.cpu_count() or 1
        case count:
            return int(count)


def _ours(master: str, path: str) -> dict[str, str]:
    conf = {**NEEDED, **QUIET, "spark.executorEnv.PYTHONPATH": path}
    if is_loopback(master):
        conf |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK, **LOCAL}
    count = cores(master)
    if count:
        conf["spark.sql.shuffle.partitions"] = str(count)
    return conf


def _settings_of_others() -> dict[str, str]:
    """What spark-submit or spark-defaults.conf say: the builder would overrule them."""
    if _submitted():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return {**_defaults(), **_submit_args()}


def _submitted() -> bool:
    """This program was started by spark-submit: its JVM runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _defaults() -> dict[str, str]:
    try:
        text = (_conf_folder() / "spark-defaults.conf").read_text()
    except OSError:
        return {}
    return dict(
        re.findall(r"^[ \t]*(spark\.[^\s=:]+)[ \t]*[=: \t][ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    )


def _submit_args() -> dict[str, str]:
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    found: dict[str, str] = {}
    for option, value in pairwise(words):
        if option == "--master":
            found["spark.master"] = value
        elif option in ("--conf", "-c"):
            name, _, found[name] = value.partition("=")
    return found


def _conf_folder() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"))


def _python_path() -> str:
    """Where the driver finds modules of its own: an executor starts in another folder."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    by_name = getattr(main, "__spec__", None) is not None  # python -m: its folder is no place
    script = [str(Path(file).resolve().parent)] if file and not by_name else []
    if script and Path(script[0]) == Path(sys.executable).parent:
        script = []  # a program of the environment, like `holdfast` or pytest
    folders = [str(Path(name).resolve()) for name in given if name]
    return os.pathsep.join(dict.fromkeys([*folders, *script, os.getcwd()]))


def _jvm_options(theirs: Mapping[str, str]) -> str:
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    options = given + theirs.get("spark.driver.extraJavaOptions", "")
    if "log4j" in options or any(_conf_folder().glob("log4j2*")):
        return given
    return f'{given} "-Dlog4j2.configurationFile={LOG4J.as_uri()}"'.strip()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """For the JVM that is started within, and not for what this program starts later."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
