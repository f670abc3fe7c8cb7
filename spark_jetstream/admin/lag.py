"""How far consumers are behind."""

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
    """How far a consumer is behind. ``pending`` messages are still to be delivered, ``ack_pending`` were and wait for
    their acknowledgement, ``redelivered`` of those more than once.

    ``oldest`` is when the oldest message was stored that is not processed, and ``age`` how long ago that was by the
    server's clock; None when there is none, or when it cannot be told (``deliver_policy`` ``last_per_subject``, or it
    was not asked for). While acknowledgements are missing it may be one that was delivered ``max_deliver`` times and
    given up.

    ``spark_since`` is when a Spark query took a consumer that shows how far it has committed (option ``durable``); None
    for all other consumers. Nobody pulls from such a one: all that it has to deliver is what the query has yet to
    commit.
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
    """How far a mirror, or a stream with sources, is behind one ``origin``. ``lag`` messages are still to come; it is 0
    as well while the origin was never reached: look at ``error`` and ``active`` too.

    ``active`` is how long ago something came, if only a sign of life; None for never.
    """

    stream: str
    origin: str
    lag: int
    active: Nanoseconds | None
    error: str


def origin_lags(api: Api, stream: str | None = None) -> Iterator[OriginLag]:
    """The lag of a stream, or of all streams, behind what they copy; sorted by name.

    Raises what `Streams.infos` and `Streams.load` raise.
    """
    streams = Streams(api)
    for info in streams.infos() if stream is None else [streams.load(stream)]:
        for each in info.origins:
            active = each.active if each.active >= 0 else None
            error = each.error.description if each.error else ""
            yield OriginLag(info.config.name, each.name, each.lag, active, error)


def lag_of(api: Api, stream: str, consumer: str, *, ages: bool = True) -> ConsumerLag:
    """The lag of one consumer. As `lags`; `ConsumerNotFound` when it is not there."""
    return _lag(Messages(api), Consumers(api).load(stream, consumer), ages)


def lags(api: Api, stream: str | None, *, ages: bool = True) -> Iterator[ConsumerLag]:
    """The lag of each consumer of a stream, or of all streams, sorted by name.

    ``ages`` asks for the oldest message that is not processed, which takes a request for each filter of a consumer that
    is behind. Raises what `Consumers.infos` and `Streams.names` raise.
    """
    if stream is not None:
        yield from _lags(api, stream, ages)
        return
    for name in Streams(api).names():
        try:
            yield from _lags(api, name, ages)
        except StreamNotFound:
            continue  # it was deleted meanwhile


def _lags(api: Api, stream: str, ages: bool) -> Iterator[ConsumerLag]:
    messages = Messages(api)
    yield from (_lag(messages, info, ages) for info in Consumers(api).infos(stream))


def _lag(messages: Messages, info: ConsumerInfo, ages: bool) -> ConsumerLag:
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
    """When the oldest message was stored that the consumer has to deliver, or that waits for its acknowledgement."""
    if not info.lag or info.config.deliver_policy == "last_per_subject":
        return None
    # Behind the acknowledgements only while one is missing: the floor stays where a message was given up.
    behind = info.ack_floor if info.num_ack_pending else info.delivered
    found = []
    for subject in info.config.filters or (">",):
        try:
            found.append(messages.next(info.stream_name, subject, behind.stream_seq + 1))
        except MessageNotFound:
            continue
    return min(found, key=lambda each: each.seq).time if found else None
