"""`SharedConsumer`: takes messages from a consumer that other clients use as well, and acknowledges them.

Requests follow ADR-37 "JetStream Simplification". A pull with ``no_wait`` and ``expires`` ends as
soon as it has brought all messages that wait, and waits for the first one where none does
(nats-server: server/consumer.go, `processWaiting`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_jetstream.client.connection import Connection, Question
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.requests import Requests, ask
from spark_jetstream.errors import (
    ApiError,
    ConsumerLost,
    ConsumerNotFound,
    JetStreamError,
    OptionError,
    PermissionDenied,
)
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks, Delivered
from spark_jetstream.protocol.fitness import consumer_cautions, consumer_faults, lapse_of
from spark_jetstream.protocol.wire import MAX_FRAME, ApiReply, Frames, Status
from spark_jetstream.source.shared.held import Held
from spark_jetstream.streams.lookup import messages

log = logging.getLogger(__name__)

WAIT = 1.0
"""Seconds that a pull waits for its first message."""

_REMOVED_TOGETHER = 256  # requests to remove a message that are under way at the same time


@dataclass(frozen=True)
class ConsumerLook:
    """The state of the consumer at one moment. ``created`` is as the server prints it."""

    created: str
    config: Mapping[str, Any]
    delivered: int
    """The last sequence of the stream that the consumer has delivered, as far as it knows."""
    undelivered: int
    """Messages that the consumer has to deliver for the first time."""
    unacknowledged: int
    """Messages that it has delivered, and that are not acknowledged."""

    @property
    def lapse(self) -> float:
        """After how many seconds without a sign of life a message goes to another client."""
        return lapse_of(self.config)


@dataclass
class _Taken:
    """The messages of one reservation so far, and what may still be added."""

    messages_left: int
    bytes_left: int
    runs: list[Delivered] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, frames: Frames) -> None:
        acks = Acks(frames)
        self.runs.append(Delivered(frames, acks, acks.sequences()))
        self.messages_left -= len(frames)
        self.bytes_left -= frames.pull_bytes()

    @property
    def full(self) -> bool:
        return self.messages_left <= 0 or self.bytes_left <= 0


@dataclass
class _PullAnswer:
    """One pull request of at most ``batch`` messages and ``size`` bytes, and its answer so far."""

    batch: int
    size: int
    brought: int = 0
    too_large: bool = False
    """Whether the next message does not fit into the bytes that are left."""
    _bytes: int = 0
    _expected: int | None = None  # messages of a request that is over; None before that

    def add(self, frames: Frames) -> None:
        self.brought += len(frames)
        self._bytes += frames.pull_bytes()

    def end(self, end: jsapi.PullEnd) -> None:
        if not end.over:
            return
        self.too_large = end.too_large
        # Where a consumer has replicas, a status may overtake messages that are being replicated,
        # and it says how many messages the request did not bring (`processWaiting`).
        self._expected = self.brought
        if end.undelivered is not None:
            self._expected = self.batch - end.undelivered

    @property
    def full(self) -> bool:
        """Whether it has brought all that it may: the server says nothing more then."""
        return self.brought >= self.batch or self._bytes >= self.size

    @property
    def complete(self) -> bool:
        return self.full or (self._expected is not None and self.brought >= self._expected)


class SharedConsumer:
    """The consumer of option share, on the stream of the query.

    ``wait`` is how long a pull waits for its first message, in seconds. All methods raise what
    `Requests.call` raises, and `OptionError` if the consumer does not exist.
    """

    def __init__(self, requests: Requests, options: SourceOptions, wait: float = WAIT) -> None:
        assert options.share is not None
        self._requests = requests
        self._options = options
        self._stream = options.streams[0]
        self._name = options.share
        self._wait = wait
        self._warned = False

    def look(self) -> ConsumerLook:
        """Return the state of the consumer. Raises `OptionError` if a query cannot share it."""
        look = self._requests.call(self._look)
        faults = consumer_faults(look.config)
        if faults:
            raise OptionError(
                f"a query cannot share consumer {self._name} of stream {self._stream} (option "
                f"share): {faults[0].value}; spark-jetstream consumer edit changes a consumer, and "
                "spark-jetstream consumer add makes another one",
                option="share",
            )
        if not self._warned:
            self._warned = True
            for caution in consumer_cautions(look.config, self._options.shared_messages):
                log.warning("consumer %s of stream %s: %s", self._name, self._stream, caution)
        return look

    def _look(self, connection: Connection) -> ConsumerLook:
        context = f"look at consumer {self._name} of stream {self._stream} (option share)"
        try:
            body = ask(connection, jsapi.CONSUMER_INFO, self._stream, self._name, context=context)
        except ConsumerNotFound:
            raise OptionError(
                f"stream {self._stream} has no consumer {self._name} (option share), and a query "
                f"does not create one: spark-jetstream consumer add {self._stream} {self._name} "
                "--ack explicit --wait 5m --max-ack-pending 50000",
                option="share",
            ) from None
        return ConsumerLook(
            jsapi.field(body, "created", str, context),
            jsapi.field(body, "config", dict, context),
            jsapi.whole(body, "delivered.stream_seq", context),
            jsapi.whole(body, "num_pending", context),
            jsapi.whole(body, "num_ack_pending", context),
        )

    # Taking messages

    def take(self, most: int) -> tuple[list[Delivered], float]:
        """Take the messages that wait, up to ``most`` and to the bytes of a micro-batch.

        Return them with a time (`time.monotonic`) before which none was delivered. Waits a moment
        for the first one. Messages may come in any order, and twice if their time is
        up meanwhile. A message that is larger than the bytes of a micro-batch comes alone.
        """
        return self._requests.call(lambda connection: self._take(connection, most))

    def _take(self, connection: Connection, most: int) -> tuple[list[Delivered], float]:
        taken = _Taken(most, self._options.shared_bytes)
        size = min(self._options.fetch_max_bytes, taken.bytes_left)
        with connection.inbox() as inbox:
            try:
                number = 0
                while not taken.full:
                    number += 1
                    size = self._pull(connection, inbox, number, size, taken)
                    if not size:
                        break
            except JetStreamError as error:
                # Messages that have arrived are the query's, whatever fails later.
                if not taken.runs:
                    raise
                log.info("a pull from consumer %s ends: %s", self._name, error)
        return taken.runs, taken.began

    def _pull(
        self, connection: Connection, inbox: Inbox, number: int, size: int, taken: _Taken
    ) -> int:
        """Add the messages of one pull of up to ``size`` bytes.

        Return the bytes of the next pull, 0 if nothing more waits.
        """
        batch = min(self._options.fetch_batch, taken.messages_left)
        if size > self._options.shared_bytes:
            batch = 1  # for the message that is too large for any other pull
        pull = _PullAnswer(batch, size)
        body = jsapi.next_request(batch, max_bytes=size, expires=self._wait, no_wait=True)
        inbox.expect(size)
        subject = jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, self._stream, self._name)
        inbox.publish(subject, body, number)
        while not pull.complete:
            event = self._receive(connection, inbox)
            if isinstance(event, Frames):
                taken.add(event)
                pull.add(event)
            elif inbox.token(event) == str(number):
                pull.end(jsapi.pull_status(event, self._stream))
        return self._next_size(pull, taken)

    def _receive(self, connection: Connection, inbox: Inbox) -> Frames | Status:
        event = inbox.receive(self._wait + connection.options.request_timeout)
        if event is None:
            connection.check()
            raise ConsumerLost(f"consumer {self._name} of stream {self._stream} is silent")
        assert not isinstance(event, ApiReply)  # `receive` raises that
        return event

    def _next_size(self, pull: _PullAnswer, taken: _Taken) -> int:
        """Return the bytes of the pull after this one, 0 if nothing more waits."""
        whole = min(self._options.fetch_max_bytes, max(taken.bytes_left, 0))
        if pull.full:
            return whole
        if not pull.too_large:
            return 0
        # The first message of a micro-batch may be larger than all that it should have.
        if not taken.runs:
            return min(2 * pull.size, MAX_FRAME) if pull.size < MAX_FRAME else 0
        if pull.brought:
            return whole
        # The pull was smaller than what is left, and a larger one may bring the message.
        return min(2 * pull.size, taken.bytes_left) if pull.size < taken.bytes_left else 0

    # Acknowledging

    def acknowledge(
        self, held: Held, sequences: Sequence[int], fault: Callable[[Connection], str]
    ) -> str:
        """Have the server remove messages that a batch has committed; waits for its word.

        It does not matter who holds them by now, nor whether they are gone. A consumer that was
        created again, or set back, ignores acknowledgements: the messages are deleted, where that
        is allowed.

        ``fault`` says why the sequences belong to other messages now, "" if they do not; it is
        called before each attempt. With a fault nothing is acknowledged, and it is returned.
        """
        return self._requests.call(
            lambda connection: self._acknowledge(connection, held, sequences, fault)
        )

    def _acknowledge(
        self,
        connection: Connection,
        held: Held,
        sequences: Sequence[int],
        fault: Callable[[Connection], str],
    ) -> str:
        look = self._look(connection)
        # After the look: a consumer goes with its stream, and so an older look could be that of
        # another stream.
        found = fault(connection)
        if found:
            return found
        # The server does not answer an acknowledgement beyond what the consumer has delivered
        # (`processAckMsgLocked`). A reset sets a consumer back, and so does a server that is killed
        # before it has written the consumer's state.
        delivered = look.delivered if look.created == held.consumer else 0
        known = [sequence for sequence in sequences if sequence <= delivered]
        if known:
            context = f"acknowledge messages of stream {self._stream} to consumer {self._name}"
            connection.confirm(held.ack_subjects(known), b"+ACK", context=context)
        if len(known) < len(sequences):
            self._remove(connection, sequences[len(known) :])
        return ""

    def _remove(self, connection: Connection, sequences: Sequence[int]) -> None:
        """Delete messages from the stream, and warn that others may have them, or that some stay."""
        context = f"remove committed messages from stream {self._stream}"
        subject = jsapi.subject(connection.prefix, jsapi.MESSAGE_DELETE, self._stream)
        questions = [
            # Without `no_erase` the server would write over each message.
            Question(subject, context, jsapi.request_body(seq=each, no_erase=True))
            for each in sequences
        ]
        why = ""
        deleted = 0
        try:
            for first in range(0, len(questions), _REMOVED_TOGETHER):
                portion = questions[first : first + _REMOVED_TOGETHER]
                for answer in connection.ask_all(portion):
                    if isinstance(answer, ApiError):
                        if answer.retriable:
                            raise answer
                        why = str(answer)
                    else:
                        deleted += 1
        except PermissionDenied as error:
            why = str(error)
        # The server also answers with an error for a message that is gone.
        left = len(messages(connection, self._stream, sequences)) if why else 0
        if deleted:
            log.warning(
                "consumer %s of stream %s was created again or set back, and %d messages of a "
                "committed micro-batch were deleted; other clients may have received messages of "
                "the micro-batch, and process them as well",
                self._name,
                self._stream,
                deleted,
            )
        if left:
            log.warning(
                "consumer %s of stream %s was created again or set back, and delivers %d messages "
                "of a committed micro-batch once more: %s",
                self._name,
                self._stream,
                left,
                why,
            )
