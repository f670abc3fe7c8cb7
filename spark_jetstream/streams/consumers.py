"""Consumers that end with their use, and the number of filters up to which leaders need none.

A consumer with one replica is on any server that has its stream, and knows only what that server
has fetched so far. One that is with the stream's leader knows what the leader does, whatever its
number of filters (`first_at_leader`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.errors import ApiError, ConsumerLimitReached, ConsumerLost
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks
from spark_jetstream.protocol.conventions import plan_consumer
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.wire import Frames

log = logging.getLogger(__name__)

FEW_FILTERS = 8
"""How many filters are asked about one by one (STREAM.MSG.GET). A consumer has any number of them.

In a cluster a consumer costs about as much as this many requests.
"""
_PEEK_SECONDS = 2.0
LEADER_TRIES = 60
"""Consumers until one is with the leader, which is one of up to five servers that have the stream.
"""

#: Error code -> the setting of a consumer that the stream wants to decide itself.
_LEFT_TO_STREAM = {10134: "replicas", 10153: "inactive_threshold"}


class Created(NamedTuple):
    """A new consumer: its messages to deliver, and the server that has it ("" if unknown)."""

    pending: int
    server: str


class Peeked(NamedTuple):
    """The answers of a consumer: its messages to deliver, the first of them, and its server.

    ``first`` has the sequence and timestamp (ns). It is None without a message, and if the message
    was removed before its delivery.
    """

    pending: int
    first: tuple[int, int] | None
    server: str


def create_reader(
    connection: Connection,
    stream: str,
    name: str,
    filters: tuple[str, ...],
    settings: Mapping[str, Any],
    *,
    left_to_stream: dict[str, Any],
    patience: Deadline,
) -> Created:
    """Create a consumer by `jsapi.reader_config`.

    While the stream has as many consumers as it may have, the request is repeated until `patience`
    expires: other readers end, and their consumers go. A setting that the stream wants to decide
    itself is added to `left_to_stream`, for the next consumer. Raises what `Connection.api` raises.
    """
    context = f"create a consumer on stream {stream}"
    subject = jsapi.consumer_create(connection.prefix, stream, name, filters)
    backoff = Backoff()
    waiting = False
    while True:
        request = jsapi.consumer_request(
            stream, jsapi.reader_config(name, filters, **settings, **left_to_stream)
        )
        try:
            body = connection.api(subject, request, context=context)
        except ConsumerLimitReached as error:
            if patience.expired:
                text = f"{error}, and no other consumer was removed within {patience.seconds:g} s"
                raise jsapi.reworded(error, text) from error
            if not waiting:
                log.warning(
                    "waiting for up to %.3g s until another consumer is gone: %s",
                    patience.left,
                    error,
                )
                waiting = True
            backoff.pause(patience)
        except ApiError as error:
            setting = _LEFT_TO_STREAM.get(error.err_code)
            if setting is None or setting in left_to_stream:
                raise
            # None leaves the field out of the configuration (`jsapi.reader_config`).
            left_to_stream[setting] = None
        else:
            server = jsapi.field(body, "cluster.leader", str, context, "")
            return Created(jsapi.whole(body, "num_pending", context), server)


def delete_reader(connection: Connection, stream: str, name: str) -> None:
    """Delete a consumer that `create_reader` may have created; does not wait and raises nothing."""
    connection.post(jsapi.subject(connection.prefix, jsapi.CONSUMER_DELETE, stream, name))


def peek(
    connection: Connection,
    stream: str,
    filters: tuple[str, ...],
    start: Mapping[str, Any],
    *,
    left_to_stream: dict[str, Any],
    patience: Deadline,
    look: bool = True,
) -> Peeked:
    """Create a consumer, take its count and with `look` its first message, and delete it.

    `start` says where it begins, as `jsapi.reader_config` has it. The other arguments, and the
    errors, are those of `create_reader`.
    """
    name = plan_consumer()
    # The reply subject of a message has its sequence and time, so no payload is needed.
    settings = {"headers_only": True, **start}
    pending, server = create_reader(
        connection,
        stream,
        name,
        filters,
        settings,
        left_to_stream=left_to_stream,
        patience=patience,
    )
    try:
        first = _first_message(connection, stream, name) if look and pending else None
        return Peeked(pending, first, server)
    finally:
        delete_reader(connection, stream, name)


def _first_message(connection: Connection, stream: str, name: str) -> tuple[int, int] | None:
    with connection.inbox() as inbox:
        # A request delivers no message that is larger than its bytes, so these are plenty.
        body = jsapi.next_request(
            1, max_bytes=1 << 30, expires=_PEEK_SECONDS, heartbeat=_PEEK_SECONDS / 2
        )
        inbox.publish(jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, stream, name), body, 1)
        while (event := inbox.get(2 * _PEEK_SECONDS)) is not None:
            if isinstance(event, Frames):
                acks = Acks(event)
                return int(acks.sequences()[0]), int(acks.timestamps()[0])
            if jsapi.pull_status(event, stream).over:
                return None  # removed between the count and the delivery
    raise jsapi.no_reply(f"look at a message of stream {stream}", 2 * _PEEK_SECONDS)


def first_at_leader(
    connection: Connection,
    stream: str,
    filters: tuple[str, ...],
    start: Mapping[str, Any],
    look: Callable[[], StreamSummary],
    *,
    left_to_stream: dict[str, Any],
    patience: Deadline,
    tries: int = LEADER_TRIES,
) -> tuple[int, int] | None:
    """Return sequence and timestamp (ns) of the first matching message that the leader has.

    None: it has none. `look` returns the state of the stream now; the other arguments are those of
    `peek`. A cluster chooses the server of each consumer, so consumers are created until one is
    with the leader, and the stream had that leader before and after. Raises `ConsumerLost` if none
    of `tries` is, or no majority follows a leader, and what `peek` and `look` raise.
    """
    before = look()
    for _ in range(tries):
        if not before.followed:
            # Nor is the end known: a consumer past it may purge an interest stream
            # (`PAST_THE_END` in source/interest_streams.py).
            raise ConsumerLost(f"no server leads stream {stream} that a majority follows")
        # No consumer is needed, and one that begins past the end may purge an interest stream.
        if start.get("start_sequence", 0) > before.last_seq:
            return None
        found = peek(
            connection, stream, filters, start, left_to_stream=left_to_stream, patience=patience
        )
        after = look()
        # The counted message was removed before its delivery, so this says nothing of the next one.
        removed = found.pending > 0 and found.first is None
        # A consumer on another server lacks the messages that this server has not fetched yet.
        led = not after.clustered or _is_with_leader(found.server, before, after)
        if led and not removed:
            return found.first
        before = after
    raise ConsumerLost(f"none of {tries} consumers was on the server that leads stream {stream}")


def _is_with_leader(server: str, before: StreamSummary, after: StreamSummary) -> bool:
    """Whether a consumer's server led its stream from one state of the stream to the other."""
    same_leader = before.leader == after.leader and before.term == after.term
    return same_leader and after.followed and server == after.leader
