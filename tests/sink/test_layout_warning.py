"""The sink says once when another layout of partitions would give rows other message ids."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from spark_jetstream.sink.layout import ADVICE, is_adaptive
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.writer import Committed, JetStreamBatchWriter, JetStreamStreamWriter
from tests.support.streams import MakeStream, Stream

ROWS = StructType([StructField("data", BinaryType())])
READ = StructType(
    [*ROWS.fields, StructField("stream", StringType()), StructField("sequence", LongType())]
)
REPORT = TaskReport(0, rows=1, stored=1, content=1, partitioned=True)
ENABLED, OF_STREAMS = "spark.sql.adaptive.enabled", "spark.sql.adaptive.streaming.stateless.enabled"


@pytest.mark.parametrize(
    ("settings", "streaming", "spark", "adaptive"),
    [
        ({}, False, "4.0.5", True),
        ({ENABLED: "false"}, False, "4.3.0", False),
        ({ENABLED: "true"}, True, "4.0.5", False),
        ({}, True, "4.1.0.dev0", True),
        ({}, True, "10.0", True),
        ({OF_STREAMS: "false"}, True, "4.3.0", False),
        ({OF_STREAMS: "false"}, False, "4.3.0", True),
        ({ENABLED: "false", OF_STREAMS: "true"}, True, "4.3.0", False),
    ],
)
def test_a_task_sees_whether_spark_is_adaptive(
    settings: dict[str, str], streaming: bool, spark: str, adaptive: bool
) -> None:
    assert is_adaptive(settings.get, streaming=streaming, spark=spark) is adaptive


@pytest.fixture
def s(stream: MakeStream) -> Stream:
    return stream()


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    found = sum(record.getMessage() == ADVICE for record in caplog.records)
    caplog.clear()
    return found


def query(s: Stream, schema: StructType = ROWS, **options: str) -> JetStreamStreamWriter:
    given = {"servers": s.url, "stream": s.name, "subject": f"{s.subject}.a", **options}
    return JetStreamStreamWriter(given, schema, False, lambda _: None)


def ended(run: str, **changes: object) -> Committed:
    committed = Committed(REPORT, WriteTask(run, 3, 0, run=run), run, True)
    return replace(committed, **changes)  # type: ignore[arg-type]


class TestQuery:
    def test_warns_once_for_each_run(self, s: Stream, caplog: pytest.LogCaptureFixture) -> None:
        writer = query(s)
        writer.commit([ended("once")], 3)
        assert warnings(caplog) == 1
        writer.commit([ended("once")], 4)
        assert warnings(caplog) == 0
        writer.commit([ended("again")], 4)
        assert warnings(caplog) == 1

    def test_warns_when_its_batch_fails(self, s: Stream, caplog: pytest.LogCaptureFixture) -> None:
        """Before any task has ended, nobody knows whether Spark is adaptive."""
        query(s).abort([ended("failed")], 3)
        assert warnings(caplog) == 1
        query(s, stream=s.name, subject=f"{s.subject}.b").abort([None], 3)
        assert warnings(caplog) == 1
        query(s, READ, subject=f"{s.subject}.c").abort([None], 3)
        assert warnings(caplog) == 0

    def test_is_quiet_without_danger(self, s: Stream, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        query(s).commit([ended("static", adaptive=False)], 3)
        query(s).commit([ended("whole", report=replace(REPORT, partitioned=False))], 3)
        assert "jetstream sink, batch 3 of query whole: 1 of 1 rows stored" in caplog.text
        assert warnings(caplog) == 0


def test_a_batch_write_warns_if_it_can_run_again(
    s: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"servers": s.url, "stream": s.name, "subject": f"{s.subject}.a"}
    JetStreamBatchWriter(given, ROWS, False, lambda _: None).commit([ended("")])
    assert warnings(caplog) == 0
    for number in (1, 2):  # as in `foreachBatch`
        named = {**given, "writeId": f"load-{number}"}
        JetStreamBatchWriter(named, ROWS, False, lambda _: None).commit([ended("")])
    assert warnings(caplog) == 1
