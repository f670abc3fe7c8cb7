"""`trace_context` on headers as producers write them, and as they should not."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jetstream.monitoring.traces import trace_context
from tests.support.publish import Message
from tests.support.queries import batch
from tests.support.streams import MakeStream

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FULL = f"00-{TRACE}-{SPAN}-01"

#: By value of the header: whether the trace is sampled, None if the standard has the value ignored.
VALUES: dict[str, bool | None] = {
    FULL: True,
    f"00-{TRACE}-{SPAN}-00": False,
    f"00-{TRACE}-{SPAN}-f2": False,
    f"cc-{TRACE}-{SPAN}-03": True,
    f"cc-{TRACE}-{SPAN}-01-what the future brings": True,
    f"cc-{TRACE}-{SPAN}-01.what": None,
    f"00-{TRACE}-{SPAN}-01-more": None,
    f"00-{TRACE}-{SPAN}-01-": None,
    f"ff-{TRACE}-{SPAN}-01": None,
    f"00-{'0' * 32}-{SPAN}-01": None,
    f"00-{TRACE}-{'0' * 16}-01": None,
    f"00-{TRACE.upper()}-{SPAN}-01": None,
    f"00-{TRACE[1:]}-{SPAN}-01": None,
    f"00-{TRACE}-{SPAN}": None,
    f"x{FULL}": None,
    "": None,
}


def test_the_context_of_stored_messages(spark: SparkSession, stream: MakeStream) -> None:
    """Through a real server, which keeps names and values of headers as they are."""
    several: list[tuple[list[tuple[str, str]] | None, bool | None]] = [
        (None, None),
        ([("trace", FULL)], None),
        ([("TraceParent", FULL), ("tracestate", "a=b")], True),
        ([("traceparent", FULL), ("traceparent", FULL)], None),
        ([("traceparent", FULL), ("Traceparent", FULL)], None),
    ]
    cases = [([("traceparent", value)], sampled) for value, sampled in VALUES.items()] + several
    s = stream()
    s.send(*(Message(f"{s.subject}.x", b"", headers) for headers, _ in cases))
    contexts = (
        batch(spark, s.url, s.name)
        .orderBy("sequence")
        .select(trace_context(F.col("headers")).alias("context"))
    )
    expected = [None if sampled is None else (TRACE, SPAN, sampled) for _, sampled in cases]
    assert [row.context for row in contexts.collect()] == expected
    assert contexts.select("context.*").columns == ["trace_id", "span_id", "sampled"]
