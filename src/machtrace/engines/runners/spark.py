"""Parts as rows of a Spark data frame, by ``mapInArrow``, here or on a cluster."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator, Sequence
from functools import partial

import pyarrow as pa

from machtrace.engines.wire import WIRE, Begin
from machtrace.engines.worker import work_here
from machtrace.errors import MachtraceError, MissingExtraError

_COLUMNS = "rows binary, problem string, remedy string"


def run(parts: Sequence[pa.Table], begin: Begin, workers: int) -> Generator[pa.Table]:
    """Yield the answers; see ``engines.wire.Runner``."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtraError("the engine spark", extra="spark") from None
    if not parts:
        return
    if not (os.environ.get("SPARK_REMOTE") or os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise MachtraceError(
            "Spark runs in a Java machine, and there is none",
            remedy="install a Java runtime, such as default-jre-headless, or set JAVA_HOME",
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("machtrace")
    if not (os.environ.get("MASTER") or os.environ.get("SPARK_REMOTE")):
        builder = builder.master(f"local[{workers}]")
    session = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.maxResultSize", "0")
        .config("spark.driver.memory", "4g")
        # A row is a part, which may be large.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
        .getOrCreate()
    )
    try:
        session.sparkContext.setLogLevel("OFF")
        rows = [(part["rows"][0].as_py(), None, None) for part in parts]
        frame = session.createDataFrame(rows, _COLUMNS).repartition(len(parts))
        yield frame.mapInArrow(partial(_answers, begin), _COLUMNS).toArrow().cast(WIRE)
    except PySparkException as error:
        line = str(error).strip().splitlines()[0]
        raise MachtraceError(f"Spark failed: {line}", remedy="try --engine local") from error
    finally:
        session.stop()


def _answers(begin: Begin, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    work = work_here(begin)
    for batch in batches:
        if batch.num_rows:
            yield from work(pa.Table.from_batches([batch]).cast(WIRE)).to_batches()
