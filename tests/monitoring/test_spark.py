"""Real queries, their progress and the listener: on the Spark of the suite, on older ones, and over
Spark Connect.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jetstream.monitoring import JetStreamListener, OpenLineage
from tests.compat.test_compat import CONNECT, VERSIONS, environment
from tests.monitoring.collector import Collector, inputs
from tests.monitoring.test_listener import samples, scrape
from tests.monitoring.watch import COUNT, last_heard
from tests.support.jobs import run_script
from tests.support.queries import available_now, streaming
from tests.support.reading import wait_until
from tests.support.streams import MakeStream


def test_the_listener_of_a_session(
    spark: SparkSession,
    stream: MakeStream,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    collector: Collector,
) -> None:
    caplog.set_level("INFO", "spark_jetstream.monitoring")
    source, target = stream(), stream()
    source.fill(COUNT)
    outputs = {"copied": [(source.url, target.name)]}
    lineage = OpenLineage(collector.url, servers=source.url, outputs=outputs)
    listener = JetStreamListener(port=0, openlineage=lineage)

    spark.streams.addListener(listener)
    try:
        rows = streaming(spark, source.url, source.name, maxMessagesPerTrigger=15)
        sink = rows.selectExpr("data", f"'{target.subject}.x' subject").writeStream.format(
            "jetstream"
        )
        sink = sink.options(
            servers=target.url, stream=target.name, checkpointLocation=str(tmp_path / "sink")
        )
        query = sink.queryName("copied").start()
        query.processAllAvailable()
        names = ("copied", str(query.id))
        read = ("spark_jetstream_rows_read_total", names)
        wait_until(lambda: scrape(listener).get(read) == COUNT, "the last progress", 60)
        metrics = scrape(listener)
        assert metrics["spark_jetstream_query_up", names] == 1
        assert metrics["spark_jetstream_rows_written_total", names] == COUNT
        assert metrics["spark_jetstream_lag_messages", (*names, source.name)] == 0
        assert metrics["spark_jetstream_lag_seconds", (*names, source.name)] == 0
        query.stop()
        wait_until(
            lambda: all(labels == ("copied",) for _, labels in scrape(listener)), "the end", 60
        )
        with pytest.raises(StreamingQueryException, match="cannot read stream NOWHERE"):
            available_now(streaming(spark, source.url, "NOWHERE"), tmp_path / "broken")
        wait_until(lambda: sum(scrape(listener).values()) == 1, "the failure", 60)
        assert sorted((name, value) for (name, _), value in scrape(listener).items()) == [
            ("spark_jetstream_query_failures_total", 0),
            ("spark_jetstream_query_failures_total", 1),
            ("spark_jetstream_query_up", 0),
        ]
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    check_log(
        [f"{record.levelname} {record.message}" for record in caplog.records], source.name, "copied"
    )
    written = [{"namespace": source.url, "name": target.name}]
    assert [event["outputs"] for event in collector.events[:-2]] == [written] * (
        len(collector.events) - 2
    )
    check_lineage(collector, (source.url, source.name), str(query.runId))


def check_lineage(
    collector: Collector, dataset: tuple[str, str], run: str, *, known: bool = True
) -> None:
    """Both queries of `check_log`; micro-batches without rows have no sequences."""
    *events, started, failed = collector.events
    assert {event["run"]["runId"] for event in events} == {run}
    assert (events[0]["eventType"], events[-1]["eventType"]) == ("START", "COMPLETE")
    assert {event["eventType"] for event in events[1:-1]} == {"RUNNING"}
    ranges = [inputs(event)[dataset] for event in events[1:-1]]
    expected = [[{"last": 40}]]
    if known:
        expected = [
            [{"first": first, "last": last}] for first, last in ((1, 15), (16, 30), (31, 40))
        ]
    assert [each for each in ranges if each] == expected
    assert (started["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert started["run"]["runId"] == failed["run"]["runId"] != run
    assert "cannot read stream NOWHERE" in failed["run"]["facets"]["errorMessage"]["message"]


def check_log(lines: list[str], stream: str, query: str, *, known: bool = True) -> None:
    lines = [line for line in lines if " 0 rows in " not in line]
    batches = [(COUNT, f"{stream} read up to sequence 40, lag unknown")]
    if known:
        batches = [
            (15, rf"{stream} 25 messages and \d+\.\d s behind"),
            (15, rf"{stream} 10 messages and \d+\.\d s behind"),
            (10, rf"{stream} 0 messages and 0\.0 s behind"),
        ]
    texts = [
        rf"batch {number}: {rows} rows in \d+\.\d s; {text}"
        for number, (rows, text) in enumerate(batches)
    ]
    expected = [
        rf"INFO query {query} started, run [0-9a-f-]{{36}}",
        *(f"INFO query {query}, {text}" for text in texts),
        rf"INFO query {query} ended",
        r"INFO query \S+ started, run [0-9a-f-]{36}",
        r"ERROR query \S+ failed: (?s:.*)cannot read stream NOWHERE(?s:.*)",
    ]
    assert len(lines) == len(expected), lines
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("version", "known"), [*VERSIONS, (CONNECT, True)])
def test_other_sparks(
    stream: MakeStream, version: str, known: bool, tmp_path: Path, collector: Collector
) -> None:
    """Spark 4.0 and 4.1 say nothing about the end of the stream, and read all in the first
    micro-batch.
    """
    s = stream()
    s.fill(COUNT)
    watch = Path(__file__).with_name("watch.py")
    mode = "connect" if version == CONNECT else "classic"
    result: dict[str, Any] = run_script(
        watch, mode, s.url, s.name, tmp_path, collector.url, folder=tmp_path, **environment(version)
    )
    assert result["spark"] == (pyspark.__version__ if version == CONNECT else version)
    assert result["early"] == {}
    # In Python the offsets are text; in the JSON of the progress they are objects, but over Spark
    # Connect text too.
    assert (result["offset"], result["json_offset"]) == (
        "str",
        "str" if version == CONNECT else "dict",
    )
    expected: list[tuple[Any, ...]] = [(41, None, None, None)]
    if known:
        seconds = {
            next_: (s.stored_time(COUNT) - s.stored_time(next_ - 1)) / 1e9 for next_ in (16, 31, 41)
        }
        expected = [(16, 41, 25, seconds[16]), (31, 41, 10, seconds[31]), (41, 41, 0, seconds[41])]
    fields = ("stream", "next", "latest", "messages", "seconds")
    assert result["lags"] == [
        {s.name: dict(zip(fields, (s.name, *values), strict=True))} for values in expected
    ]
    assert result["from_text"] == result["lags"][-1]
    names = ("orders", result["id"])
    running = samples(result["running"])
    assert running["spark_jetstream_query_up", names] == 1
    assert running["spark_jetstream_rows_written_total", names] == COUNT
    assert running["spark_jetstream_batch_duration_seconds", names] > 0
    assert running.get(("spark_jetstream_lag_messages", (*names, s.name))) == (0 if known else None)
    assert running.get(("spark_jetstream_lag_seconds", (*names, s.name))) == (0 if known else None)
    assert last_heard(result["idle"]) > last_heard(result["running"])
    assert samples(result["stopped"]) == {("spark_jetstream_query_failures_total", ("orders",)): 0}
    failed = samples(result["failed"])
    assert failed["spark_jetstream_query_failures_total", ("broken",)] == 1
    assert [value for (name, _), value in failed.items() if name == "spark_jetstream_query_up"] == [
        0
    ]
    check_log(result["log"], s.name, "orders", known=known)
    check_lineage(collector, (s.url, s.name), result["run"], known=known)
