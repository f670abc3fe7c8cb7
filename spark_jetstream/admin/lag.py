"""How far consumers, mirrors and sources lag behind their streams."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.errors import MessageNotFound
from spark_jetstream.protocol.conventions import SINCE
from spark_jetstream.protocol.units import Nanoseconds, Timestamp


@dataclass(frozen=True)
class ConsumerLag:
    """How far a consumer lags.

    ``pending`` messages are not delivered yet; ``ack_pending`` are delivered and not acknowledged, ``redelivered`` of
    them more than once. ``oldest`` is when the oldest message was stored that is not processed, ``age`` how long ago
    that was by the server's clock; None when there is none, when not asked for, and for ``deliver_policy``
    ``last_per_subject``. While acknowledgements are missing, it may be a message that was given up (``max_deliver``).
    ``spark_since`` is when a Spark query took the consumer to show its progress (option ``durable``), None for others;
    ``pending`` then counts what the query has not committed yet.
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

    ``lag`` messages are not copied yet; it is 0 too when the origin was never reached: see ``error`` and ``active``.
    ``active`` is how long ago a message or heartbeat came from the origin; None for never.
    """

    stream: str
    origin: str
    lag: int
    active: Nanoseconds | None
    error: str


def consumer_lag(messages: Messages, info: ConsumerInfo, ages: bool) -> ConsumerLag:
    """Return the lag of a consumer, as `JetStreamAdmin.lag` does."""
    oldest = _oldest(messages, info) if ages else None
    age = None
    if oldest is not None and not info.ts.never:
        age = Nanoseconds(max(0, info.ts.nanoseconds - oldest.nanoseconds))
    return ConsumerLag(
        info.stream_name,
        info.name,
        info.num_pending,
        info.num_ack_pending,
        info.num_redelivered,
        info.num_waiting,
        info.paused,
        oldest,
        age,
        Timestamp(info.config.metadata[SINCE]) if SINCE in info.config.metadata else None,
    )


def _oldest(messages: Messages, info: ConsumerInfo) -> Timestamp | None:
    """Return when the oldest message was stored that is not delivered, or not acknowledged."""
    if not info.lag or info.config.deliver_policy == "last_per_subject":
        return None
    # The acknowledgement floor counts only while one is missing: it stays where a message was given up.
    behind = info.ack_floor if info.num_ack_pending else info.delivered
    oldest = []
    for subject in info.config.filters or (">",):
        try:
            oldest.append(messages.next(info.stream_name, subject, behind.stream_seq + 1))
        except MessageNotFound:
            continue
    return min(oldest, key=lambda message: message.seq).time if oldest else None
