"""How far consumers, mirrors and sources lag behind their streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.consumers import Consumers
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.errors import MessageNotFound, StreamNotFound
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


def origin_lags(api: Api, stream: str | None = None) -> Iterator[OriginLag]:
    """Return the lag of a stream, or of all streams, behind their origins; sorted by name.

    Raises what `Streams.infos` and `Streams.load` raise.
    """
    streams = Streams(api)
    for info in streams.infos() if stream is None else [streams.load(stream)]:
        for origin in info.origins:
            active = origin.active if origin.active >= 0 else None
            error = origin.error.description if origin.error else ""
            yield OriginLag(info.config.name, origin.name, origin.lag, active, error)


def lags(api: Api, stream: str | None, *, ages: bool = True) -> Iterator[ConsumerLag]:
    """Return the lag of each consumer of a stream, or of all streams, sorted by name.

    ``ages`` asks for the oldest message that is not processed: a request for each filter of a consumer that lags.
    Raises what `Consumers.infos` and `Streams.names` raise.
    """
    for name in Streams(api).names() if stream is None else [stream]:
        try:
            yield from (lag_of(api, info, ages=ages) for info in Consumers(api).infos(name))
        except StreamNotFound:
            if stream is not None:
                raise
            # The stream was deleted since the list was read.


def lag_of(api: Api, info: ConsumerInfo, *, ages: bool = True) -> ConsumerLag:
    """Return the lag of one consumer, as `lags` does."""
    oldest = _oldest(Messages(api), info) if ages else None
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
