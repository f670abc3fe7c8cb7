"""Questions to the server that planning asks: a stream's state, and where its matching messages lie.

All of them need no more than the permissions of a reader (JETSTREAM: STREAM.INFO, CONSUMER.CREATE, MSG.NEXT): counts
come from the `num_pending` of a consumer that is made for the question, which the server keeps exact, and times from a
single message delivered without its payload.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from spark_jetstream import jsapi
from spark_jetstream.columns import Acks
from spark_jetstream.connection import Connection, retrying
from spark_jetstream.errors import ApiError, JetStreamError, OptionError, ProtocolError
from spark_jetstream.source.probe import StreamState
from spark_jetstream.values import Time
from spark_jetstream.wire import Frames

#: What a stream may want to decide itself: the server's refusal -> the setting to leave to it.
_LEFT_TO_STREAM = {10134: "replicas", 10153: "inactive_threshold"}
_PEEK_SECONDS = 2.0
_SECOND = 1_000_000_000


class StreamView:
    """One stream, seen through the subject filters of a query. Implements `probe.Probe`.

    `connect()` gives the connection; `patience()` says for how many seconds errors that may pass are tried again.
    Raises what `Connection.api` raises, `ConsumerLost`, and what `connect` raises.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        stream: str,
        filters: tuple[str, ...],
        patience: Callable[[], float],
    ) -> None:
        self.stream = stream
        self._connect = connect
        self._filters = filters
        self._patience = patience
        self._left_to_stream: dict[str, Any] = {}

    def state(self) -> StreamState:
        """What STREAM.INFO says now."""
        context = f"read stream {self.stream} (option stream)"

        def ask() -> dict[str, Any]:
            connection = self._connect()
            return connection.api(jsapi.stream_info(connection.prefix, self.stream), b"", context=context)

        return stream_state(retrying(ask, self._patience()), context)

    def pending(self, first: int) -> int:
        """The number of matching messages with a sequence >= `first`."""
        return self._ask({"start_sequence": first}).pending

    def peek(self, first: int) -> tuple[int, int] | None:
        """Sequence and time (ns) of the first matching message with a sequence >= `first`, or None."""
        return self._ask({"start_sequence": first}, look=True).message

    def last(self) -> tuple[int, int] | None:
        """Sequence and time (ns) of the last matching message, or None."""
        return self._ask({"last": True}, look=True).message

    def first_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """Sequence and time (ns) of the first matching message stored at that time or later, or None."""
        return self._ask({"start_time": rfc3339(nanoseconds)}, look=True).message

    def _ask(self, start: Mapping[str, Any], *, look: bool = False) -> _Answer:
        """Make a consumer, take its count (and with `look` its first message), delete it."""
        return retrying(lambda: self._ask_once(start, look), self._patience())

    def _ask_once(self, start: Mapping[str, Any], look: bool) -> _Answer:
        connection = self._connect()
        name = f"spark-plan-{uuid.uuid4().hex[:12]}"
        pending = create_reader(
            connection,
            self.stream,
            name,
            self._filters,
            {"headers_only": True, **start},
            left_to_stream=self._left_to_stream,
        )
        try:
            message = self._first_message(connection, name) if look and pending else None
            return _Answer(pending, message)
        finally:
            subject = jsapi.consumer_delete(connection.prefix, self.stream, name)
            connection.send(subject, b"", f"delete consumer {name}")

    def _first_message(self, connection: Connection, name: str) -> tuple[int, int] | None:
        with connection.inbox() as inbox:
            body = jsapi.next_request(1, max_bytes=1 << 30, expires=_PEEK_SECONDS, heartbeat=_PEEK_SECONDS / 2)
            inbox.publish(jsapi.consumer_next(connection.prefix, self.stream, name), body, 1)
            while (event := inbox.get(2 * _PEEK_SECONDS)) is not None:
                if isinstance(event, Frames):
                    acks = Acks(event)
                    return int(acks.sequences()[0]), int(acks.timestamps()[0])
                end = jsapi.pull_status(event, self.stream)
                if end.outcome is jsapi.PullOutcome.ENDED:
                    return None  # removed between the count and the delivery
        raise jsapi.no_reply(f"look at a message of stream {self.stream}", 2 * _PEEK_SECONDS)


class _Answer:
    def __init__(self, pending: int, message: tuple[int, int] | None) -> None:
        self.pending = pending
        self.message = message


def create_reader(
    connection: Connection,
    stream: str,
    name: str,
    filters: tuple[str, ...],
    settings: Mapping[str, Any],
    *,
    left_to_stream: dict[str, Any],
) -> int:
    """Create a consumer by `jsapi.reader_config`; how many messages it has to deliver.

    What the stream insists on deciding itself is added to `left_to_stream`, for the next consumer on it. Raises what
    `Connection.api` raises.
    """
    context = f"create a consumer on stream {stream}"
    subject = jsapi.consumer_create(connection.prefix, stream, name, filters)
    while True:
        request = jsapi.create_request(stream, jsapi.reader_config(name, filters, **settings, **left_to_stream))
        try:
            body = connection.api(subject, request, context=context)
        except ApiError as error:
            setting = _LEFT_TO_STREAM.get(error.err_code)
            if setting is None or setting in left_to_stream:
                raise
            left_to_stream[setting] = None
        else:
            return int(jsapi.field(body, "num_pending", int, context))


def stream_state(body: Mapping[str, Any], context: str) -> StreamState:
    """A `StreamState` from the reply of STREAM.INFO; `ProtocolError` when something in it is missing."""

    def number(path: str, default: int | None = None) -> int:
        try:
            return int(jsapi.field(body, path, int, context))
        except ProtocolError:
            if default is None:
                raise
            return default

    config = body.get("config")
    limits = config if isinstance(config, Mapping) else {}
    limited = any(number(f"config.{name}", 0) > 0 for name in ("max_age", "max_msgs", "max_bytes"))
    return StreamState(
        name=jsapi.field(body, "config.name", str, context),
        created=jsapi.field(body, "created", str, context),
        first_seq=number("state.first_seq"),
        last_seq=number("state.last_seq"),
        messages=number("state.messages"),
        bytes=number("state.bytes"),
        num_deleted=number("state.num_deleted", 0),
        last_timestamp=parse_time(str(limits and _last_time(body))),
        retention=jsapi.field(body, "config.retention", str, context),
        max_msgs_per_subject=number("config.max_msgs_per_subject", 0),
        has_age_or_size_limit=limited or limits.get("allow_msg_ttl") is True,
        allow_direct=limits.get("allow_direct") is True,
        server_time=parse_time(str(body.get("ts", ""))),
    )


def _last_time(body: Mapping[str, Any]) -> object:
    state = body.get("state")
    return state.get("last_ts", "") if isinstance(state, Mapping) else ""


def parse_time(text: str) -> int:
    """A time as the server prints it, in ns since the epoch; 0 for its "never" (year 1) and for no time at all."""
    try:
        return Time().parse("last_ts", text)
    except OptionError:
        return 0


def rfc3339(nanoseconds: int) -> str:
    """A time in ns since the epoch as the server wants it, to the nanosecond."""
    seconds, fraction = divmod(nanoseconds, _SECOND)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def refuse_work_queue(state: StreamState) -> None:
    """A work queue hands each message to one consumer and removes it: reading by sequence is not possible there."""
    if state.retention == "workqueue":
        raise JetStreamError(
            f"stream {state.name} has work-queue retention, and reading it needs the option durable, which this "
            "version does not support yet"
        )
