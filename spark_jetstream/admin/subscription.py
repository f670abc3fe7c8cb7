"""Core NATS: the messages at subjects, and the gaps in them; requests and replies.

No stream takes part in them.
"""

from __future__ import annotations

import math
import os
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from spark_jetstream.admin.api import Api, positive, seconds_or_ever, subject_filter
from spark_jetstream.admin.messages import check_header, check_size, octets
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.inbox import Pairs
from spark_jetstream.client.subscription import CoreMessage, Dropped, Listener, messages
from spark_jetstream.errors import (
    ConnectionFailed,
    ConsumerLost,
    JetStreamError,
    NoResponders,
    OptionError,
    OutageError,
)
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.units import Timestamp, shown
from spark_jetstream.protocol.wire import Frames, parse_status

if TYPE_CHECKING:
    from spark_jetstream.admin.models.events import Gap

Headers = Mapping[str, str | Sequence[str]]
"""Headers by their names; a name may have several values."""
M = TypeVar("M")
Read = Callable[[CoreMessage, Timestamp], M]
Limit = float | None


@dataclass(frozen=True)
class SubscriptionTimes:
    """How a subscription tells silence from a connection that is lost; in seconds."""

    sign_of_life: float = 2.0
    """For the reply to a ping."""
    quiet: float = 10.0
    """Without a message for so long, the server is pinged."""
    look_again: float = 1.0
    """One attempt to go on after a loss waits so long for the connection."""


SUBSCRIPTION_TIMES = SubscriptionTimes()


class Subscription(Generic[M]):
    """An iterator of received messages, and a context manager that ends it.

    One thread uses it; any thread may call `close`.

    It survives the loss of the connection: a `Gap` reports the loss, another one the end of it, and
    ``gaps`` counts them. After a loss of more than option ``retryTimeout`` it raises `OutageError`.
    When it ends by itself, the server has answered a ping, so all messages before that were
    received. If the server does not answer, the last item is a `Gap` without ``until``.
    """

    def __init__(
        self,
        api: Api,
        subjects: tuple[str, ...],
        read: Read[M],
        timeout: Limit,
        count: Limit,
        queue: str = "",
        *,
        times: SubscriptionTimes = SUBSCRIPTION_TIMES,
    ) -> None:
        """Subscribe. ``read`` takes a message and the time of its arrival, and returns the item."""
        if timeout is not None and not timeout > 0:
            raise OptionError(f"timeout must be a number of seconds above 0, not {shown(timeout)}")
        if count is not None and not count > 0:
            raise OptionError(f"count must be a number from 1 on, not {shown(count)}")
        self.subjects = subjects
        self.queue = queue
        self.gaps = 0
        self._read = read
        self._api = api
        self._times = times
        self._remaining = math.inf if count is None else count  # items until the end
        # A forked child does not hear the messages that the connection of its parent receives.
        self._pid = os.getpid()
        self._closed = False  # set by `close`
        self._ending = False  # the time is over: only received messages are still returned
        # Why and until when the connection may be lost; from its `Gap` on, until messages are
        # received again.
        self._lost: tuple[ConnectionFailed, Deadline] | None = None
        self._connect(api.connection)
        self._since = _now()  # the last moment at which the connection is known to have worked
        self._deadline = Deadline(seconds_or_ever(timeout))

    def reply(
        self,
        message: CoreMessage,
        data: str | bytes = b"",
        headers: Headers | None = None,
    ) -> None:
        """Reply to a message; text as UTF-8. When this returns, the server has the reply.

        Raises `OptionError` when the message has no reply subject, `PermissionDenied` when the
        account may not publish to it, `JetStreamError` for a reply that is too large, and
        `ConnectionFailed`.
        """
        if not message.reply:
            raise OptionError(f"the message on {message.subject} has no reply subject")
        content = octets(data, "data")
        pairs = header_pairs(headers)
        check_size(self._connection, content, pairs, f"reply to {message.reply}")
        self._listener.publish_confirmed(message.reply, content, pairs)

    def close(self) -> None:
        """End the iteration. May be called again."""
        self._closed = True
        self._forget()

    def __enter__(self) -> Subscription[M]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Subscription[M]:
        return self

    def __next__(self) -> M | Gap:
        if os.getpid() != self._pid:
            raise JetStreamError(
                "this subscription was made before a fork, and hears nothing here: make another "
                "one",
            )
        try:
            # 0 items remain after `count`: the iteration ends without waiting.
            item = self._next() if self._remaining else None
        except JetStreamError:
            self.close()
            raise
        if item is None:
            self.close()
            raise StopIteration
        return item

    def _connect(self, connection: Connection) -> None:
        # Read first: a cut between the two calls is of a later generation, and `hear` reports it.
        generation = connection.reconnects
        listener = connection.listen(self.subjects, self.queue)
        listener.generation = generation
        self._connection = connection
        self._listener = listener
        # For callers that leave the loop without `close`.
        self._forget = weakref.finalize(self, _close, listener, self._pid)
        self._forget.atexit = False

    def _next(self) -> M | Gap | None:
        if self._lost is not None:
            return self._back(*self._lost)
        try:
            while not self._closed:
                item = self._hear()
                if item is not None or self._ending:
                    return item
        except ConnectionFailed as error:
            # The outage counts from here on, and the caller gets the gap at once, not at its end.
            self._lost = error, Deadline(self._api.options.retry_timeout)
            return self._gap(str(error), None)
        return None

    def _hear(self) -> M | Gap | None:
        """Return the next item of some seconds, or None.

        Before None, the server has answered a ping: there was no item.
        """
        if self._deadline.expired and not self._ending:
            # The reply to the ping comes after all messages that the server sent before it. Without
            # it, the silence may be that of a server that hangs
            # (`test_silence_is_told_from_a_server_that_hangs`).
            self._connection.check(self._times.sign_of_life)
            self._ending = True
            # Received messages are still returned.
            self._forget()
        heard = self._listener.hear(self._deadline.within(self._times.quiet))
        if heard is None:
            if not (self._ending or self._closed):
                # The messages before the reply to the ping were received.
                self._connection.check(self._times.sign_of_life)
                self._since = _now()
            return None
        self._since = _now()
        # The listener drops messages instead of failing; the caller learns how many.
        if isinstance(heard, Dropped):
            reason = "this program takes messages more slowly than they come"
            return self._gap(reason, self._since, heard.messages)
        self._remaining -= 1
        return self._read(heard, self._since)

    def _back(self, error: ConnectionFailed, outage: Deadline) -> Gap | None:
        """Wait until messages are received again; return the gap, or None at the end."""
        backoff = Backoff()
        while not self._closed and not self._deadline.expired:
            try:
                patience = outage.within(self._times.look_again)
                self._rejoin(self._deadline.within(patience))
            # No server has answered yet; the connection itself tries them in turn.
            except ConnectionFailed as failure:
                if outage.expired:
                    raise OutageError(
                        f"nothing was received for {outage.seconds:g} s (option retryTimeout): "
                        f"{error}; {failure}"
                    ) from failure
                backoff.pause(outage)
                continue
            self._lost = None
            return self._gap(str(error), _now())
        return None

    def _gap(self, reason: str, until: Timestamp | None, lost: int = 0) -> Gap:
        # A command that hears of no gap does not wait for the models of all events.
        from spark_jetstream.admin.models.events import Gap  # noqa: PLC0415

        since = self._since
        self._since = until or since
        # A loss has two gaps, at its beginning and at its end. It counts once.
        if until is None or lost:
            self.gaps += 1
        return Gap(
            type=Gap.TYPE,
            id=uuid.uuid4().hex,
            timestamp=until or _now(),
            since=since,
            until=until,
            reason=reason,
            lost=lost,
        )

    def _rejoin(self, patience: float) -> None:
        """Subscribe again. Raises `ConnectionFailed` when that is not possible yet."""
        # The connection was given up or closed: the
        # listener ends with it, so another one is needed.
        if not self._connection.usable:
            self._forget()
            self._connect(self._api.connection)
            return
        self._connection.wait(patience)
        generation = self._connection.reconnects
        # nats-py sends its subscriptions before anything else.
        self._connection.check(self._times.sign_of_life)
        # From here on only a later cut is news to the listener.
        self._listener.generation = generation


def _close(listener: Listener, pid: int) -> None:
    # A forked child has a copy of the listener. Its
    # parent's subscription must stay (`test_after_a_fork`).
    if os.getpid() == pid:
        listener.close()


def _now() -> Timestamp:
    return Timestamp.of(time.time_ns())


def request(
    api: Api,
    subject: str,
    data: str | bytes,
    headers: Headers | None,
    replies: int | None,
    timeout: float | None,
) -> list[CoreMessage]:
    """`JetStreamAdmin.request`."""
    subject = subject_filter(subject, literal=True)
    content = octets(data, "data")
    pairs = header_pairs(headers)
    context = f"request {subject}"
    connection = api.connection
    deadline = Deadline(api.options.request_timeout if timeout is None else timeout)
    check_size(connection, content, pairs, context)
    wanted = math.inf if replies is None else positive(replies, "replies")
    received: list[CoreMessage] = []
    try:
        with connection.inbox(whole=True) as inbox:
            inbox.publish(subject, content, 1, pairs)
            while len(received) < wanted:
                frames = inbox.get(deadline.left)
                if not isinstance(frames, Frames):
                    break
                received += messages(frames)
                # The status 503 is the only reply then, and comes at once.
                if _is_unheard(received[0]):
                    raise NoResponders(f"cannot {context}: nobody answers at {subject}")
    # An inbox raises this error for a lost connection, since readers of consumers replace theirs.
    except ConsumerLost as error:
        raise ConnectionFailed(f"cannot {context}: {error}") from None
    if not received:
        # Raises `ConnectionFailed` where a silent server is the reason, and not a silent responder.
        connection.check()
        raise jsapi.no_reply(context, deadline.seconds, advice.REQUEST_TIMEOUT)
    # Messages come in bulk: there may be more than were asked for.
    return received[:replies]


def _is_unheard(message: CoreMessage) -> bool:
    """Return whether a reply is the server's status that nobody listens at the subject."""
    status = parse_status(message.hdrs)
    return status is not None and status.code == jsapi.NO_RESPONDERS and not message.data


def header_pairs(headers: Headers | None) -> Pairs:
    """Return each value with its name. Raises `OptionError` for what cannot be a header."""
    pairs: list[tuple[str, str]] = []
    for name, given in (headers or {}).items():
        values = [given] if isinstance(given, str) else given
        pairs += [(name, value) for value in values]
    for name, value in pairs:
        check_header(name, value)
    return pairs
