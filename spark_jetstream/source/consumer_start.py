"""ConsumerStart: where a query begins that takes over from a consumer (option startingConsumer)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests, ask
from spark_jetstream.errors import ConsumerNotFound, OptionError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.handover import (
    Handover,
    filter_differences,
    keeps_for_consumers,
)
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.continuity import earliest_position
from spark_jetstream.source.kinds.kind import ReadKind
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.source.positions import position_from

log = logging.getLogger(__name__)


class ConsumerStart:
    """The start of one stream after a consumer. Decided once for each run, and logged then.

    Spark asks several times where a query begins, and the consumer may go on meanwhile.
    """

    def __init__(self, stream: str, consumer: str, kind: ReadKind, requests: Requests) -> None:
        self._stream = stream
        self._consumer = consumer
        self._kind = kind
        self._requests = requests
        self._position: StreamPosition | None = None

    @classmethod
    def of(cls, stream: str, kind: ReadKind, requests: Requests) -> ConsumerStart | None:
        """Return the start after the consumer that the options name; None without the option."""
        consumer = kind.options.consumer_of(stream)
        if consumer is None:
            return None
        return cls(stream, consumer, kind, requests)

    def start(
        self, state: StreamSummary, look_again: Callable[[], StreamSummary]
    ) -> StreamPosition:
        """Return where the query begins in a stream with this state. Raise `OptionError`.

        `look_again` asks for a state that has all that the consumer can have received. Raises what
        it raises, and what `Requests.call` does.
        """
        known = self._position
        if known is not None and known.created == state.created:
            return known
        # Never an older answer: a consumer is deleted with its stream, and another one has its name.
        handover = self._requests.call(self._load)
        if handover.first > state.last_seq + 1:
            # The consumer has received messages that were stored after the state was asked for. In
            # a cluster the stream may also have another leader than the consumer.
            younger = look_again()
            if younger.created != state.created:
                return self.start(younger, look_again)
            state = younger
        position = self._position_after(handover, state)
        self._report(handover, state, position)
        self._position = position
        return position

    def _load(self, connection: Connection) -> Handover:
        context = f"look at consumer {self._consumer} of stream {self._stream} (startingConsumer)"
        try:
            body = ask(
                connection, jsapi.CONSUMER_INFO, self._stream, self._consumer, context=context
            )
        except ConsumerNotFound:
            raise OptionError(
                f"startingConsumer names consumer {self._consumer}, which stream {self._stream} "
                f"does not have: spark-jetstream consumer ls {self._stream} lists its consumers",
                option="startingConsumer",
            ) from None
        return Handover.from_reply(body, context)

    def _position_after(self, handover: Handover, state: StreamSummary) -> StreamPosition:
        if handover.first < state.first_kept and keeps_for_consumers(state):
            # The messages before the first one had no interest, or all consumers have settled them.
            return earliest_position(state)
        why = f", after what consumer {self._consumer} has acknowledged"
        if not handover.floor:
            why = (
                f", because consumer {self._consumer} has no ack floor yet (startingOffsets names a "
                "sequence in place of it)"
            )
        return position_from(handover.first, self._kind, state, "startingConsumer", why)

    def _report(self, handover: Handover, state: StreamSummary, position: StreamPosition) -> None:
        """Log where the query begins, and why it may read too much or too little."""
        name = f"consumer {self._consumer} of stream {self._stream} (option startingConsumer)"
        log.info("%s: reading begins at sequence %d, after its ack floor", name, position.next)
        if handover.again:
            log.warning("%s: %s", name, handover.repeated())
        if handover.active:
            log.warning(
                "%s is in use: both its clients and the query receive messages from now on; stop "
                "the clients, or pause it (spark-jetstream consumer pause %s %s 1d)",
                name,
                self._stream,
                self._consumer,
            )
        differences = filter_differences(
            handover, self._kind.options.subjects, state, position.next
        )
        if differences:
            log.warning("%s %s", name, differences)
