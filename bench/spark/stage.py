"""What a measure is given: one session, fresh databases, and how to compare."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psycopg

import holdfast
from bench.contenders.limit_postgres import DURABLE
from bench.contenders.ours import QUEUE
from bench.measures.throughput import Entrant, Fresh, Tell, compare
from bench.results import Kind, Result, Target, Who
from bench.timing import fresh

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

MASTER = "local[2]"
SLICES = 2
JDBC_JAR = Path("/usr/share/java/postgresql.jar")
JDBC_PACKAGE = "libpostgresql-jdbc-java"
SQLITE_DURABLE = "a process may crash; a power cut may take the last commits"
LEFT_OUT = f"no JDBC driver of PostgreSQL: apt-get install {JDBC_PACKAGE}, or --jdbc JAR"


def _spark(name: str, kind: Kind, settings: str, durability: str, delivery: str) -> Who:
    return Who(name, kind, f"Spark {version('pyspark')}", settings, durability, delivery, acks=True)


OURS = Who(
    "holdfast",
    "ours",
    f"{version('holdfast')}, Spark {version('pyspark')}",
    f"holdfast.spark.session on {MASTER}, {SLICES} slices, psycopg {psycopg.__version__}, "
    f"adbc {version('adbc-driver-postgresql')}, log on",
    DURABLE,
    "reserved, sealed and settled batch by batch: each message once in a file sink; a written row "
    "is stored once however often its task runs",
    acks=True,
)
ON_SQLITE = msgspec.structs.replace(
    OURS,
    settings="the same; WAL, synchronous=NORMAL",
    durability=SQLITE_DURABLE,
)
JDBC = _spark(
    "spark jdbc",
    "peer",
    "2 partitions by seq, fetchsize=10000; reWriteBatchedInserts=true, batchsize=10000",
    f"{DURABLE}; one commit for each task",
    "rows as they are stored; a repeated task stores its rows twice",
)
JDBC_ALIKE = _spark(
    "spark jdbc, same columns",
    "peer",
    "the same; the server makes text of bodies and times of numbers, as our columns are",
    DURABLE,
    "rows with the columns of our view; headers and errors stay text",
)
LIBRARY = Who(
    "no Spark",
    "limit",
    version("holdfast"),
    "one process, one thread: queue.lease(1000), queue.settle(leases), log on",
    "that of the same store",
    "leased by token, acked into the log; the rows go nowhere",
    acks=True,
)
BARE = _spark(
    "bare mapInArrow",
    "limit",
    "our plain stream, foreachBatch: mapInArrow(identity), the same columns but the result to one "
    "Parquet folder a batch",
    DURABLE,
    "the same source and the same settling; no handlers, no verdicts, nothing staged",
)
RATE = _spark(
    "rate source",
    "peer",
    "rate-micro-batch, rowsPerBatch=1, one partition, the same session",
    "keeps nothing",
    "makes rows up in the JVM: no store, no Python",
)
PLAIN = _spark(
    "plain session", "peer", f"SparkSession.builder.master({MASTER!r}), no settings", "-", "-"
)
PARTIES = [OURS, JDBC, JDBC_ALIKE, LIBRARY, BARE, RATE, PLAIN]


@dataclass(frozen=True)
class Setting:
    """A run: made once, and handed to every measure with its own way to tell."""

    postgres: Fresh
    folder: Path
    repeats: int
    quick: bool
    jdbc: Path | None
    tell: Tell = field(default=lambda what: None)

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def scratch(self) -> Fresh:
        return partial(fresh, self.folder)

    @property
    def spark(self) -> SparkSession:
        return _session(self.jdbc)


_made: dict[str, SparkSession] = {}


def _session(jdbc: Path | None) -> SparkSession:
    """One JVM for all; made when a measure asks for it."""
    if "session" not in _made:
        from holdfast.spark import session

        conf = {"spark.driver.extraClassPath": str(jdbc)} if jdbc else {}
        _made["session"] = session("bench", MASTER, conf)
        # Spark's own handler calls the JVM on a connection that is in use, and fails.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return _made["session"]


def stop_session() -> None:
    if "session" in _made:
        _made.pop("session").stop()


def spark_facts() -> dict[str, str]:
    """As the session itself says; nothing where no measure needed one."""
    if "session" not in _made:
        return {}
    spark = _made["session"]
    system = spark._jvm.java.lang.System  # pyright: ignore
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20  # pyright: ignore
    names = ("spark.sql.shuffle.partitions", "spark.sql.streaming.checkpointFileManagerClass")
    shown = [f"{name.split('.', 1)[1]}={spark.conf.get(name).split('.')[-1]}" for name in names]
    return {
        "Spark": f"{spark.version} on {MASTER}, one JVM for all, {', '.join(shown)}",
        "Java": f"{system.getProperty('java.version')}, heap of {heap:,} MB",
    }


def jdbc_fact(at: Setting) -> str:
    if at.jdbc is None:
        return f"left out, {LEFT_OUT}"
    if "session" not in _made:
        return str(at.jdbc)
    info = _made["session"]._jvm.org.postgresql.util.DriverInfo  # pyright: ignore
    return f"{info.DRIVER_VERSION} ({at.jdbc})"


def url_in(home: object) -> str:
    """The store in a home: a folder has an SQLite file, anything else is a database's URL."""
    if isinstance(home, Path):
        return f"sqlite:///{home / 'ours.db'}"
    return f"{home}?schema=holdfast"


@contextmanager
def opened(home: object) -> Iterator[tuple[holdfast.Holdfast, holdfast.Queue]]:
    with holdfast.connect(url_in(home)) as hf:
        yield hf, hf.queue(QUEUE)


def stream(at: Setting, home: object, most: int) -> DataFrame:
    reader: DataStreamReader = at.spark.readStream.format("holdfast")
    options = {"url": url_in(home), "queue": QUEUE, "slices": str(SLICES)}
    return reader.options(**options).option("maxMessagesPerTrigger", most).load()


def beside(
    at: Setting,
    name: str,
    title: str,
    entrants: list[Entrant],
    other: Who,
    bound: float,
    homes: Fresh,
) -> list[Result]:
    """Rates in turn; the target is our share of the other's."""
    result = compare(
        name, title, entrants, lambda _: [], fresh=homes, repeats=at.repeats, tell=at.tell
    )
    if all(row.name != other.name for row in result.rows):
        return [result]
    result = msgspec.structs.replace(result, compare_to=other.name)
    figure = result.ratio(result.row(OURS.name), result.row(other.name)) or 0.0
    target = Target(f"{title}: times {other.name}", figure, bound, True)
    return [msgspec.structs.replace(result, targets=[target])]


Measure = Callable[[Setting], list[Result]]
