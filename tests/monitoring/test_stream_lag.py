"""`lag` on progress as each Spark hands it over; tests/monitoring/test_spark.py has the real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from spark_jetstream.monitoring import StreamLag, lag
from spark_jetstream.source.offsets import OffsetError

_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python"
OLD = f"{_PYTHON}.PythonMicroBatchStream@73a0b862"
NEW = f"{_PYTHON}.PythonMicroBatchStreamWithTriggerAvailableNow@71fdd2d6"
CREATED = "2026-11-22T20:43:47.025692076Z"
READ = 1_795_380_227_176_988_204
UNKNOWN = (None, None, None)


def offset(stream: str, next_: int, timestamp: int, created: str = CREATED) -> dict[str, Any]:
    return {
        "version": 1,
        "streams": {stream: {"next": next_, "created": created, "last_timestamp": timestamp}},
    }


def source_of(
    *,
    stream: str = "ORDERS",
    next_: int = 18,
    read: int = READ,
    latest: int = 18,
    later: int = 0,
    created: str = CREATED,
    description: str = NEW,
) -> dict[str, Any]:
    """A source as in the JSON text of a progress; ``later``: nanoseconds from the last message read
    to the last one.
    """
    return {
        "description": description,
        "startOffset": None,
        "endOffset": offset(stream, next_, read),
        "latestOffset": offset(stream, latest, READ + later, created),
        "numInputRows": 20,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.6,
    }


def progress_of(*sources: dict[str, Any], **fields: Any) -> str:
    """The JSON text of a progress of Spark 4.2.1, with these sources."""
    content = {
        "id": "fda801c2-c283-47ed-86bb-8871db343dbb",
        "runId": "161e0341-e114-42e3-a145-a49eb43a9ed5",
        "name": "two",
        "timestamp": "2026-11-22T20:44:55.219Z",
        "batchId": 0,
        "batchDuration": 35_819,
        "numInputRows": 20,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 500.0,
        "durationMs": {
            "addBatch": 35_273,
            "latestOffset": 53,
            "triggerExecution": 35_815,
            "walCommit": 128,
        },
        "stateOperators": [],
        "sources": list(sources),
        "sink": {"description": "NoopTable", "numOutputRows": 20},
        **fields,
    }
    return json.dumps(content)


def as_object(text: str) -> StreamingQueryProgress:
    """As Spark Connect makes it from the text: the offsets are text, and are so on a classic
    session too.
    """
    progress = StreamingQueryProgress.fromJson(json.loads(text))
    assert not progress["sources"] or isinstance(progress["sources"][0]["endOffset"], str)
    return progress


def as_old_object(text: str) -> StreamingQueryProgress:
    """As Spark 4.0 and 4.1 make it: offsets are the text of Python's dictionaries."""
    progress = as_object(text)
    for source in progress["sources"]:
        source.update(
            {name: str(json.loads(source[name])) for name in ("endOffset", "latestOffset")}
        )
    return progress


def with_text(text: str) -> dict[str, Any]:
    """As the JSON of a progress over Spark Connect: offsets are JSON text."""
    content: dict[str, Any] = json.loads(text)
    for source in content["sources"]:
        source.update({name: json.dumps(source[name]) for name in ("endOffset", "latestOffset")})
    return content


FORMS: list[Any] = [
    str,
    json.loads,
    with_text,
    as_object,
    as_old_object,
    lambda text: QueryProgressEvent(as_object(text)),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (source_of(latest=41, later=24_157_833), (41, 23, 0.024157833)),
        (source_of(), (18, 0, 0.0)),
        # Before the first message, and when the last message was removed before its time was known.
        (source_of(next_=1, read=0, latest=41), (41, 40, None)),
        (source_of(next_=1, read=0, latest=1, later=-READ), (1, 0, 0.0)),
        # A clock of the server that went back.
        (source_of(latest=19, later=-5), (19, 1, 0.0)),
        # A filter: the query has come past the last message that matches.
        (source_of(latest=7, later=-5_000_000_000), (7, 0, 0.0)),
        (source_of(latest=41, created="2026-11-23T00:00:00Z"), (41, None, None)),
        # Spark 4.0 and 4.1 repeat the end of the batch; if one of them ever does not, that is the
        # end of the stream.
        (source_of(description=OLD), UNKNOWN),
        (source_of(description=OLD, latest=41, later=1_000_000_000), (41, 23, 1.0)),
        (source_of() | {"latestOffset": None}, UNKNOWN),
        (source_of() | {"latestOffset": offset("OTHER", 7, READ)}, UNKNOWN),
    ],
)
def test_one_stream(form: Any, source: dict[str, Any], expected: tuple[Any, ...]) -> None:
    next_ = source["endOffset"]["streams"]["ORDERS"]["next"]
    assert lag(form(progress_of(source))) == {"ORDERS": StreamLag("ORDERS", next_, *expected)}


@pytest.mark.parametrize("form", FORMS)
def test_several_sources(form: Any) -> None:
    rate: dict[str, Any] = {
        "description": "RateStreamV2[rowsPerSecond=1]",
        "startOffset": 0,
        "endOffset": 7,
        "latestOffset": 7,
    }
    kafka: dict[str, Any] = {
        "description": "KafkaV2[Subscribe[a]]",
        "startOffset": None,
        "endOffset": {"a": {"0": 5}},
    }
    other: dict[str, Any] = {
        "description": NEW,
        "startOffset": None,
        "endOffset": {"version": 3},
        "latestOffset": None,
    }
    rest = {"numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    both = source_of(latest=41)
    both["endOffset"]["streams"] |= offset("RETURNS", 4, READ)["streams"]
    both["latestOffset"]["streams"] |= offset("RETURNS", 6, READ + 10**9)["streams"]
    again = [
        source_of(next_=30, latest=41),
        source_of(next_=11, latest=41),
        source_of(next_=20, latest=41),
    ]
    sources = [rate | rest, kafka | rest | {"latestOffset": None}, other | rest, both, *again]
    found = lag(form(progress_of(*sources)))
    # ORDERS is read four times.
    assert [(name, each.next, each.messages) for name, each in found.items()] == [
        ("ORDERS", 11, 30),
        ("RETURNS", 4, 2),
    ]
    assert lag(form(progress_of(rate | rest))) == {}
    # With other filters one is at its end, at an earlier sequence; of another Spark does not report
    # the end.
    silent = source_of(next_=5) | {"latestOffset": None}
    apart = [source_of(next_=11, latest=11), source_of(next_=500, latest=5000), silent]
    assert lag(form(progress_of(*apart)))["ORDERS"].messages == 4500


def test_no_progress_yet() -> None:
    before = source_of() | {"endOffset": None, "latestOffset": None}
    assert [lag(form(progress_of(before))) for form in FORMS] == [{}] * len(FORMS)
    assert lag(None) == {}
    assert lag(SimpleNamespace(progress=None)) == {}


def test_an_offset_of_a_newer_release() -> None:
    source = source_of()
    source["latestOffset"]["version"] = 4
    with pytest.raises(OffsetError, match="written by a newer release"):
        lag(progress_of(source))


def test_pyspark_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['prometheus_client'] = None\n"
        "from spark_jetstream.monitoring import lag\n"
        f"print(lag({progress_of(source_of(latest=41))!r})['ORDERS'].messages)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "23\n"
