"""Messages that consumers deliver, and the receiver for those of a push consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.models.consumers import ConsumerConfig, ConsumerInfo
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.subscription import Subscribed, messages
from spark_jetstream.errors import ConsumerLost, DataLossError, JetStreamError
from spark_jetstream.protocol import ack_subject
from spark_jetstream.protocol.ack_subject import parse_ack
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.units import whole_number
from spark_jetstream.protocol.wire import Frames, Status, parse_status
from spark_jetstream.streams.latest import END
from spark_jetstream.streams.session import UNHEARD, UNHEARD_PAUSE

_FLOW_CONTROL = "$JS.FC."  # the beginning of subjects at which the server awaits an answer


@dataclass(frozen=True)
class DeliveryTimes:
    """How long a client waits for deliveries before it doubts that the consumer exists."""

    silence: float = 30.0
    """Seconds without a message, until a push consumer without heartbeats is asked for."""
    unheard: int = UNHEARD
    """How many pull requests nobody hears before the consumer is taken to be gone."""
    unheard_pause: float = UNHEARD_PAUSE
    """Seconds between two of them."""


DELIVERY_TIMES = DeliveryTimes()


@dataclass(frozen=True)
class DeliveredMessage:
    """A message as a consumer delivered it.

    ``deliveries`` counts the deliveries of this message, ``consumer_seq`` all deliveries of the
    consumer. ``pending`` messages were not delivered yet. ``reply`` is the subject of the
    acknowledgement.
    """

    message: StoredMessage
    consumer: str
    deliveries: int
    consumer_seq: int
    pending: int
    reply: str

    @property
    def pin_id(self) -> str:
        """The ``id`` by which the server knows the pinned client that got the message.

        It is empty without a pin.
        """
        return self.message.headers.get("Nats-Pin-Id", [""])[-1]


class Receiver:
    """Receives what a push consumer delivers, one subscription after the other.

    `through_outages` makes the attempts. ``load`` asks for the consumer, and raises an error if it
    is a pull consumer. Without a message for ``idle`` seconds it ends.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        load: Callable[[], ConsumerInfo],
        idle: float,
        times: DeliveryTimes = DELIVERY_TIMES,
    ) -> None:
        self.part = SequenceRange(stream, 1, END, None, "")
        self.next = 1
        self._api = api
        self._load = load
        self._idle = idle
        self._times = times
        # The consumer's number of its last delivery, once one is known.
        self._last: int | None = None

    def attempt(self, patience: Deadline) -> Iterator[DeliveredMessage | None]:
        """Yield the messages of one subscription, and None at each sign of life."""
        connection = self._api.connect(patience.left)
        # The consumer is asked for anew in each attempt: its deliver_subject may be another one.
        config = self._load().config
        quiet = Deadline(self._idle)
        with connection.subscribe(*_subscription_of(config)) as inbox:
            while not quiet.expired:
                frames = inbox.get(quiet.within(self._longest_silence(config)))
                if frames is None and not quiet.expired:
                    frames = self._check_alive(connection, inbox, config)
                    yield None
                if not isinstance(frames, Frames):
                    continue
                # Frame by frame, since a flow control request is
                # answered when all messages before it were taken.
                for at in range(len(frames)):
                    frame = frames[at : at + 1]
                    message = self._delivered(frame, config)
                    if message is not None:
                        yield message
                        quiet = Deadline(self._idle)
                    elif self._take_status(connection, inbox, frame, config):
                        yield None
        # `through_outages` takes a reader that has reached its end for complete.
        self.next = self.part.end

    def failed(self, error: JetStreamError) -> bool:
        """Pause before the next attempt."""
        return True

    def _check_alive(
        self,
        connection: Connection,
        inbox: Subscribed,
        config: ConsumerConfig,
    ) -> Frames | Status | None:
        """Return what was received while the server was asked, after a silence; None for nothing.

        Raises `ConsumerLost` if the consumer does not deliver to this subscription any more.
        """
        # A lost connection raises `ConnectionFailed` here: the consumer need not be asked.
        connection.check()
        now = self._load().config
        # These messages may not be delivered again: they come before any doubt.
        frames = inbox.get(0)
        if frames is not None:
            return frames
        if _subscription_of(now) != _subscription_of(config):
            raise ConsumerLost("the consumer delivers to another subject or group now")
        # Without heartbeats silence means nothing: there may be no message.
        if _heartbeat(config):
            silence = self._longest_silence(config)
            raise ConsumerLost(f"the server sent no message and no heartbeat for {silence:g} s")
        return None

    def _longest_silence(self, config: ConsumerConfig) -> float:
        """Return after how many seconds without a message the consumer is checked."""
        # ADR-37: two missing heartbeats are a fault. One second is added for the way.
        heartbeat = _heartbeat(config)
        return 2 * heartbeat + 1 if heartbeat else self._times.silence

    def _delivered(self, frame: Frames, config: ConsumerConfig) -> DeliveredMessage | None:
        """Return the message in a frame; None if it is a status."""
        # Anybody may publish at the deliver_subject, and a message without the subject of an
        # acknowledgement is not the consumer's
        # (`test_messages_that_others_publish_to_the_deliver_subject_are_ignored`).
        if not frame.reply_subject(0).startswith(ack_subject.PREFIX):
            return None
        (message,) = delivered_messages(frame, self.part.stream)
        self._note_delivery(message.consumer_seq - 1, message.consumer_seq, config)
        self.next = message.message.seq + 1
        return message

    def _take_status(
        self,
        connection: Connection,
        inbox: Subscribed,
        frame: Frames,
        config: ConsumerConfig,
    ) -> bool:
        """Answer a flow control request; return whether the frame is a sign of life."""
        status = parse_status(next(frame.parts())[0])
        # 100 is a heartbeat or a flow control request (nats-server).
        if status is None or status.code != 100:
            return False
        # A heartbeat names a flow control request that nobody has answered yet.
        request = frame.reply_subject(0) or status.headers.get("Nats-Consumer-Stalled", "")
        if request.startswith(_FLOW_CONTROL):
            # If the account may not publish the answer, the
            # refusal names this subject, and fails the inbox.
            inbox.answered = request
            connection.post(request)
        # A heartbeat names the last delivery, so one that was lost is noticed without a next
        # message (`test_deliveries_that_are_missing`).
        last = whole_number(status.headers.get("Nats-Last-Consumer", ""))
        if last:
            self._note_delivery(last, last, config)
        return True

    def _note_delivery(self, before: int, last: int, config: ConsumerConfig) -> None:
        """Note the number of the last delivery.

        Raises `DataLossError` if deliveries up to ``before`` are missing and are not made again.
        """
        missing = self._last is not None and before > self._last
        if missing and _delivers_once(config):
            assert self._last is not None
            raise DataLossError(
                f"deliveries {self._last + 1} to {before} of a consumer of stream "
                f"{self.part.stream} were lost on the way, and it makes none again "
                "(ack_policy none, or max_deliver 1)"
            )
        self._last = last


def _subscription_of(config: ConsumerConfig) -> tuple[str, str]:
    """Return the subject and the queue group to which a push consumer delivers."""
    return config.deliver_subject, config.deliver_group


def _heartbeat(config: ConsumerConfig) -> float:
    """Return the seconds between heartbeats that this client can rely on; 0 for none."""
    # The clients of a queue group share the heartbeats: each gets only some of them.
    return 0.0 if config.deliver_group else config.idle_heartbeat / 1e9


def _delivers_once(config: ConsumerConfig) -> bool:
    """Return whether a delivery that this client misses is lost."""
    # The clients of a queue group share the deliveries: the next number went to another one.
    if config.deliver_group:
        return False
    return config.ack_policy == "none" or config.max_deliver == 1


def delivered_messages(frames: Frames, stream: str) -> Iterator[DeliveredMessage]:
    """Return the messages that a consumer delivered.

    Raises `ProtocolError` for another reply subject.
    """
    for raw in messages(frames):
        ack = parse_ack(raw.reply)
        stored = {
            "subject": raw.subject,
            "seq": ack.stream_seq,
            "time": ack.time,
            "data": raw.data,
            "hdrs": raw.hdrs,
        }
        context = f"read message {ack.stream_seq} of stream {stream}"
        message = StoredMessage.from_server({**stored, "stream": stream}, context)
        yield DeliveredMessage(
            message,
            ack.consumer,
            ack.deliveries,
            ack.consumer_seq,
            ack.pending,
            raw.reply,
        )


def stored_messages(frames: Frames, stream: str) -> Iterator[StoredMessage]:
    """Return the messages of `delivered_messages` alone."""
    return (delivered.message for delivered in delivered_messages(frames, stream))
