"""Messages that consumers deliver: pull some, receive those of a push consumer, acknowledge them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.subscription import messages
from spark_jetstream.errors import ConsumerLost, DataLossError, JetStreamError, pull_refused
from spark_jetstream.protocol import ack_subject, jsapi
from spark_jetstream.protocol.ack_subject import parse_ack
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.units import whole_number
from spark_jetstream.protocol.wire import Frames, parse_status
from spark_jetstream.streams.latest import END
from spark_jetstream.streams.session import UNHEARD, UNHEARD_PAUSE

_SLACK = 2.0  # seconds that the server's reply may come late
_SILENCE = 30.0  # seconds without a message, until a push consumer without heartbeats is asked for


@dataclass(frozen=True)
class DeliveredMessage:
    """A message as a consumer delivered it.

    ``deliveries`` counts the deliveries of this message, ``consumer_seq`` all deliveries of the consumer. ``pending``
    messages were not delivered yet. ``reply`` is the subject of the acknowledgement.
    """

    message: StoredMessage
    consumer: str
    deliveries: int
    consumer_seq: int
    pending: int
    reply: str

    @property
    def pin_id(self) -> str:
        """The ``id`` by which the server knows the pinned client that got the message; empty without a pin."""
        return self.message.headers.get("Nats-Pin-Id", [""])[-1]


def pull(
    connection: Connection, info: ConsumerInfo, count: int, timeout: float, **request: Any
) -> list[DeliveredMessage]:
    """Return up to ``count`` messages as `Consumers.next` does. ``request``: see `jsapi.next_request`.

    What came is returned, whatever fails then. Before that, raises `RequestTimeout` when the server is silent, and what
    `jsapi.pull_status` raises.
    """
    stream, name = info.stream_name, info.name
    context = f"get messages from consumer {name} of stream {stream}"
    silence = 2 * request.get("heartbeat", math.inf) + _SLACK
    bytes_left = request.get("max_bytes", math.inf)
    messages: list[DeliveredMessage] = []
    deadline, unheard = Deadline(timeout + _SLACK), 0
    with connection.inbox() as inbox:
        subject = jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, stream, name)
        body = jsapi.next_request(count, expires=timeout, **request)
        inbox.publish(subject, body, 1)
        try:
            while len(messages) < count and bytes_left > 0:  # the server says nothing when the last byte was used
                event = inbox.get(deadline.within(silence))
                if isinstance(event, Frames):
                    bytes_left -= event.pull_bytes()
                    messages += delivered_messages(event, stream)
                elif event is None:
                    connection.check(_SLACK)
                    if not timeout:
                        break  # the server does not answer while too many messages wait for acknowledgements
                    raise jsapi.no_reply(context, min(silence, deadline.seconds), "(timeout, idle_heartbeat)")
                elif event.code == jsapi.NO_RESPONDERS and not messages and unheard < UNHEARD:
                    # The servers of a cluster hear of a new consumer or leader one after the other.
                    unheard += 1
                    time.sleep(UNHEARD_PAUSE)
                    inbox.publish(subject, body, 1)
                else:
                    end = jsapi.pull_status(event, stream)
                    if event.code == 409 and not messages:
                        why = "the next message is larger than max_bytes" if end.too_large else "too many requests wait"
                        raise pull_refused(f"cannot {context}: {why} (409 {event.description})", 409, event.description)
                    if end.over:
                        break
        except JetStreamError:
            if not messages:
                raise
    return messages


class Receiver:
    """Receives what a push consumer delivers, over one subscription after the other; for `through_outages`.

    ``load`` asks for the consumer, and raises an error if it is a pull consumer. Without a message for ``idle`` seconds
    it ends.
    """

    def __init__(self, api: Api, stream: str, load: Callable[[], ConsumerInfo], idle: float) -> None:
        self.part = SequenceRange(stream, 1, END, None, "")
        self.next = 1
        self._api, self._load, self._idle = api, load, idle
        self._last: int | None = None  # the consumer's number of its last delivery, once one is known

    def attempt(self, patience: Deadline) -> Iterator[DeliveredMessage | None]:
        """Yield what comes over one subscription, and None when the server shows that it is alive."""
        connection, config = self._api.connect(patience.left), self._load().config
        # The clients of a queue group share heartbeats and deliveries.
        heartbeat = 0 if config.deliver_group else config.idle_heartbeat
        final = not config.deliver_group and (config.ack_policy == "none" or config.max_deliver == 1)
        silence = 2 * heartbeat / 1e9 + 1 if heartbeat else _SILENCE
        quiet = Deadline(self._idle)
        place = config.deliver_subject, config.deliver_group
        with connection.subscribe(*place) as inbox:
            while not quiet.expired:
                frames = inbox.get(quiet.within(silence))
                if frames is None and not quiet.expired:
                    connection.check()
                    now = self._load().config
                    frames = inbox.get(0)  # what came meanwhile may not come again
                    if frames is None and (now.deliver_subject, now.deliver_group) != place:
                        raise ConsumerLost("the consumer delivers to another subject or group now")
                    if frames is None and heartbeat:
                        raise ConsumerLost(f"no message and no heartbeat came for {silence:g} s")
                    yield None
                for one in [frames[at : at + 1] for at in range(len(frames))] if isinstance(frames, Frames) else ():
                    reply = one.reply_subject(0)
                    if reply.startswith(ack_subject.PREFIX):
                        (message,) = delivered_messages(one, self.part.stream)
                        self._note(message.consumer_seq - 1, message.consumer_seq, final)
                        self.next = message.message.seq + 1
                        yield message
                        quiet = Deadline(self._idle)
                    elif (status := parse_status(next(one.parts())[0])) and status.code == 100:
                        # Of a flow control request, or of a heartbeat that says that the last one is not answered.
                        reply = reply or status.headers.get("Nats-Consumer-Stalled", "")
                        if reply.startswith("$JS.FC."):
                            inbox.answered = reply
                            connection.post(reply)
                        if last := whole_number(status.headers.get("Nats-Last-Consumer", "")):
                            self._note(last, last, final)
                        yield None
        self.next = self.part.end

    def failed(self, error: JetStreamError) -> bool:
        """Pause before the next attempt."""
        return True

    def _note(self, before: int, last: int, final: bool) -> None:
        """Note the last delivery. Raises `DataLossError` if some up to ``before`` are missing, and that is final."""
        if final and self._last is not None and before > self._last:
            raise DataLossError(
                f"deliveries {self._last + 1} to {before} of a consumer of stream {self.part.stream} were lost on the "
                "way, and it makes none again (ack_policy none, or max_deliver 1)"
            )
        self._last = last


def delivered_messages(frames: Frames, stream: str) -> Iterator[DeliveredMessage]:
    """Return the messages that a consumer delivered. Raises `ProtocolError` for another reply subject."""
    for raw in messages(frames):
        ack = parse_ack(raw.reply)
        stored = {"subject": raw.subject, "seq": ack.stream_seq, "time": ack.time, "data": raw.data, "hdrs": raw.hdrs}
        context = f"read message {ack.stream_seq} of stream {stream}"
        message = StoredMessage.from_server({**stored, "stream": stream}, context)
        yield DeliveredMessage(message, ack.consumer, ack.deliveries, ack.consumer_seq, ack.pending, raw.reply)


def stored_messages(frames: Frames, stream: str) -> Iterator[StoredMessage]:
    """Return the messages of `delivered_messages` alone."""
    return (delivered.message for delivered in delivered_messages(frames, stream))
