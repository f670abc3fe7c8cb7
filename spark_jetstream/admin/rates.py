"""Rates of streams and consumers, computed from two samples of their states. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.protocol.conventions import SINCE
from spark_jetstream.protocol.units import Timestamp


@dataclass(frozen=True)
class Sample:
    """States by their names: those of streams, and of consumers by stream and name."""

    streams: Mapping[str, tuple[StreamInfo, float]] = field(default_factory=dict)
    """By name: the state, and when it was read, by a monotonic clock in seconds."""
    consumers: Mapping[tuple[str, str], tuple[ConsumerInfo, float]] = field(default_factory=dict)
    """By stream and name, likewise."""


@dataclass(frozen=True)
class StreamRate:
    """A stream, and its messages and bytes a second since the sample before.

    A rate is None where the sample before does not have this stream, or has another one of this
    name. ``message_rate`` counts the sequences that the server has assigned, so a purge and limits
    do not lower it. ``byte_rate`` is exact where no message was removed meanwhile; else it is an
    estimate, ``message_rate`` times the mean size of the messages in the stream.
    """

    stream: str
    messages: int
    bytes: int
    consumers: int
    last: Timestamp
    """When the last message was stored."""
    message_rate: float | None
    byte_rate: float | None


@dataclass(frozen=True)
class ConsumerRate:
    """A consumer, its lag, and its messages a second since the sample before.

    ``pending`` messages are not delivered yet, ``ack_pending`` wait for their acknowledgement.
    ``rate`` counts deliveries, repeated ones too. ``spark_since`` is when a Spark query took the
    consumer to keep its position (option ``durable``), None for others. Nothing is delivered over
    the consumer of a query: its ``rate`` counts the sequences that the query has committed, those
    that its filter leaves out included. A rate is None where it is not known: without a sample
    before, for another consumer of this name, and for a consumer that was moved back.
    """

    stream: str
    consumer: str
    pending: int
    ack_pending: int
    redelivered: int
    rate: float | None
    spark_since: Timestamp | None


def stream_rates(before: Sample, now: Sample) -> list[StreamRate]:
    """Return a row for each stream of a sample. Streams that were deleted meanwhile have none."""
    return [_stream_rate(before, name, *taken) for name, taken in now.streams.items()]


def consumer_rates(before: Sample, now: Sample) -> list[ConsumerRate]:
    """Return a row for each consumer of a sample. Consumers that were deleted have none."""
    return [_consumer_rate(before, names, *taken) for names, taken in now.consumers.items()]


def _stream_rate(before: Sample, name: str, info: StreamInfo, at: float) -> StreamRate:
    state = info.state
    message_rate = None
    byte_rate = None
    earlier = before.streams.get(name)
    # Another time of creation: it is another stream of this name.
    if earlier is not None and earlier[0].created == info.created:
        former = earlier[0].state
        seconds = at - earlier[1]
        stored = state.last_seq - former.last_seq
        message_rate = _rate(stored, seconds)
        if stored >= 0 and state.messages - former.messages == stored:
            byte_rate = _rate(state.bytes - former.bytes, seconds)
        elif message_rate is not None and state.messages:
            byte_rate = message_rate * state.bytes / state.messages
    return StreamRate(
        stream=name,
        messages=state.messages,
        bytes=state.bytes,
        consumers=state.consumer_count,
        last=state.last_ts,
        message_rate=message_rate,
        byte_rate=byte_rate,
    )


def _consumer_rate(
    before: Sample,
    names: tuple[str, str],
    info: ConsumerInfo,
    at: float,
) -> ConsumerRate:
    since = info.config.metadata.get(SINCE)
    rate = None
    earlier = before.consumers.get(names)
    if earlier is not None and earlier[0].created == info.created:
        rate = _rate(_progress(info) - _progress(earlier[0]), at - earlier[1])
    stream, consumer = names
    return ConsumerRate(
        stream=stream,
        consumer=consumer,
        pending=info.num_pending,
        ack_pending=info.num_ack_pending,
        redelivered=info.num_redelivered,
        rate=rate,
        spark_since=None if since is None else Timestamp(since),
    )


def _progress(info: ConsumerInfo) -> int:
    """Return how far a consumer has come."""
    # The consumer of a query is moved and delivers nothing, so its own sequence stays.
    if SINCE in info.config.metadata:
        return info.delivered.stream_seq
    return info.delivered.consumer_seq


def _rate(count: int, seconds: float) -> float | None:
    """Return a number a second; None for what went back, and without time between the samples."""
    if count < 0 or seconds <= 0:
        return None
    return count / seconds
