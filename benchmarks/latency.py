"""Latency: the time from publish to row in a streaming query, beside Spark's `rate` source at the
same rates.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import nats
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.scale import Scale
from benchmarks.tables import Table
from spark_jetstream.bench import percentile
from spark_jetstream.testing import NatsServer

RATES = (100, 1_000, 10_000)
_PERCENTILES = (50, 95, 99)
_WARM_UP_RATE = 1_000
_GROUP_SECONDS = 0.01  # between two groups of messages
_LATE = 1.1  # a publisher that takes so many times as long as planned did not keep its rate
_TIMEOUT = 60.0
_SECOND = 1_000_000_000


class _Sent(NamedTuple):
    """The messages of the stream, and when the publisher began, in nanoseconds since 1970."""

    messages: int
    began: int


class _MicroBatch(NamedTuple):
    """The rows of a micro-batch, and when they had arrived in this process, in nanoseconds since
    1970.
    """

    arrived: int
    rows: pa.Table


async def _publish(url: str, stream: str, rate: int, seconds: float) -> _Sent:
    """Publish at an even pace. The payload of a message is its publish time."""
    client = await nats.connect(url)
    due, began, began_wall = 0, time.perf_counter(), time.time_ns()
    total = int(rate * seconds)
    sent = 0
    while sent < total:
        due += 1
        until = min(total, round(rate * due * _GROUP_SECONDS))
        for number in range(sent, until):
            await client.publish(f"{stream}.{number % 10}", str(time.time_ns()).encode())
        sent = until
        await asyncio.sleep(max(0.0, began + due * _GROUP_SECONDS - time.perf_counter()))
    took = time.perf_counter() - began
    await client.flush()
    stored = (await client.jetstream().stream_info(stream)).state.messages
    await client.close()
    if stored != total + 1:
        raise RuntimeError(f"{stored} of {total + 1} messages were stored")
    if took > seconds * _LATE:
        raise RuntimeError(
            f"the publisher took {took:.1f} s for {seconds} s of {rate} messages a second"
        )
    return _Sent(stored, began_wall)


def _publish_all(url: str, stream: str, rate: int, seconds: float) -> _Sent:
    return asyncio.run(_publish(url, stream, rate, seconds))


async def _create(url: str, stream: str) -> None:
    """Create a stream with one message, which the query reads before the clock starts."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name=stream, subjects=[f"{stream}.>"])
    await js.publish(f"{stream}.0", str(time.time_ns()).encode())
    await client.close()


class _Arrivals:
    """A streaming query without a trigger, whose micro-batches are collected in this process."""

    def __init__(self, frame: DataFrame, checkpoint: str) -> None:
        self.batches: list[_MicroBatch] = []
        self._collecting = True
        writer = frame.writeStream.foreachBatch(self._collect).option(
            "checkpointLocation", checkpoint
        )
        self._query: StreamingQuery = writer.start()

    def _collect(self, frame: DataFrame, _: int) -> None:
        if self._collecting:
            rows = frame.toArrow()
            arrived = time.time_ns()
            if rows.num_rows:
                self.batches.append(_MicroBatch(arrived, rows))

    def wait(self, done: Callable[[list[_MicroBatch]], bool]) -> None:
        """Wait until the micro-batches so far are enough."""
        deadline = time.monotonic() + _TIMEOUT
        while not done(self.batches):
            if (error := self._query.exception()) is not None:
                raise error
            if time.monotonic() > deadline:
                raise RuntimeError(f"the rows did not arrive within {_TIMEOUT:.0f} s")
            time.sleep(0.05)

    def stop(self) -> None:
        self._collecting = False
        self._query.stop()


class _Latencies(NamedTuple):
    """Milliseconds from publish to row, and the number of micro-batches with measured rows."""

    milliseconds: list[float]
    batches: int


def _latencies(
    batches: list[_MicroBatch],
    published: Callable[[pa.Table], NDArray[np.int64]],
    first: int,
    end: int,
) -> _Latencies:
    """Return the latencies of the rows that were published from `first` to before `end`."""
    found = []
    for batch in batches:
        times = published(batch.rows)
        times = times[(times >= first) & (times < end)]
        if len(times):
            found.append((batch.arrived - times) / 1e6)
    return _Latencies(np.concatenate(found).tolist(), len(found))


def _payload_times(rows: pa.Table) -> NDArray[np.int64]:
    times: NDArray[np.int64] = rows["data"].cast(pa.string()).cast(pa.int64()).to_numpy()
    return times


def _row_times(rows: pa.Table) -> NDArray[np.int64]:
    times: NDArray[np.int64] = (
        rows["timestamp"].cast(pa.timestamp("ns", "UTC")).cast(pa.int64()).to_numpy()
    )
    return times


def jetstream(
    spark: SparkSession, server: NatsServer, rate: int, warm_up: float, seconds: float
) -> _Latencies:
    """Measure format `jetstream`; raise `RuntimeError` unless it delivered each message exactly
    once.
    """
    stream = f"LATENCY-{time.time_ns()}"
    asyncio.run(_create(server.url, stream))
    source = spark.readStream.format("jetstream").options(servers=server.url, stream=stream)
    # A process of its own: a thread would take time from the callback that collects the rows.
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as checkpoint, ProcessPoolExecutor(1, spawn) as publisher:
        arrivals = _Arrivals(source.load().select("data", "sequence"), checkpoint)
        try:
            arrivals.wait(bool)
            sent = publisher.submit(
                _publish_all, server.url, stream, rate, warm_up + seconds
            ).result()
            arrivals.wait(
                lambda batches: sum(batch.rows.num_rows for batch in batches) >= sent.messages
            )
        finally:
            arrivals.stop()
    sequences = np.concatenate([batch.rows["sequence"].to_numpy() for batch in arrivals.batches])
    if not np.array_equal(np.sort(sequences), np.arange(1, sent.messages + 1)):
        raise RuntimeError(
            f"{len(sequences)} rows came of {sent.messages}, {len(np.unique(sequences))} different "
            "ones"
        )
    first = sent.began + int(warm_up * _SECOND)
    return _latencies(arrivals.batches, _payload_times, first, time.time_ns())


def built_in(spark: SparkSession, rate: int, warm_up: float, seconds: float) -> _Latencies:
    """Measure Spark's `rate` source.

    The time of publish is the time that the source gives to the row.
    """
    source = spark.readStream.format("rate").option("rowsPerSecond", rate)
    with tempfile.TemporaryDirectory() as checkpoint:
        arrivals = _Arrivals(source.load().select("timestamp"), checkpoint)
        try:
            arrivals.wait(bool)
            first = time.time_ns() + int(warm_up * _SECOND)
            end = first + int(seconds * _SECOND)
            time.sleep(warm_up + seconds)
            arrivals.wait(lambda batches: bool(_row_times(batches[-1].rows).max() >= end))
        finally:
            arrivals.stop()
    return _latencies(arrivals.batches, _row_times, first, end)


def run(spark: SparkSession, scale: Scale) -> None:
    """Print the latency of both sources, by messages a second."""
    forms = {f"p{percent}": ".0f" for percent in _PERCENTILES}
    table = Table(
        "latency",
        f"milliseconds from publish to row in foreachBatch, for {scale.seconds:.0f} seconds after "
        f"{scale.warm_up_seconds:.0f} that warm up",
        **{"source": "s", "messages a second": ",.0f", **forms, "micro-batches": ",.0f"},
    )
    with NatsServer() as server:
        # The JVM warms up in the first queries.
        for rate, counted in [(_WARM_UP_RATE, False), *((rate, True) for rate in RATES)]:
            taken = {
                "jetstream": jetstream(spark, server, rate, scale.warm_up_seconds, scale.seconds),
                "rate": built_in(spark, rate, scale.warm_up_seconds, scale.seconds),
            }
            for source, (milliseconds, batches) in taken.items():
                shown = (percentile(milliseconds, percent) for percent in _PERCENTILES)
                table.add(source, rate, *shown, batches, counted=counted)
