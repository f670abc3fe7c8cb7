"""Pull requests: their arguments, whether a consumer can serve one, and its messages.

ADR-37 "JetStream Simplification", ADR-42 "Pull Consumer Priority Groups".
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from spark_jetstream.admin.api import checked
from spark_jetstream.admin.deliveries import (
    DELIVERY_TIMES,
    DeliveredMessage,
    DeliveryTimes,
    delivered_messages,
)
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.errors import JetStreamError, OptionError, pull_refused
from spark_jetstream.options.values import Seconds, Size
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import RUN
from spark_jetstream.protocol.units import Nanoseconds
from spark_jetstream.protocol.wire import Frames, Status

_MOST = 1000  # messages of one call
# Seconds. A server may drop a pull that expires sooner before it looks for messages.
_SHORTEST = 0.1
_LONGEST = 1e9  # seconds: the longest time that the API, and waiting, can express
_SLACK = 2.0  # seconds that the server's reply may come late

#: Fields of a pull request -> the ``priority_policy`` that they are for. With another policy
#: servers ignore or refuse them.
_POLICY_OF_FIELD = {
    "min_pending": "overflow",
    "min_ack_pending": "overflow",
    "priority": "prioritized",
    "id": "pinned_client",
}


@dataclass(frozen=True)
class PullRequest:
    """A pull request: at most ``count`` messages, within ``expires`` seconds (0: without waiting).

    ``fields`` are the other fields of the request, see `jsapi.next_request`.
    """

    count: int
    expires: float
    fields: dict[str, Any]

    @property
    def silence(self) -> float:
        """After how many seconds without a message or a heartbeat the server counts as silent."""
        # ADR-37: two missing heartbeats are a fault. Without heartbeats no silence is too long.
        return 2 * float(self.fields.get("heartbeat", math.inf)) + _SLACK

    def body(self) -> bytes:
        """Return the JSON of the request."""
        return jsapi.next_request(self.count, expires=self.expires, **self.fields)


def pull_request(
    count: int,
    timeout: float,
    *,
    no_wait: bool | None,
    max_bytes: int | str | None,
    idle_heartbeat: float | None,
    **fields: Any,
) -> PullRequest:
    """Return the request for the arguments of `Consumers.next`. Raises `OptionError`."""
    _check_count_and_timeout(count, timeout)
    # For the server a request with expires 0 never ends.
    if no_wait is False and not timeout:
        raise OptionError("no_wait=False needs a timeout above 0")
    expires = 0.0 if no_wait else timeout
    if no_wait is None:
        # Together with "expires", "no_wait" makes the pull wait for the first message only.
        no_wait = count > 1 or not expires
    fields["no_wait"] = no_wait
    if max_bytes is not None:
        fields["max_bytes"] = checked(Size(1), "max_bytes", max_bytes)
    if idle_heartbeat is not None:
        # Where too many requests wait already, the server drops one with a heartbeat, without an
        # error.
        fields["heartbeat"] = checked(Seconds("100ms", "1d"), "idle_heartbeat", idle_heartbeat)
    return PullRequest(count, expires, fields)


def _check_count_and_timeout(count: int, timeout: float) -> None:
    if not 1 <= count <= _MOST:
        raise OptionError(f"count must be a number from 1 to {_MOST:,}, not {count}")
    if timeout != 0 and not _SHORTEST <= timeout <= _LONGEST:
        span = f"{_SHORTEST:g} to {_LONGEST:,.0f} seconds"
        raise OptionError(f"timeout must be 0 (do not wait), or {span}, not {timeout:g}")


def check_can_serve(info: ConsumerInfo, request: PullRequest, consumer: str) -> None:
    """Raise `JetStreamError` if a consumer cannot serve a pull request; ``consumer`` names it."""
    config = info.config
    for field, policy in _POLICY_OF_FIELD.items():
        if request.fields[field] is not None and config.priority_policy != policy:
            raise OptionError(
                f"{field} is for priority_policy {policy}: {consumer} has {config.priority_policy}",
            )
    # The server answers a pull request with 409 (Consumer is push based).
    if config.push:
        raise JetStreamError(
            f"{consumer} delivers to {config.deliver_subject}, and cannot be asked for messages",
        )
    # An acknowledgement here removes messages of work queues and interest streams that the query
    # has not read. Any message that is taken ends the query.
    if RUN in config.metadata:
        kept = f"a Spark query keeps its position by {consumer} (option durable)"
        raise JetStreamError(f"{kept}: it would end, and may lose messages")
    # The server answers a no_wait request of a paused consumer as if nothing were pending (404).
    if info.paused:
        remaining = Nanoseconds(info.pause_remaining)
        raise JetStreamError(f"{consumer} is paused for {remaining}, and delivers nothing")


def waits_for_acks(info: ConsumerInfo) -> bool:
    """Return whether a consumer delivers nothing until messages are acknowledged.

    To a pull request that does not wait the server then sends no answer at all.
    """
    config = info.config
    # max_ack_pending -1 stands for any number.
    limited = config.ack_policy != "none" and config.max_ack_pending > 0
    return limited and info.num_ack_pending >= config.max_ack_pending


class Pull:
    """One pull request on its way: sends it, and collects its messages."""

    def __init__(
        self,
        connection: Connection,
        info: ConsumerInfo,
        request: PullRequest,
        times: DeliveryTimes = DELIVERY_TIMES,
    ) -> None:
        self.messages: list[DeliveredMessage] = []
        self._connection = connection
        self._request = request
        self._times = times
        self._stream = info.stream_name
        self._subject = jsapi.subject(
            connection.prefix,
            jsapi.CONSUMER_NEXT,
            info.stream_name,
            info.name,
        )
        self._context = f"get messages from consumer {info.name} of stream {info.stream_name}"
        self._bytes_left = request.fields.get("max_bytes", math.inf)
        self._unheard = 0  # how often nobody heard the request

    def run(self) -> list[DeliveredMessage]:
        """Return the messages. After the first message, an error ends the request and is dropped.

        Raises `RequestTimeout` when the server is silent, and what `jsapi.pull_status` raises.
        """
        with self._connection.inbox() as inbox:
            inbox.publish(self._subject, self._request.body(), 1)
            try:
                self._collect(inbox)
            except JetStreamError:
                # The server counts the messages as delivered: the caller must get them.
                if not self.messages:
                    raise
        return self.messages

    def _collect(self, inbox: Inbox) -> None:
        """Take messages until the request is over."""
        deadline = Deadline(self._request.expires + _SLACK)
        # The server says nothing when a message took the last byte of `max_bytes`.
        while len(self.messages) < self._request.count and self._bytes_left > 0:
            event = inbox.get(deadline.within(self._request.silence))
            if isinstance(event, Frames):
                self._bytes_left -= event.pull_bytes()
                self.messages += delivered_messages(event, self._stream)
            # Neither message nor status: the connection is
            # lost, the server is silent, or it need not answer.
            elif event is None:
                self._connection.check(_SLACK)
                if self._request.expires:
                    silence = min(self._request.silence, deadline.seconds)
                    raise jsapi.no_reply(self._context, silence, "(timeout, idle_heartbeat)")
                # The server does not answer while too many messages wait for acknowledgements.
                return
            elif self._may_be_heard_later(event):
                self._unheard += 1
                time.sleep(self._times.unheard_pause)
                # The first request is over: nobody has it.
                inbox.publish(self._subject, self._request.body(), 1)
            elif self._is_end(event):
                return

    def _may_be_heard_later(self, status: Status) -> bool:
        """Return whether the same request may succeed, after a status that nobody heard it.

        The servers of a cluster hear of a new consumer or leader one after the other.
        """
        # After the first message 503 means that the consumer is gone.
        unheard = status.code == jsapi.NO_RESPONDERS and not self.messages
        return unheard and self._unheard < self._times.unheard

    def _is_end(self, status: Status) -> bool:
        """Return whether a status ends the request; raise it if it refuses the request."""
        end = jsapi.pull_status(status, self._stream)
        # After a message, 409 only ends the request: it
        # was completed, or the next message is too large.
        if status.code == 409 and not self.messages:
            reason = "too many requests wait"
            if end.too_large:
                reason = "the next message is larger than max_bytes"
            raise pull_refused(
                f"cannot {self._context}: {reason} (409 {status.description})",
                409,
                status.description,
            )
        return end.over
