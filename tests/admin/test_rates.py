"""Rates of streams and consumers from two samples."""

from __future__ import annotations

from typing import Any

from spark_jetstream.admin import ConsumerInfo, StreamInfo, Timestamp
from spark_jetstream.admin.rates import (
    ConsumerRate,
    Sample,
    StreamRate,
    consumer_rates,
    stream_rates,
)
from spark_jetstream.protocol.conventions import SINCE

CREATED = "2026-03-01T12:00:00Z"


def stream(last: int, messages: int, size: int, created: str = CREATED) -> StreamInfo:
    state = {"messages": messages, "bytes": size, "first_seq": 1, "last_seq": last}
    return StreamInfo.from_server({"config": {"name": "S"}, "created": created, "state": state})


def consumer(
    number: int, sequence: int, more: dict[str, Any] | None = None, created: str = CREATED
) -> ConsumerInfo:
    body = {
        "stream_name": "S",
        "name": "c",
        "created": created,
        "config": {},
        "delivered": {"consumer_seq": number, "stream_seq": sequence},
        **(more or {}),
    }
    return ConsumerInfo.from_server(body)


def rate_of_stream(before: StreamInfo | None, now: StreamInfo, seconds: float = 2.0) -> StreamRate:
    earlier = Sample() if before is None else Sample({"S": (before, 10.0)})
    (row,) = stream_rates(earlier, Sample({"S": (now, 10.0 + seconds)}))
    return row


def rate_of_consumer(before: ConsumerInfo | None, now: ConsumerInfo) -> ConsumerRate:
    key = ("S", "c")
    earlier = Sample() if before is None else Sample({}, {key: (before, 10.0)})
    (row,) = consumer_rates(earlier, Sample({}, {key: (now, 12.0)}))
    return row


def test_messages_that_a_stream_stores_are_counted() -> None:
    row = rate_of_stream(stream(100, 100, 1000), stream(120, 120, 1500))
    assert (row.message_rate, row.byte_rate, row.messages, row.bytes) == (10.0, 250.0, 120, 1500)


def test_a_purge_and_limits_do_not_lower_a_rate() -> None:
    """The bytes are then estimated from the mean size of the messages that the stream still has."""
    full = rate_of_stream(stream(100, 50, 500), stream(120, 50, 500))
    assert (full.message_rate, full.byte_rate) == (10.0, 100.0)
    purged = rate_of_stream(stream(100, 100, 1000), stream(100, 0, 0))
    assert (purged.message_rate, purged.byte_rate) == (0.0, None)
    partly = rate_of_stream(stream(100, 100, 1000), stream(102, 2, 60))
    assert (partly.message_rate, partly.byte_rate) == (1.0, 30.0)


def test_a_stream_without_a_state_before_has_no_rate() -> None:
    new = rate_of_stream(None, stream(100, 100, 1000))
    again = rate_of_stream(stream(10, 10, 10), stream(20, 20, 20, "2026-03-02T12:00:00Z"))
    lost = rate_of_stream(stream(10, 10, 10), stream(5, 5, 5))
    at_once = rate_of_stream(stream(10, 10, 10), stream(20, 20, 20), seconds=0.0)
    for row in (new, again, lost, at_once):
        assert (row.message_rate, row.byte_rate) == (None, None)


def test_a_deleted_stream_or_consumer_has_no_row() -> None:
    before = Sample({"S": (stream(1, 1, 1), 0.0)}, {("S", "c"): (consumer(1, 1), 0.0)})
    assert stream_rates(before, Sample()) == []
    assert consumer_rates(before, Sample()) == []


def test_messages_that_a_consumer_delivers_are_counted() -> None:
    more = {"num_pending": 7, "num_ack_pending": 2, "num_redelivered": 1}
    row = rate_of_consumer(consumer(10, 10), consumer(30, 500, more))
    assert row == ConsumerRate("S", "c", 7, 2, 1, 10.0, None)


def test_a_consumer_of_a_query_counts_committed_sequences() -> None:
    marked = {"config": {"metadata": {SINCE: CREATED}}}
    row = rate_of_consumer(consumer(0, 10, marked), consumer(0, 30, marked))
    assert (row.rate, row.spark_since) == (10.0, Timestamp(CREATED))


def test_a_consumer_that_went_back_or_is_another_one_has_no_rate() -> None:
    new = rate_of_consumer(None, consumer(5, 5))
    back = rate_of_consumer(consumer(10, 10), consumer(5, 5))
    again = rate_of_consumer(consumer(1, 1), consumer(5, 5, created="2026-03-02T12:00:00Z"))
    assert [row.rate for row in (new, back, again)] == [None, None, None]
