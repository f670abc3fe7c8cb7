"""One pull consumer, read until it ends or is lost: `PullSession`.

Requests follow ADR-37 "JetStream Simplification".

How it works. A session keeps pull requests under way on one inbox, and counts what the server may
still send for them: messages, and bytes. It holds no position in the stream. `PullSession.next`
handles one event of the wire:

| event | the session | `next` returns |
|---|---|---|
| the consumer's next deliveries | takes them off its count | `Delivered` |
| deliveries with a hole before or in them | | `Lost` |
| a heartbeat (100) | counts those in a row, up to `Policy.quiet_heartbeats` | None, at last `Lost` |
| ... after a delivery that did not come | | `Lost` |
| the end of a request (404, 408, 409) | takes off what the request did not bring | None |
| ... whose next message is too large for it | doubles the bytes of later requests | None |
| ... without a message | counts those in a row, up to `Policy.fruitless` | None, at last `Lost` |
| ... that does not say what it did not bring | | `Lost` |
| a late answer to `begin` | | None |
| 503 before the first message | asks again, up to `Policy.unheard` times | None, at last `Lost` |
| the consumer is gone or has moved; a cut | | `Lost` |
| silence for `Policy.silence` | asks the connection for a sign of life | `Lost` |
| silence for as long as the caller waits | | `EndOfRange` |
| nothing is left to deliver (`Policy.ends`) | sends no more requests | `EndOfRange` |
| any other status | | raises `JetStreamError` |

A session that returned `EndOfRange` or `Lost` is over: its reader goes on with another consumer.
"""

from __future__ import annotations

import enum
import math
import sys
import time
from dataclasses import dataclass

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.errors import ConsumerLost, JetStreamError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks, Delivered
from spark_jetstream.protocol.units import whole_number
from spark_jetstream.protocol.wire import MAX_FRAME, ApiReply, Frames, Status

UNHEARD = 100
"""How many pull requests nobody hears before the consumer is taken to be gone."""
UNHEARD_PAUSE = 0.01
"""Seconds between two of them."""
_PACE = 0.001  # seconds between two reads of many messages: about two megabytes of large ones
_LOOK = "look"  # token of the request for the stream; those of pulls are numbers


class Ends(enum.Enum):
    """How a session knows that the consumer has nothing more to deliver."""

    COUNT = "each message says how many follow it"
    LIST = "it has a list (`last_per_subject`), and delivers as many messages as this had at first"
    CAUGHT_UP = "a request with `no_wait` ends at the end of the stream"
    NEVER = "it follows the stream"


@dataclass(frozen=True)
class Policy:
    """How a session pulls; times in seconds. `PullSettings.policy` makes one."""

    batch: int
    """Messages of one request."""
    max_bytes: int
    """Bytes of one request, until a message is larger."""
    expires: float
    """How long a request stays open."""
    heartbeat: float
    """Interval of the server's heartbeats; the server allows at most half of `expires`."""
    silence: float
    """Without any event for so long the consumer is lost."""
    ends: Ends = Ends.COUNT
    quiet_heartbeats: int = 2
    """After this many heartbeats in a row the next message was removed, or the consumer is stuck.

    For a message that is removed before its delivery the server waits. A new consumer does not
    count it, and shows which it was. The server sends a heartbeat for each request: two of them are
    one interval where two requests are under way.
    """
    fruitless: int = 8
    """After this many requests in a row without a message that the server counts, it is lost."""
    unheard: int = UNHEARD
    """How many pull requests nobody hears before the consumer is taken to be gone."""
    many: int = 1000
    """Messages under way from which on they are read together, except by a follower."""
    idle: float = math.inf
    """A follower ends when no message arrives for this time."""


@dataclass(frozen=True)
class EndOfRange:
    """The consumer has nothing more to deliver.

    ``certain`` is false where a request ended without any message although the consumer had counted
    some: another consumer knows better.
    """

    certain: bool = True


@dataclass(frozen=True)
class Lost:
    """The consumer cannot go on; ``error`` is why, and may pass."""

    error: JetStreamError


class PullSession:
    """Sends the pull requests of one consumer, and receives its messages.

    Its attributes are one account: each event of the wire changes several of them at once.
    """

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        stream: str,
        name: str,
        policy: Policy,
        pending: int,
    ) -> None:
        """Begin with the consumer ``name``, which had ``pending`` messages to deliver at first."""
        self._connection = connection
        self._inbox = inbox
        self._stream = stream
        self._policy = policy
        self._subject = jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, stream, name)
        #: What comes before the reply to `begin`, in order; `next` takes it first.
        self._early: list[Frames | Status] = []

        # The requests under way

        # The server's count is not the end here: messages that are stored later come as well.
        endless = policy.ends is Ends.NEVER or (policy.ends is Ends.CAUGHT_UP and pending > 0)
        #: Messages that the consumer has still to deliver; a delivery says how many are left, and 0
        #: ends the session.
        self._pending = sys.maxsize if endless else pending
        #: Messages that were requested, and neither came nor were given up by the server.
        self._outstanding = 0
        #: Bytes that the same requests may still bring. At 0 the server has ended them without a
        #: status.
        self._bytes_left = 0
        #: Bytes of the next request; doubled when a message is larger, so that it comes at all.
        self._max_bytes = policy.max_bytes
        #: Number of the last request: its token in the inbox.
        self._number = 0
        #: Number -> body of the requests before the first message, which may have to be sent again.
        self._first_requests: dict[str, bytes] = {}

        # The deliveries
        #: The consumer's own sequence of its last delivery: the next one has one more.
        self._consumed = 0
        #: `_consumed` when the last request went out: whether a request with `no_wait` brought
        #: anything.
        self._before = 0

        # What went wrong in a row; a delivery ends the first two
        self._heartbeats = 0
        self._fruitless = 0
        #: Answers 503, from the creation of the consumer on.
        self._unheard = 0
        # Two full requests may be under way (`ask`), and all of their bytes may wait in the inbox.
        inbox.expect(2 * self._max_bytes)

    def begin(self, most: int) -> str | None:
        """Send the first requests (see `ask`), and in the same write one for the stream.

        Return when the stream was created, as one server says it; None when none does in time. The
        stream that the consumer reads exists by then. Raises what the server answers (`ApiError`),
        and what `Inbox.receive` raises.
        """
        context = f"look at stream {self._stream}"
        self._inbox.publish(
            jsapi.subject(self._connection.prefix, jsapi.STREAM_INFO, self._stream), b"", _LOOK
        )
        self.ask(most)
        patience = Deadline(
            min(self._connection.timing.ask_again, self._connection.options.request_timeout)
        )
        # Messages may overtake the answer,
        # as a server handles requests of the API in other goroutines.
        while (event := self._inbox.receive(patience.left, _LOOK)) is not None:
            if isinstance(event, ApiReply):
                return jsapi.field(jsapi.reply(event.payload, context), "created", str, context)
            if isinstance(event, Status) and self._inbox.token(event) == _LOOK:  # nobody answers
                break
            self._early.append(event)
        return None

    def next(self, most: int, idle: float = math.inf) -> Delivered | EndOfRange | Lost | None:
        """Request what is missing (see `ask`), and return what the next event means.

        None shows that the server is alive. Without a message for ``idle`` seconds the range ends.
        Raises an error that no new consumer can mend.
        """
        if not self._pending:
            return EndOfRange()
        silence = self._policy.silence
        try:
            self.ask(most)
            event: Frames | Status | ApiReply | None
            if self._early:
                event = self._early.pop(0)
            else:
                event = self._inbox.receive(min(silence, idle), _LOOK)
            if isinstance(event, Frames):
                return self._delivered(event)
            if isinstance(event, ApiReply):
                return None
            if event is not None:
                return self._answered(event)
            if idle < silence:
                return EndOfRange()
            self._connection.check()
            raise ConsumerLost(f"the server sent no message and no heartbeat for {silence:g} s")
        except JetStreamError as error:
            if not error.retriable:
                raise
            return Lost(error)

    def ask(self, most: int) -> None:
        """Keep up to two full requests under way, but never request more than ``most`` messages.

        A session that catches up sends one request after the other instead, each until the end of
        the stream.
        """
        batch = self._policy.batch
        possible = min(most, self._pending)
        if self._policy.ends is Ends.CAUGHT_UP:
            if possible and not self._outstanding:
                self._request(batch)
            return
        while self._outstanding <= batch and self._outstanding < possible:
            self._request(min(batch, possible - self._outstanding))
        many = self._policy.ends is not Ends.NEVER and self._outstanding >= self._policy.many
        self._inbox.pace = _PACE if many else 0.0

    def _request(self, batch: int) -> None:
        policy = self._policy
        self._number += 1
        body = jsapi.next_request(
            batch,
            max_bytes=self._max_bytes,
            expires=policy.expires,
            heartbeat=policy.heartbeat,
            no_wait=policy.ends is Ends.CAUGHT_UP,
        )
        # Until the first message the server of the connection may not know the consumer
        # (`_sent_again`).
        if not self._consumed:
            self._first_requests[str(self._number)] = body
        self._inbox.publish(self._subject, body, self._number)
        self._bytes_left += self._max_bytes
        self._outstanding += batch
        # With the next status this tells whether the request brought anything (`_caught_up`).
        self._before = self._consumed

    def _use(self, size: int) -> None:
        """Take bytes off those that the requests may bring; without any left, none is under way.

        The server says nothing when it ends a request whose last byte was used (server/consumer.go,
        `nextWaiting`).
        """
        self._bytes_left -= size
        if not self._bytes_left:
            self._outstanding = 0

    def _delivered(self, frames: Frames) -> Delivered:
        acks = Acks(frames)
        first, last = acks.consumer_sequences()
        if first != self._consumed + 1 or last - first != len(frames) - 1:
            raise ConsumerLost(
                f"deliveries {self._consumed + 1} to {last} of the consumer have a hole"
            )
        self._consumed = last
        # The server of the connection knows the consumer now: a later 503 means that it is gone.
        self._first_requests.clear()
        self._heartbeats = self._fruitless = 0
        self._outstanding = max(0, self._outstanding - len(frames))
        # The server counts subject, reply subject, header and payload:
        # test_requests_whose_last_byte_is_used.
        self._use(frames.pull_bytes())
        if self._policy.ends is Ends.COUNT:
            self._pending = acks.pending()
        elif self._policy.ends is Ends.LIST:
            # The server's number also has messages that were stored later, and lacks those that
            # were removed.
            self._pending = max(0, self._pending - len(frames))
        return Delivered(frames, acks, acks.sequences())

    def _answered(self, status: Status) -> EndOfRange | None:
        """Handle a heartbeat, or the end of a request that did not bring all of its messages."""
        if status.code == jsapi.NO_RESPONDERS and self._sent_again(status):
            return None
        end = jsapi.pull_status(status, self._stream)
        if end.over:
            self._first_requests.pop(self._inbox.token(status), None)
        if self._policy.ends is Ends.CAUGHT_UP:
            return self._caught_up(end, status)
        if not end.over:
            self._count_heartbeat(status)
            return None
        # Without these numbers the reader would ask the same again for ever.
        if end.undelivered is None or end.unused_bytes is None:
            raise ConsumerLost(
                f"a pull request ended without an account: {status.code} {status.description}"
            )
        self._outstanding = max(0, self._outstanding - end.undelivered)
        self._use(end.unused_bytes)
        # Only then no message fitted. A request that its byte limit ended has used some, and never
        # grows: test_requests_that_bytes_end_never_grow.
        if end.unused_bytes >= self._max_bytes:
            self._ended_without_message(end, status)
        return None

    def _count_heartbeat(self, status: Status) -> None:
        """Raise `ConsumerLost` if a heartbeat names lost deliveries, or is one too many."""
        # The consumer's sequence of its last delivery. After a loss between two servers nothing
        # else shows the hole until the next message:
        # test_a_follower_notices_the_loss_of_the_last_message.
        last = whole_number(status.headers.get("Nats-Last-Consumer", "")) or 0
        if last > self._consumed:
            raise ConsumerLost(
                f"deliveries {self._consumed + 1} to {last} of the consumer did not come"
            )
        self._heartbeats += 1
        if self._heartbeats >= self._policy.quiet_heartbeats:
            raise ConsumerLost("the server has sent nothing but heartbeats")

    def _caught_up(self, end: jsapi.PullEnd, status: Status) -> EndOfRange | None:
        """Handle a status for a request with `no_wait`: 404 after messages ends the stream."""
        if end.over:
            self._use(end.unused_bytes or 0)
            if self._inbox.token(status) != str(self._number):
                return None  # it had brought all of its messages when the next request went out
            self._outstanding = 0
        if self._consumed > self._before:
            return EndOfRange() if status.code == jsapi.NOT_FOUND else None
        if not end.too_large:
            return EndOfRange(certain=False)
        self._ended_without_message(end, status)
        return None

    def _ended_without_message(self, end: jsapi.PullEnd, status: Status) -> None:
        """Request more bytes if the next message is too large, and give up after some requests."""
        # A message that is larger than the request would not come in any number of tries.
        if end.too_large and self._max_bytes < MAX_FRAME:
            self._max_bytes = min(2 * self._max_bytes, MAX_FRAME)
            self._inbox.expect(2 * self._max_bytes)
            return
        self._fruitless += 1
        if self._fruitless >= self._policy.fruitless:
            raise ConsumerLost(
                f"the server ends each request without a message: {status.code} "
                f"{status.description}"
            )

    def _sent_again(self, status: Status) -> bool:
        """Resend a pull request that got 503 before the first message. Return whether it was sent.

        The servers of a cluster hear of a new consumer one after the other, and the connection's
        may be late.
        """
        number = self._inbox.token(status)
        body = self._first_requests.get(number)
        self._unheard += 1
        if body is None or self._unheard > self._policy.unheard:
            return False
        time.sleep(UNHEARD_PAUSE)
        self._inbox.publish(self._subject, body, number)
        return True
