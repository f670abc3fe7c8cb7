"""A few messages pulled from a consumer: one request, what answers it, and the acknowledgements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from spark_jetstream import jsapi
from spark_jetstream.admin.consumer_models import ConsumerInfo
from spark_jetstream.admin.messages import StoredMessage
from spark_jetstream.columns import Acks
from spark_jetstream.connection import Connection
from spark_jetstream.deadline import Deadline
from spark_jetstream.units import Timestamp
from spark_jetstream.wire import Frames

Ack = Literal["ack", "nak", "term", "none"]
ACKS: dict[str, bytes] = {"ack": b"+ACK", "nak": b"-NAK", "term": b"+TERM", "none": b""}
_SLACK = 2.0  # seconds that the server's answer may come late


@dataclass(frozen=True)
class DeliveredMessage:
    """A message as a consumer delivered it. ``deliveries`` counts how often it did, ``consumer_seq`` all that it
    delivered, ``pending`` what it had yet to deliver behind this one. ``reply`` is where an acknowledgement goes."""

    message: StoredMessage
    consumer: str
    deliveries: int
    consumer_seq: int
    pending: int
    reply: str


def pull(
    connection: Connection, info: ConsumerInfo, count: int, timeout: float, group: str | None
) -> list[DeliveredMessage]:
    """Up to ``count`` messages: what is there, or, when nothing is, what comes within ``timeout`` seconds.

    With a ``timeout`` of 0 what is there alone. A server does not answer such a pull while too many messages wait for
    their acknowledgement, so no answer of a server that lives means that there is nothing.

    Raises `ConsumerLost` when the consumer went away, `JetStreamError` when the server refuses the pull,
    `RequestTimeout` when it does not answer.
    """
    stream, name = info.stream_name, info.name
    context = f"get messages from consumer {name} of stream {stream}"
    found: list[DeliveredMessage] = []
    deadline = Deadline(timeout + _SLACK)
    with connection.inbox() as inbox:
        inbox.publish(jsapi.consumer_next(connection.prefix, stream, name), _request(count, timeout, group), 1)
        while len(found) < count:
            event = inbox.get(deadline.left)
            if event is None:
                connection.check(_SLACK)
                if not timeout:
                    break
                raise jsapi.no_reply(context, deadline.seconds)
            if isinstance(event, Frames):
                found += _read(event, info)
            elif jsapi.pull_status(event, stream).outcome is jsapi.PullOutcome.ENDED:
                break
    return found


def settle(connection: Connection, found: DeliveredMessage, ack: str) -> None:
    """Acknowledge a message in one of the ways of `ACKS`, and wait until the server has it."""
    context = f"acknowledge message {found.message.seq} of stream {found.message.stream} to consumer {found.consumer}"
    connection.request(found.reply, ACKS[ack], context=context)


def _request(count: int, timeout: float, group: str | None) -> bytes:
    # With no heartbeat: the server would silently drop a pull with one where too many wait already.
    body: dict[str, Any] = {"batch": count}
    if timeout:
        body["expires"] = jsapi.nanoseconds(timeout)
    if count > 1 or not timeout:
        body["no_wait"] = True  # where it expires, it waits for the first message only
    if group is not None:
        body["group"] = group
    return json.dumps(body).encode()


def stored_messages(frames: Frames, acks: Acks, stream: str) -> Iterator[StoredMessage]:
    """Messages of a stream, as a consumer delivered them."""
    lines = frames.lines.tobytes()
    sequences, times = acks.sequences(), acks.timestamps()
    for at in range(len(frames)):
        start = int(frames.line_end[at])
        head, size = int(frames.head[at]), int(frames.size[at])
        yield StoredMessage.from_server(
            {
                "subject": lines[frames.subject_start[at] : frames.subject_end[at]].decode("utf-8", "replace"),
                "seq": int(sequences[at]),
                "time": Timestamp.of(int(times[at])),
                "data": frames.data[start + head : start + size],
                "hdrs": frames.data[start : start + head],
                "stream": stream,
            }
        )


def _read(frames: Frames, info: ConsumerInfo) -> Iterator[DeliveredMessage]:
    lines = frames.lines.tobytes()
    for at, message in enumerate(stored_messages(frames, Acks(frames), info.stream_name)):
        space = int(frames.reply[at])
        first, last = frames.separators[space] + 1, frames.separators[space + int(frames.reply_dots[at]) + 1]
        reply = lines[first:last].decode("utf-8", "replace")
        tokens = reply.split(".")
        # Of its two forms one has a domain and an account in front (ADR-15); `Acks` has seen that it is one of them.
        shift = 0 if len(tokens) == 9 else 2
        deliveries, consumer_seq, pending = (int(tokens[shift + number]) for number in (4, 6, 8))
        yield DeliveredMessage(message, info.name, deliveries, consumer_seq, pending, reply)
