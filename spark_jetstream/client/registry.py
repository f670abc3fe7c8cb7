"""The subscriptions of a connection: their numbers on the wire, and their subscribers."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from spark_jetstream.client.login import Login
from spark_jetstream.client.loop import Loop
from spark_jetstream.errors import ConnectionFailed, JetStreamError, PermissionDenied
from spark_jetstream.protocol import commands
from spark_jetstream.protocol.wire import ApiReply, Frames, Scanner, Status

Event = Frames | Status | ApiReply | JetStreamError


class Carries(enum.Enum):
    """The kinds of messages of a subscription, and the form in which each is delivered."""

    ANSWERS = (
        "messages of consumers as `Frames`; those without a reply subject as `Status`, or as "
        "`ApiReply` without headers"
    )
    MESSAGES = "answers to Direct Gets, which have no reply subject, and others: all as `Frames`"
    REPLIES = "replies to frames that `Inbox.send` sends: all as `Frames`"
    RESPONSES = "replies to requests: as `ApiReply` without headers, as `Frames` with them"


class Subscriber(Protocol):
    """Receives the messages of a subscription. All methods are called on the loop's thread."""

    carries: Carries
    exclusive: bool
    """Whether a refused subscription of the subscriber concerns no other subscriber."""
    pace: float
    """Seconds between two reads of the connection; 0 for no wish."""

    def put(self, event: Event) -> None:
        """Receive an event."""

    def put_cut(self, message: str) -> None:
        """Hear that the connection was cut."""

    def put_denied(self, publishing: bool, subject: str, inboxes: PermissionDenied) -> bool:
        """Hear that the server has refused a publish, or else a subscription; whether it is mine.

        `subject` is in lower case. `inboxes` is the error for a refused inbox.
        """


class _Open(NamedTuple):
    subscriber: Subscriber
    subject: str
    group: str


class Registry:
    """Knows each subscription that is open, and subscribes again after each login."""

    def __init__(self, login: Login, loop: Loop) -> None:
        self.scanner = Scanner()
        """Collects the messages of each subscription that is open."""
        self.login = login
        self.loop = loop
        self._last = 0  # number of the newest subscription
        self._open: dict[int, _Open] = {}  # by number

    # On the loop's thread

    async def subscribe(self, subscriber: Subscriber, subject: str, group: str = "") -> None:
        """Do what `add` does, for a caller that waits."""
        self.add(subscriber, subject, group)

    def add(self, subscriber: Subscriber, subject: str, group: str = "") -> None:
        """Deliver the messages at a subject to a subscriber, or its share of a queue group's.

        While the connection is down, the next login subscribes. Raises `ConnectionFailed`.
        """
        number = self._last + 1
        try:
            line = commands.subscribe(subject, group, number)
        except ValueError as error:
            raise ConnectionFailed(f"cannot subscribe to {subject}: {error}") from None
        if self.login.closed:
            raise ConnectionFailed(f"cannot subscribe to {subject}: connection closed")
        # A number is never used again, so messages for an ended subscription reach nobody.
        self._last = number
        self._open[number] = _Open(subscriber, subject, group)
        self.scanner.collect.add(number)
        if subscriber.carries in (Carries.MESSAGES, Carries.REPLIES):
            self.scanner.whole.add(number)
        elif subscriber.carries is Carries.RESPONSES:
            self.scanner.responses.add(number)
        if self.login.is_up:
            self.login.wire.send(line)

    def remove(self, subscriber: Subscriber) -> None:
        """End the subscriptions of a subscriber."""
        mine = [number for number, each in self._open.items() if each.subscriber is subscriber]
        for number in mine:
            if self.login.is_up:
                self.login.wire.send(commands.unsubscribe(number))
            # The scanner still reads, and drops, what the server has sent before.
            del self._open[number]
            for known in (self.scanner.collect, self.scanner.whole, self.scanner.responses):
                known.discard(number)

    def renew(self) -> bytes:
        """Return the lines that subscribe over a new connection to everything that is open."""
        return b"".join(
            commands.subscribe(each.subject, each.group, number)
            for number, each in self._open.items()
        )

    def deliver(self, event: Frames | Status | ApiReply) -> None:
        """Hand on what the scanner has read."""
        known = self._open.get(event.sid)
        if known is not None:
            known.subscriber.put(event)

    def pace(self) -> float:
        """Return the seconds between two reads: the fewest that a subscriber asks for, or 0."""
        wanted = (each.subscriber.pace for each in self._open.values())
        return min(filter(None, wanted), default=0.0)

    def put_cut(self, message: str) -> None:
        """Let each subscriber know that the connection was cut."""
        for each in self._open.values():
            each.subscriber.put_cut(message)

    def put_denied(self, publishing: bool, subject: str, trouble: PermissionDenied) -> None:
        """Let subscribers know of a refused publish or subscription.

        If it is that of an exclusive subscriber, the others do not hear of it.
        """
        # Exclusive subscribers first: the refusal of theirs must fail no request
        # (test_a_refused_subscription_that_was_closed_concerns_no_request).
        for exclusive in (True, False):
            subscribers = [
                each.subscriber
                for each in self._open.values()
                if each.subscriber.exclusive is exclusive
            ]
            told = [each.put_denied(publishing, subject, trouble) for each in subscribers]
            if any(told):
                return

    def write(self, subscriber: Subscriber, frames: memoryview, generation: int) -> None:
        """Send frames over the login of this generation, or let the subscriber know of its end."""
        # Over a later connection a row could be stored twice, or overtake others:
        # test_each_frame_is_sent_at_most_once_and_never_after_the_cut.
        if self.login.is_up and generation == self.login.reconnects:
            self.login.wire.send(frames)
        else:
            servers = self.login.options.display_servers
            subscriber.put_cut(f"the connection to {servers} was cut, nothing was sent")
