"""Lag of consumers, mirrors and sources, as numbers; the command lag compares them with limits."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.errors import MessageNotFound, StreamNotFound
from spark_jetstream.protocol.conventions import SINCE
from spark_jetstream.protocol.units import Nanoseconds, Timestamp


@dataclass(frozen=True)
class ConsumerLag:
    """How far a consumer lags.

    ``pending`` messages are not delivered yet; ``ack_pending`` are delivered and not acknowledged,
    ``redelivered`` of them more than once. ``oldest`` is when the oldest message was stored that is
    not processed, ``age`` how long ago that was by the server's clock. Both are None when there is
    none, when not asked for, and for ``deliver_policy`` ``last_per_subject``. While
    acknowledgements are missing, it may be a message that was given up (``max_deliver``).
    ``spark_since`` is when a Spark query took the consumer to show its progress (option
    ``durable``), None for others; ``pending`` then counts what the query has not committed yet.
    """

    stream: str
    consumer: str
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    paused: bool
    oldest: Timestamp | None = None
    age: Nanoseconds | None = None
    spark_since: Timestamp | None = None

    @property
    def total(self) -> int:
        """How many messages are not processed."""
        return self.pending + self.ack_pending


@dataclass(frozen=True)
class OriginLag:
    """How far a mirror, or a stream with sources, lags behind one ``origin``.

    ``lag`` messages are not copied yet; it is 0 too when the origin was never reached: see
    ``error`` and ``active``. ``active`` is the time since the last message or heartbeat of the
    origin; None if there was none.
    """

    stream: str
    origin: str
    lag: int
    active: Nanoseconds | None
    error: str


def consumer_lag(info: ConsumerInfo, oldest: Timestamp | None) -> ConsumerLag:
    """Return how far a consumer lags.

    ``oldest`` is when the oldest message was stored that is not processed, None if unknown.
    """
    age = None
    if oldest is not None and not info.ts.never:
        # The clocks of two servers may differ.
        age = Nanoseconds(max(0, info.ts.nanoseconds - oldest.nanoseconds))
    spark_since = info.config.metadata.get(SINCE)
    return ConsumerLag(
        stream=info.stream_name,
        consumer=info.name,
        pending=info.num_pending,
        ack_pending=info.num_ack_pending,
        redelivered=info.num_redelivered,
        waiting=info.num_waiting,
        paused=info.paused,
        oldest=oldest,
        age=age,
        spark_since=None if spark_since is None else Timestamp(spark_since),
    )


def oldest_waiting(messages: Messages, info: ConsumerInfo) -> Timestamp | None:
    """Return when the oldest message was stored that is not delivered, or not acknowledged.

    Sends a request for each filter of the consumer. None if it does not lag, and for a consumer of
    the last messages by subject, which skips older ones.
    """
    if not info.lag or info.config.deliver_policy == "last_per_subject":
        return None
    # The acknowledgement floor counts only while one is missing: it stays where a message was
    # given up.
    behind = info.ack_floor if info.num_ack_pending else info.delivered
    first = behind.stream_seq + 1
    oldest = first_from(messages, info.stream_name, info.config.filters, first)
    return None if oldest is None else oldest.time


def first_from(
    messages: Messages, stream: str, filters: Iterable[str], sequence: int
) -> StoredMessage | None:
    """Return the first message from a sequence on that matches one of the filters, if there is one.

    Sends a request for each filter; without any, all messages match.
    """
    found: list[StoredMessage] = []
    # STREAM.MSG.GET takes one filter, so each filter is a question (`next_by_subj`).
    for subject in tuple(filters) or (">",):
        # A stream that was deleted meanwhile must not end the list of the other consumers' lags
        # (`test_lag_of_streams_that_go_meanwhile`).
        with contextlib.suppress(MessageNotFound, StreamNotFound):
            found.append(messages.next(stream, subject, sequence))
    return min(found, key=operator.attrgetter("seq"), default=None)


def origin_lags(info: StreamInfo) -> Iterator[OriginLag]:
    """Yield how far a stream lags behind each stream that it copies."""
    for origin in info.origins:
        # The server says -1 for an origin that it has never heard of.
        active = origin.active if origin.active >= 0 else None
        error = origin.error.description if origin.error else ""
        yield OriginLag(info.config.name, origin.name, origin.lag, active, error)
